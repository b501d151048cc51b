/** What an owner is served; tests/web/golden_gate.py wrote what Python says. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  compare, type ComparedExamples, foldsOf, following, type GateEvidence, heldOutGain, type HeldOutGain, helps, isOneClass, nextFold,
  NO_EXAMPLES, pooled, withFold,
} from "../../src/federation/gate.ts";
import { TASKS } from "../../src/strategies/tasks.ts";
import { float32, type Tensor } from "../../src/tensors/tensors.ts";

interface Case {
  readonly before: number[][];
  readonly now: number[][];
  readonly y: number[] | number[][];
  readonly evidence: GateEvidence;
  readonly helps: boolean;
}

interface Round {
  readonly tests: ComparedExamples;
  readonly next_fold: number | null;
  readonly fold: ComparedExamples | null;
  readonly evidence: GateEvidence;
  readonly held_out: HeldOutGain | null;
}

const OUTPUTS = 3;
const golden = JSON.parse(readFileSync(new URL("../golden/gate.json", import.meta.url), "utf8")) as {
  readonly cases: Case[];
  readonly rounds: Round[];
  readonly folds: { readonly y: number[]; readonly count: number; readonly folds: number[] }[];
};

function tensor(rows: readonly number[][]): Tensor {
  return float32([rows.length, OUTPUTS], Float32Array.from(rows.flat()));
}

function labels(y: readonly number[]): Tensor {
  return { dtype: "int64", shape: [y.length], data: BigInt64Array.from(y, BigInt) };
}

function truths({ y, evidence }: Case): Tensor {
  return evidence.task === "classification" ? labels(y as number[]) : tensor(y as number[][]);
}

function assertNear(got: unknown, expected: unknown, where: string): void {
  if (typeof expected !== "number") return assert.deepEqual(got, expected, where);
  const near = Math.abs(Number(got) - expected) <= 1e-6 * Math.max(1, Math.abs(expected));
  assert.ok(near, `${where}: expected ${expected}, got ${String(got)}`);
}

test("the evidence and the decision are Python's", () => {
  const decided = new Set<boolean>();
  for (const one of golden.cases) {
    const { task, fleet, tests, ...expected } = one.evidence;
    const found = pooled(task, compare(TASKS[task], tensor(one.before), tensor(one.now), truths(one)));
    assert.deepEqual([found.task, found.fleet], [task, null]);
    for (const [name, value] of Object.entries(tests)) assertNear(found.tests[name as keyof ComparedExamples], value, name);
    for (const [name, value] of Object.entries(expected)) assertNear(found[name as keyof GateEvidence], value, name);
    assert.equal(helps({ ...found, fleet }), one.helps, JSON.stringify(one.evidence));
    decided.add(one.helps);
  }
  assert.deepEqual(decided, new Set([true, false]));
});

test("folds are gathered over rounds as in Python", () => {
  let evidence: GateEvidence | null = null;
  for (const round of golden.rounds) {
    evidence = following(pooled("classification", round.tests), evidence);
    assert.equal(nextFold(evidence), round.next_fold);
    if (round.fold !== null) evidence = withFold(evidence, round.fold);
    assert.deepEqual(evidence, round.evidence);
    assert.deepEqual(heldOutGain(evidence), round.held_out);
  }
});

test("examples go to the folds that Python has", () => {
  for (const { y, count, folds } of golden.folds) assert.deepEqual(foldsOf(labels(y), count), folds);
  assert.deepEqual(foldsOf(float32([4, 1], new Float32Array(4)), 2), [0, 0, 1, 1]);
  assert.deepEqual([isOneClass(labels([]), labels([2])), isOneClass(labels([2]), labels([1]))], [true, false]);
  assert.deepEqual([isOneClass(labels([]), labels([])), isOneClass(float32([2, 1], new Float32Array(2)))], [false, false]);
  const alike = { ...pooled("classification", { examples: 40, before: 0, now: 40, gain: 40, squares: 40 }), oneClass: true };
  assert.deepEqual([helps(alike), nextFold(alike), helps({ ...alike, oneClass: false })], [false, null, true]);
});

test("a store of an earlier version has no folds", () => {
  const { tests: _tests, folds: _folds, heldOut: _heldOut, rounds: _rounds, ...before } = pooled("classification", NO_EXAMPLES);
  const now = pooled("classification", { examples: 4, before: 1, now: 3, gain: 2, squares: 2 });
  assert.equal(following(now, before).examples, 4);
  assert.equal(nextFold(following(now, before)), 0);
  assert.equal(heldOutGain(before), null);
  assert.equal(withFold(before as GateEvidence, now.tests).examples, 4);
});
