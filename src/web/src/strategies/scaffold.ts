/**
 * SCAFFOLD (Karimireddy et al., arXiv:1910.06378): steps are corrected by how the client's gradients differ from all
 * clients'.
 *
 * A client keeps its control variate as `control/<name>`, gets the server's under the same names, and sends by how
 * much it has changed its own.
 */

import { InputError } from "../errors.ts";
import { Layout, TensorMap } from "../tensors/tensors.ts";
import { averaging, finishRound, initialise, receive, SHARED_TRAINING, shareAll } from "./averaging.ts";
import type { AveragingContext } from "./averaging.ts";
import { CHANGE, copied, numExamples, prefixedLayout, unpack } from "./common.ts";
import { choice, flag, MOST, MOST_LR, parseSettings, real, table, whole } from "./settings.ts";
import type { Settings } from "./settings.ts";
import { meanGradient, train } from "./training.ts";
import { plainSgd } from "./training_settings.ts";
import { TASK_LOSS } from "./types.ts";
import type { ClientState, ClientTools, Factory, Payload, Update } from "./types.ts";

const NAME = "scaffold";
const CONTROL = "control/";
const f32 = Math.fround;

const SETTINGS = {
  ...SHARED_TRAINING,
  /** Plain steps: of others (x - y_i) / (K eta) is no gradient. */
  optimiser: plainSgd(),
  /** c_i becomes the gradient at x (I) or the mean one of the steps (II). */
  option: choice("II", ["I", "II"]),
  /** How the server moves. */
  server: table({ lr: real(1, 0, MOST_LR), by_examples: flag(false), population: whole(0, 0, MOST) }),
};

type Context = AveragingContext<Settings<typeof SETTINGS>>;

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  if (chosen.option === "I" && chosen.clipNorm !== null) {
    throw new InputError(`strategy '${NAME}': setting 'clip_norm': option I clips no gradient; use option II`);
  }
  const extra = prefixedLayout(CONTROL, model.network.params.layout);
  const whole = shareAll({ name: NAME, programs: [TASK_LOSS], settings: chosen, model });
  return averaging({ ...whole, extra }, clientUpdate);
};

async function clientUpdate(
  context: Context,
  state: ClientState,
  payload: Payload,
  tools: ClientTools,
): Promise<readonly [ClientState, Update]> {
  const { settings, model, shared } = context;
  const { layout } = model.network.params;
  const start = await initialise(settings, receive(context, state, payload), tools);
  const server = unpack(payload.tensors, CONTROL, layout);
  const own = unpack(state.tensors, CONTROL, layout);
  const correction = difference(layout, server, own); // Line 10
  const trained = await train(copied(start.network), tools.training, settings, { correction });
  let control = own; // Line 12
  if (settings.option === "I" && numExamples(tools) >= tools.training.minBatch) {
    control = await meanGradient(start.network, tools.training, settings);
  } else if (trained.steps > 0) {
    const moved = difference(layout, start.network.params, trained.network.params);
    control = secondOption(own, server, moved, 1 / (trained.steps * settings.optimiser.lr));
  }
  const change = difference(layout, control, own);
  const beside = { keep: control.tensors(CONTROL), send: change.tensors(CHANGE + CONTROL) };
  return finishRound(start, trained, tools, shared, beside);
}

/** c_i + scale (x - y_i) - c. */
function secondOption(own: TensorMap, server: TensorMap, moved: TensorMap, scale: number): TensorMap {
  const factor = f32(scale);
  const buffer = own.buffer.map((value, at) => value + f32(f32(factor * moved.buffer[at]!) - server.buffer[at]!));
  return new TensorMap(own.layout, buffer);
}

function difference(layout: Layout, one: TensorMap, other: TensorMap): TensorMap {
  return new TensorMap(layout, one.buffer.map((value, at) => value - other.buffer[at]!));
}
