import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { InputError, RefusedError } from "../../src/errors.ts";
import { checkFinite, decode, encode } from "../../src/tensors/safetensors.ts";
import { type Tensor, float32 } from "../../src/tensors/tensors.ts";
import { writtenByPython } from "../python.ts";

interface Blob {
  readonly file: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly names: readonly string[];
}

const FOLDER = writtenByPython("golden_bundles.py");
const BLOBS: readonly Blob[] = JSON.parse(readFileSync(join(FOLDER, "cases.json"), "utf8")).blobs;

function bytesOf(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

for (const { file, metadata, names } of BLOBS) {
  test(`${file}: read as Python wrote it`, () => {
    const blob = decode(bytesOf(file), Infinity);
    assert.deepEqual(Object.fromEntries(blob.metadata), metadata);
    assert.deepEqual([...blob.tensors.keys()].sort(), [...names].sort());
  });
}

test("a blob of every dtype is written with Python's bytes, whatever the order", () => {
  const bytes = bytesOf("all.bin");
  const { tensors, metadata } = decode(bytes, Infinity);
  assert.deepEqual(encode(tensors, metadata), bytes);
  assert.deepEqual(encode(new Map([...tensors].reverse()), new Map([...metadata].reverse())), bytes);
});

test("an array that lies off its alignment is read all the same", () => {
  const { tensors } = decode(bytesOf("unaligned.bin"), Infinity);
  assert.deepEqual([...tensors.get("b")!.data], [1.5, -2]);
});

test("what the reader would refuse is not written", () => {
  const tensor = { dtype: "float32", shape: [1], data: new Float32Array(1) } as const;
  for (const name of ["", "x".repeat(257), "a\nb", "\u202egnp", "__metadata__"]) {
    assert.throws(() => encode(new Map([[name, tensor]])), InputError);
  }
  assert.throws(() => encode(new Map([["a", { ...tensor, shape: [2] }]])), InputError);
  assert.throws(() => encode(new Map([["a", { ...tensor, shape: Array(9).fill(1) }]])), InputError);
  const many = Array.from({ length: 4097 }, (_, at) => [`t${at}`, tensor] as const);
  assert.throws(() => encode(new Map(many)), InputError);
});

test("numbers without end are found in every kind of float", () => {
  const check = (tensor: Tensor) => checkFinite(new Map([["a", tensor]]));
  const half = (bits: number): Tensor => ({ dtype: "float16", shape: [1], data: Uint16Array.of(bits) });
  check(float32([2], Float32Array.of(3e38, -0)));
  check(half(0x7bff));
  check({ dtype: "int64", shape: [1], data: BigInt64Array.of(1n) });
  const bad = [
    float32([2], Float32Array.of(0, Number.NaN)), half(0x7c00), half(0xfe00),
    { dtype: "float64", shape: [1], data: Float64Array.of(-Infinity) } as const,
  ];
  for (const tensor of bad) {
    assert.throws(() => check(tensor), (error) => error instanceof RefusedError && error.rule === "finite");
  }
});
