import assert from "node:assert/strict";
import { test } from "node:test";

import type { Manifest } from "../../src/bundle/manifest.ts";
import type { Database, Write } from "../../src/device/database.ts";
import { OwnExamples } from "../../src/device/examples.ts";
import type { Examples } from "../../src/device/page_messages.ts";
import { InputError } from "../../src/errors.ts";

const MANIFEST = {
  task: "classification",
  classes: ["walk", "sit"],
  targets: [],
  preprocessing: { input_shape: [1], rate_hz: 10, window: 4, hop: 2, channels: ["x"], mean: [0], std: [1], tokens: null },
} as unknown as Manifest;

/** The one table that examples need, in memory. */
function table(): Database {
  const rows = new Map<number, unknown>();
  let next = 1;
  return {
    keys: async () => [...rows.keys()],
    getAll: async () => [...rows.values()],
    write: async (writes: readonly Write[]) => {
      if (writes.some((write) => "clear" in write)) rows.clear();
    },
    add: async (_table: string, record: unknown) => {
      const key = next++;
      rows.set(key, structuredClone(record));
      return key;
    },
  } as unknown as Database;
}

/** Examples whose input is their number. */
function examples(labels: readonly number[], changes: Partial<Examples> = {}, first = 0): Examples {
  return {
    x: { dtype: "float32", shape: [labels.length, 1], data: Float32Array.from(labels, (_, row) => first + row) },
    y: { dtype: "int64", shape: [labels.length], data: BigInt64Array.from(labels, BigInt) },
    follows: null,
    part: "both",
    ...changes,
  };
}

async function split(...batches: readonly Examples[]): Promise<[train: number[], test: number[]]> {
  const own = await OwnExamples.open(table(), MANIFEST);
  for (const batch of batches) await own.add(batch, "a test");
  const { train, test: held } = own.split();
  return [[...(train.x.data as Float32Array)], [...(held.x.data as Float32Array)]];
}

test("the last fifth of each class in time, rounded down, is the test part", async () => {
  const labels = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1];
  assert.deepEqual(await split(examples(labels)), [[0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17], [8, 9, 18]]);
  assert.deepEqual(await split(examples([0, 1, 0, 1])), [[0, 1, 2, 3], []]);
});

test("later batches come later", async () => {
  const [train, held] = await split(examples([0, 0, 0]), examples([0, 0], {}, 3));
  assert.deepEqual([train, held], [[0, 1, 2, 3], [4]]);
});

test("windows that overlap one of the test part are left out", async () => {
  const follows = [false, true, true, true, true, true, false, true];
  assert.deepEqual(await split(examples([0, 0, 0, 0, 0, 1, 0, 0], { follows })), [[0, 1, 2, 3, 4, 5], [7]]);
  assert.deepEqual(await split(examples([0, 0, 0, 0, 0, 1], { follows: follows.slice(0, 6) })), [[0, 1, 2], [4]]);
});

test("batches that come at once are all kept, in their order", async () => {
  const own = await OwnExamples.open(table(), MANIFEST);
  await Promise.all([0, 1, 2].map((first) => own.add(examples([0], {}, first), "a test")));
  assert.deepEqual([own.count, own.last, [...own.split().train.x.data as Float32Array]], [3, 3, [0, 1, 2]]);
});

test("a file that says which part its examples are is taken at its word", async () => {
  const [train, held] = await split(
    examples([0, 0, 0, 0, 0, 0], { part: "train" }),
    examples([1, 1], { part: "test" }, 6),
  );
  assert.deepEqual([train, held], [[0, 1, 2, 3, 4, 5], [6, 7]]);
});

test("a round sees the examples that there were when it began", async () => {
  const own = await OwnExamples.open(table(), MANIFEST);
  await own.add(examples([0, 1]), "a test");
  const { last } = own;
  await own.add(examples([0, 1, 1], {}, 2), "a test");
  assert.deepEqual([...(own.split(last).train.x.data as Float32Array)], [0, 1]);
  assert.deepEqual([own.count, own.counts, own.trainCounts], [5, [2, 3], [2, 3]]);
  await own.add(examples([1, 1, 1], {}, 5), "a test");
  assert.deepEqual([own.counts, own.trainCounts], [[2, 6], [2, 5]]);
});

test("what the bundle does not take changes nothing", async () => {
  const own = await OwnExamples.open(table(), MANIFEST);
  const x = { dtype: "float32", shape: [1, 2], data: new Float32Array(2) } as const;
  const wrong: [RegExp, Examples][] = [
    [/expected \(n, 1\) float32 as the bundle's input, got \(1, 2\) float32/, examples([0], { x })],
    [/a label is none of the 2 classes/, examples([2])],
    [/a number is NaN or infinite/, examples([0], { x: { dtype: "float32", shape: [1, 1], data: Float32Array.of(NaN) } })],
    [/expected 1 overlaps, got 2/, examples([0], { follows: [false, false] })],
    [/at least one/, examples([])],
  ];
  for (const [message, given] of wrong) {
    await assert.rejects(own.add(given, "a test"), (error) => error instanceof InputError && message.test(error.message));
  }
  assert.equal(own.count, 0);
});

test("examples that another bundle does not take are kept, and not used", async () => {
  const database = table();
  await (await OwnExamples.open(database, MANIFEST)).add(examples([0, 1]), "a test");
  const { preprocessing } = MANIFEST;
  for (const other of [
    { ...MANIFEST, classes: ["run", "lie"] },
    { ...MANIFEST, preprocessing: { ...preprocessing, channels: ["y"] } },
    { ...MANIFEST, task: "regression", classes: [], targets: ["walk"] } as const,
  ]) {
    assert.equal((await OwnExamples.open(database, other)).count, 0);
  }
  assert.equal((await OwnExamples.open(database, MANIFEST)).count, 2);
});

test("examples follow their classes by name, and the scale of the bundle's input", async () => {
  const database = table();
  await (await OwnExamples.open(database, MANIFEST)).add(examples([0, 1, 1, 0], { part: "train" }), "a test");
  const preprocessing = { ...MANIFEST.preprocessing, mean: [1], std: [2] };
  const next = await OwnExamples.open(database, { ...MANIFEST, classes: ["lie", "sit", "walk"], preprocessing });
  const { x, y } = next.split().train;
  assert.deepEqual([[...y.data], [...x.data]], [[2n, 1n, 1n, 2n], [-0.5, 0, 0.5, 1]]);
  const fewer = await OwnExamples.open(database, { ...MANIFEST, classes: ["sit"] });
  assert.deepEqual([...fewer.split().train.x.data], [1, 2]);
});

test("windows that overlapped one of a class that is gone overlap no other", async () => {
  const database = table();
  const follows = [false, true, true, true];
  await (await OwnExamples.open(database, MANIFEST)).add(examples([0, 0, 1, 0], { follows, part: "test" }), "a test");
  await (await OwnExamples.open(database, MANIFEST)).add(examples([0]), "a test");
  const { test: held } = (await OwnExamples.open(database, { ...MANIFEST, classes: ["walk"] })).split();
  assert.deepEqual([...held.x.data], [0, 1, 3]);
});
