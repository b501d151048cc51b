/**
 * Adaptive local aggregation (Zhang et al., AAAI 2023, arXiv:2212.01197): a client learns how much of each received
 * entry it takes over, as in `strategies/ala.py`.
 *
 * The last `layer_idx` shared tensors are mixed, all others taken over as received. The weights start as ones at a
 * client's first call, which passes over a part of the examples until the losses settle; they are kept for ever
 * after, and a later call makes exactly one pass.
 */

import { DivergedError } from "../errors.ts";
import { Layout, rowsOf, TensorMap } from "../tensors/tensors.ts";
import type { Network, Tensor, Tensors } from "../tensors/tensors.ts";
import { checkNames, numbersOf, tensorOf } from "./common.ts";
import { initials, kinds, MOST, MOST_LR, MOST_PASSES, optional, readRecord, real, whole } from "./settings.ts";
import type { Field, Settings } from "./settings.ts";
import { programOf, spans } from "./training.ts";
import type { ExampleRows, LocalObjective } from "./training.ts";
import { TASK_LOSS } from "./types.ts";
import type { Step, TrainTools } from "./types.ts";

const f32 = Math.fround;

const FIELDS = {
  /** The last so many shared tensors are mixed, of which the head's are the last; 0: all. */
  layer_idx: whole(2, 0, MOST),
  /** Part of the client's examples that a call looks at. */
  sample_percent: real(80, 0, 100),
  /** Learning rate of the weights. */
  eta: real(1, 0, MOST_LR),
  /** The first call ends when the last losses' standard deviation is below it. */
  threshold: real(0.01, 0),
  /** How many losses that are; one more pass is made at least. */
  window: whole(10, 1, MOST),
  /** Most passes of the first call. */
  max_passes: whole(200, 1, MOST_PASSES),
};

export type Ala = Settings<typeof FIELDS>;

const KINDS: Field<Ala> = kinds(initials(FIELDS), {
  ala: (path, table) => readRecord(path, table, FIELDS, ["kind"]),
});

/** Absent unless settings ask for it. */
export const LOCAL_INIT: Field<Ala | null> = optional(null, KINDS);
/** There in any case. */
export const ALWAYS_LOCAL_INIT: Field<Ala | null> = KINDS;

/** With what a client measures its loss. */
export interface Probe {
  readonly tools: TrainTools;
  readonly batchSize: number;
  readonly fit: LocalObjective;
}

/** A model made of a client's own and the received one, in memory of its own, and the weights by tensors' names. */
export interface Mixed {
  readonly network: Network;
  readonly weights: TensorMap;
}

/**
 * One call.
 *
 * `own` are the client's own shared tensors by the names of parameters, the last ones are mixed; `received` is the
 * model with the received tensors in their place; `weights` are those of an earlier call, empty at the first.
 * Throws InputError for kept weights of other tensors, DivergedError for a loss that is not finite.
 */
export async function localAggregation(
  ala: Ala,
  own: Tensors,
  received: Network,
  weights: Tensors,
  probe: Probe,
): Promise<Mixed> {
  const upper = new Layout([...own].slice(-ala.layerIdx).map(([name, { shape }]) => [name, shape]));
  const mixture = new Mixture(upper, own, received.params, weights, ala.eta);
  const network = { params: mixture.params, buffers: received.buffers };
  const part = partOf(ala, probe);
  const losses: number[] = [];
  // Eqs. 5 and 6, until the losses settle at the first call and once later.
  for (;;) {
    let last = NaN;
    for (const rows of part) {
      const step = await measured(probe, network, rows);
      last = step.loss;
      mixture.step(step.grads);
    }
    losses.push(last);
    if (weights.size > 0 || settled(ala, losses)) return { network, weights: mixture.weights };
  }
}

/** The model in between, and its weights. */
class Mixture {
  readonly params: TensorMap;
  readonly weights: TensorMap;
  readonly #own: Tensors;
  readonly #received: TensorMap;
  readonly #eta: number;

  constructor(upper: Layout, own: Tensors, received: TensorMap, weights: Tensors, eta: number) {
    this.params = received.copy();
    this.weights = TensorMap.zeros(upper);
    this.#own = own;
    this.#received = received;
    this.#eta = f32(eta);
    if (weights.size === 0) this.weights.buffer.fill(1);
    else {
      checkNames(weights, upper);
      for (const name of upper.names) this.weights.view(name).set(numbersOf(tensorOf(weights, name)));
    }
    this.#mix(null);
  }

  /** Moves the weights by the gradients at the mixed model, and mixes anew. */
  step(grads: TensorMap): void {
    this.#mix(grads);
  }

  #mix(grads: TensorMap | null): void {
    for (const { name, size } of this.weights.layout.spans) {
      const weights = this.weights.view(name);
      const mixed = this.params.view(name);
      const own = numbersOf(tensorOf(this.#own, name));
      const received = this.#received.view(name);
      const gradient = grads?.view(name);
      for (let at = 0; at < size; at += 1) {
        const way = f32(received[at]! - own[at]!);
        if (gradient !== undefined) {
          const moved = f32(weights[at]! - f32(this.#eta * f32(gradient[at]! * way)));
          weights[at] = Math.min(Math.max(moved, 0), 1);
        }
        mixed[at] = own[at]! + f32(way * weights[at]!);
      }
    }
  }
}

async function measured({ tools, fit }: Probe, network: Network, rows: ExampleRows): Promise<Step> {
  const objective = fit.objective ?? TASK_LOSS;
  const batch = new Map<string, Tensor>([
    ["x", rowsOf(tools.x, rows)],
    ["y", rowsOf(tools.y, rows)],
    ...(fit.inputs?.(rows) ?? []),
  ]);
  const step = await programOf(tools, objective)(network, batch, tools.rng);
  if (!Number.isFinite(step.loss)) {
    throw new DivergedError(
      `${tools.name}: expected a finite loss of '${objective}' of the mixed model, got ${step.loss}; ` +
        "lower the learning rate or check the data",
    );
  }
  return step;
}

/** Batches of the examples that this call looks at, in order. */
function partOf(ala: Ala, { tools, batchSize }: Probe): ExampleRows[] {
  const count = tools.y.shape[0]!;
  const length = Math.max(tools.minBatch, Math.trunc((ala.samplePercent / 100) * count));
  const start = tools.rng.integer(count - length);
  const rows = Int32Array.from({ length }, (_, at) => start + at);
  return spans(length, batchSize, tools.minBatch).map(([a, b]) => rows.subarray(a, b));
}

/** Whether the start phase is over; `losses` has the last batch's of every pass. */
function settled(ala: Ala, losses: readonly number[]): boolean {
  if (losses.length >= ala.maxPasses) return true;
  const last = losses.slice(-ala.window);
  return losses.length > ala.window && deviation(last) < ala.threshold;
}

function deviation(values: readonly number[]): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
}
