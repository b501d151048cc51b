/** FedRep (Collins et al., arXiv:2102.07078): the head fits the received body, then the body the head. */

import { averaging, finishRound, initialise, receive, SHARED_TRAINING } from "./averaging.ts";
import type { AveragingContext } from "./averaging.ts";
import { otherParameterNames, parameterNames, sharedLayout } from "./common.ts";
import { MOST_PASSES, parseSettings, text, whole } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import { TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Payload, Update } from "./types.ts";

const NAME = "fedrep";

const SETTINGS = {
  ...SHARED_TRAINING,
  epochs: whole(1, 1, MOST_PASSES),
  /** Parameters whose names start so stay on the device; null: those that the bundle calls its head. */
  head: text(null),
  /** Passes that move the head alone, before `epochs` passes that move the body alone. */
  head_epochs: whole(10, 1, MOST_PASSES),
};

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  const shared = sharedLayout(model, chosen.head);
  return averaging({ name: NAME, programs: [TASK_LOSS], settings: chosen, model, shared }, clientUpdate);
};

async function clientUpdate(
  context: AveragingContext<Settings<typeof SETTINGS>>,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, model, shared } = context;
  const { optimiser } = settings;
  const start = await initialise(settings, receive(context, state, payload), tools);
  const head = { groups: [{ names: otherParameterNames(model, shared), optimiser }] };
  const body = { groups: [{ names: parameterNames(shared), optimiser }] };
  const headTraining = { ...settings, epochs: settings.headEpochs };
  const fitted = await train(start.network, tools.training, headTraining, head);
  const trained = await train(fitted.network, tools.training, settings, body);
  return finishRound(start, trained, tools, shared);
}
