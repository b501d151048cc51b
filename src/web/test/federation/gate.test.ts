/** What an owner is served; tests/web/golden_gate.py wrote what Python says. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { compare, type GateEvidence, helps } from "../../src/federation/gate.ts";
import { TASKS } from "../../src/strategies/tasks.ts";
import { float32, type Tensor } from "../../src/tensors/tensors.ts";

interface Case {
  readonly before: number[][];
  readonly now: number[][];
  readonly y: number[] | number[][];
  readonly evidence: GateEvidence;
  readonly helps: boolean;
}

const OUTPUTS = 3;
const cases = JSON.parse(readFileSync(new URL("../golden/gate.json", import.meta.url), "utf8")) as Case[];

function tensor(rows: readonly number[][]): Tensor {
  return float32([rows.length, OUTPUTS], Float32Array.from(rows.flat()));
}

function truths({ y, evidence }: Case): Tensor {
  if (evidence.task !== "classification") return tensor(y as number[][]);
  return { dtype: "int64", shape: [y.length], data: BigInt64Array.from(y as number[], BigInt) };
}

test("the evidence and the decision are Python's", () => {
  const decided = new Set<boolean>();
  for (const one of cases) {
    const { task, fleet, ...expected } = one.evidence;
    const found = compare(TASKS[task], tensor(one.before), tensor(one.now), truths(one));
    assert.deepEqual([found.task, found.fleet], [task, null]);
    for (const [name, value] of Object.entries(expected)) {
      const got = found[name as keyof typeof expected];
      assert.ok(Math.abs(got - value) <= 1e-6 * Math.max(1, Math.abs(value)), `${task}, ${name}: expected ${value}, got ${got}`);
    }
    assert.equal(helps({ ...found, fleet }), one.helps, JSON.stringify(one.evidence));
    decided.add(one.helps);
  }
  assert.deepEqual(decided, new Set([true, false]));
});
