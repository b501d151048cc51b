/**
 * What the strategies share whose clients train a shared model that the server aggregates, as in `strategies/averaging.py`.
 *
 * A client's round is `receive` (the received tensors in the place of its own), `initialise` (an
 * early score if `score_at` asks for it), training, `finishRound` (the update and the state to keep).
 */

import type { Layout, Network, Tensors } from "../tensors/tensors.ts";
import {
  checkNames, clientInit, clientModel, merged, networkTensors, selected, unpackNetwork, updateOf, wholeLayout,
} from "./common.ts";
import { choice } from "./settings.ts";
import type { Settings } from "./settings.ts";
import type { Trained } from "./training.ts";
import { TRAINING } from "./training_settings.ts";
import { float32Forms } from "./types.ts";
import type {
  ClientState, ClientTools, Evaluation, Model, Payload, Strategy, Update,
} from "./types.ts";

/** Fields of the settings of such a strategy. */
export const SHARED_TRAINING = {
  ...TRAINING,
  /** When the client's model is scored; the fit after the last round is at its end in any case. */
  score_at: choice("end", ["start", "end"]),
};

export type SharedTraining = Settings<typeof SHARED_TRAINING>;

/** What such a strategy knows; `shared` is the prefixed layout of the parameters that travel. */
export interface AveragingContext<S extends SharedTraining = SharedTraining> {
  readonly name: string;
  readonly programs: readonly string[];
  readonly settings: S;
  readonly model: Model;
  readonly shared: Layout;
}

/** A client's model at the start of its local training; training takes the network over. */
export interface InitialModel {
  readonly state: ClientState;
  readonly payload: Payload;
  readonly network: Network;
  /** The early score, if one is asked for. */
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

/** The strategy around a client's round. */
export function averaging<S extends SharedTraining>(
  context: AveragingContext<S>,
  update: ClientUpdate<S>,
): Strategy {
  const { name, programs, settings, model, shared } = context;
  const forms = { required: float32Forms(shared), optional: new Map() };
  return {
    name,
    programs,
    classCounts: false,
    payload: forms,
    uplink: forms,
    batchSizes: new Map([["batch_size", settings.batchSize]]),
    clientInit: () => clientInit(model),
    clientUpdate: (state, payload, tools) => update(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: () => null,
  };
}

/** The client's model with the received tensors in the place of its own. */
export function receive(context: AveragingContext, state: ClientState, payload: Payload): InitialModel {
  checkNames(payload.tensors, context.shared);
  const network = unpackNetwork(merged(state.tensors, payload.tensors), context.model);
  return { state, payload, network, evaluation: null };
}

/** Scores the model early if the settings ask for that. */
export async function initialise(
  settings: SharedTraining,
  start: InitialModel,
  tools: ClientTools,
): Promise<InitialModel> {
  if (!scoredEarly(settings, start.payload)) return start;
  return { ...start, evaluation: await tools.evaluate(start.network) };
}

/** Whether the client's model is scored before it trains. */
export function scoredEarly(settings: SharedTraining, payload: Payload): boolean {
  return settings.scoreAt === "start" && !payload.final;
}

/** What the device keeps, and the update with the tensors of `shared`; scores what was not scored early. */
export async function finishRound(
  start: InitialModel,
  trained: Trained,
  tools: ClientTools,
  shared: Layout,
): Promise<readonly [ClientState, Update]> {
  const kept: Tensors = networkTensors(trained.network);
  const evaluation = start.evaluation ?? (await tools.evaluate(trained.network));
  const update = updateOf(tools, start.payload, {
    tensors: selected(kept, shared),
    evaluation,
    loss: trained.loss,
  });
  return [{ roundId: start.payload.roundId, tensors: kept }, update];
}
