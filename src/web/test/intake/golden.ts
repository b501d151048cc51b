/** What the Python device makes of streams and files: `tests/web/golden_intake.py`. */

import { readFileSync } from "node:fs";

import type { Preprocessing } from "../../src/bundle/manifest.ts";
import type { Form } from "../../src/intake/examples.ts";

export interface Sensor {
  readonly rate_hz: number;
  readonly channels: number;
  readonly count: number;
  readonly start_s: number;
  readonly jitter: number;
  readonly gap: readonly [number, number] | null;
  readonly broken: readonly number[];
  readonly backwards: readonly number[];
  readonly thin: readonly [number, number] | null;
  readonly set_back: readonly [number, number] | null;
}

export interface GoldenStream {
  readonly name: string;
  readonly motion: boolean;
  readonly sensors: Readonly<Record<string, Sensor>>;
  readonly block: number;
  readonly marks: readonly (readonly [number, number])[];
  readonly windows: readonly { readonly start_s: number; readonly label: number; readonly x: string }[];
  readonly counters: Readonly<Record<string, readonly number[]>>;
}

export interface GoldenCsv {
  readonly name: string;
  readonly text: string;
  readonly refused?: string;
  readonly x: string;
  readonly labels: readonly number[];
  readonly start_s: readonly number[] | null;
}

export interface GoldenRecordings {
  readonly name: string;
  readonly zip: string;
  readonly refused?: string;
  readonly x: string;
  readonly labels: readonly number[];
}

export interface GoldenNpz {
  readonly name: string;
  readonly file: string;
  readonly shape: readonly number[];
  readonly text: boolean;
  readonly values: readonly string[];
}

export const GOLDEN = JSON.parse(
  readFileSync(new URL("../golden/intake.json", import.meta.url), "utf-8"),
) as { streams: GoldenStream[]; csv: GoldenCsv[]; npz: GoldenNpz[]; digits: Record<string, string>; recordings: GoldenRecordings[];
  labels: { parts: string[]; said: string | null }[]; units: { units: string[]; text: string; x: string }[] };

export const SMALL: Preprocessing = {
  input_shape: [16, 3], rate_hz: 20, window: 16, hop: 8, channels: ["ax", "ay", "gx"],
  mean: [0.1, -0.2, 0], std: [0.5, 0.25, 2], tokens: null,
};

export const MOTION: Preprocessing = {
  input_shape: [128, 6], rate_hz: 50, window: 128, hop: 64,
  channels: ["acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"],
  mean: [0.8, 0, 0.1, 0, 0, 0], std: [0.4, 0.4, 0.4, 0.3, 0.3, 0.3], tokens: null,
};

export const BOTH: Preprocessing = {
  input_shape: [20, 6], rate_hz: 10, window: 20, hop: 10, channels: MOTION.channels,
  mean: [1, 0.5, 0, 0, 0.25, 0], std: [2, 1, 0.5, 1, 1, 4], tokens: null,
};

export const FORM: Form = { preprocessing: SMALL, classes: ["run", "walk"], targets: [] };

export function floats(packed: string): Float32Array {
  return new Float32Array(new Uint8Array(Buffer.from(packed, "base64")).buffer);
}

/** Times and values of a stream, as the Python side makes them, too. */
export function readings(spec: Sensor): { times: number[]; rows: Float64Array[] } {
  const [times, rows]: [number[], Float64Array[]] = [[], []];
  for (let i = 0; i < spec.count; i++) {
    const late = spec.gap !== null && i >= spec.gap[0] ? spec.gap[1] : 0;
    if (spec.thin !== null && i >= spec.thin[0] && i < spec.thin[1] && i % 3 !== 0) continue;
    const back = spec.set_back !== null && i >= spec.set_back[0] ? spec.set_back[1] : 0;
    const time = spec.start_s + late + i / spec.rate_hz + ((i * 37) % 11) * spec.jitter * 1e-5 - back;
    times.push(spec.backwards.includes(i) ? time - 1 : time);
    rows.push(Float64Array.from({ length: spec.channels }, (_, c) =>
      spec.broken.includes(i) ? NaN : (((i * i * 13 + i * 7 + c * 311) % 401) - 200) / 100));
  }
  return { times, rows };
}

/** Largest difference of two arrays of one length; infinite where their lengths differ. */
export function difference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) return Infinity;
  let most = 0;
  for (let k = 0; k < a.length; k++) most = Math.max(most, Math.abs(a[k]! - b[k]!));
  return most;
}
