/** MOON (Li et al., arXiv:2103.16257): features are pulled to the received model's, away from the previous ones. */

import { rowsOf } from "../tensors/tensors.ts";
import type { Tensor } from "../tensors/tensors.ts";
import { averaging, finishRound, initialise, receive, SHARED_TRAINING, shareAll } from "./averaging.ts";
import type { AveragingContext, ReceivedModel } from "./averaging.ts";
import { clientModel, numExamples, scalar } from "./common.ts";
import { parseSettings, real } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import type { LocalObjective } from "./training.ts";
import type { ClientState, ClientTools, Factory, Payload, Update } from "./types.ts";

const NAME = "moon";
const OBJECTIVE = "moon";

const SETTINGS = {
  ...SHARED_TRAINING,
  /** Temperature of the contrast. */
  tau: real(0.5, 1e-6),
  /** Its weight. */
  mu: real(1, 0),
};

type Context = AveragingContext<Settings<typeof SETTINGS>>;

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  return averaging(shareAll({ name: NAME, programs: [OBJECTIVE], settings: chosen, model }), clientUpdate);
};

async function clientUpdate(
  context: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, shared } = context;
  const received = receive(context, state, payload);
  const fit = await contrast(context, received, tools);
  const start = await initialise(settings, received, tools, fit);
  const trained = await train(start.network, tools.training, settings, fit);
  return finishRound(start, trained, tools, shared);
}

/** Eq. 3's constants for every example. */
async function contrast(
  { settings, model }: Context,
  { network, state }: ReceivedModel,
  tools: ClientTools,
): Promise<LocalObjective> {
  if (numExamples(tools) === 0) return { objective: OBJECTIVE };
  const { x } = tools.training;
  const positive = await tools.features(network, x);
  const negative = state.roundId ? await tools.features(clientModel(model, state), x) : positive;
  const scalars: readonly [string, Tensor][] = [["tau", scalar(settings.tau)], ["mu", scalar(settings.mu)]];
  return {
    objective: OBJECTIVE,
    inputs: (rows) =>
      new Map([["positive", rowsOf(positive, rows)], ["negative", rowsOf(negative, rows)], ...scalars]),
  };
}
