/** FedProto (Tan et al., arXiv:2105.00243): models stay; only the mean features of each class travel. */

import { clientInit, clientModel, merged, networkNames, networkTensors, updateOf } from "./common.ts";
import {
  localPrototypes, nearestPrototype, noPrototypes, ownPrototypeForms, PROTOTYPES, prototypeForms, prototypeInputs,
} from "./prototypes.ts";
import { parseSettings, real } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import { TRAINING } from "./training_settings.ts";
import type { ClientState, ClientTools, Factory, Model, Payload, Update } from "./types.ts";

const NAME = "fedproto";
const OBJECTIVE = "prototype_mse";

const SETTINGS = {
  ...TRAINING,
  /** Lambda, the weight of the squared difference to the prototypes. */
  prototype_weight: real(1, 0),
};

interface Context {
  readonly settings: Settings<typeof SETTINGS>;
  readonly model: Model;
}

export const build: Factory = (settings, model) => {
  const context = { settings: parseSettings(NAME, settings, SETTINGS), model };
  return {
    name: NAME,
    programs: [OBJECTIVE],
    classCounts: true,
    payload: { required: prototypeForms(model), optional: new Map() },
    uplink: { required: ownPrototypeForms(model), optional: new Map() },
    batchSizes: new Map([["batch_size", context.settings.batchSize]]),
    carried: networkNames(model),
    clientInit: () => ({ roundId: 0, tensors: merged(clientInit(model).tensors, noPrototypes(model)) }),
    clientUpdate: (state, payload, tools) => clientUpdate(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: (state) => nearestPrototype(state.tensors),
  };
};

async function clientUpdate(
  { model, settings }: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const inputs = prototypeInputs(payload.tensors, settings.prototypeWeight);
  const fit = { objective: OBJECTIVE, inputs: () => inputs };
  const trained = await train(clientModel(model, state), tools.training, settings, fit);
  const own = await localPrototypes(model, trained.network, tools);
  const score = nearestPrototype(payload.tensors);
  const evaluation = await tools.evaluate(trained.network, score ?? undefined);
  const tensors = new Map([[PROTOTYPES, own]]);
  const update = updateOf(tools, payload, { tensors, evaluation, loss: trained.loss });
  return [{ roundId: payload.roundId, tensors: merged(networkTensors(trained.network), payload.tensors) }, update];
}
