/**
 * Chunks: one numbered piece of a blob in one MQTT packet (`docs/protocol.md`, Chunk).
 *
 * The header has 32 bytes, integers big-endian: magic `PFCK` (4), version (1), flags (1; bit 0: last,
 * bit 1: sealed), length of the data (2), transfer id (16), index (4), CRC-32 over the 28 bytes before
 * it and the data (4).
 */

import { bigEndian, concat, utf8 } from "../bytes.ts";
import { crc32 } from "../crc32.ts";
import { InputError, RefusedError } from "../errors.ts";
import { fromHex, toHex } from "../hash.ts";
import { TAG_BYTES, aesKey, hmacSha256, open, seal } from "./ciphers.ts";

const MAGIC = 0x5046434b;
const VERSION = 1;
const LAST = 1;
const SEALED = 2;
export const HEADER_BYTES = 32;
const CRC_OFFSET = 28;
export const MAX_PACKET_BYTES = 64 * 1024;
/** What MQTT itself may need in a packet: fixed header, topic, packet id, properties. */
export const RESERVED_BYTES = 512;
export const MAX_PAYLOAD_BYTES = MAX_PACKET_BYTES - RESERVED_BYTES;
export const MAX_DATA_BYTES = MAX_PAYLOAD_BYTES - HEADER_BYTES - TAG_BYTES;
/** Smallest grid that an offer may ask for. */
export const MIN_DATA_BYTES = 256;
/** Of one blob; bounds the bookkeeping, a byte for each. */
export const MAX_CHUNKS = 2 ** 18;

/** One piece of a blob. */
export interface Chunk {
  /** 32 lower-case hexadecimal digits. */
  readonly transferId: string;
  /** Position in the blob, in chunks. */
  readonly index: number;
  readonly last: boolean;
  /** 1 to `MAX_DATA_BYTES` bytes, and the tag of a sealed one. */
  readonly data: Uint8Array;
  readonly sealed: boolean;
}

/**
 * Encrypts and decrypts the chunks of one transfer. The key belongs to one blob in one grid; each
 * transfer of it has a key of its own, because a nonce must not meet two texts.
 */
export class ChunkCipher {
  readonly #key: CryptoKey;

  private constructor(key: CryptoKey) {
    this.#key = key;
  }

  /** Of an offer: 64 hex digits, and its id. */
  static async create(contentKey: string, transferId: string): Promise<ChunkCipher> {
    const info = utf8(`protofleet/2 chunks\0${transferId}`);
    // HKDF-Expand for no more than one block is one HMAC.
    return new ChunkCipher(await aesKey(await hmacSha256(fromHex(contentKey), concat(info, Uint8Array.of(1)))));
  }

  async seal(chunk: Chunk): Promise<Chunk> {
    const data = await seal(this.#key, nonce(chunk), chunk.data, authenticated(chunk));
    return { ...chunk, data, sealed: true };
  }

  /** Throws RefusedError, rule `chunk-seal`: not sealed, or not by the sender of this transfer. */
  async open(chunk: Chunk): Promise<Chunk> {
    if (!chunk.sealed) throw new RefusedError("chunk-seal", `chunk ${chunk.index}: expected a sealed one`);
    const data = await open(this.#key, nonce(chunk), chunk.data, authenticated(chunk));
    if (data === null) {
      throw new RefusedError("chunk-seal", `chunk ${chunk.index}: not sealed with its transfer's key`);
    }
    return { ...chunk, data, sealed: false };
  }
}

/** The payload of the MQTT packet that carries `chunk`; throws InputError for impossible sizes. */
export function pack(chunk: Chunk): Uint8Array {
  const { data } = chunk;
  const limit = MAX_DATA_BYTES + (chunk.sealed ? TAG_BYTES : 0);
  if (data.length < 1 || data.length > limit) {
    throw new InputError(`chunk: expected 1 to ${limit} bytes, got ${data.length}`);
  }
  const packet = new Uint8Array(HEADER_BYTES + data.length);
  const header = new DataView(packet.buffer);
  header.setUint32(0, MAGIC);
  header.setUint8(4, VERSION);
  header.setUint8(5, (chunk.last ? LAST : 0) | (chunk.sealed ? SEALED : 0));
  header.setUint16(6, data.length);
  packet.set(fromHex(chunk.transferId), 8);
  header.setUint32(24, chunk.index);
  packet.set(data, HEADER_BYTES);
  header.setUint32(CRC_OFFSET, checksum(packet));
  return packet;
}

/**
 * The chunk in a packet's payload; its data are a view into it.
 *
 * @throws RefusedError rule `chunk-size`, `chunk-magic`, `chunk-version`, `chunk-flags`, `chunk-length`
 *   or `chunk-crc`
 */
export function parse(payload: Uint8Array): Chunk {
  const size = payload.length;
  const fits = size > HEADER_BYTES && size <= MAX_PAYLOAD_BYTES;
  check("chunk-size", fits, `${HEADER_BYTES + 1} to ${MAX_PAYLOAD_BYTES} bytes`, size);
  const header = new DataView(payload.buffer, payload.byteOffset, HEADER_BYTES);
  const magic = header.getUint32(0);
  check("chunk-magic", magic === MAGIC, `magic ${hex8(MAGIC)}`, hex8(magic));
  const version = header.getUint8(4);
  check("chunk-version", version === VERSION, `version ${VERSION}`, version);
  const flags = header.getUint8(5);
  check("chunk-flags", flags <= (LAST | SEALED), "flags of bits 0 and 1", flags);
  const length = header.getUint16(6);
  check("chunk-length", length === size - HEADER_BYTES, `${size - HEADER_BYTES} bytes`, length);
  const found = checksum(payload);
  const stated = header.getUint32(CRC_OFFSET);
  check("chunk-crc", found === stated, `crc ${hex8(found)}`, hex8(stated));
  return {
    transferId: toHex(payload.subarray(8, 24)),
    index: header.getUint32(24),
    last: (flags & LAST) !== 0,
    data: payload.subarray(HEADER_BYTES),
    sealed: (flags & SEALED) !== 0,
  };
}

function hex8(number: number): string {
  return number.toString(16).padStart(8, "0");
}

function checksum(packet: Uint8Array): number {
  return crc32(packet.subarray(HEADER_BYTES), crc32(packet.subarray(0, CRC_OFFSET)));
}

function nonce(chunk: Chunk): Uint8Array {
  return bigEndian(BigInt(chunk.index), 12);
}

function authenticated(chunk: Chunk): Uint8Array {
  return concat(fromHex(chunk.transferId), bigEndian(BigInt(chunk.index), 4), Uint8Array.of(chunk.last ? 1 : 0));
}

function check(rule: string, holds: boolean, expected: string, got: number | string): void {
  if (!holds) throw new RefusedError(rule, `chunk: expected ${expected}, got ${got}`);
}
