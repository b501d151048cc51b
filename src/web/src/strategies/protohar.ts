/** ProtoHAR (Cheng et al., JBHI 2023): the head fits, then the body, whose features global prototypes attract. */

import type { Layout, Network } from "../tensors/tensors.ts";
import {
  clientInit, clientModel, initialPayload, merged, networkTensors, otherParameterNames, parameterNames, personalNames, prefixed,
  scored, selected, sharedLayout, unpackNetwork, updateOf, withoutPrefix,
} from "./common.ts";
import { localPrototypes, ownPrototypeForms, PROTOTYPES, prototypeForms, prototypeInputs } from "./prototypes.ts";
import { choice, MOST_BATCH, MOST_PASSES, optional, parseSettings, real, text, whole } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import type { Trained } from "./training.ts";
import { optimiser, sgd, TRAINING } from "./training_settings.ts";
import { float32Schemas, TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Model, Payload, Update } from "./types.ts";

const NAME = "protohar";
const OBJECTIVE = "prototype_mse";
const HEAD = "head/";
const BODY = "body/";

const SETTINGS = {
  ...TRAINING,
  batch_size: whole(32, 1, MOST_BATCH),
  clip_norm: optional(50, real(0, 1e-12)),
  optimiser: optimiser(sgd({ lr: 0.01, momentum: 0.9 })),
  /** Parameters whose names start so stay on the device; null: those that the bundle calls its head. */
  head: text(null),
  /** Passes that move the head alone, before `epochs` passes that move the body. */
  head_epochs: whole(1, 1, MOST_PASSES),
  head_optimiser: optimiser(sgd({ lr: 0.01, momentum: 0.9 })),
  /** Lambda. */
  prototype_weight: real(1, 0),
  /** How the server weighs clients. */
  prototype_mean: choice("examples", ["examples", "plain"]),
};

/** `shared`: prefixed layout of the body. */
interface Context {
  readonly settings: Settings<typeof SETTINGS>;
  readonly model: Model;
  readonly shared: Layout;
}

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  const shared = sharedLayout(model, chosen.head);
  const context = { settings: chosen, model, shared };
  const body = float32Schemas(shared);
  const payload = { required: new Map([...body, ...prototypeForms(model)]), optional: new Map() };
  return {
    name: NAME,
    programs: [TASK_LOSS, OBJECTIVE],
    classCounts: true,
    payload,
    uplink: { required: new Map([...body, ...ownPrototypeForms(model)]), optional: new Map() },
    batchSizes: new Map([["batch_size", chosen.batchSize]]),
    carried: personalNames(model, shared),
    initialPayload: () => initialPayload(model, payload),
    clientInit: () => clientInit(model),
    clientUpdate: (state, payload, tools) => clientUpdate(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: () => null,
  };
};

async function clientUpdate(
  context: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { model, shared } = context;
  const network = unpackNetwork(merged(state.tensors, payload.tensors), model);
  const before = await tools.evaluate(network);
  const [head, body] = await twoPhases(context, network, [state, payload], tools);
  const kept = networkTensors(body.network);
  const own = await localPrototypes(model, body.network, tools);
  const update = updateOf(tools, payload, {
    tensors: merged(selected(kept, shared), new Map([[PROTOTYPES, own]])),
    evaluation: await scored(before, body.network, tools),
    loss: body.loss,
  });
  const tensors = merged(kept, prefixed(HEAD, head.moments), prefixed(BODY, body.moments));
  return [{ roundId: payload.roundId, tensors }, update];
}

/** The network with the head fitted, and then with the body fitted too: in one memory. */
async function twoPhases(
  { settings, model, shared }: Context,
  network: Network,
  [state, payload]: readonly [ClientState, Payload],
  { training }: ClientTools,
): Promise<readonly [Trained, Trained]> {
  const headTraining = { ...settings, epochs: settings.headEpochs };
  const head = await train(network, training, headTraining, {
    groups: [{ names: otherParameterNames(model, shared), optimiser: settings.headOptimiser }],
    moments: withoutPrefix(HEAD, state.tensors),
  });
  const inputs = prototypeInputs(payload.tensors, settings.prototypeWeight);
  const body = await train(head.network, training, settings, {
    objective: OBJECTIVE,
    inputs: () => inputs,
    groups: [{ names: parameterNames(shared), optimiser: settings.optimiser }],
    moments: withoutPrefix(BODY, state.tensors),
  });
  return [head, body];
}
