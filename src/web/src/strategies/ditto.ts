/**
 * Ditto (Li et al., arXiv:2012.04221): beside the shared model a client has its own, held near the received one.
 *
 * The client's state has the personal model under the model's names, and what the next round needs of the shared
 * one behind `shared/`: its buffers, and with `local_init` its parameters and mixing weights.
 */

import { averaging, finishRound, localInit, receive, scoredEarly, SHARED_TRAINING, shareAll } from "./averaging.ts";
import type { AveragingContext } from "./averaging.ts";
import {
  clientModel, copied, merged, networkNames, networkTensors, PARAMS, prefixed, scored, withoutPrefix,
} from "./common.ts";
import { MOST_PASSES, parseSettings, real, whole } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import { TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Payload, Update } from "./types.ts";

const NAME = "ditto";
const SHARED = "shared/";

const SETTINGS = {
  ...SHARED_TRAINING,
  /** Weight of half the squared distance between the personal and the received model. */
  lam: real(1, 0),
  /** Passes over the examples that train the personal model. */
  personal_epochs: whole(5, 1, MOST_PASSES),
};

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  const strategy = averaging(shareAll({ name: NAME, programs: [TASK_LOSS], settings: chosen, model }), clientUpdate);
  return { ...strategy, carried: networkNames(model) };
};

async function clientUpdate(
  context: AveragingContext<Settings<typeof SETTINGS>>,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, model, shared } = context;
  const start = await localInit(settings, receive(context, sharedState(state), payload), tools);
  const personal = clientModel(model, state);
  const early = scoredEarly(settings, payload) ? await tools.evaluate(personal) : null;
  const trained = await train(copied(start.network), tools.training, settings);
  const training = { ...settings, epochs: settings.personalEpochs };
  // Algorithm 1: the gradient of F_k at v_k, plus lambda (v_k - w^t).
  const fit = { proximal: { mu: settings.lam, reference: start.network.params } };
  const own = await train(personal, tools.training, training, fit);
  const evaluation = await scored(early, own.network, tools);
  const [kept, update] = await finishRound({ ...start, evaluation }, trained, tools, shared);
  const needed = [...kept.tensors].filter(([name]) => settings.localInit !== null || !name.startsWith(PARAMS));
  const tensors = merged(networkTensors(own.network), prefixed(SHARED, new Map(needed)));
  return [{ roundId: kept.roundId, tensors }, update];
}

/** The shared model's half of a client's state; before the first round there is one model. */
function sharedState(state: ClientState): ClientState {
  return { ...state, tensors: merged(state.tensors, withoutPrefix(SHARED, state.tensors)) };
}
