/** A bundle's manifest (docs/bundle.md), with the manifest's own names. */

import { RefusedError } from "../errors.ts";
import { shown } from "../text.ts";
import {
  type Field, OBJECT, SchemaError, TEXT, group, list, nullable, oneOf, optional,
} from "../wire/schema.ts";
import { isObject, parseExact } from "../wire/strict_json.ts";

export const FORMAT_VERSION = 1;

export interface TensorDecl {
  readonly name: string;
  readonly shape: readonly number[];
}

export type Role = "param" | "state" | "input" | "noise" | "loss" | "grad" | "output";

export interface Port {
  readonly name: string;
  readonly role: Role;
  readonly key: string;
  readonly dtype: "float32" | "int64";
  /** An axis is a count, "batch", or "batch*N". */
  readonly shape: readonly (number | string)[];
  readonly distribution: "uniform" | "normal" | null;
}

export interface Program {
  readonly file: string | null;
  readonly tflite: string | null;
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  readonly objective: string | null;
  readonly precision: "float32" | "float16" | "int8";
  readonly min_batch: number;
}

/** A dense layer or convolution; `before` is an earlier hidden layer whose units are its inputs. */
export interface LayerDecl {
  readonly name: string;
  readonly before: string | null;
}

export interface Preprocessing {
  readonly input_shape: readonly number[];
  readonly rate_hz: number | null;
  readonly window: number | null;
  readonly hop: number | null;
  readonly channels: readonly string[];
  /** Of the channels' readings; empty: not told. */
  readonly units?: readonly string[];
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly tokens: number | null;
}

export interface Manifest {
  readonly format: number;
  readonly name: string;
  readonly created: string;
  readonly layout_hash: string;
  readonly params: readonly TensorDecl[];
  readonly state: readonly TensorDecl[];
  readonly programs: Readonly<Record<string, Program>>;
  readonly preprocessing: Preprocessing;
  readonly task: "classification" | "regression" | "multilabel";
  readonly classes: readonly string[];
  readonly targets: readonly string[];
  readonly head: readonly string[];
  readonly layers: readonly LayerDecl[];
  readonly no_layers: string;
  readonly sequence: number;
  readonly replaces_up_to: number;
  readonly strategy: { readonly name: string; readonly settings: Readonly<Record<string, unknown>> };
  readonly provenance: Readonly<Record<string, string>>;
  readonly files: Readonly<Record<string, { readonly bytes: number; readonly sha256: string }>>;
}

type Reading<T> = Pick<Field<T>, "read">;

/** A whole number of any size: those that are too large are the checks' to refuse. */
const INTEGER = field((value) => (typeof value === "bigint" ? Number(value) : undefined), "a whole number");
const FLOAT = field((value) => {
  const number = typeof value === "bigint" || typeof value === "number" ? Number(value) : Number.NaN;
  return Number.isFinite(number) ? number : undefined;
}, "a number");
const AXIS = field<number | string>(
  (value) => (typeof value === "bigint" ? Number(value) : typeof value === "string" ? value : undefined),
  "a count or text",
);
const MIN_BATCH = field((value) => (value === 1n || value === 2n ? Number(value) : undefined), "1 or 2");

const TENSORS = list(group({ name: TEXT, shape: list(INTEGER) }));

const PORTS = list(
  group({
    name: TEXT,
    role: oneOf("param", "state", "input", "noise", "loss", "grad", "output"),
    key: TEXT,
    dtype: oneOf("float32", "int64"),
    shape: list(AXIS),
    distribution: optional(nullable(oneOf("uniform", "normal")), null),
  }),
);

const PROGRAM = group({
  inputs: PORTS,
  outputs: PORTS,
  objective: optional(nullable(TEXT), null),
  file: optional(nullable(TEXT), null),
  tflite: optional(nullable(TEXT), null),
  precision: optional(oneOf("float32", "float16", "int8"), "float32"),
  min_batch: optional(MIN_BATCH, 1),
});

const PREPROCESSING = group({
  input_shape: list(INTEGER),
  rate_hz: optional(nullable(FLOAT), null),
  window: optional(nullable(INTEGER), null),
  hop: optional(nullable(INTEGER), null),
  channels: optional(list(TEXT), []),
  units: optional(list(TEXT), []),
  mean: optional(list(FLOAT), [0]),
  std: optional(list(FLOAT), [1]),
  tokens: optional(nullable(INTEGER), null),
});

const MANIFEST: Reading<Manifest> = group({
  format: INTEGER,
  name: TEXT,
  created: TEXT,
  layout_hash: TEXT,
  params: TENSORS,
  state: TENSORS,
  programs: byName(PROGRAM),
  preprocessing: PREPROCESSING,
  task: optional(oneOf("classification", "regression", "multilabel"), "classification"),
  classes: optional(list(TEXT), []),
  targets: optional(list(TEXT), []),
  strategy: group({ name: TEXT, settings: OBJECT }),
  provenance: byName(TEXT),
  files: byName(group({ bytes: INTEGER, sha256: TEXT })),
  head: optional(list(TEXT), []),
  layers: optional(list(group({ name: TEXT, before: optional(nullable(TEXT), null) })), []),
  no_layers: optional(TEXT, ""),
  sequence: optional(INTEGER, 0),
  replaces_up_to: optional(INTEGER, 0),
});

/**
 * The manifest in `bytes`, its fields and types checked; its version is looked at before anything
 * else. Throws RefusedError, rule `manifest` or `version`.
 */
export function parseManifest(bytes: Uint8Array): Manifest {
  const document = parseExact(bytes, "manifest.json", "manifest");
  const version = isObject(document) ? document["format"] : undefined;
  if (typeof version !== "bigint") {
    throw new RefusedError("manifest", "manifest.json: expected an object with an integer 'format'");
  }
  if (version !== BigInt(FORMAT_VERSION)) {
    throw new RefusedError(
      "version", `bundle format ${String(version).slice(0, 20)}: this release reads format ${FORMAT_VERSION}`,
    );
  }
  if (isObject(document) && document["task"] === "segmentation") {
    throw new RefusedError(
      "manifest", "manifest.json: task segmentation: a browser takes none; a device with Python does",
    );
  }
  try {
    return MANIFEST.read(document, "$");
  } catch (error) {
    if (error instanceof SchemaError) throw new RefusedError("manifest", `manifest.json: ${error.message}`);
    throw error;
  }
}

function field<T>(read: (value: unknown) => T | undefined, expected: string): Field<T> {
  return {
    read: (value, where) => {
      const found = read(value);
      if (found === undefined) throw new SchemaError(`${where}: expected ${expected}`);
      return found;
    },
    write: String,
  };
}

/** An object whose keys are names of the signer's choice. */
function byName<T>(member: Field<T>): Field<Readonly<Record<string, T>>> {
  return {
    read: (value, where) => {
      if (!isObject(value)) throw new SchemaError(`${where}: expected an object`);
      const found: Record<string, T> = Object.create(null);
      for (const [name, each] of Object.entries(value)) found[name] = member.read(each, `${where}.${shown(name)}`);
      return found;
    },
    write: JSON.stringify,
  };
}
