/** What the readers say of the files of tests/web/hostile_files.py; it runs in Node and in browsers. */

import { checkBundleSize, openBundle } from "../../src/bundle/bundle.ts";
import { checkOnnx } from "../../src/bundle/onnx.ts";
import { RefusedError } from "../../src/errors.ts";
import { type TensorSchema, checkTensors } from "../../src/strategies/types.ts";
import { decode as decodeBlob } from "../../src/tensors/safetensors.ts";
import { parse as parseChunk } from "../../src/wire/chunks.ts";
import { decode as decodeCoded } from "../../src/wire/codecs.ts";
import { parseStrict } from "../../src/wire/strict_json.ts";

export interface Hostile {
  readonly kind: "bundle" | "blob" | "chunk" | "codec" | "json";
  readonly test: string;
  /** Null: a good one. */
  readonly rule: string | null;
  /** In Python. */
  readonly says: string;
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

/** The hostile files that are not refused by the same rule and in the same words as in Python. */
export async function misjudged(some: readonly Hostile[], signer: string, files: Files): Promise<string[]> {
  const wrong: string[] = [];
  for (const one of some) {
    const [expected, got] = [told(one.rule, one.says), await verdict(one, signer, files)];
    if (got !== expected) wrong.push(`${one.test} (${one.file}):\n  expected ${expected}\n  got ${got}`);
  }
  return wrong;
}

/** The broken rule and what is said; what else is thrown is an error of the reader. */
async function verdict(one: Hostile, signer: string, files: Files): Promise<string> {
  try {
    await READERS[one.kind](one, files, signer);
    return told(null, "");
  } catch (error) {
    if (!(error instanceof RefusedError)) return `a ${error}`;
    const readable = error.message.length < 600 && !/[\n\x1b]/.test(error.message);
    return readable ? told(error.rule, error.message) : "an unreadable message";
  }
}

/** What both languages must say alike. */
function told(rule: string | null, says: string): string {
  return `${rule}: ${plain(says.replace(BY_LIBRARIES, "$1").replace(IN_A_TERMINAL, ""))}`;
}

/** Of JSON, of zlib and of a record's types, whose libraries have words of their own. */
const BY_LIBRARIES = /(not strict JSON|zlib|table of tensors|manifest\.json): (?:.* - at `.*|Object missing .*|\$.*|(?<=(JSON|zlib|tensors): ).*)/;
const IN_A_TERMINAL = /; to trust a key: .*/;

/** Without the signs in which the languages write values: tuples and lists, quotes, escapes, floats. */
function plain(says: string): string {
  return says
    .replace(/\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\n|\ufffd/g, "?")
    .replace(/\\\\/g, "\\")
    .replace(/(?:\d{16,}|Infinity)[\])]?/g, "?") // beyond what a float64 counts
    .replace(/(\d)\.0\b/g, "$1")
    .replace(/['"]/g, "")
    .replace(/,?\)/g, "]")
    .replace(/\(/g, "[");
}

type Read = (one: Hostile, files: Files, signer: string) => Promise<unknown>;

const READERS: Readonly<Record<Hostile["kind"], Read>> = {
  bundle: async ({ file, size, max_fields }, files, signer) => {
    checkBundleSize(size);
    const bundle = await openBundle(await files(file!), { trusted: [signer] });
    if (max_fields !== undefined && max_fields < MAX_FIELDS) checkOnnx(bundle.file(INFER), INFER, max_fields);
  },
  blob: async ({ file, max_bytes }, files) => decodeBlob(await files(file!), max_bytes),
  chunk: async ({ file }, files) => parseChunk(await files(file!)),
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
