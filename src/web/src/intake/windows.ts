/**
 * Sensor streams at any rate → samples at the bundle's rate → normalised windows, as `edge/data/intake.py`.
 *
 * Each stream is low-passed and resampled in one pass by a windowed-sinc kernel evaluated at the true
 * time stamps. Every stream's output lies on the same grid of absolute times k / rate, which joins
 * them. A window leaves as soon as its last sample is known; a gap in any stream starts windows anew,
 * and so does a clock that is set back. One that would be mostly interpolated is left out.
 */

import type { Preprocessing } from "../bundle/manifest.ts";
import { InputError } from "../errors.ts";
import { type GridSamples, type IntakeCounters, Resampler, type StepBack } from "./resampler.ts";

export type { IntakeCounters } from "./resampler.ts";

const PATIENCE_S = 60.0; // a sensor that died must not make the others fill the memory

/** One complete window. */
export interface Window {
  /** (window, channels) float32, normalised, row by row. */
  readonly x: Float32Array;
  /** Time of its first sample. */
  readonly startS: number;
  /** The class that was marked throughout, or -1 where it is unknown or changed. */
  readonly label: number;
}

/** Channels of all sensors at one place of the grid, and which of them had a reading there. */
interface Sample {
  readonly index: number;
  readonly row: Float64Array;
  readonly measured: readonly boolean[];
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
  /** Those since readings came in, which may tell of times before or after a step back. */
  #newMarks = 0;
  #setBack = 0;
  #samples: Sample[] = [];

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
    this.#newMarks += 1;
  }

  /** Takes one sensor's readings, gives back the windows that are complete now. */
  push(sensor: string, timesS: readonly number[], rows: readonly Float64Array[]): Window[] {
    const stream = this.#streams.get(sensor);
    if (stream === undefined) {
      throw new InputError(`sensor '${sensor}': expected one of ${[...this.#streams.keys()].join(", ")}`);
    }
    const { resampler } = stream;
    const latestS = resampler.latestS;
    const windows: Window[] = [];
    for (const part of resampler.push(timesS, rows)) {
      if (part.after !== null) this.#restart(stream, part.after);
      this.#store(stream, part);
      windows.push(...this.#windows());
    }
    if (resampler.latestS !== latestS && !resampler.isDoubtful) this.#newMarks = 0;
    return windows;
  }

  /** The recording is over: gives back what its last readings complete. */
  flush(): Window[] {
    for (const stream of this.#streams.values()) this.#store(stream, stream.resampler.flush());
    return this.#windows();
  }

  /** Forgets what waits of a sensor whose clock was set back, and its window's beginning. */
  #restart(stream: Stream, step: StepBack): void {
    const { counters } = stream.resampler;
    for (const block of stream.blocks) counters.unmatched += block.index.length;
    stream.blocks = [];
    this.#samples = [];
    // Of several sensors on one clock, the first to be set back moves the marks for all.
    if (counters.setBack > this.#setBack) {
      this.#setBack += 1;
      this.#moveMarks(step);
    }
  }

  /** What the owner did last goes on; marks that came since, by the new times, hold, too. */
  #moveMarks({ fromS, toS }: StepBack): void {
    const settled = Math.max(this.#marks.length - this.#newMarks, 0);
    const isLater = ([timeS]: [number, number], k: number) =>
      k >= settled && Math.abs(timeS - toS) < Math.abs(timeS - fromS);
    const earlier = this.#marks.filter((mark, k) => !isLater(mark, k));
    this.#marks = [[-Infinity, earlier.at(-1)?.[1] ?? -1], ...this.#marks.filter(isLater)];
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
    const samples = this.#join();
    const windows: Window[] = [];
    // A jump in the grid means a gap in some stream: the window begun before it is dropped.
    let from = 0;
    for (let k = 1; k <= samples.length; k++) {
      if (k < samples.length && samples[k]!.index - samples[k - 1]!.index === 1) continue;
      windows.push(...this.#extend(samples.slice(from, k)));
      from = k;
    }
    return windows;
  }

  #join(): Sample[] {
    const streams = [...this.#streams.values()];
    if (!streams.every((stream) => stream.blocks.length > 0)) return [];
    const horizon = Math.min(...streams.map((stream) => stream.blocks.at(-1)!.index.at(-1)!));
    const [first, ...others] = streams.map((stream) => takeUpTo(stream, horizon));
    return [...first!].flatMap(([index, own]) => {
      const all = [own, ...others.map((other) => other.get(index))].filter((one) => one !== undefined);
      if (all.length < streams.length) return [];
      const row = Float64Array.from(all.flatMap((one) => [...one.row]));
      return [{ index, row, measured: all.flatMap((one) => one.measured) }];
    });
  }

  #extend(samples: Sample[]): Window[] {
    const width = samples[0]!.row.length;
    if (width !== this.#channels) {
      throw new InputError(`sensor intake: expected ${this.#channels} channels in all, got ${width}`);
    }
    const last = this.#samples.at(-1)?.index;
    if (last !== undefined && samples[0]!.index === last + 1) this.#samples.push(...samples);
    else this.#samples = samples;
    const windows: Window[] = [];
    while (this.#samples.length >= this.#window) {
      const window = this.#samples.slice(0, this.#window);
      if (this.#isMeasured(window)) windows.push(this.#cut(window.map(({ row }) => row), window[0]!.index));
      this.#samples = this.#samples.slice(this.#hop);
    }
    return windows;
  }

  /** Whether each sensor has enough readings in a window; counts what one has not. */
  #isMeasured(window: readonly Sample[]): boolean {
    const lacking = [...this.#streams.values()].filter(({ resampler }, at) => {
      const count = window.filter(({ measured }) => measured[at]).length;
      return count < resampler.leastMeasured * this.#window;
    });
    for (const { resampler } of lacking) resampler.counters.interpolated += 1;
    return lacking.length === 0;
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
function takeUpTo(stream: Stream, horizon: number): Map<number, Sample> {
  const taken = new Map<number, Sample>();
  const later: GridSamples = { index: [], rows: [], measured: [], after: null };
  for (const block of stream.blocks) {
    block.index.forEach((index, at) => {
      const [row, measured] = [block.rows[at]!, block.measured[at]!];
      if (index <= horizon) taken.set(index, { index, row, measured: [measured] });
      else {
        later.index.push(index);
        later.rows.push(row);
        later.measured.push(measured);
      }
    });
  }
  stream.blocks = later.index.length > 0 ? [later] : [];
  return taken;
}
