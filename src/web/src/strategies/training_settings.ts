/** Settings of local training and of its optimisers, as in `strategies/training.py` and `optimisers.py`. */

import {
  choice, flag, initials, kinds, MOST_BATCH, MOST_LR, MOST_PASSES, optional, readRecord, real, whole,
} from "./settings.ts";
import type { Field, Settings } from "./settings.ts";

/** The largest number below 1. */
const BELOW_ONE = 1 - Number.EPSILON / 2;

const SGD = { lr: real(0.1, 0, MOST_LR), momentum: real(0, 0, 1), weight_decay: real(0, 0) };

const ADAM = {
  lr: real(0.002, 0, MOST_LR),
  beta1: real(0.9, 0, BELOW_ONE),
  beta2: real(0.999, 0, BELOW_ONE),
  eps: real(1e-7, 1e-20),
  /** `keras` adds eps before the bias correction, `torch` after it. */
  eps_form: choice("keras", ["keras", "torch"]),
  weight_decay: real(0, 0),
};

/** Stochastic gradient descent as in `torch.optim.SGD`. */
export type Sgd = Settings<typeof SGD> & { readonly kind: "sgd" };

/** Adam with Keras' defaults. */
export type Adam = Settings<typeof ADAM> & { readonly kind: "adam" };

export function sgd(differing: Partial<Sgd> = {}): Sgd {
  return { kind: "sgd", ...initials(SGD), ...differing };
}

export function adam(differing: Partial<Adam> = {}): Adam {
  return { kind: "adam", ...initials(ADAM), ...differing };
}

export function optimiser(initial: Adam | Sgd = adam()): Field<Adam | Sgd> {
  return kinds<Adam | Sgd>(initial, {
    adam: (path, table) => ({ kind: "adam", ...readRecord(path, table, ADAM, ["kind"]) }),
    sgd: (path, table) => ({ kind: "sgd", ...readRecord(path, table, SGD, ["kind"]) }),
  });
}

/** Of a method whose arithmetic takes plain steps: no momentum, and a rate that is not zero. */
export function plainSgd(): Field<Sgd> {
  const fields = { ...SGD, lr: real(0.1, 1e-12, MOST_LR), momentum: real(0, 0, 0) };
  return kinds<Sgd>(sgd(), { sgd: (path, table) => ({ kind: "sgd", ...readRecord(path, table, fields, ["kind"]) }) });
}

/** Fields of every strategy's settings; strategies spread them and replace what they start with. */
export const TRAINING = {
  /** Passes over the local training part. */
  epochs: whole(5, 1, MOST_PASSES),
  /** Examples per step; a last batch of fewer than the programs take is joined to the one before. */
  batch_size: whole(16, 1, MOST_BATCH),
  /** Leave out the last batch of an epoch if it is not full. */
  drop_last: flag(false),
  /** Largest Euclidean norm of a step's gradient, over all tensors that move. */
  clip_norm: optional(null, real(0, 1e-12)),
  optimiser: optimiser(),
};

export type Training = Settings<typeof TRAINING>;
