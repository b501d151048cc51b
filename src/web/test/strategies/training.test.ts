/** Passes over examples: batches, spans, clipping, divergence, with a gradient in closed form. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { defaultRng } from "../../src/runtime/random.ts";
import { batches, checkBatchSizes, type ExampleRows, passes, spans, train, Trainer } from "../../src/strategies/training.ts";
import { sgd, TRAINING } from "../../src/strategies/training_settings.ts";
import type { Training } from "../../src/strategies/training_settings.ts";
import { workOf } from "../../src/strategies/index.ts";
import { initials } from "../../src/strategies/settings.ts";
import type { GradFn, TrainTools } from "../../src/strategies/types.ts";
import { float32, Layout, TensorMap } from "../../src/tensors/tensors.ts";
import type { Network } from "../../src/tensors/tensors.ts";

const layout = new Layout([["w", [1]]]);
const counted = new Layout([["steps", [1]]]);

function training(differing: Partial<Training>): Training {
  return { ...initials(TRAINING), optimiser: sgd({ lr: 0.5 }), epochs: 1, ...differing };
}

/** Loss (w - mean(x))² / 2; buffers of its own count the steps. */
const towardsMean: GradFn = async ({ params, buffers }, batch) => {
  const x = batch.get("x")!.data as Float32Array;
  const away = params.buffer[0]! - x.reduce((sum, value) => sum + value, 0) / x.length;
  return {
    loss: away ** 2 / 2,
    grads: new TensorMap(layout, Float32Array.of(away)),
    buffers: new TensorMap(counted, Float32Array.of(buffers.buffer[0]! + 1)),
  };
};

function toolsOf(x: number[], gradFn: GradFn = towardsMean, minBatch = 1): TrainTools {
  return {
    name: "client 'a'",
    x: float32([x.length, 1], Float32Array.from(x)),
    y: { dtype: "int64", shape: [x.length], data: new BigInt64Array(x.length) },
    gradFns: new Map([["task_loss", gradFn]]),
    rng: defaultRng([1n]),
    minBatch,
    work: 1,
  };
}

function start(): Network {
  return { params: TensorMap.zeros(layout), buffers: TensorMap.zeros(counted) };
}

test("a batch of all examples moves the parameter where the formula says, in the memory that was given", async () => {
  const network = start();
  const trained = await train(network, toolsOf([1, 2, 3]), training({ epochs: 2 }));
  assert.equal(network.params.buffer[0], 1.5); // 0 → 1 → 1.5
  assert.equal(network.buffers.buffer[0], 2);
  assert.equal(trained.network.params, network.params);
  assert.equal(trained.loss, 0.5);
  assert.equal(trained.steps, 2);
});

test("less work is the first steps of all of them, as in the Python device", async () => {
  const differing = { epochs: 3, batchSize: 4 };
  const seen = async (work: number): Promise<number[][]> => {
    const rows: number[][] = [];
    const step = async (some: ExampleRows): Promise<number> => rows.push([...some]);
    await passes(step, { ...toolsOf([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), work }, training(differing));
    return rows;
  };
  const whole = await seen(1);
  assert.equal(whole.length, 9);
  assert.deepEqual(await seen(0.5), whole.slice(0, 5));
  assert.deepEqual(await seen(1 / 3), whole.slice(0, 3));
  assert.deepEqual(await seen(1e-9), whole.slice(0, 1));
  assert.deepEqual([workOf("fedprox", 0.5), workOf("fedproto", 0.5)], [0.5, 1]);
});

test("the proximal term pulls towards its reference, and clipping bounds the gradient before", async () => {
  const network = start();
  const reference = new TensorMap(layout, Float32Array.of(4));
  await train(network, toolsOf([2]), training({ clipNorm: 1 }), { proximal: { mu: 0.5, reference } });
  // The gradient -2 is cut to about -1, and 0.5 · (0 - 4) added: 0.5 · 3 = 1.5.
  assert.ok(Math.abs(network.params.buffer[0]! - 1.5) < 1e-5);
});

test("a parameter that a training call has set is there before the optimiser moves it", async () => {
  const rewritten = new Layout([["w_rewritten", [1]]]);
  const setsToSix: GradFn = async () => ({
    loss: 1,
    grads: new TensorMap(layout, Float32Array.of(4)),
    buffers: new TensorMap(rewritten, Float32Array.of(6)),
  });
  const network = { params: TensorMap.zeros(layout), buffers: TensorMap.zeros(rewritten) };
  await train(network, toolsOf([1], setsToSix), training({}));
  assert.equal(network.params.buffer[0], 4); // 6 - 0.5 · 4
});

test("inputs of an objective are asked for the rows of each batch", async () => {
  const asked: number[] = [];
  const inputs = (rows: Int32Array) => {
    asked.push(...rows);
    return new Map();
  };
  await train(start(), toolsOf([5, 6, 7]), training({ batchSize: 2 }), { inputs });
  assert.deepEqual(asked.sort(), [0, 1, 2]);
});

test("a loss that is not finite ends training with a sentence", async () => {
  const bad: GradFn = async (network) => ({ loss: NaN, grads: network.params, buffers: network.buffers });
  const trainer = new Trainer(start(), toolsOf([1], bad), training({}));
  await assert.rejects(trainer.step(Int32Array.of(0)), {
    name: "DivergedError",
    message: /client 'a': expected a finite loss of 'task_loss', got NaN; lower the learning rate/,
  });
  assert.throws(
    () => new Trainer(start(), toolsOf([1]), training({}), { objective: "moon" }),
    /needs a training program 'moon', the bundle has task_loss/,
  );
});

test("no examples, no loss: nothing is trained", async () => {
  const trained = await train(start(), toolsOf([]), training({}));
  assert.ok(Number.isNaN(trained.loss));
  assert.equal(trained.steps, 0);
  assert.ok(Number.isNaN((await train(start(), toolsOf([1], towardsMean, 2), training({}))).loss));
});

test("spans are full but the last, and none is smaller than the programs take", () => {
  assert.deepEqual(spans(5, 2, 1), [[0, 2], [2, 4], [4, 5]]);
  assert.deepEqual(spans(5, 2, 2), [[0, 2], [2, 5]]);
  assert.deepEqual(spans(4, 2, 2), [[0, 2], [2, 4]]);
  assert.deepEqual(spans(1, 2, 2), []);
  assert.deepEqual(spans(0, 2, 1), []);
});

test("drop_last leaves out what fills no batch", () => {
  const sizes = batches(5, training({ batchSize: 2, dropLast: true }), toolsOf([])).map((rows) => rows.length);
  assert.deepEqual(sizes, [2, 2]);
  assert.deepEqual(batches(1, training({ batchSize: 2, dropLast: true }), toolsOf([])), []);
});

test("batches that are too small are refused in settings", () => {
  assert.throws(() => checkBatchSizes(new Map([["batch_size", 1]]), 2), /setting 'batch_size': expected at least 2, got 1/);
  checkBatchSizes(new Map([["batch_size", 2]]), 2);
});
