/**
 * Codecs: what stands between a strategy's tensors and the blob that travels, as `wire/codecs.py`.
 *
 * `raw` is the safetensors blob itself. The others send float32 tensors of 32 and more finite numbers
 * with fewer bits, and everything else as it is (docs/protocol.md, Codecs). What both ends know
 * already, the *baseline*, is subtracted first. What coding loses of an update's parameters and
 * increments is its *residual*, which the sender adds the next time.
 */

import { utf8 } from "../bytes.ts";
import { InputError } from "../errors.ts";
import {
  type Decoded, MAX_DIMENSIONS, MAX_TENSORS, decode as decodeBlob, encode as encodeBlob, nameAllowed,
} from "../tensors/safetensors.ts";
import { type Tensor, type Tensors, sameShape, sizeOf } from "../tensors/tensors.ts";
import { byCodePoint, shown } from "../text.ts";
import { type Coded, MOST_VALUE, PREFIX, Reader, Writer, refused } from "./codec_streams.ts";
import { LEAST_HALF, MOST_HALF } from "./half_floats.ts";
import { parseExact } from "./strict_json.ts";
import { deflated, inflated } from "./zlib.ts";

const ZLIB = "+zlib";
const CODED: readonly Coded[] = ["fp16", "int8", "int4", "topk"];
/** What an offer may name. */
export const NAMES: readonly string[] = ["raw", ...CODED.flatMap((kind) => [kind, kind + ZLIB])];

/** Tensors of fewer numbers travel as they are: there is nothing to gain. */
const SMALL = 32;
const PARAMS = "params/";
const CHANGE = "change/";
const KEY = "codec";
const REFERENCE = "base";

/** How a sender encodes; `keep` is the share of a parameter's entries that `topk` sends, in (0, 1]. */
export interface Codec {
  readonly kind: "raw" | Coded;
  readonly compressed: boolean;
  readonly keep: number;
}

export const RAW_CODEC: Codec = { kind: "raw", compressed: false, keep: 0.1 };

/** What an offer says of a blob's codec; `reference` names the payload that it refers to. */
export interface Coding {
  readonly codec: string;
  readonly rawBytes: number;
  readonly reference: string;
}

/** A blob to send; `rawBytes` is its size before compression. */
export interface Encoded {
  readonly blob: Uint8Array;
  readonly codec: string;
  readonly rawBytes: number;
  /** By tensor, what the sender has to add the next time; empty without memory. */
  readonly residual: Tensors;
}

export interface EncodeOptions {
  /**
   * What earlier calls returned; empty at first. Of tensors that this blob does not code it is handed
   * on. Null: what is lost stays lost, as it may where the next baseline is what this blob decodes to.
   */
  readonly residual?: Tensors | null;
  readonly metadata?: Readonly<Record<string, string>>;
  /** Name of the baseline. It stands in the blob, so that equal codes of different things differ. */
  readonly reference?: string;
}

/** Throws RefusedError unless tensors of these names, shapes and dtypes are expected; reads no number. */
export type CheckLayout = (tensors: Tensors) => void;

/** One coded tensor, in the order of the streams. */
interface Entry {
  readonly name: string;
  readonly shape: readonly number[];
  readonly kind: Coded;
  readonly delta: boolean;
}

/** The codec that a task asks for; raw, which everyone reads, for what is not known. */
export function codecOf(name: string, keep = 0.1): Codec {
  const compressed = name.endsWith(ZLIB);
  const kind = CODED.find((one) => one + (compressed ? ZLIB : "") === name);
  return kind === undefined || !(keep > 0 && keep <= 1) ? RAW_CODEC : { kind, compressed, keep };
}

/** As an offer names it. */
export function codecName({ kind, compressed }: Codec): string {
  return compressed && kind !== "raw" ? kind + ZLIB : kind;
}

/**
 * The blob of `tensors` for a receiver that has `baseline`, which is used where dtype and shape are
 * the same. Rejects with InputError: a name or a number of tensors that no blob holds.
 */
export async function encode(
  tensors: Tensors,
  baseline: Tensors,
  codec: Codec,
  { residual = null, metadata = {}, reference = "" }: EncodeOptions = {},
): Promise<Encoded> {
  const about = new Map(Object.entries(metadata));
  if (codec.kind === "raw") {
    const blob = encodeBlob(tensors, about);
    return { blob, codec: "raw", rawBytes: blob.length, residual: new Map() };
  }
  const coder = new Coder(codec.kind, codec.keep, baseline, residual);
  // In one order, whatever order the sender holds them in: a restart sends the same bytes.
  const sorted = [...tensors].sort(([a], [b]) => byCodePoint(a, b));
  const plain = sorted.filter(([name, tensor]) => !coder.take(name, tensor));
  const taken = plain.find(([name]) => name.startsWith(PREFIX));
  if (taken !== undefined) {
    throw new InputError(`tensor '${taken[0]}': expected no name that starts with '${PREFIX}'`);
  }
  about.set(KEY, JSON.stringify(coder.entries.map(({ name, shape, kind, delta }) => [name, shape, kind, delta])));
  if (reference !== "") about.set(REFERENCE, reference);
  const raw = encodeBlob(new Map([...plain, ...coder.streams.tensors()]), about);
  const blob = codec.compressed ? await deflated(raw) : raw;
  return { blob, codec: codecName(codec), rawBytes: raw.length, residual: coder.left };
}

/** Codes tensor after tensor. */
class Coder {
  readonly entries: Entry[] = [];
  readonly streams = new Writer();
  readonly left: Map<string, Tensor>;

  constructor(
    readonly kind: Coded,
    readonly keep: number,
    readonly baseline: Tensors,
    readonly residual: Tensors | null,
  ) {
    this.left = new Map(residual);
  }

  /** Code a tensor; false: it travels as it is. */
  take(name: string, { dtype, shape, data }: Tensor): boolean {
    if (dtype !== "float32" || data.length < SMALL) return false;
    const increment = this.residual !== null && name.startsWith(CHANGE);
    const known = increment ? null : sameTensor(this.baseline, name, shape);
    const difference = this.residual !== null && known !== null && name.startsWith(PARAMS);
    const remembers = difference || increment;
    const earlier = remembers ? (this.residual?.get(name)?.data as Float32Array | undefined) : undefined;
    const wanted = wantedOf(data as Float32Array, known, earlier);
    const peak = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    // Numbers (almost) without end are the receiver's to refuse, not ours to hide.
    if (!(peak <= MOST_VALUE)) return false;
    const corrected = this.residual === null && known !== null;
    // What the server adds up must be near in every round, not only in the end.
    const kind = this.#kind(peak, difference, corrected);
    const sent = this.streams.write(kind, wanted, this.keep);
    if (remembers) {
      const lost = wanted.map((value, at) => value - sent[at]!);
      this.left.set(name, { dtype: "float32", shape: [lost.length], data: lost });
    }
    this.entries.push({ name, shape, kind, delta: known !== null });
    return true;
  }

  /** The codec's own, if something makes up for what it loses, and it can hold `peak`. */
  #kind(peak: number, remembered: boolean, corrected: boolean): Coded {
    const holds = {
      fp16: peak === 0 || (peak >= LEAST_HALF && peak <= MOST_HALF),
      topk: remembered,
      int4: remembered || corrected,
      int8: true,
    };
    return holds[this.kind] ? this.kind : "int8";
  }
}

/**
 * Tensors and metadata of a blob that came from outside.
 *
 * Rejects with RefusedError: a rule of safetensors or of `check`, or `codec`: what no encoder writes,
 * or a tensor that refers to one that `baseline` has not. `maxBytes` is the largest blob, and the
 * largest sum of decoded tensors, that the caller is ready for.
 */
export async function decode(
  data: Uint8Array,
  baseline: Tensors,
  coding: Coding,
  maxBytes: number,
  check: CheckLayout = () => undefined,
): Promise<Decoded> {
  if (coding.codec === "raw") {
    const decoded = decodeBlob(data, maxBytes);
    check(decoded.tensors);
    return decoded;
  }
  const { tensors, metadata } = decodeBlob(await uncompressed(data, coding, maxBytes), maxBytes);
  metadata.delete(REFERENCE);
  const table = metadata.get(KEY) ?? "";
  metadata.delete(KEY);
  const entries = checkedEntries(table, tensors, baseline, maxBytes);
  const found = new Map([...tensors].filter(([name]) => !name.startsWith(PREFIX)));
  check(new Map([...found, ...entries.map(({ name, shape }) => [name, hollow(shape)] as const)]));
  const reader = new Reader(tensors);
  for (const entry of entries) found.set(entry.name, readTensor(reader, entry, baseline));
  reader.finish();
  return { tensors: found, metadata };
}

/** The raw blob that a coded one stands for; raw ones as they are, unread. Rejects as `decode`. */
export async function toRaw(
  data: Uint8Array,
  baseline: Tensors,
  coding: Coding,
  maxBytes: number,
  check?: CheckLayout,
): Promise<Uint8Array> {
  if (coding.codec === "raw") return data;
  const { tensors, metadata } = await decode(data, baseline, coding, maxBytes, check);
  try {
    return encodeBlob(tensors, metadata);
  } catch (error) {
    throw error instanceof InputError ? refused(error.message) : error;
  }
}

/** A float32 tensor of this shape that takes no memory. */
function hollow(shape: readonly number[]): Tensor {
  return { dtype: "float32", shape, data: new Float32Array(0) };
}

async function uncompressed(data: Uint8Array, { codec, rawBytes }: Coding, maxBytes: number): Promise<Uint8Array> {
  if (!NAMES.includes(codec)) throw refused(`expected one of ${NAMES.join(", ")}, got '${shown(codec, 64)}'`);
  if (!(rawBytes > 0 && rawBytes <= maxBytes)) {
    throw refused(`expected 1 to ${maxBytes} bytes before compression, got ${rawBytes}`);
  }
  const raw = codec.endsWith(ZLIB) ? await inflated(data, rawBytes) : data;
  if (raw === null) throw refused(`zlib: expected one whole stream of ${rawBytes} bytes`);
  if (raw.length !== rawBytes) {
    throw refused(`expected ${rawBytes} bytes before compression, got ${raw.length}`);
  }
  return raw;
}

/** The table of coded tensors; every shape is checked before anything is made of it. */
function checkedEntries(text: string, tensors: Tensors, baseline: Tensors, maxBytes: number): Entry[] {
  const table = parseExact(utf8(text), "codec: table of tensors", "codec");
  if (!Array.isArray(table)) throw refused("table of tensors: expected a list");
  const entries = table.map(checkedEntry);
  const names = entries.map(({ name }) => name);
  const plain = [...tensors.keys()].filter((name) => !name.startsWith(PREFIX));
  if (entries.length + plain.length > MAX_TENSORS) {
    throw refused(`table of tensors: expected at most ${MAX_TENSORS} in all`);
  }
  if (!names.every(nameAllowed)) throw refused("table of tensors: a name is not allowed");
  if (new Set(names).size < names.length || names.some((name) => tensors.has(name))) {
    throw refused("table of tensors: expected each name once");
  }
  if (names.some((name) => name.startsWith(PREFIX))) {
    throw refused(`table of tensors: a name starts with '${PREFIX}'`);
  }
  let total = 0;
  for (const { name, shape, delta } of entries) {
    const what = `tensor '${shown(name, 64)}'`;
    if (shape.length > MAX_DIMENSIONS || !shape.every((axis) => axis >= 1 && axis <= maxBytes)) {
      throw refused(`${what}: impossible shape`);
    }
    total += 4 * sizeOf(shape);
    if (delta && sameTensor(baseline, name, shape) === null) {
      throw refused(`${what}: [${shape.join(", ")}] refers to one that is not here`);
    }
  }
  if (total > maxBytes) throw refused(`expected tensors of at most ${maxBytes} bytes in all, got ${total}`);
  return entries;
}

function checkedEntry(row: unknown): Entry {
  const [name, shape, kind, delta] = Array.isArray(row) && row.length === 4 ? (row as unknown[]) : [];
  const known = CODED.find((one) => one === kind);
  const isShape = Array.isArray(shape) && shape.every((axis) => typeof axis === "bigint");
  if (typeof name !== "string" || !isShape || known === undefined || typeof delta !== "boolean") {
    throw refused("table of tensors: expected rows of name, shape, kind, delta");
  }
  return { name, shape: shape.map(Number), kind: known, delta };
}

function readTensor(reader: Reader, { name, shape, kind, delta }: Entry, baseline: Tensors): Tensor {
  const data = reader.read(kind, sizeOf(shape));
  const known = delta ? sameTensor(baseline, name, shape) : null;
  if (known !== null) for (let at = 0; at < data.length; at++) data[at]! += known[at]!;
  return { dtype: "float32", shape, data };
}

/** Value - baseline + residual, rounded to float32 after each operation. */
function wantedOf(
  value: Float32Array,
  known: Float32Array | null,
  earlier: Float32Array | undefined,
): Float32Array {
  const wanted = known === null ? value.slice() : value.map((number, at) => number - known[at]!);
  return earlier === undefined ? wanted : wanted.map((number, at) => number + earlier[at]!);
}

/** The numbers of the baseline's float32 tensor of that name and shape. */
function sameTensor(baseline: Tensors, name: string, shape: readonly number[]): Float32Array | null {
  const found = baseline.get(name);
  return found?.dtype === "float32" && sameShape(found.shape, shape) ? (found.data as Float32Array) : null;
}
