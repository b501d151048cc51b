/**
 * FedAli (Ek et al., arXiv:2411.10595): clients align their embeddings with prototypes that the server clusters.
 *
 * The layer and how its local prototypes move are part of the training program. In round 1 beta is
 * 0: the prototypes mean nothing yet, and the layer only normalises.
 */

import { InputError } from "../errors.ts";
import { Layout, sameShape } from "../tensors/tensors.ts";
import type { TensorMap } from "../tensors/tensors.ts";
import { finishRound, initialise, SHARED_TRAINING, startOf } from "./averaging.ts";
import type { ReceivedModel } from "./averaging.ts";
import {
  BUFFERS, clientInit, clientModel, initialPayload, listed, numbersOf, PARAMS, tensorOf, unpack, wholeLayout,
} from "./common.ts";
import { choice, flag, MOST_PASSES, parseSettings, real, whole } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { train } from "./training.ts";
import { float32Schemas, TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Model, Payload, Update } from "./types.ts";

const NAME = "fedali";
const LOCAL = ".local_prototypes";
const GLOBAL = ".global_prototypes";
const BETA = "beta";

const SETTINGS = {
  ...SHARED_TRAINING,
  /** Share of the aligned embedding in a layer's output from round 2 on. */
  beta: real(0.2, 0, 1),
  /** Local prototypes persist instead of being replaced by the global ones at the start of a round. */
  keep_local_prototypes: flag(false),
  /** Of the server's k-means. */
  kmeans_max_iter: whole(300, 1, MOST_PASSES),
  kmeans_tol: real(1e-4, 0),
  kmeans_empty: choice("keep", ["keep", "relocate"]),
};

/** `layers`: names of the ALP layers; `betas`: of the buffers that hold beta. */
interface Context {
  readonly settings: Settings<typeof SETTINGS>;
  readonly model: Model;
  readonly layers: readonly string[];
  readonly betas: readonly string[];
  readonly uplink: Layout;
}

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  const { layers, betas } = alignment(model);
  const context = { settings: chosen, model, layers, betas, uplink: withPrototypes(model, layers, LOCAL) };
  const payload = { required: float32Schemas(withPrototypes(model, layers, GLOBAL)), optional: new Map() };
  return {
    name: NAME,
    programs: [TASK_LOSS],
    classCounts: false,
    payload,
    uplink: { required: float32Schemas(context.uplink), optional: new Map() },
    batchSizes: new Map([["batch_size", chosen.batchSize]]),
    carried: new Set(),
    initialPayload: () => initialPayload(model, payload),
    clientInit: () => clientInit(model),
    clientUpdate: (state, payload, tools) => clientUpdate(context, state, payload, tools),
    clientModel: (state) => clientModel(model, state),
    clientScore: () => null,
  };
};

function alignment(model: Model): Pick<Context, "layers" | "betas"> {
  const { layout } = model.network.buffers;
  const layers = layout.names.filter((name) => name.endsWith(LOCAL)).map((name) => name.slice(0, -LOCAL.length));
  const betas = layout.has(BETA) ? [BETA] : layers.map((layer) => `${layer}.${BETA}`);
  const paired = layers.every(
    (layer) => layout.has(layer + GLOBAL) && sameShape(layout.span(layer + GLOBAL).shape, layout.span(layer + LOCAL).shape),
  );
  const scalars = betas.every((name) => layout.has(name) && layout.span(name).shape.length === 0);
  if (layers.length === 0 || !paired || !scalars) {
    throw new InputError(
      `strategy '${NAME}': expected a model with ALP layers (buffers '<layer>${LOCAL}' and '<layer>${GLOBAL}' of one ` +
        `shape, scalar '${BETA}'), got buffers ${listed(layout.names)}; export with --strategy fedali, which adds them, ` +
        "and --align 'MODULE=PROTOTYPES' to choose where",
    );
  }
  return { layers, betas };
}

/** Prefixed layout of all parameters, and of the layers' prototypes of one kind. */
function withPrototypes(model: Model, layers: readonly string[], kind: string): Layout {
  const buffers = layers.map((layer) => model.network.buffers.layout.span(layer + kind));
  const named = buffers.map(({ name, shape }) => ({ name: BUFFERS + name, shape }));
  return new Layout([...wholeLayout(model).spans, ...named].map(({ name, shape }) => [name, shape]));
}

async function clientUpdate(
  context: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, uplink } = context;
  const start = await initialise(settings, arrived(context, state, payload), tools);
  const trained = await train(start.network, tools.training, settings);
  return finishRound(start, trained, tools, uplink);
}

/** The client's model with the received tensors in the place of its own. */
function arrived(context: Context, state: ClientState, payload: Payload): ReceivedModel {
  const params = unpack(payload.tensors, PARAMS, context.model.network.params.layout);
  return startOf(context.model, state, payload, { params, buffers: buffersOf(context, state, payload) });
}

/** The model's buffers with which local training starts. */
function buffersOf({ settings, model, layers, betas }: Context, state: ClientState, payload: Payload): TensorMap {
  const first = payload.roundId === 1;
  const initial = model.network.buffers;
  const buffers = unpack(state.tensors, BUFFERS, initial.layout);
  for (const name of betas) buffers.view(name).fill(first ? 0 : settings.beta);
  const keep = settings.keepLocalPrototypes && state.roundId > 0;
  for (const layer of layers) {
    const received = numbersOf(tensorOf(payload.tensors, BUFFERS + layer + GLOBAL));
    buffers.view(layer + GLOBAL).set(received);
    if (!keep) buffers.view(layer + LOCAL).set(first ? initial.view(layer + LOCAL) : received);
  }
  return buffers;
}
