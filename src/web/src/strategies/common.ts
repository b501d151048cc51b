/**
 * What strategies share: tensors with prefixes, and a model in a client's state, as in `strategies/common.py`.
 *
 * In states, payloads and updates a parameter `a.w` is called `params/a.w` and a buffer `b.m` is
 * called `state/b.m`.
 */

import { InputError } from "../errors.ts";
import { float32, Layout, sameShape, sizeOf, TensorMap } from "../tensors/tensors.ts";
import type { Network, Tensor, Tensors } from "../tensors/tensors.ts";
import type { ClientState, ClientTools, Evaluation, Model, Payload, TensorSchema, TensorSchemas, Update } from "./types.ts";

export const PARAMS = "params/";
export const BUFFERS = "state/";
/** Of an increment in an update, which the server adds up over the rounds. */
export const CHANGE = "change/";

/** Names in a message; a model may have hundreds. */
const SHOWN = 8;

/** The same tensors under names with a prefix. */
export function prefixed(prefix: string, tensors: Tensors): Map<string, Tensor> {
  return new Map([...tensors].map(([name, value]) => [prefix + name, value]));
}

/** Those tensors whose names begin with a prefix, without it. */
export function withoutPrefix(prefix: string, tensors: Tensors): Map<string, Tensor> {
  const named = [...tensors].filter(([name]) => name.startsWith(prefix));
  return new Map(named.map(([name, value]) => [name.slice(prefix.length), value]));
}

/** The layout of `prefixed`. */
export function prefixedLayout(prefix: string, layout: Layout): Layout {
  return new Layout(layout.spans.map(({ name, shape }) => [prefix + name, shape]));
}

/** Prefixed layout of all parameters. */
export function wholeLayout(model: Model): Layout {
  return prefixedLayout(PARAMS, model.network.params.layout);
}

/**
 * Prefixed layout of the parameters that are not the head's; `head` says how the names of the
 * head's begin, null: as the model says. Throws InputError if all or none are the head's.
 */
export function sharedLayout(model: Model, head: string | null): Layout {
  const { names } = model.network.params.layout;
  const own = head === null ? model.head : names.filter((name) => name.startsWith(head));
  if (own.length === 0 && head === null) {
    throw new InputError(
      "model: the bundle does not say which parameters are its head: export it with --head NAME, or set " +
        `'head' to how their names start; parameters are ${listed(names)}`,
    );
  }
  if (own.length === 0 || own.length === names.length) {
    throw new InputError(
      `head: expected some parameters, not all and not none, got ${listed(own)} of ${listed(names)}: ` +
        "name another with --head at the export, or by the setting 'head'",
    );
  }
  const personal = new Set(own.map((name) => PARAMS + name));
  const spans = wholeLayout(model).spans.filter(({ name }) => !personal.has(name));
  return new Layout(spans.map(({ name, shape }) => [name, shape]));
}

/** Names of the parameters in a prefixed layout. */
export function parameterNames(shared: Layout): Set<string> {
  return new Set(shared.names.map((name) => name.slice(PARAMS.length)));
}

/** Names of the parameters that are not of a prefixed layout. */
export function otherParameterNames(model: Model, shared: Layout): Set<string> {
  return new Set(model.network.params.layout.names.filter((name) => !shared.has(PARAMS + name)));
}

/** The first names for a message, and how many more there are; "none" without any. */
export function listed(names: readonly string[]): string {
  if (names.length === 0) return "none";
  const shown = names.slice(0, SHOWN).join(", ");
  return names.length <= SHOWN ? shown : `${shown} and ${names.length - SHOWN} more`;
}

/** Throws InputError unless the tensors have exactly the names and shapes of a layout, in float32. */
export function checkNames(tensors: Tensors, layout: Layout): void {
  for (const name of tensors.keys()) {
    if (!layout.has(name)) throw new InputError(`tensor '${name}': not in the layout`);
  }
  for (const { name, shape } of layout.spans) {
    const got = tensors.get(name);
    const expected = `tensor '${name}': expected [${shape.join(", ")}] float32`;
    if (got === undefined) throw new InputError(`${expected}, got nothing`);
    if (got.dtype !== "float32" || !sameShape(got.shape, shape)) {
      throw new InputError(`${expected}, got [${got.shape.join(", ")}] ${got.dtype}`);
    }
  }
}

/** Copies the tensors of a layout, named there without the prefix, into a map of their own. */
export function unpack(tensors: Tensors, prefix: string, layout: Layout): TensorMap {
  const named = withoutPrefix(prefix, tensors);
  checkNames(named, layout);
  const packed = TensorMap.zeros(layout);
  for (const { name, offset } of layout.spans) packed.buffer.set(numbersOf(tensorOf(named, name)), offset);
  return packed;
}

/** The numbers of a float32 tensor. */
export function numbersOf({ dtype, data }: Tensor): Float32Array {
  if (data instanceof Float32Array) return data;
  throw new InputError(`tensor: expected float32, got ${dtype}`);
}

export function tensorOf(tensors: Tensors, name: string): Tensor {
  const found = tensors.get(name);
  if (found === undefined) throw new InputError(`tensor '${name}': expected it, got nothing`);
  return found;
}

/** Those tensors that a layout names. */
export function selected(tensors: Tensors, layout: Layout): Map<string, Tensor> {
  return new Map(layout.names.map((name) => [name, tensorOf(tensors, name)]));
}

/** A network's very tensors under the names that they have in states, payloads and updates. */
export function networkTensors({ params, buffers }: Network): Map<string, Tensor> {
  return new Map([...params.tensors(PARAMS), ...buffers.tensors(BUFFERS)]);
}

/** A first payload of such forms: the model's own values, and zeros of what is not the model's. */
export function initialPayload({ network }: Model, { required }: TensorSchemas): Tensors {
  const own = networkTensors(network);
  return new Map([...required].map(([name, form]) => [name, own.get(name) ?? zerosOf(form)]));
}

function zerosOf({ dtype, shape }: TensorSchema): Tensor {
  const fixed = shape.map((axis) => axis ?? 0);
  if (dtype === "float32") return float32(fixed, new Float32Array(sizeOf(fixed)));
  if (dtype === "uint8") return { dtype, shape: fixed, data: new Uint8Array(sizeOf(fixed)) };
  throw new InputError(`a first payload of ${dtype}: expected float32 or uint8`);
}

/** The names of `networkTensors`. */
export function networkNames({ network: { params, buffers } }: Model): Set<string> {
  return new Set([...params.layout.names.map((name) => PARAMS + name), ...buffers.layout.names.map((name) => BUFFERS + name)]);
}

/** Prefixed names of the parameters that are not of a prefixed layout. */
export function personalNames(model: Model, shared: Layout): Set<string> {
  return new Set(wholeLayout(model).names.filter((name) => !shared.has(name)));
}

/** Copies what `networkTensors` named into a network of its own; other names are passed over. */
export function unpackNetwork(tensors: Tensors, model: Model): Network {
  return {
    params: unpack(tensors, PARAMS, model.network.params.layout),
    buffers: unpack(tensors, BUFFERS, model.network.buffers.layout),
  };
}

export function copied({ params, buffers }: Network): Network {
  return { params: params.copy(), buffers: buffers.copy() };
}

/** All of the bundle's values, under prefixed names. */
export function clientInit(model: Model): ClientState {
  return { roundId: 0, tensors: networkTensors(model.network) };
}

/** The network in a client's state that holds all of the model's tensors, a copy. */
export function clientModel(model: Model, state: ClientState): Network {
  return unpackNetwork(state.tensors, model);
}

/** One tensor above another: the later maps' tensors take the place of the earlier ones'. */
export function merged(...maps: readonly Tensors[]): Map<string, Tensor> {
  return new Map(maps.flatMap((map) => [...map]));
}

/** The scores of a trained model, or those from before with its own as `after_fit`. */
export async function scored(early: Evaluation | null, network: Network, tools: ClientTools): Promise<Evaluation> {
  if (early === null) return tools.evaluate(network);
  const after = await tools.statistics(network);
  return after === null ? early : { ...early, more: new Map([...early.more, ["after_fit", after]]) };
}

/** The update of a round; `tensors` are what travels. */
export function updateOf(
  tools: ClientTools,
  payload: Payload,
  content: { readonly tensors: Tensors; readonly evaluation: Evaluation; readonly loss: number },
): Update {
  return {
    clientId: tools.clientId,
    roundId: payload.roundId,
    numExamples: numExamples(tools),
    ...content,
  };
}

export function numExamples({ training }: ClientTools): number {
  return training.y.shape[0] ?? 0;
}

/** A float32 without axes. */
export function scalar(value: number): Tensor {
  return float32([], Float32Array.of(value));
}
