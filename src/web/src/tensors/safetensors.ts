/**
 * Blobs: named arrays as safetensors, written with one byte order and read without trust.
 *
 * `encode` gives the very bytes of `tensors/blobs.py`; `decode` refuses by the same rules.
 */

import { InputError, RefusedError } from "../errors.ts";
import { byCodePoint, isLabel, shown } from "../text.ts";
import { isObject, parseExact, type JsonObject } from "../wire/strict_json.ts";
import { sizeOf, type DType, type Tensor, type TensorData, type Tensors } from "./tensors.ts";

export const MAX_TENSORS = 4096;
export const MAX_NAME_CHARS = 256;
export const MAX_HEADER_BYTES = 2 * 1024 * 1024;
export const MAX_DIMENSIONS = 8;

const METADATA = "__metadata__";
const MAX_COUNT = 2n ** 63n;
const MAX_ELEMENTS = 2n ** 60n;

interface Form {
  readonly code: string;
  readonly itemBytes: number;
  readonly view: (buffer: ArrayBufferLike, offset: number, length: number) => TensorData;
}

const FORMS: Readonly<Record<DType, Form>> = {
  float64: { code: "F64", itemBytes: 8, view: (...place) => new Float64Array(...place) },
  float32: { code: "F32", itemBytes: 4, view: (...place) => new Float32Array(...place) },
  float16: { code: "F16", itemBytes: 2, view: (...place) => new Uint16Array(...place) },
  int64: { code: "I64", itemBytes: 8, view: (...place) => new BigInt64Array(...place) },
  int32: { code: "I32", itemBytes: 4, view: (...place) => new Int32Array(...place) },
  int16: { code: "I16", itemBytes: 2, view: (...place) => new Int16Array(...place) },
  int8: { code: "I8", itemBytes: 1, view: (...place) => new Int8Array(...place) },
  uint64: { code: "U64", itemBytes: 8, view: (...place) => new BigUint64Array(...place) },
  uint32: { code: "U32", itemBytes: 4, view: (...place) => new Uint32Array(...place) },
  uint16: { code: "U16", itemBytes: 2, view: (...place) => new Uint16Array(...place) },
  uint8: { code: "U8", itemBytes: 1, view: (...place) => new Uint8Array(...place) },
  bool: { code: "BOOL", itemBytes: 1, view: (...place) => new Uint8Array(...place) },
};
const DTYPES = new Map(Object.entries(FORMS).map(([dtype, { code }]) => [code, dtype as DType]));

/** What a blob holds. */
export interface Decoded {
  readonly tensors: Map<string, Tensor>;
  readonly metadata: Map<string, string>;
}

/** Where a tensor lies behind the header. */
interface Entry {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly bigint[];
  readonly begin: bigint;
  readonly end: bigint;
}

/**
 * Safetensors bytes; equal input gives equal bytes, in whatever order it comes.
 *
 * Throws InputError for a name, a number of axes or of tensors that `decode` would refuse.
 */
export function encode(
  tensors: Tensors,
  metadata: ReadonlyMap<string, string> = new Map(),
): Uint8Array<ArrayBuffer> {
  const order = [...tensors].sort(
    ([a, { dtype: wide }], [b, { dtype }]) =>
      FORMS[dtype].itemBytes - FORMS[wide].itemBytes || byCodePoint(a, b),
  );
  const members: string[] = [];
  if (metadata.size > 0) {
    const texts = [...metadata].sort(([a], [b]) => byCodePoint(a, b));
    members.push(member(METADATA, `{${texts.map(([key, text]) => member(key, JSON.stringify(text))).join(",")}}`));
  }
  let offset = 0;
  for (const [name, tensor] of order) {
    checkWritable(name, tensor);
    const [begin, { code }] = [offset, FORMS[tensor.dtype]];
    offset += tensor.data.byteLength;
    const fields = `{"dtype":"${code}","shape":[${tensor.shape.join(",")}],"data_offsets":[${begin},${offset}]}`;
    members.push(member(name, fields));
  }
  return assembled(padded(`{${members.join(",")}}`), order, offset);
}

/**
 * Arrays and metadata of a blob of at most `maxBytes`.
 *
 * The arrays are views into `bytes` wherever their alignment allows: copy before writing.
 * Throws RefusedError, rule `blob-size`, `blob-header`, `blob-name`, `blob-dtype`, `blob-shape`,
 * `blob-offsets` or `blob-bool`.
 */
export function decode(bytes: Uint8Array, maxBytes: number): Decoded {
  if (bytes.length > maxBytes) {
    throw new RefusedError("blob-size", `blob: ${bytes.length} bytes > ${maxBytes} allowed`);
  }
  const { header, start } = readHeader(bytes);
  const metadata = METADATA in header ? checkedMetadata(header[METADATA]) : new Map<string, string>();
  const members = Object.entries(header).filter(([name]) => name !== METADATA);
  if (members.length > MAX_TENSORS) {
    throw refusedHeader(`blob: ${members.length} tensors > ${MAX_TENSORS} allowed`);
  }
  const entries = members.map(([name, entry]) => checkedEntry(name, entry));
  checkOffsets(entries, BigInt(bytes.length - start));
  return { tensors: new Map(entries.map((entry) => [entry.name, view(bytes, start, entry)])), metadata };
}

/** Refuses, by `rule`, a float tensor that holds a NaN or an infinity. */
export function checkFinite(tensors: Tensors, rule = "finite"): void {
  for (const [name, tensor] of tensors) {
    if (!isFiniteTensor(tensor)) {
      throw new RefusedError(rule, `tensor '${shown(name)}': expected finite numbers, got NaN or inf`);
    }
  }
}

/** Whether a tensor may be called so: printable, not too long, not the metadata's name. */
export function nameAllowed(name: string): boolean {
  return isLabel(name, MAX_NAME_CHARS) && name !== METADATA;
}

/** Bytes of one number. */
export function itemBytes(dtype: DType): number {
  return FORMS[dtype].itemBytes;
}

function checkWritable(name: string, { dtype, shape, data }: Tensor): void {
  if (!nameAllowed(name)) {
    throw new InputError(
      `tensor '${shown(name)}': expected a name of 1 to ${MAX_NAME_CHARS} printable characters, letters of any ` +
        `script, other than '${METADATA}'`,
    );
  }
  if (shape.length > MAX_DIMENSIONS) {
    throw new InputError(`tensor '${name}': expected <= ${MAX_DIMENSIONS} axes, got ${shape.length}`);
  }
  if (sizeOf(shape) * FORMS[dtype].itemBytes !== data.byteLength) {
    throw new InputError(
      `tensor '${name}': [${shape.join(", ")}] ${dtype} does not fill ${data.byteLength} bytes`,
    );
  }
}

function member(key: string, value: string): string {
  return `${JSON.stringify(key)}:${value}`;
}

function padded(header: string): Uint8Array {
  const text = new TextEncoder().encode(header);
  const whole = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20);
  whole.set(text);
  return whole;
}

function assembled(
  header: Uint8Array,
  order: readonly (readonly [string, Tensor])[],
  size: number,
): Uint8Array<ArrayBuffer> {
  if (order.length > MAX_TENSORS || header.length > MAX_HEADER_BYTES) {
    throw new InputError(
      `blob: expected at most ${MAX_TENSORS} tensors and ${MAX_HEADER_BYTES} bytes of header, ` +
        `got ${order.length} and ${header.length}`,
    );
  }
  const blob = new Uint8Array(8 + header.length + size);
  new DataView(blob.buffer).setUint32(0, header.length, true);
  blob.set(header, 8);
  let at = 8 + header.length;
  for (const [, { data }] of order) {
    blob.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return blob;
}

function readHeader(bytes: Uint8Array): { header: JsonObject; start: number } {
  if (bytes.length < 8) throw refusedHeader(`blob: expected at least 8 bytes, got ${bytes.length}`);
  const length = new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true);
  if (length > Math.min(MAX_HEADER_BYTES, bytes.length - 8)) {
    throw refusedHeader(`blob: header of ${length} bytes in a blob of ${bytes.length} bytes`);
  }
  const start = 8 + Number(length);
  const header = parseExact(bytes.subarray(8, start), "blob header", "blob-header");
  if (!isObject(header)) throw refusedHeader("blob header: expected an object");
  return { header, start };
}

function checkedMetadata(metadata: unknown): Map<string, string> {
  const texts = isObject(metadata) ? Object.entries(metadata) : [["", null]];
  if (!texts.every((pair): pair is [string, string] => typeof pair[1] === "string")) {
    throw refusedHeader("blob header: expected metadata of strings");
  }
  return new Map(texts);
}

function checkedEntry(name: string, entry: unknown): Entry {
  const what = `tensor '${shown(name)}'`;
  if (!nameAllowed(name)) throw new RefusedError("blob-name", `blob: tensor name '${shown(name)}' is not allowed`);
  const keys = isObject(entry) ? Object.keys(entry).sort().join() : "";
  if (!isObject(entry) || keys !== "data_offsets,dtype,shape") {
    throw refusedHeader(`${what}: expected dtype, shape, data_offsets`);
  }
  const dtype = typeof entry.dtype === "string" ? DTYPES.get(entry.dtype) : undefined;
  if (dtype === undefined) {
    const got = typeof entry.dtype === "string" ? `'${shown(entry.dtype, 20)}'` : "no text";
    throw new RefusedError("blob-dtype", `${what}: expected a dtype's name, got ${got}`);
  }
  const shape = checkedCounts(what, entry.shape, "blob-shape");
  const offsets = checkedCounts(what, entry.data_offsets, "blob-offsets");
  if (shape.length > MAX_DIMENSIONS) {
    throw new RefusedError("blob-shape", `${what}: ${shape.length} axes > ${MAX_DIMENSIONS}`);
  }
  if (product(shape.map((axis) => axis || 1n)) >= MAX_ELEMENTS) {
    throw new RefusedError("blob-shape", `${what}: shape [${shape.join(", ")}] overflows`);
  }
  const [begin, end] = offsets;
  if (begin === undefined || end === undefined || offsets.length !== 2) {
    throw new RefusedError("blob-offsets", `${what}: expected two offsets`);
  }
  return { name, dtype, shape, begin, end };
}

function checkedCounts(what: string, values: unknown, rule: string): bigint[] {
  const isCount = (value: unknown) => typeof value === "bigint" && value >= 0n && value < MAX_COUNT;
  if (!Array.isArray(values) || !values.every(isCount)) {
    throw new RefusedError(rule, `${what}: expected a list of counts in its header`);
  }
  return values;
}

/** Every byte of the body belongs to exactly one tensor, and each shape fills its bytes. */
function checkOffsets(entries: readonly Entry[], total: bigint): void {
  let position = 0n;
  const order = [...entries].sort((a, b) => compare(a.begin, b.begin) || compare(a.end, b.end));
  for (const { name, dtype, shape, begin, end } of order) {
    const what = `tensor '${shown(name)}'`;
    if (begin !== position || end < begin) {
      throw new RefusedError(
        "blob-offsets",
        `${what}: bytes ${begin} to ${end}, expected from ${position}`,
      );
    }
    if (product(shape) * BigInt(FORMS[dtype].itemBytes) !== end - begin) {
      throw new RefusedError(
        "blob-shape",
        `${what}: [${shape.join(", ")}] ${dtype} does not fill ${end - begin} bytes`,
      );
    }
    position = end;
  }
  if (position !== total) {
    throw new RefusedError("blob-offsets", `blob: tensors fill ${position} bytes of ${total}`);
  }
}

function view(bytes: Uint8Array, start: number, { name, dtype, shape, begin, end }: Entry): Tensor {
  const { itemBytes: width, view: make } = FORMS[dtype];
  const [from, size] = [start + Number(begin), Number(end - begin)];
  const raw = bytes.subarray(from, from + size);
  if (dtype === "bool" && raw.some((byte) => byte > 1)) {
    throw new RefusedError("blob-bool", `tensor '${shown(name)}': a bool is neither 0 nor 1`);
  }
  // Elsewhere than on a multiple of its width no array can stand: only that one is copied.
  const placed = raw.byteOffset % width === 0 ? raw : raw.slice();
  const data = make(placed.buffer, placed.byteOffset, size / width);
  return { dtype, shape: shape.map(Number), data };
}

function isFiniteTensor({ dtype, data }: Tensor): boolean {
  if (dtype === "float16") return (data as Uint16Array).every((bits) => (bits & 0x7c00) !== 0x7c00);
  if (dtype !== "float32" && dtype !== "float64") return true;
  return (data as Float32Array).every(Number.isFinite);
}

function product(axes: readonly bigint[]): bigint {
  return axes.reduce((size, axis) => size * axis, 1n);
}

function compare(left: bigint, right: bigint): number {
  return left < right ? -1 : left > right ? 1 : 0;
}

function refusedHeader(message: string): RefusedError {
  return new RefusedError("blob-header", message);
}
