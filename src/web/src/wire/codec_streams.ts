/**
 * Numbers of coded tensors, each kind behind one another: what `codecs` writes into a blob.
 *
 * A quantised tensor has one float32 scale for every 256 numbers: one outlier must not take all bits
 * from a layer, and 4 bytes among 256 are little. Each operation rounds to float32, as in Python.
 */

import { concat } from "../bytes.ts";
import { RefusedError } from "../errors.ts";
import type { Tensor, TensorData, Tensors } from "../tensors/tensors.ts";
import { shown } from "../text.ts";
import { ofHalves, rint, toHalves } from "./half_floats.ts";

/** How one tensor is coded. */
export type Coded = "fp16" | "int8" | "int4" | "topk";

/** Of the streams' names in a blob. */
export const PREFIX = "codec/";

const BLOCK = 256;
const MOST_FLOAT32 = (2 - 2 ** -23) * 2 ** 127;
const LEAST_SCALE = 2 ** -126; // below, arithmetic differs between machines
/** Largest scale of 8-bit codes, so that 127 times it is a float32; and of 4-bit codes. */
const MOST_SCALE_8 = before(Math.fround(MOST_FLOAT32 / 127));
const MOST_SCALE_4 = Math.fround(MOST_FLOAT32 / 8);
/** Largest magnitude that every kind can write. */
export const MOST_VALUE = Math.fround(7 * MOST_SCALE_4);

const DTYPES = {
  halves: "uint8", // float16, first the low bytes of all, then the high ones
  codes: "int8",
  scales: "float32", // of codes and nibbles, in the order of the tensors
  nibbles: "uint8", // codes of 1 to 15 (for -7 to 7), the first of two in the high half
  bitmaps: "uint8", // most significant bit first
} as const;
const VIEWS = {
  uint8: (buffer: ArrayBufferLike) => new Uint8Array(buffer),
  int8: (buffer: ArrayBufferLike) => new Int8Array(buffer),
  float32: (buffer: ArrayBufferLike) => new Float32Array(buffer),
} as const;
type Stream = keyof typeof DTYPES;
const STREAMS = Object.keys(DTYPES) as readonly Stream[];

/** Takes tensor after tensor. */
export class Writer {
  readonly #parts = new Map<Stream, TensorData[]>();

  /**
   * Adds a tensor's finite numbers; returns what the reader will give for them. Of those that `topk`
   * codes only the share `keep` is written; the others read as zero.
   */
  write(kind: Coded, values: Float32Array, keep: number): Float32Array {
    switch (kind) {
      case "fp16":
        return this.#fp16(values);
      case "int8":
        return this.#int8(values);
      case "int4":
        return this.#int4(values);
      case "topk":
        return this.#topk(values, Math.ceil(keep * values.length));
    }
  }

  /** The streams as they stand in the blob; empty ones are left out. */
  tensors(): Map<string, Tensor> {
    const found = new Map<string, Tensor>();
    for (const name of STREAMS) {
      const parts = this.#parts.get(name);
      if (parts === undefined) continue;
      const bytes = concat(...parts.map(bytesOf));
      const dtype = DTYPES[name];
      const data = VIEWS[dtype]((name === "halves" ? planes(bytes) : bytes).buffer);
      found.set(PREFIX + name, { dtype, shape: [data.length], data });
    }
    return found;
  }

  #add(name: Stream, part: TensorData): void {
    const parts = this.#parts.get(name);
    if (parts === undefined) this.#parts.set(name, [part]);
    else parts.push(part);
  }

  #fp16(values: Float32Array): Float32Array {
    const halves = toHalves(values);
    this.#add("halves", halves);
    return ofHalves(halves);
  }

  #int8(values: Float32Array): Float32Array {
    const scales = scalesOf(values, 127).map((scale) => Math.min(scale, MOST_SCALE_8));
    const codes = codesOf(values, scales);
    this.#add("codes", codes);
    this.#add("scales", scales);
    return scaled(codes, scales);
  }

  #int4(values: Float32Array): Float32Array {
    const scales = scalesOf(values, 7);
    const codes = codesOf(values, scales);
    const nibbles = new Uint8Array(Math.ceil(values.length / 2));
    codes.forEach((code, at) => {
      nibbles[at >> 1]! |= (code + 8) << (at & 1 ? 0 : 4);
    });
    this.#add("nibbles", nibbles);
    this.#add("scales", scales);
    return scaled(codes, scales);
  }

  #topk(values: Float32Array, count: number): Float32Array {
    const chosen = largest(values, count);
    const bitmap = new Uint8Array(Math.ceil(values.length / 8));
    for (const at of chosen) bitmap[at >> 3]! |= 0x80 >> (at & 7);
    this.#add("bitmaps", bitmap);
    const sent = new Float32Array(values.length);
    const found = this.#int8(Float32Array.from(chosen, (at) => values[at]!));
    chosen.forEach((at, index) => {
      sent[at] = found[index]!;
    });
    return sent;
  }
}

/** Gives tensor after tensor, from streams that came from outside. */
export class Reader {
  readonly #streams: Record<Stream, TensorData>;

  /** Throws RefusedError, rule `codec`: a stream that no writer knows, of another dtype or more axes. */
  constructor(tensors: Tensors) {
    for (const name of tensors.keys()) {
      if (name.startsWith(PREFIX) && !STREAMS.includes(name.slice(PREFIX.length) as Stream)) {
        throw refused(`tensor '${shown(name, 64)}': no such stream`);
      }
    }
    const found = STREAMS.map((name) => [name, stream(tensors, name)] as const);
    this.#streams = Object.fromEntries(found) as Record<Stream, TensorData>;
    this.#streams.halves = halvesOf(this.#streams.halves as Uint8Array);
  }

  /** The next tensor's values; throws RefusedError, rule `codec`, if no writer writes such. */
  read(kind: Coded, size: number): Float32Array {
    switch (kind) {
      case "fp16":
        return this.#fp16(size);
      case "int8":
        return this.#int8(size);
      case "int4":
        return this.#int4(size);
      case "topk":
        return this.#topk(size);
    }
  }

  /** Throws RefusedError if a stream has more than its tensors. */
  finish(): void {
    for (const name of STREAMS) {
      const { length } = this.#streams[name];
      if (length > 0) throw refused(`${name}: ${length} numbers belong to no tensor`);
    }
  }

  #fp16(size: number): Float32Array {
    const values = ofHalves(this.#take("halves", size) as Uint16Array);
    const odd = values.findIndex(Number.isNaN);
    if (odd >= 0) throw refused(`fp16 codes: expected finite numbers, got nan at [${odd}]`);
    return values;
  }

  #int8(size: number): Float32Array {
    const codes = this.#take("codes", size) as Int8Array;
    const scales = this.#take("scales", Math.ceil(size / BLOCK)) as Float32Array;
    const odd = scales.findIndex((scale) => !(scale >= 0 && scale <= MOST_SCALE_8));
    if (odd >= 0) {
      const got = String(scales[odd]).replace("NaN", "nan").replace("Infinity", "inf");
      throw refused(`int8 scales: expected 0 to ${MOST_SCALE_8}, got ${got} at ${odd}`);
    }
    const lowest = codes.indexOf(-128);
    if (lowest >= 0) throw refused(`int8 codes: expected -127 to 127, got -128 at ${lowest}`);
    return scaled(codes, scales);
  }

  #int4(size: number): Float32Array {
    const nibbles = this.#take("nibbles", Math.ceil(size / 2)) as Uint8Array;
    const scales = this.#take("scales", Math.ceil(size / BLOCK)) as Float32Array;
    const codes = new Int8Array(size);
    let written = (size & 1) === 0 || (nibbles.at(-1)! & 15) === 0;
    for (let at = 0; at < size; at++) {
      const code = at & 1 ? nibbles[at >> 1]! & 15 : nibbles[at >> 1]! >> 4;
      written &&= code > 0;
      codes[at] = code - 8;
    }
    if (!written) throw refused("nibbles: expected codes of 1 to 15, and 0 behind the last");
    if (!scales.every((scale) => scale >= 0 && scale <= MOST_SCALE_4)) {
      throw refused(`int4 scales: expected 0 to ${MOST_SCALE_4}`);
    }
    return scaled(codes, scales);
  }

  #topk(size: number): Float32Array {
    const bitmap = this.#take("bitmaps", Math.ceil(size / 8)) as Uint8Array;
    const unused = 8 * bitmap.length - size;
    if (unused > 0 && bitmap.at(-1)! & ((1 << unused) - 1)) {
      throw refused("bitmap: expected zeros behind the last number");
    }
    const chosen: number[] = [];
    for (let at = 0; at < size; at++) if (bitmap[at >> 3]! & (0x80 >> (at & 7))) chosen.push(at);
    const values = new Float32Array(size);
    this.#int8(chosen.length).forEach((value, index) => {
      values[chosen[index]!] = value;
    });
    return values;
  }

  #take(name: Stream, size: number): TensorData {
    const all = this.#streams[name];
    if (all.length < size) throw refused(`${name}: expected ${size} more numbers, got ${all.length}`);
    this.#streams[name] = all.subarray(size);
    return all.subarray(0, size);
  }
}

/** What no encoder writes. */
export function refused(text: string): RefusedError {
  return new RefusedError("codec", `codec: ${text}`);
}

function bytesOf({ buffer, byteOffset, byteLength }: TensorData): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

function stream(tensors: Tensors, name: Stream): TensorData {
  const found = tensors.get(PREFIX + name);
  if (found === undefined) return new Uint8Array(0);
  const { dtype, shape, data } = found;
  if (dtype !== DTYPES[name] || shape.length !== 1) {
    throw refused(`${name}: expected one axis of ${DTYPES[name]}, got [${shape.join(", ")}] ${dtype}`);
  }
  return data;
}

/** For each block the largest magnitude / `steps`, rounded to float32, of which none is subnormal. */
function scalesOf(values: Float32Array, steps: number): Float32Array {
  const scales = new Float32Array(Math.ceil(values.length / BLOCK));
  values.forEach((value, at) => {
    scales[at >> 8] = Math.max(scales[at >> 8]!, Math.abs(value));
  });
  return scales.map((peak) => Math.max(Math.fround(peak / steps), LEAST_SCALE));
}

function codesOf(values: Float32Array, scales: Float32Array): Int8Array {
  const codes = new Int8Array(values.length);
  for (let at = 0; at < codes.length; at++) codes[at] = rint(Math.fround(values[at]! / scales[at >> 8]!));
  return codes;
}

function scaled(codes: Int8Array, scales: Float32Array): Float32Array {
  const values = new Float32Array(codes.length);
  for (let at = 0; at < values.length; at++) values[at] = codes[at]! * scales[at >> 8]!;
  return values;
}

/** Places of the `count` largest magnitudes, ascending; of equal ones the first. */
function largest(values: Float32Array, count: number): Uint32Array {
  const sizes = values.map(Math.abs).sort();
  const least = count > 0 ? sizes[sizes.length - count]! : Infinity;
  let ties = count - values.reduce((above, value) => above + (Math.abs(value) > least ? 1 : 0), 0);
  const chosen = new Uint32Array(count);
  let found = 0;
  for (let at = 0; at < values.length && found < count; at++) {
    const size = Math.abs(values[at]!);
    if (size > least || (size === least && ties-- > 0)) chosen[found++] = at;
  }
  return chosen;
}

/** The first bytes of all 16-bit words, then the second ones. */
function planes(bytes: Uint8Array): Uint8Array {
  const [split, half] = [new Uint8Array(bytes.length), bytes.length / 2];
  for (let at = 0; at < half; at++) {
    split[at] = bytes[2 * at]!;
    split[half + at] = bytes[2 * at + 1]!;
  }
  return split;
}

function halvesOf(bytes: Uint8Array): Uint16Array {
  if (bytes.length & 1) throw refused(`byte planes: expected a multiple of 2 bytes, got ${bytes.length}`);
  const halves = new Uint16Array(bytes.length / 2);
  for (let at = 0; at < halves.length; at++) halves[at] = bytes[at]! | (bytes[halves.length + at]! << 8);
  return halves;
}

/** The next smaller float32 of a positive one. */
function before(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer);
  bits[0]! -= 1;
  return new Float32Array(bits.buffer)[0]!;
}
