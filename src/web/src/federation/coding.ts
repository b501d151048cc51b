/**
 * Payloads and updates as they travel: a strategy's tensors ⇄ coded blobs, as in `federation/coding.py`.
 *
 * A codec takes the difference to a *baseline*, the tensors that both ends have already. Where that
 * is an earlier payload it is named by its *reference*, the SHA-256 of the raw blob that it was
 * decoded to. What coding an update loses is its *residual*, which the device adds the next time.
 */

import { sha256Hex } from "../hash.ts";
import { networkTensors, PARAMS } from "../strategies/common.ts";
import { checkTensors, type Model, type TensorSchema, type TensorSchemas } from "../strategies/types.ts";
import { decode, itemBytes, MAX_HEADER_BYTES } from "../tensors/safetensors.ts";
import { sizeOf, type Tensors } from "../tensors/tensors.ts";
import { type Coding, toRaw } from "../wire/codecs.ts";

/** Of an update's record; the tensors' entries share the header, and its quotes are escaped there. */
export const MOST_RECORD_CHARS = MAX_HEADER_BYTES / 2;

/** Bytes of the largest blob of such tensors, in any codec, with its header and record. */
export function largestBlob({ required, optional }: TensorSchemas): number {
  const forms = [...required.values(), ...optional.values()];
  const bytes = forms.reduce((sum, form) => sum + mostBytes(form), 0);
  return Math.ceil(1.1 * bytes) + MAX_HEADER_BYTES;
}

function mostBytes({ shape, dtype, most }: TensorSchema): number {
  return sizeOf(shape.map((axis) => axis ?? most)) * itemBytes(dtype);
}

/** How a payload is named that was decoded to the blob `raw`. */
export async function referenceOf(raw: Uint8Array): Promise<string> {
  return sha256Hex(raw);
}

/**
 * The raw blob of a payload that has arrived; a raw one is not looked at. `earlier` gives the raw
 * blob of an earlier payload by its reference.
 *
 * @throws RefusedError it is not what its codec writes, holds other tensors, or refers to what is not here
 */
export async function decodePayload(
  blob: Uint8Array,
  coding: Coding,
  model: Model,
  forms: TensorSchemas,
  earlier: (reference: string) => Promise<Uint8Array>,
): Promise<Uint8Array> {
  if (coding.codec === "raw") return blob;
  const known = coding.reference === "" ? [] : tensorsOf(await earlier(coding.reference));
  const baseline = new Map([...networkTensors(model.network), ...known]);
  const check = (tensors: Tensors): void => checkTensors(forms, tensors);
  return toRaw(blob, baseline, coding, largestBlob(forms), check);
}

/**
 * What an update is compared with: the payload, for other parameters the bundle. Buffers that no
 * payload holds have no baseline: what they were at first says nothing of them.
 */
export function updateBaseline(model: Model, payload: Tensors): Tensors {
  return new Map([...model.network.params.tensors(PARAMS), ...payload]);
}

/** The tensors of one of the store's own blobs. */
export function tensorsOf(raw: Uint8Array): Tensors {
  return decode(raw, raw.length).tensors;
}
