/** Rows of samples, as a stream whose rate its times tell: `edge/data/csv_stream.py`. */

import { InputError } from "../errors.ts";
import { CSV } from "../texts.ts";
import { SECONDS } from "./columns.ts";
import type { Row } from "./csv_rows.ts";
import { FAR_ABOVE, FAR_BELOW, type Table, UNITS } from "./csv_table.ts";
import { NO_LABEL } from "./examples.ts";
import { findPackets, fits, isKnown, median, type Packets, Spreader, TOLERANCE } from "./packets.ts";
import type { IntakeCounters, Window } from "./windows.ts";

/** What a table's readings are pushed as. */
export const SENSOR = "csv";
/** Samples whose times tell a stream's rate, before any of them is used. */
const RATE_SAMPLES = 16;
/** Samples of so long, at the bundle's rate, may wait for times that tell their rate. */
const MOST_WAITING_S = 600;
/** Different times by which the unit of times is known that several samples share. */
const STAMPS = 4;
/** Names of columns that may hold times, under names that are not known here. */
const TIMELIKE = /time|stamp|date|clock|^t$|^(m|milli)?s(ec(onds?)?)?$/i;

/** Where a stream's readings go. */
export interface SampleSink {
  readonly counters: ReadonlyMap<string, IntakeCounters>;
  mark(timeS: number, label: number): void;
  push(sensor: string, timesS: readonly number[], rows: readonly Float64Array[]): Window[];
  flush(): Window[];
}
/** Rows of samples into what takes them, from when the stream's rate is known. */
export class SampleStream {
  readonly #table: Table;
  readonly #make: (rateHz: number) => SampleSink;
  #rateHz: number | null;
  #intake: SampleSink | null = null;
  #spreader: Spreader | null = null;
  #waiting: Row[] = [];
  #times: number[] = [];
  #timed = 0;
  #label = NO_LABEL;
  readonly hints: string[];
  /** First and last time, seconds. */
  #span: readonly [number, number] = [Infinity, -Infinity];
  count = 0;

  constructor(table: Table, make: (rateHz: number) => SampleSink) {
    this.#table = table;
    this.#make = make;
    this.hints = table.hints;
    const { rate_hz: rate } = table.form.preprocessing;
    // Samples without times come at the bundle's rate.
    this.#rateHz = table.time === null ? rate : null;
    if (table.time === null) this.hints.push(CSV.noTime(rate!, table.header.find((name) => TIMELIKE.test(name)) ?? null));
    if (this.#rateHz !== null) this.#intake = make(this.#rateHz);
  }

  get lost(): IntakeCounters | null {
    return this.#intake?.counters.get(SENSOR) ?? null;
  }

  /** How long enough samples lasted by their column of times, behind an error; or "". */
  get lasted(): string {
    const seconds = this.#span[1] - this.#span[0];
    const few = this.count < this.#table.form.preprocessing.window! || seconds <= 0;
    if (few) return "";
    const wanted = this.#table.form.preprocessing.rate_hz ?? 1;
    const lost = this.lost;
    const names = Object.keys(CSV.lost) as (keyof typeof CSV.lost)[];
    const counted = lost === null ? [] : names.filter((name) => lost[name] > 0).map((name) => `${lost[name]} ${CSV.lost[name]}`);
    const column = this.#table.time!;
    return CSV.lasted(shortly(seconds), column, unitHint(column, this.count / seconds, wanted), counted.join(", "));
  }

  push(rows: readonly Row[]): Window[] {
    this.count += rows.length;
    if (this.#intake !== null) return this.#pushed(this.#intake, rows);
    this.#waiting.push(...rows);
    this.#times.push(...rows.map((row) => this.#table.timeS(row)!).filter(Number.isFinite));
    return this.#isReady() ? this.#begin() : [];
  }

  flush(): Window[] {
    const found = this.#intake === null && this.#waiting.length >= 2 ? this.#begin() : [];
    if (this.#intake === null) return found;
    if (this.#spreader !== null) {
      found.push(...this.#taken(this.#intake, this.#waiting.splice(0), this.#spreader.flush()));
    }
    return [...found, ...this.#intake.flush()];
  }

  /** Whether the samples that wait tell how fast they come, and in packets or not. */
  #isReady(): boolean {
    const waiting = this.#waiting.length;
    const { rate_hz: wanted } = this.#table.form.preprocessing;
    if (waiting < RATE_SAMPLES) return false;
    if (wanted === null || waiting > MOST_WAITING_S * wanted) return true;
    const stamps = 1 + this.#steps.length;
    if (this.#table.unitS === null && 2 * stamps < this.#times.length && stamps < STAMPS) return false;
    this.#findUnit();
    return isKnown(this.#times, wanted, this.#windowS);
  }

  /** Steps forward. */
  get #steps(): number[] {
    return this.#times.slice(1).map((time, k) => time - this.#times[k]!).filter((step) => step > 0);
  }

  /** Takes the unit of the times, if nothing says it, by the samples that wait. */
  #findUnit(): void {
    const steps = this.#steps;
    const { time, unitS, form } = this.#table;
    if (unitS !== null || time === null || steps.length === 0) return;
    let step = median(steps);
    if (2 * steps.length < this.#times.length) {
      // Of stamps that are shared, their readings tell; the first may have had more.
      const forward = this.#times.flatMap((one, k) => (k > 0 && one > this.#times[k - 1]! ? [k] : []));
      const [begin, end] = [forward[0]!, forward.at(-1)!];
      step = end > begin ? (this.#times[end]! - this.#times[begin]!) / (end - begin) : step / this.#times.length;
    }
    const found = this.#table.findUnit(this.#waiting, step, form.preprocessing.rate_hz);
    if (found !== null) this.hints.push(CSV.timesIn(time, found));
    this.#times = this.#times.map((one) => this.#table.unitS! * one);
  }

  get #windowS(): number {
    const { window, rate_hz: rate } = this.#table.form.preprocessing;
    return (window ?? 0) / (rate ?? 1);
  }

  #begin(): Window[] {
    this.#findUnit();
    const rows = this.#waiting;
    this.#waiting = [];
    this.#rateHz = this.#foundRate();
    this.#intake = this.#make(this.#rateHz);
    return this.#pushed(this.#intake, rows);
  }

  /** How fast samples come, by their times. */
  #foundRate(): number {
    const [times, steps] = [this.#times, this.#steps];
    const [where, column] = [this.#table.where, this.#table.time!];
    if (steps.length === 0) {
      const still = times.length > 0 && times.every((time) => time === times[0]);
      throw new InputError(
        still ? CSV.still(where, times[0]!, column) : CSV.notForward(where, times.slice(0, 4).join(", "), column));
    }
    const wanted = this.#table.form.preprocessing.rate_hz;
    const packets = wanted === null ? null : findPackets(times, wanted, this.#windowS);
    if (wanted !== null && packets !== null) {
      if (fits(packets, wanted)) return this.#spread(packets, column);
      if (packets.periodS * wanted * (1 - TOLERANCE) > 1) this.#refuseFew(packets, wanted, column);
    }
    return this.#checkedRate(1 / median(steps), column);
  }

  #spread(packets: Packets, column: string): number {
    this.hints.push(CSV.spread(column, wordsOf(packets)));
    this.#spreader = new Spreader(packets);
    return packets.rateHz;
  }

  /** Refuses packets that come too seldom to be taken as one reading each. */
  #refuseFew(packets: Packets, wanted: number, column: string): never {
    this.#checkedRate(packets.rateHz, column);
    throw new InputError(CSV.packets(this.#table.where, wanted, column, wordsOf(packets)));
  }

  #checkedRate(rateHz: number, column: string): number {
    const wanted = this.#table.form.preprocessing.rate_hz ?? rateHz;
    const hint = unitHint(column, rateHz, wanted);
    if (rateHz * FAR_BELOW < wanted) {
      throw new InputError(CSV.rate(this.#table.where, wanted, shortly(rateHz), column, hint));
    }
    if (rateHz > FAR_ABOVE * wanted) this.hints.push(CSV.rateHint(column, shortly(rateHz), wanted, hint));
    return rateHz;
  }

  #pushed(intake: SampleSink, rows: readonly Row[]): Window[] {
    const times = rows.map((row, k) => this.#table.timeS(row) ?? (this.#timed + k) / this.#rateHz!);
    this.#timed += rows.length;
    for (const time of this.#table.time === null ? [] : times.filter(Number.isFinite)) {
      this.#span = [Math.min(this.#span[0], time), Math.max(this.#span[1], time)];
    }
    if (this.#spreader === null) return this.#taken(intake, rows, times);
    const spread = this.#spreader.push(times);
    this.#waiting.push(...rows);
    return this.#taken(intake, this.#waiting.splice(0, spread.length), spread);
  }

  #taken(intake: SampleSink, rows: readonly Row[], times: readonly number[]): Window[] {
    this.#table.findScale(rows);
    const values = rows.map((row) => this.#table.values(row));
    const labels = rows.map((row) => this.#table.label(row));
    const windows: Window[] = [];
    let from = 0;
    for (let k = 1; k <= rows.length; k++) {
      if (k < rows.length && labels[k] === labels[k - 1]) continue;
      windows.push(...this.#marked(intake, times.slice(from, k), values.slice(from, k), labels[from]!));
      from = k;
    }
    return windows;
  }

  /** The windows that readings with one label complete. */
  #marked(intake: SampleSink, times: readonly number[], values: readonly Float64Array[], label: number): Window[] {
    const marked = times.find(Number.isFinite);
    if (label === this.#label || marked === undefined) return intake.push(SENSOR, times, values);
    intake.mark(marked, label);
    this.#label = label;
    // By the first reading the intake knows the mark from those after a later step back.
    const usable = times.findIndex((time, k) => Number.isFinite(time) && values[k]!.every(Number.isFinite));
    const first = Math.max(usable, 0) + 1;
    return [
      ...intake.push(SENSOR, times.slice(0, first), values.slice(0, first)),
      ...intake.push(SENSOR, times.slice(first), values.slice(first)),
    ];
  }
}

/** What to do where another unit of a known column's times gives the rate; else "". */
function unitHint(column: string, rateHz: number, wantedHz: number): string {
  const unitS = SECONDS[column] ?? (column === "time" ? 1 : null);
  if (unitS === null) return "";
  const found = Object.entries(UNITS).find(([, otherS]) => {
    const rate = (rateHz * unitS) / otherS;
    return otherS !== unitS && rate >= wantedHz / FAR_BELOW && rate <= wantedHz * FAR_BELOW;
  });
  if (found === undefined) return "";
  return CSV.unit(found[0], Object.keys(SECONDS).find((known) => SECONDS[known] === found[1]) ?? null);
}

function wordsOf({ size, rateHz, isShared }: Packets): string {
  return CSV.together(shortly(size, 3), isShared, shortly(rateHz));
}

function shortly(value: number, digits = 4): number {
  return Number(value.toPrecision(digits));
}
