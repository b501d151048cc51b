/** Opens a bundle's programs in this browser, as `runtime/programs.py` does on other devices. */

import type { Manifest } from "../bundle/manifest.ts";
import { ProvisionError } from "../errors.ts";
import { TASKS } from "../strategies/tasks.ts";
import { TASK_LOSS } from "../strategies/types.ts";
import type { GradFn } from "../strategies/types.ts";
import { Layout } from "../tensors/tensors.ts";
import type { Network, Tensor } from "../tensors/tensors.ts";
import { InferProgram, LazyProgram, TrainProgram } from "./program.ts";

/** ALP couples the examples of a batch, so the scores of the paper belong to this number. */
export const EVALUATION_BATCH = 32;

/** What the runtime needs of a bundle. */
export interface ProgramSource {
  readonly manifest: Manifest;
  /** The content of one file. */
  file(name: string): Uint8Array;
}

/** A bundle's programs; each is loaded at its first call, and all calls exclude each other. */
export class Programs {
  /** Training programs by objective; that of the task's own loss also as `TASK_LOSS`. */
  readonly gradFns: ReadonlyMap<string, GradFn>;
  /** Fewest examples that all training programs take at once. */
  readonly minBatch: number;
  readonly #name: string;
  readonly #sources: ReadonlyMap<string, LazyProgram>;
  readonly #inference: ReadonlyMap<string, InferProgram>;

  private constructor(name: string, task: Manifest["task"], sources: ReadonlyMap<string, LazyProgram>) {
    this.#name = `bundle '${name}'`;
    this.#sources = sources;
    this.minBatch = Math.max(1, ...[...sources.values()].map(({ program }) => program.min_batch));
    this.gradFns = gradFnsOf(task, sources);
    const inference = new Map<string, InferProgram>();
    for (const [program, output] of [["infer", "logits"], ["features", "features"]] as const) {
      const source = sources.get(program);
      if (source !== undefined) inference.set(program, new InferProgram(source, output));
    }
    this.#inference = inference;
  }

  /** Throws ProvisionError where a program's ports contradict the manifest or it has no ONNX file. */
  static open(bundle: ProgramSource): Programs {
    const { manifest } = bundle;
    const layouts = {
      params: new Layout(manifest.params.map(({ name, shape }) => [name, shape])),
      buffers: new Layout(manifest.state.map(({ name, shape }) => [name, shape])),
    };
    const sources = new Map<string, LazyProgram>();
    for (const [name, program] of Object.entries(manifest.programs)) {
      if (program.precision !== "float32") continue;
      const { file } = program;
      if (file === null) {
        throw new ProvisionError(
          `bundle '${manifest.name}': its program '${name}' has no ONNX file; export the model anew with ` +
            "--formats onnx",
        );
      }
      sources.set(name, new LazyProgram(file, program, layouts, () => bundle.file(file)));
    }
    return new Programs(manifest.name, manifest.task, sources);
  }

  /** Logits (n, C) of `x`, (n, …); a regression's values (n, T). Batches are consecutive rows. */
  predict(network: Network, x: Tensor, batchSize = EVALUATION_BATCH): Promise<Tensor> {
    return this.#required("infer").rows(network, x, batchSize);
  }

  /** Features (n, …) of `x`. */
  features(network: Network, x: Tensor, batchSize = EVALUATION_BATCH): Promise<Tensor> {
    return this.#required("features").rows(network, x, batchSize);
  }

  /** Gives the memory of all loaded programs back. */
  async close(): Promise<void> {
    for (const source of this.#sources.values()) await source.close();
  }

  #required(name: string): InferProgram {
    const found = this.#inference.get(name);
    if (found !== undefined) return found;
    throw new ProvisionError(`${this.#name}: has no program '${name}'; export the model anew`);
  }
}

function gradFnsOf(task: Manifest["task"], sources: ReadonlyMap<string, LazyProgram>): Map<string, GradFn> {
  const gradFns = new Map<string, GradFn>();
  for (const source of sources.values()) {
    const { objective } = source.program;
    if (objective === null) continue;
    const program = new TrainProgram(source);
    gradFns.set(objective, (network, batch, rng) => program.step(network, batch, rng));
  }
  const own = gradFns.get(TASKS[task].lossOf(gradFns.keys()));
  if (own !== undefined) gradFns.set(TASK_LOSS, own);
  return gradFns;
}
