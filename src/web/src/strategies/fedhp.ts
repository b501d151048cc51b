/**
 * FedHP (Fonio et al., ESANN 2024): one learned prototype per class travels; anchors keep them apart.
 *
 * Anchors are the prototypes of round 1, kept on the device. A newcomer's payload holds them beside
 * the prototypes; a device that has lost them abstains, by an update without tensors.
 */

import { InputError } from "../errors.ts";
import type { Tensor } from "../tensors/tensors.ts";
import {
  clientInit, clientModel, listed, merged, networkNames, networkTensors, numbersOf, PARAMS, scalar, tensorOf,
  updateOf,
} from "./common.ts";
import { choice, MOST_LR, MOST_PASSES, parseSettings, real, whole } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import type { LocalObjective } from "./training.ts";
import { adam, optimiser, sgd, TRAINING } from "./training_settings.ts";
import type { ClientState, ClientTools, Factory, Model, Payload, TensorSchema, Update } from "./types.ts";

const NAME = "fedhp";
const HEAD = "prototypes";
const ANCHORS = "anchors";
const OBJECTIVE = "prototype_distance";

const SETTINGS = {
  ...TRAINING,
  /** Of everything but the prototypes; kept across rounds. */
  optimiser: optimiser(sgd({ lr: 0.01, momentum: 0.9, weightDecay: 1e-4 })),
  /** Of the prototypes; kept across rounds. */
  prototype_optimiser: optimiser(adam({ lr: 0.005, eps: 1e-8, epsForm: "torch" })),
  /** Lambda, the regulariser's weight. */
  anchor_weight: real(0.1, 0),
  /** Mean or sum over the classes. */
  regulariser: choice("mean", ["mean", "sum"]),
  /** The server's: how it merges, and how it drives the first prototypes apart. */
  prototype_sum: choice("normalised", ["normalised", "printed"]),
  start: choice("auto", ["auto", "spread", "bundle"]),
  sphere_steps: whole(1000, 0, MOST_PASSES),
  sphere_lr: real(0.1, 0, MOST_LR),
  sphere_momentum: real(0.9, 0, 1),
  sphere_weight_decay: real(1e-4, 0),
};

/** `head`: name of the prototypes among the parameters. */
interface Context {
  readonly settings: Settings<typeof SETTINGS>;
  readonly model: Model;
  readonly head: string;
}

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  const context = { settings: chosen, model, head: prototypesOf(model) };
  const { shape } = model.network.params.layout.span(context.head);
  const form: TensorSchema = { shape, dtype: "float32", most: 0 };
  const prototypes = new Map([[PARAMS + context.head, form]]);
  return {
    name: NAME,
    programs: [OBJECTIVE],
    classCounts: true,
    payload: { required: prototypes, optional: new Map([[ANCHORS, form]]) },
    uplink: { required: new Map(), optional: prototypes },
    batchSizes: new Map([["batch_size", chosen.batchSize]]),
    carried: new Set([...networkNames(model)].filter((name) => name !== PARAMS + context.head)),
    initialPayload: () => null, // the anchors, driven apart from a random start
    clientInit: () => clientInit(model),
    clientUpdate: (state, payload, tools) => clientUpdate(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: () => null,
  };
};

function prototypesOf({ network, head, numClasses }: Model): string {
  const { layout } = network.params;
  const [named, ...more] = head.filter((name) => name.slice(name.lastIndexOf(".") + 1) === HEAD);
  const shape = named === undefined ? [] : layout.span(named).shape;
  if (named === undefined || more.length > 0 || shape.length !== 2 || shape[0] !== numClasses) {
    throw new InputError(
      `strategy '${NAME}': expected a head with a parameter '${HEAD}' of ${numClasses} rows, got a head of ` +
        `${listed(head)}; export with ${head.length ? "" : "--head NAME "}--head-kind prototypes, which replaces the head`,
    );
  }
  return named;
}

async function clientUpdate(
  context: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { model, settings, head } = context;
  const network = clientModel(model, state);
  const anchors = anchorsOf(context, state, payload);
  if (anchors === null) return abstain(context, state, payload, tools);
  network.params.view(head).set(numbersOf(tensorOf(payload.tensors, PARAMS + head)));
  const trained = await train(network, tools.training, settings, fit(context, state, anchors));
  const evaluation = await tools.evaluate(trained.network);
  const kept = networkTensors(trained.network);
  const tensors = new Map([[PARAMS + head, tensorOf(kept, PARAMS + head)]]);
  const update = updateOf(tools, payload, { tensors, evaluation, loss: trained.loss });
  const next = merged(kept, trained.moments, new Map([[ANCHORS, anchors]]));
  return [{ roundId: payload.roundId, tensors: next }, update];
}

function anchorsOf({ head }: Context, state: ClientState, payload: Payload): Tensor | null {
  if (payload.roundId === 1) return tensorOf(payload.tensors, PARAMS + head);
  return payload.tensors.get(ANCHORS) ?? state.tensors.get(ANCHORS) ?? null;
}

function fit({ settings, model, head }: Context, state: ClientState, anchors: Tensor): LocalObjective {
  const classes = settings.regulariser === "mean" ? model.numClasses : 1;
  const inputs = new Map([[ANCHORS, anchors], ["weight", scalar(settings.anchorWeight / classes)]]);
  const backbone = model.network.params.layout.names.filter((name) => name !== head);
  return {
    objective: OBJECTIVE,
    inputs: () => inputs,
    groups: [
      { names: new Set(backbone), optimiser: settings.optimiser },
      { names: new Set([head]), optimiser: settings.prototypeOptimiser },
    ],
    moments: state.tensors,
  };
}

/** Asks for the anchors, by an update without tensors. */
async function abstain(
  { model }: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const evaluation = await tools.evaluate(clientModel(model, state));
  const update = updateOf(tools, payload, { tensors: new Map(), evaluation, loss: NaN });
  return [{ ...state, roundId: payload.roundId }, update];
}
