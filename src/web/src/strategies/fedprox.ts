/** FedProx (Li et al., arXiv:1812.06127): FedAvg with a term that holds training near the received model. */

import { averaging, finishRound, initialise, receive, SHARED_TRAINING, shareAll } from "./averaging.ts";
import type { AveragingContext } from "./averaging.ts";
import { copied } from "./common.ts";
import { parseSettings, real } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import { TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Payload, Update } from "./types.ts";

const NAME = "fedprox";

const SETTINGS = {
  ...SHARED_TRAINING,
  /** Weight of half the squared distance to the received parameters. */
  mu: real(0.01, 0),
};

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  return averaging(shareAll({ name: NAME, programs: [TASK_LOSS], settings: chosen, model }), clientUpdate);
};

async function clientUpdate(
  context: AveragingContext<Settings<typeof SETTINGS>>,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, shared } = context;
  const received = receive(context, state, payload);
  const start = await initialise(settings, received, tools);
  const fit = { proximal: { mu: settings.mu, reference: received.network.params } }; // Eq. 2
  const trained = await train(copied(start.network), tools.training, settings, fit);
  return finishRound(start, trained, tools, shared);
}
