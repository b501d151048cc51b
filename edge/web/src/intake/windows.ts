/**
 * Sensor streams at any rate → samples at the bundle's rate → normalised windows, as `edge/intake.py`.
 *
 * Each stream is low-passed and resampled in one pass by a windowed-sinc kernel evaluated at the true
 * time stamps. Every stream's output lies on the same grid of absolute times k / rate, which joins
 * them. A window leaves as soon as its last sample is known; a gap in any stream starts windows anew.
 */

import type { Preprocessing } from "../bundle/manifest.ts";
import { InputError } from "../errors.ts";

const ZERO_CROSSINGS = 8; // kernel half-length: -60 dB with the window below
const KAISER_BETA = 6.0;
const MOST_SAMPLES = 2 ** 52;
const PASSBAND = 0.9; // share of the lower Nyquist frequency that is kept
const PATIENCE_S = 60.0; // a sensor that died must not make the others fill the memory

/** What the intake discarded, and why. */
export interface IntakeCounters {
  /** Readings with NaN or infinite values. */
  notFinite: number;
  /** Readings no later than the one before. */
  notForward: number;
  /** Silences that ended a segment. */
  gaps: number;
  /** Resampled values for which another sensor was silent too long. */
  unmatched: number;
}

/** Samples at times k / rate; `rows[i]` holds the channels at `index[i]`. */
export interface GridSamples {
  readonly index: number[];
  readonly rows: Float64Array[];
}

/** The modified Bessel function of the first kind, order 0, by its power series. */
function besselI0(x: number): number {
  const quarter = (x * x) / 4;
  let [term, sum] = [1, 1];
  for (let k = 1; term > sum * 1e-17; k++) {
    term *= quarter / (k * k);
    sum += term;
  }
  return sum;
}

const I0_OF_BETA = besselI0(KAISER_BETA);

/** The first place at which `value` could stand in ascending `values`. */
function lowerBound(values: readonly number[], value: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * One stream → samples at times k / outRateHz, k integer, anti-aliased.
 *
 * y(t) = Σ h(t - t_i) Δ_i x_i / Σ h(t - t_i) Δ_i, where h is a Kaiser-windowed sinc with its cut-off
 * at 0.9 of the lower Nyquist frequency and Δ_i half the time between the neighbours.
 */
export class Resampler {
  readonly counters: IntakeCounters = { notFinite: 0, notForward: 0, gaps: 0, unmatched: 0 };
  readonly #rate: number;
  readonly #cutoffHz: number;
  readonly #reachS: number;
  readonly #maxGapS: number;
  #times: number[] = [];
  #rows: Float64Array[] = [];
  #next = 0;
  #opened = false;

  /** A silence longer than `maxGapS` ends a segment; nothing is interpolated across it. */
  constructor(inRateHz: number, outRateHz: number, maxGapS = 0.2) {
    if (!(inRateHz > 0 && outRateHz > 0)) {
      throw new InputError(`sensor rate: expected > 0 Hz, got ${inRateHz} and ${outRateHz}`);
    }
    this.#rate = outRateHz;
    this.#cutoffHz = (PASSBAND * Math.min(inRateHz, outRateHz)) / 2;
    this.#reachS = ZERO_CROSSINGS / (2 * this.#cutoffHz);
    this.#maxGapS = Math.max(maxGapS, 4 / inRateHz);
  }

  /** Takes readings in, gives back what is certain now. */
  push(timesS: readonly number[], rows: readonly Float64Array[]): GridSamples {
    const out: GridSamples = { index: [], rows: [] };
    let pending = false;
    timesS.forEach((timeS, k) => {
      const row = rows[k]!;
      if (!this.#usable(timeS, row)) return;
      const previous = this.#times.at(-1);
      if (previous !== undefined && timeS - previous > this.#maxGapS) {
        if (pending) this.#emit(out, false);
        this.counters.gaps += 1;
        this.#flush(out);
      }
      this.#append(timeS, row);
      pending = true;
    });
    if (pending) this.#emit(out, false);
    return out;
  }

  /** Ends the segment: gives back its last samples, as `push` does, and forgets it. */
  flush(): GridSamples {
    const out: GridSamples = { index: [], rows: [] };
    this.#flush(out);
    return out;
  }

  #flush(out: GridSamples): void {
    this.#emit(out, true);
    this.#times = [];
    this.#rows = [];
    this.#opened = false;
  }

  #usable(timeS: number, row: Float64Array): boolean {
    // Beyond, neighbours on the grid have the same time.
    if (!(Math.abs(timeS) < MOST_SAMPLES / this.#rate) || !row.every(Number.isFinite)) {
      this.counters.notFinite += 1;
      return false;
    }
    const latest = this.#times.at(-1);
    if (latest !== undefined && timeS <= latest) {
      this.counters.notForward += 1;
      return false;
    }
    return true;
  }

  #append(timeS: number, row: Float64Array): void {
    if (!this.#opened) {
      this.#opened = true;
      this.#next = Math.ceil(timeS * this.#rate - 1e-9);
    }
    this.#times.push(timeS);
    this.#rows.push(row);
  }

  #emit(out: GridSamples, final: boolean): void {
    const times = this.#times;
    if (times.length < 2) return;
    // The newest reading's Δ is known only with its successor, so it waits as a neighbour.
    const horizon = final ? times.at(-1)! : times.at(-2)! - this.#reachS;
    const last = Math.floor(horizon * this.#rate + 1e-9);
    if (last < this.#next) return;
    for (let k = this.#next; k <= last; k++) {
      out.index.push(k);
      out.rows.push(this.#interpolate(k / this.#rate));
    }
    this.#next = last + 1;
    const keep = Math.max(lowerBound(times, this.#next / this.#rate - this.#reachS) - 1, 0);
    this.#times = times.slice(keep);
    this.#rows = this.#rows.slice(keep);
  }

  #interpolate(atS: number): Float64Array {
    const [times, rows] = [this.#times, this.#rows];
    const end = lowerBound(times, atS + this.#reachS);
    const summed = new Float64Array(rows[0]!.length);
    let total = 0;
    for (let k = lowerBound(times, atS - this.#reachS); k < end; k++) {
      const weight = this.#kernel(atS - times[k]!) * this.#spacing(k);
      total += weight;
      const row = rows[k]!;
      for (let channel = 0; channel < summed.length; channel++) {
        summed[channel]! += weight * row[channel]!;
      }
    }
    return summed.map((value) => value / total);
  }

  #spacing(k: number): number {
    const times = this.#times;
    const gap = (at: number) => times[at + 1]! - times[at]!;
    return (gap(Math.max(k - 1, 0)) + gap(Math.min(k, times.length - 2))) / 2;
  }

  #kernel(lagS: number): number {
    const inside = Math.max(1 - (lagS / this.#reachS) ** 2, 0);
    const taper = besselI0(KAISER_BETA * Math.sqrt(inside)) / I0_OF_BETA;
    const angle = Math.PI * (2 * this.#cutoffHz * lagS);
    return (angle === 0 ? 1 : Math.sin(angle) / angle) * taper;
  }
}

/** One complete window. */
export interface Window {
  /** (window, channels) float32, normalised, row by row. */
  readonly x: Float32Array;
  /** Time of its first sample. */
  readonly startS: number;
  /** The class that was marked throughout, or -1 where it is unknown or changed. */
  readonly label: number;
}

interface Stream {
  readonly resampler: Resampler;
  blocks: GridSamples[];
}

/** Several sensors' readings → windows as a bundle's preprocessing describes them. */
export class SensorIntake {
  readonly #rate: number;
  readonly #window: number;
  readonly #hop: number;
  readonly #channels: number;
  readonly #mean: readonly number[];
  readonly #std: readonly number[];
  readonly #streams: ReadonlyMap<string, Stream>;
  #marks: [number, number][] = [[-Infinity, -1]];
  #start: number | null = null;
  #rows: Float64Array[] = [];

  /** `sensors`: nominal rate in Hz of each sensor, in the order of the bundle's channels. */
  constructor(preprocessing: Preprocessing, sensors: ReadonlyMap<string, number>) {
    const { rate_hz: rate, window, hop } = preprocessing;
    if (!rate || !window || !hop) {
      throw new InputError("sensor intake: the bundle's input is not a series of windows");
    }
    [this.#rate, this.#window, this.#hop] = [rate, window, hop];
    this.#channels = preprocessing.channels.length;
    [this.#mean, this.#std] = [preprocessing.mean, preprocessing.std];
    this.#streams = new Map(
      [...sensors].map(([name, rateHz]) => [name, { resampler: new Resampler(rateHz, rate), blocks: [] }]),
    );
  }

  /** What was discarded, by sensor. */
  get counters(): ReadonlyMap<string, IntakeCounters> {
    return new Map([...this.#streams].map(([name, stream]) => [name, stream.resampler.counters]));
  }

  /** From `timeS` on the owner does the activity `label` (-1: unknown). */
  mark(timeS: number, label: number): void {
    this.#marks.push([timeS, label]);
  }

  /** Takes one sensor's readings, gives back the windows that are complete now. */
  push(sensor: string, timesS: readonly number[], rows: readonly Float64Array[]): Window[] {
    const stream = this.#streams.get(sensor);
    if (stream === undefined) {
      throw new InputError(`sensor '${sensor}': expected one of ${[...this.#streams.keys()].join(", ")}`);
    }
    this.#store(stream, stream.resampler.push(timesS, rows));
    return this.#windows();
  }

  /** The recording is over: gives back what its last readings complete. */
  flush(): Window[] {
    for (const stream of this.#streams.values()) this.#store(stream, stream.resampler.flush());
    return this.#windows();
  }

  #store(stream: Stream, samples: GridSamples): void {
    if (samples.index.length === 0) return;
    stream.blocks.push(samples);
    const oldest = samples.index.at(-1)! - PATIENCE_S * this.#rate;
    while (stream.blocks[0]!.index.at(-1)! < oldest) {
      stream.resampler.counters.unmatched += stream.blocks.shift()!.index.length;
    }
  }

  #windows(): Window[] {
    const { index, rows } = this.#join();
    const windows: Window[] = [];
    // A jump in the grid means a gap in some stream: the window begun before it is dropped.
    let from = 0;
    for (let k = 1; k <= index.length; k++) {
      if (k < index.length && index[k]! - index[k - 1]! === 1) continue;
      windows.push(...this.#extend(index[from]!, rows.slice(from, k)));
      from = k;
    }
    return windows;
  }

  #join(): GridSamples {
    const streams = [...this.#streams.values()];
    if (!streams.every((stream) => stream.blocks.length > 0)) return { index: [], rows: [] };
    const horizon = Math.min(...streams.map((stream) => stream.blocks.at(-1)!.index.at(-1)!));
    const [first, ...others] = streams.map((stream) => takeUpTo(stream, horizon));
    const out: GridSamples = { index: [], rows: [] };
    for (const [k, row] of first!) {
      const all = [row, ...others.map((other) => other.get(k))];
      if (!all.every((part) => part !== undefined)) continue;
      out.index.push(k);
      out.rows.push(Float64Array.from(all.flatMap((part) => [...part])));
    }
    return out;
  }

  #extend(first: number, rows: Float64Array[]): Window[] {
    const width = rows[0]!.length;
    if (width !== this.#channels) {
      throw new InputError(`sensor intake: expected ${this.#channels} channels in all, got ${width}`);
    }
    if (this.#start === null || first !== this.#start + this.#rows.length) {
      [this.#start, this.#rows] = [first, rows];
    } else {
      this.#rows.push(...rows);
    }
    const windows: Window[] = [];
    while (this.#rows.length >= this.#window) {
      windows.push(this.#cut(this.#rows.slice(0, this.#window), this.#start));
      this.#rows = this.#rows.slice(this.#hop);
      this.#start += this.#hop;
    }
    return windows;
  }

  #cut(rows: readonly Float64Array[], start: number): Window {
    const x = new Float32Array(this.#window * this.#channels);
    rows.forEach((row, k) => {
      for (let channel = 0; channel < row.length; channel++) {
        const mean = this.#mean[channel % this.#mean.length]!;
        const std = this.#std[channel % this.#std.length]!;
        x[k * this.#channels + channel] = (row[channel]! - mean) / std;
      }
    });
    const [startS, endS] = [start / this.#rate, (start + this.#window - 1) / this.#rate];
    return { x, startS, label: this.#label(startS, endS) };
  }

  #label(beginS: number, endS: number): number {
    while (this.#marks.length > 1 && this.#marks[1]![0] <= beginS) this.#marks.shift();
    const seen = new Set(this.#marks.filter(([timeS]) => timeS <= endS).map(([, label]) => label));
    return seen.size === 1 ? [...seen][0]! : -1;
  }
}

/** Takes out of a stream what lies on the grid up to `horizon`. */
function takeUpTo(stream: Stream, horizon: number): Map<number, Float64Array> {
  const taken = new Map<number, Float64Array>();
  const later: GridSamples = { index: [], rows: [] };
  for (const block of stream.blocks) {
    block.index.forEach((k, at) => {
      if (k <= horizon) taken.set(k, block.rows[at]!);
      else {
        later.index.push(k);
        later.rows.push(block.rows[at]!);
      }
    });
  }
  stream.blocks = later.index.length > 0 ? [later] : [];
  return taken;
}
