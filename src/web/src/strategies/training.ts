/** Local training: passes over a client's examples through one training program, as `strategies/training.py`. */

import { DivergedError, InputError } from "../errors.ts";
import { rowsOf, TensorMap } from "../tensors/tensors.ts";
import type { Network, Tensor, Tensors } from "../tensors/tensors.ts";
import { Optimiser } from "./optimisers.ts";
import type { Group, Proximal } from "./optimisers.ts";
import type { Training } from "./training_settings.ts";
import { TASK_LOSS } from "./types.ts";
import type { Batch, GradFn, TrainTools } from "./types.ts";

/** Numbers of examples. */
export type ExampleRows = Int32Array;

/** Behind a parameter's name: the buffer with what a training call has set it to, for the step to put there. */
const REWRITTEN = "_rewritten";

/** What a strategy changes about a training step. */
export interface LocalObjective {
  /** The training program; the task's own loss unless the method has another. */
  readonly objective?: string;
  /** The objective's further inputs for the examples of these numbers. */
  readonly inputs?: (rows: ExampleRows) => Batch;
  /** What moves, and how; absent: every parameter by `Training.optimiser`. */
  readonly groups?: readonly Group[];
  /** Of an earlier round (`Trained.moments`); absent: fresh ones. */
  readonly moments?: Tensors;
  readonly proximal?: Proximal;
  /** Added to the gradient. */
  readonly correction?: TensorMap;
}

/** A model after local training. */
export interface Trained {
  /** The one that was given, where it lies. */
  readonly network: Network;
  /** Mean over the examples of the last epoch; NaN if no step was made. */
  readonly loss: number;
  /** Of the optimiser, for a strategy that keeps it. */
  readonly moments: Tensors;
  readonly steps: number;
}

/**
 * One network in training, in the memory that it is given in: every step writes its parameters, `trained`
 * its buffers. Who needs it as it was passes a copy.
 */
export class Trainer {
  readonly #fit: LocalObjective;
  readonly #tools: TrainTools;
  readonly #clipNorm: number | null;
  readonly #optimiser: Optimiser;
  readonly #objective: string;
  readonly #gradFn: GradFn;
  readonly #network: Network;
  readonly #rewritten: readonly string[];
  #buffers: TensorMap;
  #steps = 0;

  constructor(network: Network, tools: TrainTools, training: Training, fit: LocalObjective = {}) {
    const groups = fit.groups?.length ? fit.groups : [{ optimiser: training.optimiser }];
    this.#fit = fit;
    this.#tools = tools;
    this.#clipNorm = training.clipNorm;
    this.#optimiser = new Optimiser(network.params.layout, groups, fit.moments ?? null);
    this.#objective = fit.objective ?? TASK_LOSS;
    this.#gradFn = programOf(tools, this.#objective);
    this.#network = network;
    this.#buffers = network.buffers;
    const buffers = new Set(network.buffers.layout.names);
    this.#rewritten = network.params.layout.names.filter((name) => buffers.has(name + REWRITTEN));
  }

  /** The network as it is now; the next step overwrites it. */
  get network(): Network {
    return { params: this.#network.params, buffers: this.#buffers };
  }

  /** Trains on the examples of these numbers; the mean loss before the step. */
  async step(rows: ExampleRows): Promise<number> {
    const { x, y, name, rng } = this.#tools;
    const batch = new Map<string, Tensor>([
      ["x", rowsOf(x, rows)],
      ["y", rowsOf(y, rows)],
      ...(this.#fit.inputs?.(rows) ?? []),
    ]);
    const step = await this.#gradFn(this.network, batch, rng);
    if (!Number.isFinite(step.loss)) {
      throw new DivergedError(
        `${name}: expected a finite loss of '${this.#objective}', got ${step.loss}; ` +
          "lower the learning rate or check the data",
      );
    }
    for (const parameter of this.#rewritten) {
      this.#network.params.view(parameter).set(step.buffers.view(parameter + REWRITTEN));
    }
    if (this.#clipNorm !== null) this.#optimiser.clip(step.grads, this.#clipNorm);
    const { proximal = null, correction = null } = this.#fit;
    this.#optimiser.step(this.#network.params, step.grads, proximal, correction);
    this.#buffers = step.buffers;
    this.#steps += 1;
    return step.loss;
  }

  /** The network as it is now, all of it in the memory that was given. */
  trained(loss: number): Trained {
    this.#network.buffers.buffer.set(this.#buffers.buffer);
    return { network: this.#network, loss, moments: this.#optimiser.moments(), steps: this.#steps };
  }
}

export function programOf(tools: TrainTools, objective: string): GradFn {
  const found = tools.gradFns.get(objective);
  if (found !== undefined) return found;
  throw new InputError(
    `${tools.name}: needs a training program '${objective}', the bundle has ` +
      `${[...tools.gradFns.keys()].sort().join(", ")}; export a bundle for this strategy`,
  );
}

/** Trains `network`, in place, on the examples, shuffled every epoch; throws DivergedError. */
export async function train(
  network: Network,
  tools: TrainTools,
  training: Training,
  fit: LocalObjective = {},
): Promise<Trained> {
  const trainer = new Trainer(network, tools, training, fit);
  return trainer.trained(await passes((rows) => trainer.step(rows), tools, training));
}

/** Gradient of the task's loss over all of the client's examples, enough of them to train. */
export async function meanGradient(network: Network, tools: TrainTools, training: Training): Promise<TensorMap> {
  const { layout } = network.params;
  const total = new Float64Array(layout.size);
  const all = Int32Array.from({ length: countOf(tools) }, (_, at) => at);
  for (const [start, stop] of spans(all.length, training.batchSize, tools.minBatch)) {
    const rows = all.subarray(start, stop);
    const batch = new Map([["x", rowsOf(tools.x, rows)], ["y", rowsOf(tools.y, rows)]]);
    const { grads } = await programOf(tools, TASK_LOSS)(network, batch, tools.rng);
    for (let at = 0; at < total.length; at += 1) total[at] = total[at]! + grads.buffer[at]! * rows.length;
  }
  return new TensorMap(layout, Float32Array.from(total, (sum) => sum / all.length));
}

/**
 * Calls `step` for every batch of every epoch, or for the first ones (`tools.work`).
 *
 * Returns the mean loss over the examples of the last epoch, as far as it went; NaN if there was no batch: no
 * examples, or fewer than the programs take.
 */
export async function passes(
  step: (rows: ExampleRows) => Promise<number>,
  tools: TrainTools,
  training: Training,
): Promise<number> {
  let loss = NaN;
  let left = mostSteps(tools, training);
  for (let epoch = 0; epoch < training.epochs && left > 0; epoch += 1) {
    let total = 0;
    let seen = 0;
    for (const rows of batches(countOf(tools), training, tools).slice(0, left)) {
      total += (await step(rows)) * rows.length;
      seen += rows.length;
      left -= 1;
    }
    loss = seen > 0 ? total / seen : NaN;
  }
  return loss;
}

/** Steps that the share of work allows, at least one. */
function mostSteps(tools: TrainTools, training: Training): number {
  if (tools.work >= 1) return Infinity;
  const perEpoch = epochSpans(countOf(tools), training, tools).length;
  return Math.max(1, Math.ceil(tools.work * training.epochs * perEpoch - 1e-9));
}

/** One epoch in random order, in batches of `spans`. */
export function batches(count: number, training: Training, tools: TrainTools): ExampleRows[] {
  const order = tools.rng.permutation(count);
  return epochSpans(count, training, tools).map(([a, b]) => order.subarray(a, b));
}

function epochSpans(count: number, training: Training, tools: TrainTools): [number, number][] {
  const stop = training.dropLast ? count - (count % training.batchSize) : count;
  return spans(stop, training.batchSize, tools.minBatch);
}

/**
 * Consecutive parts, from and up to, of `size` of so many examples, none of fewer than `minBatch`.
 *
 * A last part that would be smaller belongs to the one before it; so few examples in all make no part.
 */
export function spans(count: number, size: number, minBatch: number): [number, number][] {
  const starts: number[] = [];
  if (count >= minBatch) for (let start = 0; start < count; start += size) starts.push(start);
  if (starts.length > 1 && count - starts.at(-1)! < minBatch) starts.pop();
  return starts.map((start, at) => [start, starts[at + 1] ?? count]);
}

function countOf(tools: TrainTools): number {
  return tools.y.shape[0]!;
}

const WHY_NOT_ONE = "the model normalises over the batch, and one example has no variance";

/** Throws InputError if a strategy's settings ask for smaller batches than the programs take. */
export function checkBatchSizes(batchSizes: ReadonlyMap<string, number>, minBatch: number): void {
  for (const [name, value] of batchSizes) {
    if (value < minBatch) {
      throw new InputError(`setting '${name}': expected at least ${minBatch}, got ${value}: ${WHY_NOT_ONE}`);
    }
  }
}
