/** The Python optimisers' bits; tests/web/golden_optimisers.py wrote the hashes. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { defaultRng } from "../../src/runtime/random.ts";
import { Optimiser } from "../../src/strategies/optimisers.ts";
import { adam, optimiser } from "../../src/strategies/training_settings.ts";
import { Layout, TensorMap } from "../../src/tensors/tensors.ts";
import type { TensorData } from "../../src/tensors/tensors.ts";

interface Case {
  optimiser: Record<string, unknown>;
  names?: string[];
  clip_norm?: number;
  mu?: number;
  params: string;
  moments: Record<string, string>;
}

const cases = JSON.parse(
  readFileSync(new URL("../golden/optimisers.json", import.meta.url), "utf8"),
) as Case[];
const layout = new Layout([["a", [40, 25]], ["b", [500]], ["c", [10, 100]]]);

function sha256({ buffer, byteOffset, byteLength }: TensorData): string {
  return createHash("sha256").update(new Uint8Array(buffer, byteOffset, byteLength)).digest("hex");
}

for (const one of cases) {
  const { params: expected, moments, ...described } = one;
  test(`moves parameters to the bits of Python: ${JSON.stringify(described)}`, () => {
    const rng = defaultRng([5n]);
    const drawn = (): TensorMap => {
      const made = TensorMap.zeros(layout);
      rng.normal(made.buffer);
      return made;
    };
    const params = drawn();
    const reference = drawn();
    const settings = optimiser().read("optimiser", one.optimiser);
    let moving = new Optimiser(layout, [{ ...(one.names && { names: one.names }), optimiser: settings }]);
    for (let step = 0; step < 4; step += 1) {
      const grads = drawn();
      if (one.clip_norm !== undefined) moving.clip(grads, one.clip_norm);
      moving.step(params, grads, one.mu === undefined ? null : { mu: one.mu, reference });
      // Going on from kept moments is the same as going on.
      moving = new Optimiser(layout, [{ ...(one.names && { names: one.names }), optimiser: settings }], moving.moments());
    }
    assert.equal(sha256(params.buffer), expected);
    const found = Object.fromEntries([...moving.moments()].map(([name, { data }]) => [name, sha256(data)]));
    assert.deepEqual(found, moments);
  });
}

test("names of no parameter and moments of another shape are refused", () => {
  assert.throws(() => new Optimiser(layout, [{ names: ["d"], optimiser: adam() }]), /got 'd'/);
  const kept = new Optimiser(new Layout([["a", [3]]]), [{ optimiser: adam() }]).moments();
  assert.throws(
    () => new Optimiser(layout, [{ optimiser: adam() }], kept),
    /kept moments 'optimiser\/0.0': expected \[2500\] float32, got \[3\] float32/,
  );
});
