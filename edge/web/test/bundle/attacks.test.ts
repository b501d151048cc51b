/** What the Python readers refuse is refused here by the same rule: tests/web/hostile_files.py. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { checkBundleSize, openBundle } from "../../src/bundle/bundle.ts";
import { checkOnnx } from "../../src/bundle/onnx.ts";
import { RefusedError } from "../../src/errors.ts";
import { checkTensors } from "../../src/strategies/types.ts";
import type { TensorForm } from "../../src/strategies/types.ts";
import { decode as decodeBlob } from "../../src/tensors/safetensors.ts";
import { decode as decodeCoded } from "../../src/wire/codecs.ts";
import { parseStrict } from "../../src/wire/strict_json.ts";
import { writtenByPython } from "../python.ts";

interface Case {
  readonly kind: "bundle" | "blob" | "codec" | "json";
  readonly test: string;
  readonly rule: string | null;
  readonly file: string | null;
  readonly size: number;
  readonly max_bytes: number;
  readonly max_fields?: number;
  readonly codec: string;
  readonly raw_bytes: number;
  readonly baseline: string;
  readonly required: Readonly<Record<string, readonly (number | null)[]>> | null;
}

const FOLDER = writtenByPython("hostile_files.py");
const { signer, cases }: { signer: string; cases: readonly Case[] } = JSON.parse(
  readFileSync(join(FOLDER, "cases.json"), "utf8"),
);
const MAX_FIELDS = 2_000_000;

function bytesOf(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

const READERS: Readonly<Record<Case["kind"], (one: Case) => Promise<unknown>>> = {
  bundle: async ({ file, size, max_fields }) => {
    checkBundleSize(size);
    const bundle = await openBundle(bytesOf(file!), { trusted: [signer] });
    if (max_fields !== undefined && max_fields < MAX_FIELDS) {
      checkOnnx(bundle.file("programs/infer.onnx"), "programs/infer.onnx", max_fields);
    }
  },
  blob: async ({ file, max_bytes }) => decodeBlob(bytesOf(file!), max_bytes),
  json: async ({ file, rule }) => parseStrict(bytesOf(file!), "it", rule!),
  codec: async (one) => {
    const { tensors } = decodeBlob(bytesOf(one.baseline), Infinity);
    const coding = { codec: one.codec, rawBytes: one.raw_bytes, reference: "" };
    const forms = Object.entries(one.required ?? {}).map(
      ([name, shape]): [string, TensorForm] => [name, { shape, dtype: "float32", most: 0 }],
    );
    const expected = { required: new Map(forms), optional: new Map() };
    const check = one.required === null ? undefined : checkTensors.bind(null, expected);
    return decodeCoded(bytesOf(one.file!), tensors, coding, one.max_bytes, check);
  },
};

/** The broken rule, null if it was read; what else is thrown fails the test. */
async function ruleOf(one: Case): Promise<string | null> {
  try {
    await READERS[one.kind](one);
    return null;
  } catch (error) {
    if (!(error instanceof RefusedError)) throw error;
    assert.ok(error.message.length < 600 && !/[\n\x1b]/.test(error.message), error.message);
    return error.rule;
  }
}

for (const kind of Object.keys(READERS) as Case["kind"][]) {
  const some = cases.filter((one) => one.kind === kind);
  test(`${some.length} files for the reader of kind ${kind}: refused by the same rule`, async () => {
    const wrong: string[] = [];
    for (const one of some) {
      const rule = await ruleOf(one);
      if (rule !== one.rule) wrong.push(`${one.test} (${one.file}): expected ${one.rule}, got ${rule}`);
    }
    assert.deepEqual(wrong, []);
    assert.ok(some.length > 2);
  });
}

test("every rule of docs/bundle.md that a single file can break is among them", () => {
  const text = readFileSync(new URL("../../../../docs/bundle.md", import.meta.url), "utf8");
  const table = text.slice(text.indexOf("## Order of checks"), text.indexOf("## Trust"));
  const rows = table.split("\n").filter((line) => /^\| \d+ \|/.test(line));
  const rules = new Set(rows.flatMap((row) => [...row.split("|").at(-2)!.matchAll(/`([a-z0-9-]+)`/g)].map(([, rule]) => rule!)));
  assert.equal(rules.size, 26);
  // The first two are of folders, and a bundle's size comes before its blobs'.
  for (const rule of ["file-type", "surplus-file", "blob-size"]) rules.delete(rule);
  const broken = new Set(cases.filter(({ kind }) => kind === "bundle").map(({ rule }) => rule));
  assert.deepEqual([...rules].filter((rule) => !broken.has(rule)), []);
});
