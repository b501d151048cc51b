/** Losses, statistics and scores of every task; tests/web/golden_tasks.py wrote what Python says. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { TASKS } from "../../src/strategies/tasks.ts";
import type { TaskName } from "../../src/strategies/types.ts";
import { float32 } from "../../src/tensors/tensors.ts";
import type { Tensor } from "../../src/tensors/tensors.ts";

/** Null is NaN, and a word an infinity. */
type Stored = number | string | null;

interface Case {
  task: TaskName;
  outputs: Stored[][];
  y: number[] | number[][];
  statistics: number[][];
  losses: Record<string, Stored>;
  scores: Record<string, Stored>;
  quality: Stored;
  worths: number[];
}

const OUTPUTS = 4;
const cases = JSON.parse(readFileSync(new URL("../golden/tasks.json", import.meta.url), "utf8")) as Case[];

function numberOf(stored: Stored): number {
  return typeof stored === "number" ? stored : stored === null ? NaN : Infinity;
}

function assertNumber(found: number, expected: Stored, what: string): void {
  const wanted = numberOf(expected);
  const close = Object.is(found, wanted) || Math.abs(found - wanted) <= 1e-12 * Math.max(1, Math.abs(wanted));
  assert.ok(close, `${what}: expected ${wanted}, got ${found}`);
}

function truths(y: Case["y"], task: TaskName): Tensor {
  if (task === "classification") {
    return { dtype: "int64", shape: [y.length], data: BigInt64Array.from(y as number[], BigInt) };
  }
  return float32([y.length, OUTPUTS], Float32Array.from(y.flat()));
}

cases.forEach((one, at) => {
  test(`${one.task} of ${one.y.length} examples is scored as in Python (case ${at})`, () => {
    const task = TASKS[one.task];
    const rows = one.outputs.length;
    const outputs = float32([rows, OUTPUTS], Float32Array.from(one.outputs.flat().map(numberOf)));
    const y = truths(one.y, one.task);
    task.checkLabels("y", y, OUTPUTS);
    const statistics = task.statistics(outputs, y, OUTPUTS);
    one.statistics.flat().forEach((value, index) => assertNumber(statistics.flat()[index]!, value, `sum ${index}`));
    for (const [name, loss] of task.losses) assertNumber(loss(outputs, y), one.losses[name]!, name);
    const scores = Object.entries(task.score(statistics));
    assert.equal(scores.length, Object.keys(one.scores).length);
    for (const [name, value] of scores) assertNumber(value, one.scores[name]!, name);
    assertNumber(task.quality(statistics), one.quality, "quality");
    const worths = task.worths(outputs, y);
    assert.equal(worths.length, one.worths.length);
    worths.forEach((worth, row) => assertNumber(worth, one.worths[row]!, `worth ${row}`));
  });
});

test("a task's own loss is found among objectives, else the default", () => {
  assert.equal(TASKS.regression.lossOf(["moon", "huber"]), "huber");
  assert.equal(TASKS.regression.lossOf(["moon"]), "mse");
});

test("true values of another kind are refused with what to do", () => {
  const rows = float32([1, 2], Float32Array.of(0, 0.5));
  assert.throws(() => TASKS.classification.checkLabels("y", rows, 2), /y: expected \(n,\) int64 class numbers/);
  const classes: Tensor = { dtype: "int64", shape: [2], data: BigInt64Array.of(0n, 2n) };
  assert.throws(() => TASKS.classification.checkLabels("y", classes, 2), /expected classes 0…1, got 2/);
  assert.throws(() => TASKS.multilabel.checkLabels("y", rows, 2), /expected 0 and 1 for each of 2 labels, got 0.5/);
  assert.throws(() => TASKS.regression.checkLabels("y", rows, 3), /expected \(n, 3\) float32/);
  const endless = float32([1, 1], Float32Array.of(Infinity));
  assert.throws(() => TASKS.regression.checkLabels("y", endless, 1), /got NaN, infinite or larger ones/);
});
