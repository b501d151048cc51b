/** What the readers say of the files of tests/web/hostile_files.py; it runs in Node and in browsers. */

import { checkBundleSize, openBundle } from "../../src/bundle/bundle.ts";
import { checkOnnx } from "../../src/bundle/onnx.ts";
import { RefusedError } from "../../src/errors.ts";
import { type TensorSchema, checkTensors } from "../../src/strategies/types.ts";
import { decode as decodeBlob } from "../../src/tensors/safetensors.ts";
import { decode as decodeCoded } from "../../src/wire/codecs.ts";
import { parseStrict } from "../../src/wire/strict_json.ts";

export interface Hostile {
  readonly kind: "bundle" | "blob" | "codec" | "json";
  readonly test: string;
  /** Null: a good one. */
  readonly rule: string | null;
  /** Null: a file so large that only its size counts. */
  readonly file: string | null;
  readonly size: number;
  readonly max_bytes: number;
  readonly max_fields?: number;
  readonly codec: string;
  readonly raw_bytes: number;
  readonly baseline: string;
  readonly required: Readonly<Record<string, readonly (number | null)[]>> | null;
}

export type Files = (name: string) => Promise<Uint8Array>;

const MAX_FIELDS = 2_000_000;
const INFER = "programs/infer.onnx";

/** The hostile files that are not refused by the same rule as in Python. */
export async function misjudged(some: readonly Hostile[], signer: string, files: Files): Promise<string[]> {
  const wrong: string[] = [];
  for (const one of some) {
    const rule = await ruleOf(one, signer, files);
    if (rule !== one.rule) wrong.push(`${one.test} (${one.file}): expected ${one.rule}, got ${rule}`);
  }
  return wrong;
}

/** The broken rule, null if it was read; what else is thrown is an error of the reader. */
async function ruleOf(one: Hostile, signer: string, files: Files): Promise<string | null> {
  try {
    await READERS[one.kind](one, files, signer);
    return null;
  } catch (error) {
    if (!(error instanceof RefusedError)) return `a ${error}`;
    const readable = error.message.length < 600 && !/[\n\x1b]/.test(error.message);
    return readable ? error.rule : "an unreadable message";
  }
}

type Read = (one: Hostile, files: Files, signer: string) => Promise<unknown>;

const READERS: Readonly<Record<Hostile["kind"], Read>> = {
  bundle: async ({ file, size, max_fields }, files, signer) => {
    checkBundleSize(size);
    const bundle = await openBundle(await files(file!), { trusted: [signer] });
    if (max_fields !== undefined && max_fields < MAX_FIELDS) checkOnnx(bundle.file(INFER), INFER, max_fields);
  },
  blob: async ({ file, max_bytes }, files) => decodeBlob(await files(file!), max_bytes),
  json: async ({ file, rule }, files) => parseStrict(await files(file!), "it", rule!),
  codec: async ({ file, baseline, codec, raw_bytes, max_bytes, required }, files) => {
    const { tensors } = decodeBlob(await files(baseline), Infinity);
    const forms = Object.entries(required ?? {}).map(
      ([name, shape]): [string, TensorSchema] => [name, { shape, dtype: "float32", most: 0 }],
    );
    const expected = { required: new Map(forms), optional: new Map() };
    const check = required === null ? undefined : checkTensors.bind(null, expected);
    const coding = { codec, rawBytes: raw_bytes, reference: "" };
    return decodeCoded(await files(file!), tensors, coding, max_bytes, check);
  },
};
