/** FedAvg (McMahan et al., arXiv:1602.05629): every client trains the same model, the server averages. */

import { averaging, finishRound, initialise, receive, SHARED_TRAINING, shareAll } from "./averaging.ts";
import type { AveragingContext } from "./averaging.ts";
import { parseSettings } from "./settings.ts";
import { train } from "./training.ts";
import { TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Payload, Update } from "./types.ts";

export const build: Factory = buildAs("fedavg");

/** FedAvg under another name. */
export function buildAs(name: string): Factory {
  return (settings, model) => {
    const chosen = parseSettings(name, settings, SHARED_TRAINING);
    return averaging(shareAll({ name, programs: [TASK_LOSS], settings: chosen, model }), clientUpdate);
  };
}

/** Trains what was received, with the task's loss alone. */
export async function clientUpdate(
  context: AveragingContext,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, shared } = context;
  const start = await initialise(settings, receive(context, state, payload), tools);
  const trained = await train(start.network, tools.training, settings);
  return finishRound(start, trained, tools, shared);
}
