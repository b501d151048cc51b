/**
 * What the strategies share whose clients train a shared model that the server aggregates, as in `strategies/averaging.py`.
 *
 * A client's round is `receive` (the received tensors in the place of its own), `initialise` (adaptive local
 * aggregation if `local_init` asks for it, an early score if `score_at` does), training, `finishRound` (the update
 * and the state to keep).
 */

import { Layout, TensorMap } from "../tensors/tensors.ts";
import type { Network, Tensors } from "../tensors/tensors.ts";
import { LOCAL_INIT, localAggregation } from "./ala.ts";
import {
  CHANGE, checkNames, clientInit, clientModel, initialPayload, merged, networkTensors, numbersOf, numExamples, PARAMS, personalNames, prefixed,
  scored, selected, tensorOf, unpackNetwork, updateOf, wholeLayout, withoutPrefix,
} from "./common.ts";
import { choice } from "./settings.ts";
import type { Settings } from "./settings.ts";
import type { LocalObjective, Trained } from "./training.ts";
import { TRAINING } from "./training_settings.ts";
import { float32Schemas } from "./types.ts";
import type {
  ClientState, ClientTools, Evaluation, Model, Payload, Strategy, Update,
} from "./types.ts";

/** Prefix of the mixing weights in a client's state. */
const ALA_WEIGHTS = "ala/";
const NOTHING = new Layout([]);

/** Fields of the settings of such a strategy. */
export const SHARED_TRAINING = {
  ...TRAINING,
  /** Training starts from a mixture of the client's own shared tensors and the received ones. */
  local_init: LOCAL_INIT,
  /** When the client's model is scored; the fit after the last round is at its end in any case. */
  score_at: choice("end", ["start", "end"]),
};

export type SharedTraining = Settings<typeof SHARED_TRAINING>;

/** What such a strategy knows. */
export interface AveragingContext<S extends SharedTraining = SharedTraining> {
  readonly name: string;
  readonly programs: readonly string[];
  readonly settings: S;
  readonly model: Model;
  /** Prefixed layout of the parameters that travel. */
  readonly shared: Layout;
  /** Prefixed layout of what comes down beside them; a client keeps as much, and sends by how much it has changed. */
  readonly extra?: Layout;
}

/** A client's model at the start of its local training; training takes the network over. */
export interface ReceivedModel {
  readonly state: ClientState;
  readonly payload: Payload;
  readonly network: Network;
  /** Names of the parameters that the bundle calls its head. */
  readonly head: readonly string[];
  /** Mixing weights to keep beside the model, by their names in a client's state. */
  readonly alaWeights: Tensors;
  /** The score before training, if one is asked for. */
  readonly early: Evaluation | null;
  /** Of another model than the one that is trained here; null: of that one. */
  readonly evaluation: Evaluation | null;
}

export type ClientUpdate<S extends SharedTraining> = (
  context: AveragingContext<S>,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
) => Promise<readonly [ClientState, Update]>;

/** The context of a strategy that shares all parameters. */
export function shareAll<S extends SharedTraining>(
  context: Omit<AveragingContext<S>, "shared">,
): AveragingContext<S> {
  return { ...context, shared: wholeLayout(context.model) };
}

/**
 * The strategy around a client's round. A client carries the parameters that are not shared, without buffers: those
 * belong to what the server sends.
 */
export function averaging<S extends SharedTraining>(
  context: AveragingContext<S>,
  update: ClientUpdate<S>,
): Strategy {
  const { name, programs, settings, model, shared, extra = NOTHING } = context;
  const own = TensorMap.zeros(extra);
  const payload = { required: float32Schemas(downLayout(context)), optional: new Map() };
  return {
    name,
    programs,
    classCounts: false,
    payload,
    uplink: { required: new Map([...float32Schemas(shared), ...float32Schemas(extra, CHANGE)]), optional: new Map() },
    batchSizes: new Map([["batch_size", settings.batchSize]]),
    carried: personalNames(model, shared),
    initialPayload: () => initialPayload(model, payload),
    clientInit: () => ({ roundId: 0, tensors: merged(clientInit(model).tensors, own.tensors()) }),
    clientUpdate: (state, payload, tools) => update(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: () => null,
  };
}

/** Prefixed layout of a payload. */
function downLayout({ shared, extra = NOTHING }: AveragingContext): Layout {
  return new Layout([...shared.spans, ...extra.spans].map(({ name, shape }) => [name, shape]));
}

/** The client's model with the received tensors in the place of its own. */
export function receive(context: AveragingContext, state: ClientState, payload: Payload): ReceivedModel {
  checkNames(payload.tensors, downLayout(context));
  const network = unpackNetwork(merged(state.tensors, payload.tensors), context.model);
  return startOf(context.model, state, payload, network);
}

/** A model with which nothing has been done yet. */
export function startOf(model: Model, state: ClientState, payload: Payload, network: Network): ReceivedModel {
  return { state, payload, network, head: model.head, alaWeights: new Map(), early: null, evaluation: null };
}

/**
 * Mixes the received parameters with the client's own if the settings ask for that.
 *
 * In round 1, without examples enough for a step, or where both are the same in every tensor there is nothing to
 * mix; weights of earlier rounds are kept. `fit` says with which objective the weights are learnt.
 */
export async function localInit(
  settings: SharedTraining,
  start: ReceivedModel,
  tools: ClientTools,
  fit: LocalObjective = {},
): Promise<ReceivedModel> {
  const ala = settings.localInit;
  if (ala === null) return start;
  const { state, payload, network } = start;
  const earlier = withoutPrefix(ALA_WEIGHTS, state.tensors);
  const own = ownShared(start);
  const same = [...own].every(([name, value]) => equal(numbersOf(value), network.params.view(name)));
  if (same || payload.roundId === 1 || numExamples(tools) < tools.training.minBatch) {
    return { ...start, alaWeights: prefixed(ALA_WEIGHTS, earlier) };
  }
  const probe = { tools: tools.training, batchSize: settings.batchSize, fit };
  const mixed = await localAggregation(ala, own, network, earlier, probe);
  return { ...start, network: mixed.network, alaWeights: mixed.weights.tensors(ALA_WEIGHTS) };
}

/** The client's own tensors of those that it received, by the names of parameters, the head's last. */
function ownShared({ state, payload, network, head }: ReceivedModel): Tensors {
  const shared = network.params.layout.names.filter((name) => payload.tensors.has(PARAMS + name));
  const ordered = [...shared.filter((name) => !head.includes(name)), ...shared.filter((name) => head.includes(name))];
  return new Map(ordered.map((name) => [name, tensorOf(state.tensors, PARAMS + name)]));
}

function equal(one: Float32Array, other: Float32Array): boolean {
  return one.every((value, at) => value === other[at]);
}

/** `localInit`, and the early score of the outcome if the settings ask for one. */
export async function initialise(
  settings: SharedTraining,
  received: ReceivedModel,
  tools: ClientTools,
  fit: LocalObjective = {},
): Promise<ReceivedModel> {
  const start = await localInit(settings, received, tools, fit);
  if (!scoredEarly(settings, start.payload)) return start;
  return { ...start, early: await tools.evaluate(start.network) };
}

/** Whether the client's model is scored before it trains. */
export function scoredEarly(settings: SharedTraining, payload: Payload): boolean {
  return settings.scoreAt === "start" && !payload.final;
}

/** Tensors beside the model's, by their names in a client's state and in an update. */
export interface Beside {
  readonly keep: Tensors;
  readonly send: Tensors;
}

/** What the device keeps, and the update with the tensors of `shared`. */
export async function finishRound(
  start: ReceivedModel,
  trained: Trained,
  tools: ClientTools,
  shared: Layout,
  beside: Beside = { keep: new Map(), send: new Map() },
): Promise<readonly [ClientState, Update]> {
  const kept: Tensors = networkTensors(trained.network);
  const evaluation = start.evaluation ?? (await scored(start.early, trained.network, tools));
  const update = updateOf(tools, start.payload, {
    tensors: merged(selected(kept, shared), beside.send),
    evaluation,
    loss: trained.loss,
  });
  return [{ roundId: start.payload.roundId, tensors: merged(kept, start.alaWeights, beside.keep) }, update];
}
