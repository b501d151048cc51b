/** NumPy's numbers, bit for bit; tests/web/golden_random.py wrote them. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { clientRng, seedWords } from "../../src/runtime/random.ts";

interface Golden {
  seeds: { entropy: string[]; words: number[] }[];
  clients: {
    seed: string;
    round_id: number;
    client_id: string;
    uniform: number[];
    normal: number[];
    permutations: number[][];
    integers: { most: number; drawn: number }[];
    long_permutation: string;
    long_uniform: string;
    long_normal: string;
  }[];
}

const golden = JSON.parse(
  readFileSync(new URL("../golden/random.json", import.meta.url), "utf8"),
) as Golden;
const LONG = 300_000;

function sha256(values: Int32Array | Float32Array): string {
  return createHash("sha256").update(new Uint8Array(values.buffer)).digest("hex");
}

test("seed sequences give NumPy's words, for entropy of any length", () => {
  for (const { entropy, words } of golden.seeds) {
    assert.deepEqual([...seedWords(entropy.map(BigInt), words.length)], words);
  }
});

test("the numbers in docs/protocol.md are drawn", async () => {
  const page = readFileSync(new URL("../../../../docs/protocol.md", import.meta.url), "utf8");
  const [, example = ""] = /## Randomness of a round.*?```text\n(.*?)\n```/s.exec(page) ?? [];
  const expected = example.split("\n").map((line) => line.split(" ").map(Number));
  const rng = await clientRng(1n, 3, "pi-7");
  const uniform = new Float32Array(3);
  const normal = new Float32Array(3);
  rng.uniform(uniform);
  rng.normal(normal);
  assert.deepEqual([[...uniform], [...normal], [...rng.permutation(8)]], expected);
});

for (const one of golden.clients) {
  test(`client '${one.client_id}' draws what NumPy draws for it in round ${one.round_id}`, async () => {
    const rng = await clientRng(BigInt(one.seed), one.round_id, one.client_id);
    const uniform = new Float32Array(one.uniform.length);
    const normal = new Float32Array(one.normal.length);
    rng.uniform(uniform);
    rng.normal(normal);
    assert.deepEqual([...uniform], one.uniform);
    assert.deepEqual([...normal], one.normal);
    for (const order of one.permutations) {
      assert.deepEqual([...rng.permutation(order.length)], order);
    }
    for (const { most, drawn } of one.integers) assert.equal(rng.integer(most), drawn);
    assert.equal(sha256(rng.permutation(100_003)), one.long_permutation);
    const many = new Float32Array(LONG + 1);
    rng.uniform(many);
    assert.equal(sha256(many), one.long_uniform);
    const normals = new Float32Array(LONG);
    rng.normal(normals);
    assert.equal(sha256(normals), one.long_normal);
  });
}
