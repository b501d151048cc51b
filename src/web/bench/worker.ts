/** The browser's side of `steps.ts`: opens a bundle and times its training program in a module Worker. */

import { openBundle } from "../src/bundle/bundle.ts";
import { Programs } from "../src/runtime/programs.ts";
import { defaultRng } from "../src/runtime/random.ts";
import { initials } from "../src/strategies/settings.ts";
import { Trainer } from "../src/strategies/training.ts";
import { TRAINING } from "../src/strategies/training_settings.ts";
import { TASK_LOSS } from "../src/strategies/types.ts";
import { float32, sizeOf } from "../src/tensors/tensors.ts";
import type { Tensor } from "../src/tensors/tensors.ts";

/** What a page asks: open a bundle, or make so many calls of one kind. */
export type Request =
  | { readonly open: string; readonly batch: number }
  | { readonly call: "step" | "train"; readonly count: number };

type Calls = Readonly<Record<"step" | "train", () => Promise<unknown>>>;

let calls: Calls | undefined;

async function open(url: string, batch: number): Promise<Calls> {
  const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
  const bundle = await openBundle(bytes, { anySigner: true });
  const programs = Programs.open(bundle);
  const rng = defaultRng([0n]);
  const shape = [batch, ...bundle.manifest.preprocessing.input_shape];
  const x = float32(shape, new Float32Array(sizeOf(shape)));
  rng.normal(x.data as Float32Array);
  const classes = bundle.manifest.classes.length;
  const labels = BigInt64Array.from({ length: batch }, (_, at) => BigInt(at % classes));
  const y: Tensor = { dtype: "int64", shape: [batch], data: labels };
  const gradFn = programs.gradFns.get(TASK_LOSS)!;
  const tools = { name: "bench", x, y, gradFns: programs.gradFns, rng, minBatch: programs.minBatch, work: 1 };
  const trainer = new Trainer(bundle.model().network, tools, initials(TRAINING));
  const rows = Int32Array.from({ length: batch }, (_, at) => at);
  const { network } = bundle.model();
  return {
    step: () => gradFn(network, new Map([["x", x], ["y", y]]), rng),
    train: () => trainer.step(rows),
  };
}

/** Milliseconds: of opening and the first call, or the mean of the calls. */
async function answer(request: Request): Promise<number> {
  const began = performance.now();
  if ("open" in request) {
    calls = await open(request.open, request.batch);
    await calls.step();
    return performance.now() - began;
  }
  for (let call = 0; call < request.count; call += 1) await calls![request.call]();
  return (performance.now() - began) / request.count;
}

self.addEventListener("message", ({ data }: MessageEvent<Request>) => {
  void answer(data).then(
    (ms) => self.postMessage({ ms }),
    (error: unknown) => self.postMessage({ failed: String(error) }),
  );
});
