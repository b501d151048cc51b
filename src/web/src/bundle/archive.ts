/**
 * The single-file form of a bundle: a ZIP archive of which exactly one byte sequence exists per
 * content (docs/bundle.md). The reader computes what must stand at each place and compares, so that
 * nothing about a ZIP is left to interpretation.
 */

import { crc32 } from "../crc32.ts";
import { RefusedError } from "../errors.ts";

export const MANIFEST = "manifest.json";
export const SIGNATURE = "manifest.sig";
export const MAX_BUNDLE_BYTES = 1024 ** 3;

const LOCAL_BYTES = 30;
const END_BYTES = 22;
const [LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC] = [0x04034b50, 0x02014b50, 0x06054b50];
const [VERSION, DATE] = [20, 0x21]; // ZIP 2.0; 1 January 1980
const [CRC_AT, SIZE_AT] = [14, 18]; // within a local header

interface Place {
  readonly offset: number;
  readonly size: number;
  readonly crc: number;
}

/** Refuses a single file that is too large, before anything of it is fetched or read. */
export function checkBundleSize(bytes: number): void {
  if (bytes > MAX_BUNDLE_BYTES) {
    throw new RefusedError("size", `bundle: ${bytes} bytes > ${MAX_BUNDLE_BYTES}`);
  }
}

/**
 * The files of a bundle, none of which has been verified.
 *
 * Only the sizes of the first two entries are taken from the archive, within limits; every other
 * byte is compared with what the manifest makes of it.
 */
export class Archive {
  readonly #bytes: Uint8Array;
  readonly #places = new Map<string, Place>();
  readonly #end: number;

  /** Throws RefusedError, rule `size`, `container`, `truncated` or `unsigned`. */
  constructor(bytes: Uint8Array) {
    checkBundleSize(bytes.length);
    this.#bytes = bytes;
    this.#end = this.#locate(SIGNATURE, this.#locate(MANIFEST, 0));
  }

  /** A file's bytes, a view; throws RefusedError, rule `missing-file`, `size` or `container`. */
  read(name: string, maxBytes: number): Uint8Array {
    const place = this.#places.get(name);
    if (place === undefined) throw new RefusedError("missing-file", `bundle file '${name}': absent`);
    const { offset, size, crc } = place;
    if (size > maxBytes) {
      throw new RefusedError("size", `bundle file '${name}': ${size} bytes > ${maxBytes} allowed`);
    }
    const data = this.#bytes.subarray(offset, offset + size);
    if (crc32(data) !== crc) {
      throw new RefusedError("container", `bundle file '${name}': checksum differs`);
    }
    return data;
  }

  /** Throws RefusedError unless the bundle holds exactly these files, with these sizes. */
  checkSizes(sizes: ReadonlyMap<string, number>): void {
    const names = [...sizes.keys()].filter((name) => name !== MANIFEST && name !== SIGNATURE).sort();
    const end = names.reduce((offset, name) => this.#locate(name, offset), this.#end);
    for (const [name, size] of sizes) {
      const found = this.#places.get(name)?.size;
      if (found !== size) {
        throw new RefusedError("size", `bundle file '${name}': expected ${size} bytes, got ${found}`);
      }
    }
    const tail = directory(this.#places);
    const found = this.#bytes.subarray(end, end + tail.length + 1);
    if (!startsWith(tail, found) || found.length !== tail.length) {
      const rule = startsWith(tail, found) ? "truncated" : "container";
      throw new RefusedError(rule, "bundle: expected only the archive's directory at its end");
    }
  }

  /** Check the header at `offset`, note the file's place, return where its data end. */
  #locate(name: string, offset: number): number {
    const length = LOCAL_BYTES + name.length;
    const header = this.#bytes.subarray(offset, offset + length);
    if (header.length < length) {
      throw new RefusedError("truncated", `bundle: ends before file '${name}'`);
    }
    const fields = new DataView(header.buffer, header.byteOffset, length);
    const place = {
      offset: offset + length,
      size: fields.getUint32(SIZE_AT, true),
      crc: fields.getUint32(CRC_AT, true),
    };
    if (!startsWith(local(name, place), header)) throw badHeader(name, header);
    const end = place.offset + place.size;
    if (end > this.#bytes.length) {
      throw new RefusedError("truncated", `bundle: ends within file '${name}'`);
    }
    this.#places.set(name, place);
    return end;
  }
}

/** Little-endian numbers, each of 2 or 4 bytes, and a text of one byte per character behind them. */
function packed(fields: readonly (readonly [number, 2 | 4])[], text = ""): Uint8Array {
  const size = fields.reduce((sum, [, width]) => sum + width, 0);
  const bytes = new Uint8Array(size + text.length);
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const [value, width] of fields) {
    if (width === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += width;
  }
  bytes.set(ascii(text), size);
  return bytes;
}

function local(name: string, { size, crc }: Place): Uint8Array {
  return packed([[LOCAL_MAGIC, 4], ...common(name, size, crc)], name);
}

/** Version needed to the length of the extra field: what both kinds of header have. */
function common(name: string, size: number, crc: number): readonly (readonly [number, 2 | 4])[] {
  return [
    [VERSION, 2], [0, 2], [0, 2], [0, 2], [DATE, 2],
    [crc, 4], [size, 4], [size, 4], [name.length, 2], [0, 2],
  ];
}

function directory(places: ReadonlyMap<string, Place>): Uint8Array {
  const records: Uint8Array[] = [];
  let offset = 0;
  for (const [name, { size, crc }] of places) {
    const before = [[CENTRAL_MAGIC, 4], [VERSION, 2]] as const;
    const behind = [[0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]] as const;
    records.push(packed([...before, ...common(name, size, crc), ...behind], name));
    offset += LOCAL_BYTES + name.length + size;
  }
  const length = records.reduce((sum, record) => sum + record.length, 0);
  const count = places.size;
  records.push(
    packed([[END_MAGIC, 4], [0, 2], [0, 2], [count, 2], [count, 2], [length, 4], [offset, 4], [0, 2]]),
  );
  const whole = new Uint8Array(length + END_BYTES);
  records.reduce((at, record) => (whole.set(record, at), at + record.length), 0);
  return whole;
}

function badHeader(name: string, header: Uint8Array): RefusedError {
  const text = String.fromCharCode(...header);
  if (name === SIGNATURE && !text.includes(SIGNATURE)) {
    return new RefusedError("unsigned", `bundle: no '${SIGNATURE}' after '${MANIFEST}'`);
  }
  if (name === MANIFEST && !text.startsWith("PK\x03\x04")) {
    return new RefusedError(
      "container", "bundle: expected what 'protofleet export' writes, got another file",
    );
  }
  return new RefusedError(
    "container", `bundle: expected the plain, uncompressed archive entry of '${name}'`,
  );
}

function ascii(text: string): Uint8Array {
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

function startsWith(whole: Uint8Array, start: Uint8Array): boolean {
  return start.length <= whole.length && start.every((byte, at) => byte === whole[at]);
}
