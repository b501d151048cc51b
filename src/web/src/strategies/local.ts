/** Local (SOLO): every client trains alone, with one optimiser for good; no tensors travel. */

import { clientInit, clientModel, copied, merged, networkNames, networkTensors, updateOf } from "./common.ts";
import { flag, parseSettings } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { TASKS } from "./tasks.ts";
import { passes, Trainer } from "./training.ts";
import type { Trained } from "./training.ts";
import { TRAINING } from "./training_settings.ts";
import { TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Model, Payload, Update } from "./types.ts";

const NAME = "local";

const SETTINGS = {
  ...TRAINING,
  /** A round ends with its best epoch on the client's own test part, not its last. */
  keep_best: flag(false),
};

interface Context {
  readonly model: Model;
  readonly settings: Settings<typeof SETTINGS>;
}

export const build: Factory = (settings, model) => {
  const context = { model, settings: parseSettings(NAME, settings, SETTINGS) };
  const nothing = { required: new Map(), optional: new Map() };
  return {
    name: NAME,
    programs: [TASK_LOSS],
    classCounts: false,
    payload: nothing,
    uplink: nothing,
    batchSizes: new Map([["batch_size", context.settings.batchSize]]),
    carried: networkNames(model),
    initialPayload: () => new Map(),
    clientInit: () => clientInit(model),
    clientUpdate: (state, payload, tools) => clientUpdate(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: () => null,
  };
};

async function clientUpdate(
  { model, settings }: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const fit = { moments: state.tensors };
  const trainer = new Trainer(clientModel(model, state), tools.training, settings, fit);
  const trained = settings.keepBest
    ? await bestEpoch(trainer, { model, settings }, tools)
    : trainer.trained(await passes((rows) => trainer.step(rows), tools.training, settings));
  const evaluation = await tools.evaluate(trained.network);
  const update = updateOf(tools, payload, { tensors: new Map(), evaluation, loss: trained.loss });
  const tensors = merged(networkTensors(trained.network), trained.moments);
  return [{ roundId: payload.roundId, tensors }, update];
}

/** Copies of the best epoch; of the last one where there is no test part. */
async function bestEpoch(trainer: Trainer, { model, settings }: Context, tools: ClientTools): Promise<Trained> {
  const oneEpoch = { ...settings, epochs: 1 };
  let best = trainer.trained(NaN);
  let highest = -Infinity;
  for (let epoch = 0; epoch < settings.epochs; epoch += 1) {
    const now = trainer.trained(await passes((rows) => trainer.step(rows), tools.training, oneEpoch));
    const scored = await tools.statistics(now.network);
    const score = scored === null ? highest : TASKS[model.task].quality(scored);
    if (scored === null || score > highest) {
      best = { ...now, network: copied(now.network), moments: copiedTensors(now.moments) };
      highest = score;
    }
  }
  return best;
}

function copiedTensors(tensors: Trained["moments"]): Trained["moments"] {
  return new Map([...tensors].map(([name, value]) => [name, { ...value, data: value.data.slice() }]));
}
