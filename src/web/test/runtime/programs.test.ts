/** Programs of exported bundles in WebAssembly against the Python runtime, and what is refused. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import type { Manifest } from "../../src/bundle/manifest.ts";
import { Evaluator } from "../../src/runtime/evaluation.ts";
import { EVALUATION_BATCH, Programs } from "../../src/runtime/programs.ts";
import { clientRng, defaultRng } from "../../src/runtime/random.ts";
import { TASK_LOSS } from "../../src/strategies/types.ts";
import { float32, Layout, TensorMap } from "../../src/tensors/tensors.ts";
import type { Tensor } from "../../src/tensors/tensors.ts";
import { openCase } from "./cases.ts";
import type { Case } from "./cases.ts";

/** Of the largest entry: what the order of additions changes. */
const TOLERANCE = 1e-5;

function assertClose(found: Float32Array, expected: Float32Array, what: string): void {
  assert.equal(found.length, expected.length, what);
  let worst = 0;
  let largest = 0;
  for (let at = 0; at < found.length; at += 1) {
    worst = Math.max(worst, Math.abs(found[at]! - expected[at]!));
    largest = Math.max(largest, Math.abs(expected[at]!));
  }
  assert.ok(worst <= TOLERANCE * largest, `${what}: differs by ${worst} of ${largest}`);
}

function floats({ data }: Tensor): Float32Array {
  return data as Float32Array;
}

async function assertStepsAgree(one: Case, programs: Programs): Promise<void> {
  for (const stored of one.stored.steps) {
    const batch = new Map(Object.entries(stored.inputs).map(([key, value]) => [key, one.tensor(value)]));
    const rng = await clientRng(5n, 2, stored.objective);
    const gradFn = programs.gradFns.get(stored.objective)!;
    for (const loss of stored.losses) {
      const step = await gradFn(one.network(), batch, rng);
      assert.ok(Math.abs(step.loss - loss) <= TOLERANCE * Math.abs(loss), `${stored.objective}: ${step.loss}`);
      if (loss !== stored.losses.at(-1)) continue;
      assertClose(step.grads.buffer, floats(one.tensor(stored.grads)), `${stored.objective}: gradients`);
      assertClose(step.buffers.buffer, floats(one.tensor(stored.buffers)), `${stored.objective}: buffers`);
    }
  }
}

for (const name of ["mlp", "cnn_prototypes", "vit_digits"]) {
  test(`${name}: every program gives the numbers of the Python runtime`, async () => {
    const one = openCase(name);
    const programs = Programs.open(one);
    await assertStepsAgree(one, programs);
    const x = one.tensor(one.stored.x);
    assertClose(floats(await programs.predict(one.network(), x)), floats(one.tensor(one.stored.logits)), "logits");
    const features = await programs.features(one.network(), x);
    assertClose(floats(features), floats(one.tensor(one.stored.features)), "features");
    assert.deepEqual(features.shape, one.stored.features.shape);
    await programs.close();
  });
}

test("the task's own loss is found under its common name", () => {
  const programs = Programs.open(openCase("mlp"));
  assert.equal(programs.gradFns.get(TASK_LOSS), programs.gradFns.get("cross_entropy"));
  assert.equal(programs.minBatch, 1);
});

test("a test part is scored in batches, and none at all leaves nothing to say", async () => {
  const one = openCase("mlp");
  const programs = Programs.open(one);
  const x = one.tensor(one.stored.x);
  const logits = floats(one.tensor(one.stored.logits));
  const rows = x.shape[0]!;
  assert.ok(rows > EVALUATION_BATCH);
  const said = Array.from({ length: rows }, (_, at) => {
    const row = [...logits.subarray(4 * at, 4 * at + 4)];
    return row.indexOf(Math.max(...row));
  });
  const y: Tensor = { dtype: "int64", shape: [rows], data: BigInt64Array.from(said, BigInt) };
  const scored = await new Evaluator(programs, "classification", 4, { x, y }).evaluate(one.network());
  assert.equal(scored.own!.reduce((sum, row, at) => sum + row[at]!, 0), rows);
  assert.ok(scored.ownLoss > 0);
  const empty = { x: float32([0, 20], new Float32Array()), y: { ...y, shape: [0], data: new BigInt64Array() } };
  const nothing = await new Evaluator(programs, "classification", 4, empty).evaluate(one.network());
  assert.deepEqual([nothing.own, nothing.ownLoss], [null, NaN]);
});

test("other tasks of the worker get their turn while a model trains", async () => {
  const one = openCase("vit_digits");
  const gradFn = Programs.open(one).gradFns.get(TASK_LOSS)!;
  const [stored] = one.stored.steps;
  const batch = new Map(Object.entries(stored!.inputs).map(([key, value]) => [key, one.tensor(value)]));
  let turns = 0;
  const ticking = setInterval(() => (turns += 1), 1);
  for (let step = 0; step < 500 && turns < 3; step += 1) await gradFn(one.network(), batch, defaultRng([0n]));
  clearInterval(ticking);
  assert.ok(turns >= 3, `${turns} turns`);
});

test("calls that overlap get the results of calls that do not", async () => {
  const one = openCase("mlp");
  const programs = Programs.open(one);
  const x = one.tensor(one.stored.x);
  const [first, second, features] = await Promise.all([
    programs.predict(one.network(), x),
    programs.predict(one.network(), x),
    programs.features(one.network(), x),
  ]);
  assertClose(floats(first), floats(one.tensor(one.stored.logits)), "first");
  assert.deepEqual(floats(second), floats(first));
  assertClose(floats(features), floats(one.tensor(one.stored.features)), "features");
});

test("other networks, batches and shapes are refused by name", async () => {
  const one = openCase("mlp");
  const programs = Programs.open(one);
  const network = one.network();
  const gradFn = programs.gradFns.get(TASK_LOSS)!;
  const rng = defaultRng([0n]);
  const y: Tensor = { dtype: "int64", shape: [2], data: new BigInt64Array(2) };
  const x = float32([2, 20], new Float32Array(40));
  const other = { ...network, params: TensorMap.zeros(new Layout([["w", [3]]])) };
  await assert.rejects(gradFn(other, new Map([["x", x], ["y", y]]), rng), /params: expected the bundle's 6 tensors of 70788 numbers, got 1 of 3/);
  await assert.rejects(gradFn(network, new Map([["x", x]]), rng), /input 'y': expected \[batch\] int64, got nothing/);
  const wide = float32([2, 21], new Float32Array(42));
  await assert.rejects(gradFn(network, new Map([["x", wide], ["y", y]]), rng), {
    name: "InputError",
    message: /input 'x': expected \[2, 20\] float32, got \[2, 21\] float32/,
  });
  await assert.rejects(programs.predict(network, x, 0), /batch_size: expected at least 1, got 0/);
});

function changed(one: Case, change: (manifest: any) => void): { manifest: Manifest; file: Case["file"] } {
  const manifest = structuredClone(one.manifest);
  change(manifest);
  return { manifest, file: (name) => one.file(name) };
}

test("programs that contradict the manifest are refused", async () => {
  const one = openCase("mlp");
  const x = one.tensor(one.stored.x);
  const layout = changed(one, ({ params }) => (params[0].shape = [3]));
  assert.throws(() => Programs.open(layout), /is \[3\] float32 in the bundle, got/);
  const file = changed(one, ({ programs }) => (programs.infer.file = null));
  assert.throws(() => Programs.open(file), /its program 'infer' has no ONNX file; export the model anew/);
  const renamed = changed(one, ({ programs }) => (programs.infer.inputs.at(-1).name = "z"));
  await assert.rejects(Programs.open(renamed).predict(one.network(), x), /no port for its input 'x'/);
  const swapped = changed(one, ({ programs }) => (programs.infer.file = "params.safetensors"));
  await assert.rejects(Programs.open(swapped).predict(one.network(), x), {
    name: "ProvisionError",
    message: /program 'params.safetensors': does not load/,
  });
  const none = changed(one, ({ programs }) => delete programs.features);
  await assert.rejects(async () => Programs.open(none).features(one.network(), x), /has no program 'features'/);
});

test("a browser whose WebAssembly does not start is told so, not that the bundle is bad", () => {
  const script = `
    const { openCase } = await import("./cases.ts");
    const { Programs } = await import("../../src/runtime/programs.ts");
    delete globalThis.WebAssembly;
    const one = openCase("mlp");
    const predict = () => Programs.open(one).predict(one.network(), one.tensor(one.stored.x));
    for (const _ of [1, 2]) await predict().catch((error) => console.log(error.name, error.message));
  `;
  const argv = ["--import", "tsx", "--input-type=module", "--eval", script];
  const cwd = fileURLToPath(new URL(".", import.meta.url));
  const { stdout, stderr } = spawnSync(process.execPath, argv, { cwd, encoding: "utf8" });
  const lines = stdout.trim().split("\n");
  assert.equal(lines.length, 2, stdout + stderr);
  for (const line of lines) assert.match(line, /^UnavailableError ONNX Runtime does not start in this browser: .*; reload/);
});
