import assert from "node:assert/strict";
import { test } from "node:test";
import { crc32 as zlibCrc32 } from "node:zlib";

import { concat, utf8 } from "../../src/bytes.ts";
import { crc32 } from "../../src/crc32.ts";
import { InputError, RefusedError } from "../../src/errors.ts";
import { fromHex, toHex } from "../../src/hash.ts";
import {
  type Chunk, ChunkCipher, HEADER_BYTES, MAX_DATA_BYTES, MAX_PACKET_BYTES, MAX_PAYLOAD_BYTES, pack, parse,
} from "../../src/wire/chunks.ts";
import { bytesOf } from "./keys.ts";

const ID = "000102030405060708090a0b0c0d0e0f";
const GOLDEN = fromHex(`5046434b01010003${ID}00000007e168c611616263`);
const SEALED = `5046434b01030013${ID}00000007ed0e1ab72e24e4547c2d6a47a08371c748adf8312d7246`;
const CHUNK: Chunk = { transferId: ID, index: 7, last: true, data: utf8("abc"), sealed: false };

const ruleOf = (payload: Uint8Array): string => {
  try {
    parse(payload);
  } catch (error) {
    if (error instanceof RefusedError) return error.rule;
    throw error;
  }
  return "";
};

test("the bytes of docs/protocol.md", () => {
  assert.equal(toHex(pack(CHUNK)), toHex(GOLDEN));
  assert.deepEqual(parse(GOLDEN), CHUNK);
});

test("the checksum is that of zlib", () => {
  assert.equal(crc32(utf8("123456789")), 0xcbf43926);
  assert.equal(crc32(utf8("56789"), crc32(utf8("1234"))), 0xcbf43926);
  const noise = crypto.getRandomValues(new Uint8Array(65_000));
  if (typeof zlibCrc32 === "function") assert.equal(crc32(noise), zlibCrc32(noise));
});

test("what was packed is parsed, also from within a larger buffer", () => {
  for (const [index, last] of [[0, false], [2 ** 32 - 1, true], [12345, false]] as const) {
    const data = crypto.getRandomValues(new Uint8Array(1 + (index % 2000)));
    const chunk = { ...CHUNK, index, last, data };
    const packed = pack(chunk);
    assert.deepEqual(parse(packed), chunk);
    assert.deepEqual(parse(concat(Uint8Array.of(1, 2, 3), packed).subarray(3)), chunk);
  }
});

test("a flipped bit is noticed, and so is noise", () => {
  for (let bit = 0; bit < 8 * GOLDEN.length; bit += 1) {
    const altered = GOLDEN.slice();
    altered[bit >> 3] = (altered[bit >> 3] as number) ^ (1 << (bit & 7));
    assert.notEqual(ruleOf(altered), "", `bit ${bit}`);
  }
  for (let length = 0; length < 200; length += 1) {
    assert.notEqual(ruleOf(crypto.getRandomValues(new Uint8Array(length))), "");
  }
});

test("the largest chunk fits in 64 KiB with its MQTT headers", async () => {
  const cipher = await ChunkCipher.create("00".repeat(32), ID);
  const packed = pack(await cipher.seal({ ...CHUNK, data: new Uint8Array(MAX_DATA_BYTES) }));
  assert.equal(packed.length, MAX_PAYLOAD_BYTES);
  const longestTopic = 3 + 1 + 2 + 1 + 64 + 4 + 64 + 2;
  assert.ok(packed.length + longestTopic + 5 + 2 + 2 + 5 <= MAX_PACKET_BYTES);
});

test("a chunk of an impossible size is not packed", () => {
  for (const size of [0, MAX_DATA_BYTES + 1]) {
    assert.throws(() => pack({ ...CHUNK, data: new Uint8Array(size) }), InputError);
  }
});

/** The golden chunk with other header bytes and a right checksum over them. */
function withBytes(offset: number, ...bytes: readonly number[]): Uint8Array {
  const packed = GOLDEN.slice();
  packed.set(bytes, offset);
  const crc = crc32(packed.subarray(HEADER_BYTES), crc32(packed.subarray(0, 28)));
  new DataView(packed.buffer).setUint32(28, crc);
  return packed;
}

test("each rule has a name", () => {
  const cases: readonly (readonly [string, Uint8Array])[] = [
    ["chunk-size", GOLDEN.subarray(0, HEADER_BYTES)],
    ["chunk-size", concat(GOLDEN, new Uint8Array(MAX_PAYLOAD_BYTES))],
    ["chunk-magic", withBytes(0, ...utf8("PK\x03\x04"))],
    ["chunk-version", withBytes(4, 2)],
    ["chunk-flags", withBytes(5, 0x80)],
    ["chunk-length", withBytes(6, 0, 4)],
    ["chunk-length", concat(GOLDEN, utf8("x"))],
    ["chunk-crc", concat(GOLDEN.subarray(0, -1), utf8("d"))],
  ];
  for (const [rule, payload] of cases) assert.equal(ruleOf(payload), rule);
});

test("a sealed chunk: the bytes of docs/protocol.md", async () => {
  const cipher = await ChunkCipher.create(toHex(bytesOf(null)), ID);
  assert.equal(toHex(pack(await cipher.seal(CHUNK))), SEALED);
  assert.deepEqual(await cipher.open(parse(fromHex(SEALED))), CHUNK);
});

test("a sealed chunk opens in its own place alone", async () => {
  const cipher = await ChunkCipher.create("11".repeat(32), ID);
  const sealed = await cipher.seal(CHUNK);
  const moves: Partial<Chunk>[] = [
    { transferId: "ff".repeat(16) }, { index: 8 }, { last: false }, { data: sealed.data.subarray(1) },
    { data: sealed.data.subarray(0, 10) },
  ];
  for (const move of moves) {
    await assert.rejects(cipher.open({ ...sealed, ...move }), { rule: "chunk-seal" });
  }
});

test("two transfers of one blob have two keys", async () => {
  const ids = ["a".repeat(32), "b".repeat(32)] as const;
  const [first, second] = await Promise.all(ids.map((id) => ChunkCipher.create("22".repeat(32), id)));
  const sealed = await first?.seal({ ...CHUNK, transferId: ids[0] });
  const other = await second?.seal({ ...CHUNK, transferId: ids[1] });
  assert.notDeepEqual(sealed?.data, other?.data);
  await assert.rejects((first as ChunkCipher).open(CHUNK), { rule: "chunk-seal" });
});
