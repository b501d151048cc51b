/**
 * One sensor's readings → samples on a grid of absolute times, low-passed, as `edge/data/resampler.py`.
 *
 * A windowed-sinc kernel is evaluated at the true time stamps, so jitter and odd rates need no special
 * case. A clock was set back where two readings that follow one another lie behind the latest by more
 * than a silence may last; a single one is a slip of its stamp, a smaller step jitter: both are dropped.
 */

import { InputError } from "../errors.ts";

const ZERO_CROSSINGS = 8; // kernel half-length: -60 dB with the window below
const KAISER_BETA = 6.0;
const MOST_SAMPLES = 2 ** 52;
const LEAST_MEASURED = 0.5; // of the samples that a sensor's own rate measures
const PASSBAND = 0.9; // share of the lower Nyquist frequency that is kept

/** What the intake discarded, and why. */
export interface IntakeCounters {
  /** Readings with NaN or infinite values. */
  notFinite: number;
  /** Readings no later than the one before. */
  notForward: number;
  /** Silences that ended a stretch. */
  gaps: number;
  /** Times that the clock was set back, which ended a stretch. */
  setBack: number;
  /** Resampled values for which another sensor was silent too long. */
  unmatched: number;
  /** Windows left out because too few of their samples had a reading. */
  interpolated: number;
}

/** A clock that was set back: the latest time before, and the first after. */
export interface StepBack {
  readonly fromS: number;
  readonly toS: number;
}

/** Samples at times k / rate; `rows[i]` holds the channels at `index[i]`. */
export interface GridSamples {
  readonly index: number[];
  readonly rows: Float64Array[];
  /** Whether a reading was taken within half a step of the grid. */
  readonly measured: boolean[];
  /** Where a clock was set back before the first of them. */
  readonly after: StepBack | null;
}

interface Reading {
  readonly timeS: number;
  readonly row: Float64Array;
}

function nothing(after: StepBack | null): GridSamples {
  return { index: [], rows: [], measured: [], after };
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
  readonly counters: IntakeCounters = { notFinite: 0, notForward: 0, gaps: 0, setBack: 0, unmatched: 0, interpolated: 0 };
  readonly #rate: number;
  readonly #cutoffHz: number;
  readonly #reachS: number;
  readonly #maxGapS: number;
  /** Part of a window's samples that need a reading, or it is made up rather than measured. */
  readonly leastMeasured: number;
  #times: number[] = [];
  #rows: Float64Array[] = [];
  /** A reading far back, until the next one tells a slip from a clock that was set back. */
  #doubtful: Reading | null = null;
  #next = 0;
  #opened = false;

  /**
   * A silence longer than `maxGapS`, at least four readings, ends a stretch; nothing is interpolated
   * across it. A clock that goes back by more was set back.
   */
  constructor(inRateHz: number, outRateHz: number, maxGapS = 0.2) {
    if (!(inRateHz > 0 && outRateHz > 0)) {
      throw new InputError(`sensor rate: expected > 0 Hz, got ${inRateHz} and ${outRateHz}`);
    }
    this.#rate = outRateHz;
    this.#cutoffHz = (PASSBAND * Math.min(inRateHz, outRateHz)) / 2;
    this.#reachS = ZERO_CROSSINGS / (2 * this.#cutoffHz);
    this.leastMeasured = LEAST_MEASURED * Math.min(1, inRateHz / outRateHz);
    this.#maxGapS = Math.max(maxGapS, 4 / inRateHz);
  }

  /** Time of the latest reading of the stretch; -Infinity at its start. */
  get latestS(): number {
    return this.#times.at(-1) ?? -Infinity;
  }

  /** Whether the next reading tells if the clock was set back. */
  get isDoubtful(): boolean {
    return this.#doubtful !== null;
  }

  /**
   * Takes readings in, gives back what is certain now: samples of the stretch that was open, and then
   * of one for each time that the clock was set back.
   */
  push(timesS: readonly number[], rows: readonly Float64Array[]): GridSamples[] {
    const out = [nothing(null)];
    let pending = false;
    const take = (reading: Reading) => {
      if (reading.timeS - this.latestS > this.#maxGapS && this.#opened) {
        if (pending) this.#emit(out.at(-1)!, false);
        this.counters.gaps += 1;
        this.#end(out.at(-1)!);
      }
      this.#append(reading);
      pending = true;
    };
    timesS.forEach((timeS, k) => {
      const reading = { timeS, row: rows[k]! };
      const first = this.#firstOf(reading);
      if (first === null) return;
      if (first !== reading) {
        if (pending) this.#emit(out.at(-1)!, false);
        const step = { fromS: this.latestS, toS: first.timeS };
        this.counters.setBack += 1;
        this.#end(out.at(-1)!);
        out.push(nothing(step));
        take(first);
      }
      take(reading);
    });
    if (pending) this.#emit(out.at(-1)!, false);
    return out;
  }

  /** Ends the stretch: gives back its last samples, and forgets it. */
  flush(): GridSamples {
    this.#drop();
    const out = nothing(null);
    this.#end(out);
    return out;
  }

  #end(out: GridSamples): void {
    this.#emit(out, true);
    this.#times = [];
    this.#rows = [];
    this.#opened = false;
  }

  /** Of what `reading` adds the first: the one before it, too, if it says that the clock was set back. */
  #firstOf(reading: Reading): Reading | null {
    const { timeS, row } = reading;
    // Beyond, neighbours on the grid have the same time.
    if (!(Math.abs(timeS) < MOST_SAMPLES / this.#rate) || !row.every(Number.isFinite)) {
      this.counters.notFinite += 1;
      return null;
    }
    if (timeS > this.latestS) {
      this.#drop();
      return reading;
    }
    if (timeS >= this.latestS - this.#maxGapS) {
      this.#drop();
      this.counters.notForward += 1;
      return null;
    }
    const before = this.#doubtful;
    if (before?.timeS === timeS) {
      this.counters.notForward += 1;
      return null;
    }
    if (before === null || timeS < before.timeS || timeS - before.timeS > this.#maxGapS) {
      this.#drop();
      this.#doubtful = reading;
      return null;
    }
    this.#doubtful = null;
    return before;
  }

  #drop(): void {
    if (this.#doubtful !== null) this.counters.notForward += 1;
    this.#doubtful = null;
  }

  #append({ timeS, row }: Reading): void {
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
    const near = new Set(times.map((time) => Math.floor(time * this.#rate + 0.5)));
    for (let k = this.#next; k <= last; k++) {
      out.index.push(k);
      out.measured.push(near.has(k));
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
