import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { type Bundle, checkBundleSize, openBundle } from "../../src/bundle/bundle.ts";
import { parseManifest } from "../../src/bundle/manifest.ts";
import { isTimestamp } from "../../src/bundle/timestamp.ts";
import { InputError, RefusedError } from "../../src/errors.ts";
import { writtenByPython } from "../python.ts";

interface Golden {
  readonly signer: string;
  readonly bundles: readonly {
    readonly file: string;
    readonly digest: string;
    readonly manifest: { readonly preprocessing: object };
    readonly params: readonly number[];
    readonly state: readonly number[];
    readonly features: number;
  }[];
  readonly times: Readonly<Record<string, boolean>>;
}

const FOLDER = writtenByPython("golden_bundles.py");
const GOLDEN: Golden = JSON.parse(readFileSync(join(FOLDER, "cases.json"), "utf8"));
const TINY = bytesOf("tiny.pfb");

function bytesOf(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

/** Without the prototypes that objects from outside do not have. */
function plain(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value));
}

function opened(file: string): Promise<Bundle> {
  return openBundle(bytesOf(file), { trusted: [GOLDEN.signer] });
}

for (const golden of GOLDEN.bundles) {
  test(`${golden.file}: manifest, digest and values are what Python reads`, async () => {
    const bundle = await opened(golden.file);
    const { preprocessing, ...expected } = golden.manifest;
    const inputs = { units: [], ...preprocessing }; // Python leaves out what is not told
    assert.deepEqual(plain(bundle.manifest), plain({ ...expected, preprocessing: inputs }));
    assert.equal(bundle.digest, golden.digest);
    assert.equal(bundle.signer, GOLDEN.signer);
    const { network, features } = bundle.model();
    assert.deepEqual([...network.params.buffer], golden.params);
    assert.deepEqual([...network.buffers.buffer], golden.state);
    assert.equal(features, golden.features);
  });
}

test("a model's values are copies, and its files are those that were signed", async () => {
  const bundle = await opened("tiny.pfb");
  bundle.params.buffer.fill(7);
  assert.deepEqual([...bundle.params.buffer], GOLDEN.bundles[0]!.params);
  assert.deepEqual(bundle.file("programs/infer.onnx").subarray(0, 1), Uint8Array.of(8));
  assert.throws(() => bundle.file("programs/other.onnx"), InputError);
});

test("a bundle within a larger buffer is read in place", async () => {
  const larger = new Uint8Array(TINY.length + 3);
  larger.set(TINY, 1);
  const bundle = await openBundle(larger.subarray(1, 1 + TINY.length), { anySigner: true });
  assert.equal(bundle.digest, GOLDEN.bundles[0]!.digest);
  assert.deepEqual([...bundle.params.buffer], GOLDEN.bundles[0]!.params);
});

test("nobody is trusted unasked", async () => {
  const untrusted = (error: unknown) => error instanceof RefusedError && error.rule === "untrusted";
  await assert.rejects(openBundle(TINY), untrusted);
  await assert.rejects(openBundle(TINY, { trusted: ["00".repeat(32)] }), untrusted);
});

test("a bundle cut off anywhere, or with any bit turned, is refused, and nothing else happens", async () => {
  const step = 97;
  for (let at = 0; at < TINY.length; at += step) {
    const turned = TINY.slice();
    turned[at]! ^= 1 << (at % 8);
    for (const bytes of [TINY.subarray(0, at), turned]) {
      await assert.rejects(openBundle(bytes, { trusted: [GOLDEN.signer] }), RefusedError);
    }
  }
});

test("a size above the limit is refused before anything is fetched", () => {
  checkBundleSize(1024 ** 3);
  assert.throws(() => checkBundleSize(1024 ** 3 + 1), RefusedError);
});

test("points in time are those of Python's calendar", () => {
  const wrong = Object.entries(GOLDEN.times).filter(([text, known]) => isTimestamp(text) !== known);
  assert.deepEqual(wrong, []);
});

test("a bundle with a class for each step is refused in words, whatever else it holds", () => {
  const text = JSON.stringify({ format: 1, task: "segmentation" });
  assert.throws(
    () => parseManifest(new TextEncoder().encode(text)),
    new RefusedError("manifest", "manifest.json: task segmentation: a browser takes none; a device with Python does"),
  );
});
