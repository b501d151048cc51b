/** ZIP archives, their entries stored or deflated: `.npz` files, and recordings as loggers share them. */

import { crc32 } from "../crc32.ts";
import { InputError } from "../errors.ts";
import { ZIP } from "../texts.ts";

const MOST_BYTES = 1 << 30;

export interface ZipEntry {
  readonly name: string;
  readonly method: number;
  readonly crc: number;
  readonly packed: number;
  readonly size: number;
  readonly offset: number;
}

/** What a ZIP archive says that it holds; throws InputError for what is none. */
export function zipEntries(file: Uint8Array, where: string): ZipEntry[] {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  let end = file.length - 22;
  const lowest = Math.max(0, end - 0xffff);
  while (end >= lowest && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < lowest) throw new InputError(ZIP.notPlain(where));
  const entries: ZipEntry[] = [];
  let at = view.getUint32(end + 16, true);
  for (let k = view.getUint16(end + 10, true); k > 0; k--) {
    if (at + 46 > file.length || view.getUint32(at, true) !== 0x02014b50) {
      throw new InputError(ZIP.directory(where));
    }
    const nameLength = view.getUint16(at + 28, true);
    entries.push({
      name: new TextDecoder().decode(file.subarray(at + 46, at + 46 + nameLength)),
      method: view.getUint16(at + 10, true),
      crc: view.getUint32(at + 16, true),
      packed: view.getUint32(at + 20, true),
      size: view.getUint32(at + 24, true),
      offset: view.getUint32(at + 42, true),
    });
    at += 46 + nameLength + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return entries;
}

/** An entry's bytes; throws InputError, naming it `what`, where they are damaged or too many. */
export async function unpacked(file: Uint8Array, entry: ZipEntry, what: string): Promise<Uint8Array> {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const { offset, packed, size, method } = entry;
  if (offset + 30 > file.length || view.getUint32(offset, true) !== 0x04034b50) {
    throw new InputError(ZIP.noEntry(what));
  }
  const begin = offset + 30 + view.getUint16(offset + 26, true) + view.getUint16(offset + 28, true);
  if (begin + packed > file.length || size > MOST_BYTES) {
    throw new InputError(ZIP.size(what, MOST_BYTES, size));
  }
  const data = file.subarray(begin, begin + packed);
  if (method !== 0 && method !== 8) {
    throw new InputError(ZIP.method(what, method));
  }
  const plain = method === 0 ? data : await inflated(data, size, what);
  if (plain.length !== size || crc32(plain) !== entry.crc) {
    throw new InputError(ZIP.checksum(what));
  }
  return plain;
}

async function inflated(data: Uint8Array, size: number, what: string): Promise<Uint8Array> {
  const out = new Uint8Array(size);
  let filled = 0;
  const stream = new Blob([data.slice()]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return out.subarray(0, filled);
      if (filled + value.length > size) throw new Error("longer than it says");
      out.set(value, filled);
      filled += value.length;
    }
  } catch (error) {
    await reader.cancel().catch(() => undefined);
    throw new InputError(ZIP.damaged(what, error instanceof Error ? error.message : "not deflated"));
  }
}
