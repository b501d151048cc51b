/** FedProto (Tan et al., arXiv:2105.00243): models stay; only the mean features of each class travel. */

import { float32, rowsOf } from "../tensors/tensors.ts";
import type { Network, Tensor, Tensors } from "../tensors/tensors.ts";
import { clientInit, clientModel, merged, networkNames, networkTensors, numbersOf, tensorOf, updateOf } from "./common.ts";
import {
  joinedMeans, localPrototypes, nearestPrototype, noPrototypes, ownPrototypeForms, PRESENT, PROTOTYPES,
  prototypeForms, prototypeInputs,
} from "./prototypes.ts";
import type { SeenBatch } from "./prototypes.ts";
import { choice, parseSettings, real } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { passes, train, Trainer } from "./training.ts";
import type { LocalObjective, Trained } from "./training.ts";
import { TRAINING } from "./training_settings.ts";
import type { ClientState, ClientTools, Factory, Model, Payload, Score, Update } from "./types.ts";

const NAME = "fedproto";
const OBJECTIVE = "prototype_mse";

const SETTINGS = {
  ...TRAINING,
  /** Lambda, the weight of the squared difference to the prototypes. */
  prototype_weight: real(1, 0),
  /** Of the server. */
  first_prototypes: choice("none", ["none", "normal"]),
  /** Of whose features the prototypes are means: the trained model's, or those before each step of the last epoch. */
  means: choice("trained", ["trained", "last_epoch"]),
  predict: choice("nearest", ["nearest", "nearest_own", "head"]),
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
    initialPayload: () => (context.settings.firstPrototypes === "normal" ? null : noPrototypes(model)),
    clientInit: () => ({ roundId: 0, tensors: merged(clientInit(model).tensors, noPrototypes(model)) }),
    clientUpdate: (state, payload, tools) => clientUpdate(context, state, payload, tools),
    nextAlone,
    clientModel: (state) => clientModel(model, state),
    clientScore: (state) => scoreOf(context, state.tensors),
  };
};

function scoreOf({ settings }: Context, tensors: Tensors): Score | null {
  return settings.predict === "head" ? null : nearestPrototype(tensors);
}

/** Its own prototypes: none pull in round 1, and none predict. */
function nextAlone({ roundId, tensors, final }: Payload, update: Update): Payload {
  const before = tensorOf(tensors, PROTOTYPES);
  const [own, old, flags] = [numbersOf(tensorOf(update.tensors, PROTOTYPES)), numbersOf(before), tensorOf(tensors, PRESENT)];
  const known = Array.from(flags.data, Number);
  const width = own.length / known.length;
  const has = known.map((_, label) => own.subarray(label * width, (label + 1) * width).some((one) => one !== 0));
  const rows = own.map((value, at) => (has[Math.floor(at / width)] === true ? value : old[at]!));
  const present = Uint8Array.from(known, (flag, label) => (has[label] === true ? 1 : flag));
  const next = new Map<string, Tensor>([
    [PROTOTYPES, float32(before.shape, rows)], [PRESENT, { dtype: "uint8", shape: flags.shape, data: present }],
  ]);
  return { roundId: roundId + 1, tensors: next, final };
}

/** The prototypes, and as present those whose class may be predicted. */
function scoringOf({ settings }: Context, tensors: Tensors, { training }: ClientTools): Tensors {
  if (settings.predict !== "nearest_own") return tensors;
  const own = new Set(Array.from(training.y.data, Number));
  const { shape, data } = tensorOf(tensors, PRESENT);
  const predicted = Uint8Array.from(Array.from(data, Number), (flag, label) => (own.has(label) ? flag : 0));
  return merged(tensors, new Map<string, Tensor>([[PRESENT, { dtype: "uint8", shape, data: predicted }]]));
}

async function clientUpdate(
  context: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { model, settings } = context;
  const inputs = prototypeInputs(payload.tensors, settings.prototypeWeight);
  const fit = { objective: OBJECTIVE, inputs: () => inputs };
  const [trained, own] = await trainedWithMeans(context, clientModel(model, state), fit, tools);
  const scoring = scoringOf(context, payload.tensors, tools);
  const score = scoreOf(context, scoring);
  const evaluation = await tools.evaluate(trained.network, score ?? undefined);
  const tensors = new Map([[PROTOTYPES, own]]);
  const update = updateOf(tools, payload, { tensors, evaluation, loss: trained.loss });
  return [{ roundId: payload.roundId, tensors: merged(networkTensors(trained.network), scoring) }, update];
}

/** Local training and the client's prototypes. */
async function trainedWithMeans(
  { model, settings }: Context,
  network: Network,
  fit: LocalObjective,
  tools: ClientTools,
): Promise<readonly [Trained, Tensor]> {
  const { training } = tools;
  if (settings.means === "trained") {
    const trained = await train(network, training, settings, fit);
    return [trained, await localPrototypes(model, trained.network, tools)];
  }
  const trainer = new Trainer(network, training, settings, fit);
  const seen: SeenBatch[] = [];
  await passes((rows) => trainer.step(rows), training, { ...settings, epochs: settings.epochs - 1 });
  const step = async (rows: Int32Array): Promise<number> => {
    seen.push({ rows, features: await tools.features(trainer.network, rowsOf(training.x, rows)) });
    return trainer.step(rows);
  };
  const trained = trainer.trained(await passes(step, training, { ...settings, epochs: 1 }));
  return [trained, await joinedMeans(model, trained.network, seen, tools)];
}
