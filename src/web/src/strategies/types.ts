/**
 * What a strategy is on a device: a record of pure functions, as `strategies/types.py` has it.
 *
 * Only the client's half is here. Nothing is ever written into an input array.
 */

import { RefusedError } from "../errors.ts";
import type { Generator } from "../runtime/random.ts";
import type { Layout, Network, Tensor, TensorMap, Tensors } from "../tensors/tensors.ts";

/** The objective that is the loss of the bundle's task, whichever that is. */
export const TASK_LOSS = "task_loss";

export type TaskName = "classification" | "regression" | "multilabel";

/** Inputs of a training program by key: `x`, `y` and whatever its objective needs. */
export type Batch = ReadonlyMap<string, Tensor>;

/** What a device keeps between rounds; `roundId` is the last round it trained (0: none). */
export interface ClientState {
  readonly roundId: number;
  readonly tensors: Tensors;
}

/** Server to client, round `roundId` (from 1); `final` is the fit after the last round. */
export interface Payload {
  readonly roundId: number;
  readonly tensors: Tensors;
  readonly final: boolean;
}

/** Rows of whole numbers or sums, in the form of the bundle's task (docs/protocol.md, Statistics). */
export type Statistics = readonly (readonly number[])[];

/** `ownLoss` is NaN and `own` null where the client has no test part; `start` is of the bundle's model on the same. */
export interface Evaluation {
  readonly own: Statistics | null;
  readonly ownLoss: number;
  readonly start?: Statistics | null;
  readonly more: ReadonlyMap<string, Statistics>;
}

export interface Update {
  readonly clientId: string;
  readonly roundId: number;
  readonly numExamples: number;
  readonly tensors: Tensors;
  readonly evaluation: Evaluation;
  /** Mean training loss of the last local epoch; NaN if nothing was trained. */
  readonly loss: number;
}

/** Shape and dtype of a tensor that travels; a null first axis is free up to `most`. */
export interface TensorSchema {
  readonly shape: readonly (number | null)[];
  readonly dtype: Tensor["dtype"];
  readonly most: number;
}

/** What a payload or an update holds: `required` always, of `optional` all or none. */
export interface TensorSchemas {
  readonly required: ReadonlyMap<string, TensorSchema>;
  readonly optional: ReadonlyMap<string, TensorSchema>;
}

/** One call of a training program; both maps are the runtime's and overwritten by the next call. */
export interface Step {
  readonly loss: number;
  readonly grads: TensorMap;
  readonly buffers: TensorMap;
}

/** Forward and backward over one batch, noise drawn from `rng` in the order of the ports. */
export type GradFn = (network: Network, batch: Batch, rng: Generator) => Promise<Step>;

/** Outputs (n, C) or features (n, d) of examples (n, …). */
export type ForwardFn = (network: Network, x: Tensor) => Promise<Tensor>;

/** Scores of the classes (n, C) from features (n, d). */
export type Score = (features: Tensor) => Tensor;

export interface TrainTools {
  /** Who trains, as messages say it. */
  readonly name: string;
  /** (n, …) float32, or int64 of tokens. */
  readonly x: Tensor;
  /** (n,) int64 classes, or (n, T) float32 targets. */
  readonly y: Tensor;
  readonly gradFns: ReadonlyMap<string, GradFn>;
  readonly rng: Generator;
  readonly minBatch: number;
  /** Share of the training that is to be done, above 0 up to 1. */
  readonly work: number;
}

export interface ClientTools {
  readonly clientId: string;
  readonly training: TrainTools;
  readonly predict: ForwardFn;
  readonly features: ForwardFn;
  readonly evaluate: (network: Network, score?: Score) => Promise<Evaluation>;
  /** Statistics of another model on the own test part; null where there is none. */
  readonly statistics: (network: Network) => Promise<Statistics | null>;
}

/** The bundle's model before round 1. */
export interface Model {
  readonly network: Network;
  readonly task: TaskName;
  /** 0 where the task has none. */
  readonly numClasses: number;
  /** Width of the features; 0 where the bundle has no program `features`. */
  readonly features: number;
  /** Names of the parameters that make logits of features. */
  readonly head: readonly string[];
}

export interface Strategy {
  readonly name: string;
  /** Objectives whose training programs it needs. */
  readonly programs: readonly string[];
  /** Whether the device registers its class counts. */
  readonly classCounts: boolean;
  readonly payload: TensorSchemas;
  readonly uplink: TensorSchemas;
  /** Smallest batch that its settings ask for, to be compared with the programs' `min_batch`. */
  readonly batchSizes: ReadonlyMap<string, number>;
  /**
   * Names of the tensors of a client's state that it takes along to another bundle of its federation, as far as they
   * fit: of its own model, which a first payload leaves as it is.
   */
  readonly carried: ReadonlySet<string>;
  /** What the server sends in the first round; null: it draws that, so that nobody else knows it. */
  readonly initialPayload: () => Tensors | null;
  readonly clientInit: () => ClientState;
  readonly clientUpdate: (
    state: ClientState,
    payload: Payload,
    tools: ClientTools,
  ) => Promise<readonly [ClientState, Update]>;
  /** What a client would get in round 2 if it were the only one, where that changes how it trains. */
  readonly nextAlone?: (payload: Payload, update: Update) => Payload;
  /** The network with which the device infers now. */
  readonly clientModel: (state: ClientState) => Network;
  /** What classifies that model's features; null: its own head. */
  readonly clientScore: (state: ClientState) => Score | null;
}

/** Builds a strategy; throws InputError for unknown or impossible settings and unsuitable models. */
export type Factory = (settings: Readonly<Record<string, unknown>>, model: Model) => Strategy;

/** Forms of the tensors of a layout, by name. */
export function float32Schemas(layout: Layout, prefix = ""): Map<string, TensorSchema> {
  return new Map(
    layout.spans.map(({ name, shape }) => [prefix + name, { shape, dtype: "float32", most: 0 }]),
  );
}

/** Refuses, by rule `layout`, tensors that are not what may travel; reads no number of them. */
export function checkTensors(forms: TensorSchemas, tensors: Tensors): void {
  const { required, optional } = forms;
  for (const name of tensors.keys()) {
    if (!required.has(name) && !optional.has(name)) {
      throw new RefusedError("layout", `tensor '${name}': the strategy expects no such name`);
    }
  }
  const some = [...optional.keys()].some((name) => tensors.has(name));
  for (const [name, form] of some ? [...required, ...optional] : required) {
    const got = tensors.get(name);
    if (got === undefined || !fits(form, got)) {
      const found = got === undefined ? "nothing" : `[${got.shape.join(", ")}] ${got.dtype}`;
      throw new RefusedError("layout", `tensor '${name}': expected ${described(form)}, got ${found}`);
    }
  }
}

function fits(form: TensorSchema, got: Tensor): boolean {
  return (
    got.dtype === form.dtype &&
    got.shape.length === form.shape.length &&
    form.shape.every((want, axis) => (want === null ? got.shape[axis]! <= form.most : got.shape[axis] === want))
  );
}

function described({ shape, dtype, most }: TensorSchema): string {
  const free = shape.includes(null) ? ` with n <= ${most}` : "";
  return `[${shape.map((axis) => axis ?? "n").join(", ")}] ${dtype}${free}`;
}
