import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { inflateSync } from "node:zlib";

import { RefusedError } from "../../src/errors.ts";
import { decode as decodeBlob, encode as encodeBlob } from "../../src/tensors/safetensors.ts";
import { type Tensors, float32 } from "../../src/tensors/tensors.ts";
import { type Coding, NAMES, codecName, codecOf, decode, encode, toRaw } from "../../src/wire/codecs.ts";
import { deflated, inflated } from "../../src/wire/zlib.ts";
import { writtenByPython } from "../python.ts";

interface Case {
  readonly codec: string;
  readonly keep: number;
  readonly metadata: Readonly<Record<string, string>>;
  readonly reference: string;
  readonly raw_bytes: number;
  readonly update: boolean;
  /** Names of files. */
  readonly tensors: string;
  readonly baseline: string;
  readonly earlier: string;
  readonly raw: string;
  readonly blob: string;
  readonly residual: string;
  readonly decoded: string;
}

const FOLDER = writtenByPython("golden_codecs.py");
const CASES: readonly Case[] = JSON.parse(readFileSync(join(FOLDER, "cases.json"), "utf8"));

function bytesOf(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

function tensorsOf(file: string): Tensors {
  return decodeBlob(bytesOf(file), Infinity).tensors;
}

function same(got: Uint8Array, file: string): void {
  assert.equal(Buffer.compare(got, bytesOf(file)), 0, `not the bytes of ${file}`);
}

for (const name of NAMES) {
  test(`${name}: the bits of Python's updates and payloads, both ways`, async () => {
    const some = CASES.filter(({ codec }) => codec === name);
    assert.ok(some.length >= 6);
    for (const one of some) {
      const [tensors, baseline] = [tensorsOf(one.tensors), tensorsOf(one.baseline)];
      const { metadata, reference } = one;
      const residual = one.update ? tensorsOf(one.earlier) : null;
      const encoded = await encode(tensors, baseline, codecOf(name, one.keep), { residual, metadata, reference });
      assert.equal(encoded.codec, name);
      assert.equal(encoded.rawBytes, one.raw_bytes);
      same(name.endsWith("+zlib") ? inflateSync(encoded.blob) : encoded.blob, one.raw);
      same(encodeBlob(encoded.residual), one.residual);
      const coding = { codec: name, rawBytes: one.raw_bytes, reference };
      for (const blob of [bytesOf(one.blob), encoded.blob]) {
        same(await toRaw(blob, baseline, coding, Infinity), one.decoded);
      }
    }
  });
}

test("a name is read back, and what is not known falls back to raw", () => {
  for (const name of NAMES) assert.equal(codecName(codecOf(name)), name);
  for (const name of ["", "RAW", "raw+zlib", "zlib", "int8+zlib+zlib"]) assert.equal(codecName(codecOf(name)), "raw");
  for (const keep of [0, -1, 1.5, Number.NaN]) assert.equal(codecName(codecOf("topk", keep)), "raw");
});

test("the order in which a sender holds its tensors does not show", async () => {
  const value = (scale: number) => float32([64], Float32Array.from({ length: 64 }, (_, at) => Math.sin(at) * scale));
  const tensors = new Map([["params/b", value(1)], ["params/a", value(2)]]);
  const turned = new Map([...tensors].reverse());
  const blobs = [tensors, turned].map(async (one) => (await encode(one, new Map(), codecOf("int8"))).blob);
  assert.deepEqual(...((await Promise.all(blobs)) as [Uint8Array, Uint8Array]));
});

test("names that a blob does not hold, or that are the streams', are not sent", async () => {
  const tensor = float32([2], new Float32Array(2));
  for (const name of ["", "a\0b", "x".repeat(257), "__metadata__", "codec/halves"]) {
    await assert.rejects(encode(new Map([[name, tensor]]), new Map(), codecOf("int8")), /expected (a|no) name/);
  }
});

test("a zlib stream is whole, alone, and of the size that was told", async () => {
  const data = new Uint8Array(100_000).map((_, at) => (at * at) >> 7);
  const stream = await deflated(data);
  assert.deepEqual(await inflated(stream, data.length), data);
  const longer = new Uint8Array([...stream, 0]);
  const broken = stream.map((byte, at) => (at === stream.length - 1 ? byte ^ 1 : byte));
  for (const other of [stream.subarray(0, -1), stream.subarray(0, 7), new Uint8Array(0), data, longer, broken]) {
    assert.equal(await inflated(other, data.length), null);
  }
  assert.equal(await inflated(stream, data.length - 1), null);
  assert.equal(await inflated(stream, data.length + 1), null);
});

test("a bomb is refused before it is unpacked", async () => {
  const bomb = await deflated(new Uint8Array(1 << 28));
  const before = process.memoryUsage().arrayBuffers;
  assert.equal(await inflated(bomb, 1000), null);
  assert.ok(process.memoryUsage().arrayBuffers - before < 1 << 25);
});

test("a blob that claims more than the receiver is ready for is not looked at", async () => {
  const refused = (coding: Coding) =>
    assert.rejects(
      decode(new Uint8Array(100), new Map(), coding, 1000),
      (error) => error instanceof RefusedError && error.rule === "codec",
    );
  for (const rawBytes of [0, -1, 1001, Infinity, Number.NaN]) await refused({ codec: "int8", rawBytes, reference: "" });
  await refused({ codec: "int9", rawBytes: 100, reference: "" });
});
