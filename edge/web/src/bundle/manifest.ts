/** A bundle's manifest (docs/bundle.md), with the manifest's own names. */

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

export interface Preprocessing {
  readonly input_shape: readonly number[];
  readonly rate_hz: number | null;
  readonly window: number | null;
  readonly hop: number | null;
  readonly channels: readonly string[];
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
  readonly sequence: number;
  readonly replaces_up_to: number;
  readonly strategy: { readonly name: string; readonly settings: Readonly<Record<string, unknown>> };
  readonly provenance: Readonly<Record<string, string>>;
  readonly files: Readonly<Record<string, { readonly bytes: number; readonly sha256: string }>>;
}
