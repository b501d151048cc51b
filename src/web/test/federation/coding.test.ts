/** Payloads of Python's coordinator are read here, and updates of this device there. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { openBundle } from "../../src/bundle/bundle.ts";
import { RefusedError } from "../../src/errors.ts";
import {
  MOST_RECORD_CHARS, decodePayload, largestBlob, referenceOf, tensorsOf, updateBaseline,
} from "../../src/federation/coding.ts";
import { updateRecord } from "../../src/federation/records.ts";
import type { TensorSchema, TensorSchemas, Update } from "../../src/strategies/types.ts";
import { encode as encodeBlob } from "../../src/tensors/safetensors.ts";
import { type Tensor, type Tensors, float32 } from "../../src/tensors/tensors.ts";
import { NAMES, codecOf, encode } from "../../src/wire/codecs.ts";
import { PYTHON, PYTHON_ENVIRONMENT, REPOSITORY, writtenByPython } from "../python.ts";

interface PayloadCase {
  readonly file: string;
  readonly codec: string;
  readonly raw_bytes: number;
  readonly base: string;
  readonly reference: string;
}

const SCRIPT = "golden_coding.py";
const FOLDER = writtenByPython(SCRIPT);
const TABLE: {
  readonly signer: string;
  readonly shapes: Readonly<Record<string, readonly number[]>>;
  readonly payloads: readonly PayloadCase[];
} = JSON.parse(readFileSync(join(FOLDER, "payloads.json"), "utf8"));
const MODEL = (await openBundle(bytesOf("layered.pfb"), { trusted: [TABLE.signer] })).model();
const FORMS: TensorSchemas = {
  required: new Map(
    Object.entries(TABLE.shapes).map(([name, shape]): [string, TensorSchema] => [
      name, { shape, dtype: "float32", most: 0 },
    ]),
  ),
  optional: new Map(),
};

function bytesOf(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

function decoded(one: PayloadCase, forms: TensorSchemas = FORMS): Promise<Uint8Array> {
  const coding = { codec: one.codec, rawBytes: one.raw_bytes, reference: one.base };
  return decodePayload(bytesOf(one.file), coding, MODEL, forms, async (reference) => {
    const earlier = TABLE.payloads.find((other) => other.codec === one.codec && other.reference === reference);
    if (earlier === undefined) throw new RefusedError("base", "not here");
    return bytesOf(`${earlier.file}-raw`);
  });
}

test("payloads that refer to the bundle and to one another are read to Python's bytes", async () => {
  assert.equal(TABLE.payloads.length, 3 * (NAMES.length - 1));
  for (const one of TABLE.payloads) {
    const raw = await decoded(one);
    assert.deepEqual(raw, bytesOf(`${one.file}-raw`));
    assert.equal(await referenceOf(raw), one.reference);
  }
});

test("a payload that refers to what is not here, or holds other tensors, is refused", async () => {
  const rule = (name: string) => (error: unknown) => error instanceof RefusedError && error.rule === name;
  const one = TABLE.payloads.at(-1)!;
  await assert.rejects(decoded({ ...one, base: "00".repeat(32) }), rule("base"));
  await assert.rejects(decoded({ ...one, base: "" }), rule("codec"));
  const wider = new Map([...FORMS.required, ["more", { shape: [1], dtype: "float32", most: 0 } as const]]);
  await assert.rejects(decoded(one, { ...FORMS, required: wider }), rule("layout"));
  await assert.rejects(decoded({ ...one, raw_bytes: largestBlob(FORMS) + 1 }), rule("codec"));
});

/** The payload, a little trained. */
function trained(payload: Tensors, round: number): Map<string, Tensor> {
  const moved = ({ shape, data }: Tensor) =>
    float32(shape, (data as Float32Array).map((value, at) => value + Math.sin(at + round) / 50));
  return new Map([...payload].map(([name, tensor]) => [name, moved(tensor)]));
}

function update(tensors: Tensors, roundId: number): Update {
  const own = [[9, 1, 0], [2, 8, 0], [0, 0, 3]];
  const evaluation = { own, ownLoss: 0.25, start: [[5, 5, 0], [5, 5, 0], [1, 1, 1]], more: new Map([["before training", own]]) };
  return { clientId: "phone", roundId, numExamples: 23, tensors, evaluation, loss: 0.5 };
}

test("what Python decodes of updates is what was trained, up to what the residual keeps", async () => {
  const updates: object[] = [];
  const expected: Tensors[] = [];
  for (const name of NAMES) {
    let residual: Tensors = new Map();
    const payloads = TABLE.payloads.filter(({ codec }) => codec === (name === "raw" ? "fp16" : name));
    for (const [index, one] of payloads.entries()) {
      const payload = tensorsOf(bytesOf(`${one.file}-raw`));
      const tensors = trained(payload, index);
      const costs = { trainStepMs: [1, 2.5], inferMs: [], phasesS: { train: 2.5 } };
      const sends = { scores: index !== 2, counts: index !== 2 };
      const record = updateRecord(update(tensors, index + 1), costs, sends, MODEL.task, MOST_RECORD_CHARS);
      const baseline = updateBaseline(MODEL, payload);
      const encoded = await encode(tensors, baseline, codecOf(name, 0.2), { residual, metadata: { update: record } });
      const file = `update-${name}-${index}`;
      writeFileSync(join(FOLDER, file), encoded.blob);
      updates.push({
        file, codec: name, raw_bytes: name === "raw" ? 0 : encoded.rawBytes, base: one.reference, payload: `${one.file}-raw`,
      });
      expected.push(received(tensors, residual, encoded.residual));
      residual = encoded.residual;
    }
  }
  writeFileSync(join(FOLDER, "updates.json"), JSON.stringify(updates));
  const options = { cwd: REPOSITORY, env: PYTHON_ENVIRONMENT, encoding: "utf8" } as const;
  const records = JSON.parse(execFileSync(PYTHON, [`tests/web/${SCRIPT}`, FOLDER, "read"], options));
  for (const [index, want] of expected.entries()) checkRead(records[index], index, want);

  function checkRead(record: Record<string, unknown>, index: number, want: Tensors): void {
    const { file, codec } = updates[index] as { file: string; codec: string };
    const got = tensorsOf(bytesOf(`${file}-read`));
    if (codec === "raw") assert.deepEqual(encodeBlob(got), encodeBlob(want));
    for (const [name, { data }] of want) {
      const numbers = got.get(name)!.data as Float32Array;
      // What has no memory is off by what its codec loses.
      const within = name.startsWith("params/") ? 1e-6 : 0.02;
      numbers.forEach((value, at) => assert.ok(Math.abs(value - Number(data[at])) <= within, `${file}: ${name}`));
    }
    assert.equal(record["num_examples"], index % 3 === 2 ? 1 : 23);
    assert.equal(record["loss"], index % 3 === 2 ? null : 0.5);
    const { start } = record["evaluation"] as { start?: unknown };
    assert.deepEqual(start, index % 3 === 2 ? undefined : [[5, 5, 0], [5, 5, 0], [1, 1, 1]]);
  }
});

/** What the other end has: trained + what was kept before - what is kept now. */
function received(tensors: Tensors, before: Tensors, after: Tensors): Tensors {
  return new Map(
    [...tensors].map(([name, { shape, data }]) => {
      const numbers = (data as Float32Array).map(
        (value, at) => value + Number(before.get(name)?.data[at] ?? 0) - Number(after.get(name)?.data[at] ?? 0),
      );
      return [name, float32(shape, numbers)];
    }),
  );
}
