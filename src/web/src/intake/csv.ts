/**
 * Examples from a CSV, as `protofleet device prepare` reads it (`edge/data/examples.py`).
 *
 * Its layout follows from its columns: *sensor samples*, one per row, where the bundle has windows
 * and the header means its channels, with a column of times; else *examples*, one per row, in the order of
 * the bundle's input. A column `label` holds class names or numbers; true values
 * of other tasks stand in columns named as the bundle's targets.
 */

import type { Preprocessing } from "../bundle/manifest.ts";
import { InputError } from "../errors.ts";
import { sizeOf } from "../tensors/tensors.ts";
import { CSV } from "../texts.ts";
import { type Columns, columnsOf, type Gravity, gravityFactor, LABEL, SECONDS, type TimeColumn } from "./columns.ts";
import { isGap, isValue, type Row, rowBlocks } from "./csv_rows.ts";
import { type Block, type Form, NO_LABEL, shapeText } from "./examples.ts";
import { findPackets, fits, isKnown, median, type Packets, Spreader, TOLERANCE } from "./packets.ts";
import { toNumber, toTime } from "./times.ts";
import { type IntakeCounters, SensorIntake, type Window } from "./windows.ts";

const SENSOR = "csv";
/** Samples whose times tell a stream's rate, before any of them is used. */
const RATE_SAMPLES = 16;
/** Samples of so long, at the bundle's rate, may wait for times that tell their rate. */
const MOST_WAITING_S = 600;
const UNITS: Readonly<Record<string, number>> = {
  seconds: 1, milliseconds: 1e-3, microseconds: 1e-6, nanoseconds: 1e-9, days: 86_400,
};
/** Labels that are no classes. */
const MOST_TOLD = 10;
/** Different times by which the unit of times is known that several samples share. */
const STAMPS = 4;
/** By how much a stream's rate may be below the bundle's before its times are refused. */
const FAR_BELOW = 4;
/** By how much it may be above before they are doubted. */
const FAR_ABOVE = 100;
/** Names of columns that may hold times, under names that are not known here. */
const TIMELIKE = /time|stamp|date|clock|^t$|^(m|milli)?s(ec(onds?)?)?$/i;

export interface CsvExamples {
  readonly blocks: readonly Block[];
  /** Of a stream: what could not be used. */
  readonly lost: IntakeCounters | null;
  /** What may be wrong with its times, and what to do. */
  readonly hints: readonly string[];
}

/** What is known of a table without reading it. */
export interface AboutTable {
  /** What may be that of a sensor. */
  readonly fileName?: string;
  /** The class of all rows, where no column says it. */
  readonly label?: number | null;
}

/** Reads all of a CSV, which comes in pieces; `where` is its name in messages. */
export async function readCsv(
  pieces: AsyncIterable<Uint8Array>, where: string, form: Form, { fileName = "", label = null }: AboutTable = {},
): Promise<CsvExamples> {
  const hints: string[] = [];
  const told = (hint: string): void => void hints.push(hint);
  const rows = rowBlocks(pieces, where, told);
  const first = await rows.next();
  if (first.done) throw new InputError(CSV.nothing(where));
  const cells = first.value[0]!.cells.map((cell) => cell.trim());
  const named = cells.some((cell) => !isValue(cell));
  const columns: Columns = named ? columnsOf(cells, form, told, fileName) : { names: cells, factors: new Map(), time: null, gravity: null };
  const header = columns.names;
  const begin = named ? first.value.slice(1) : first.value;
  if (named && isStream(header, form.preprocessing)) {
    const table = new Table(where, columns, form, form.preprocessing.channels, hints);
    table.takeLabel(label);
    return readStream(table, begin, rows);
  }
  const table = exampleTable(where, header, form, named, hints);
  table.takeLabel(label);
  const blocks = begin.length > 0 ? [exampleBlock(table, begin)] : [];
  for await (const more of rows) blocks.push(exampleBlock(table, more));
  return { blocks, lost: null, hints };
}

/** All readings of one sensor. */
export interface SensorSamples {
  readonly name: string;
  readonly rateHz: number;
  readonly times: readonly number[];
  readonly rows: readonly Float64Array[];
  /** Times from which a class, or -1 for none, is known by the table itself. */
  readonly marks: readonly (readonly [number, number])[];
  /** The column of times, and seconds of its unit; null: it has none. */
  readonly time: TimeColumn | null;
  readonly hints: readonly string[];
}

/** The readings of a sensor's table, whose channels are all of `form`; throws InputError: as of `readCsv`, or there are none. */
export async function readSensor(
  pieces: AsyncIterable<Uint8Array>, where: string, form: Form, fileName: string,
): Promise<SensorSamples> {
  const hints: string[] = [];
  const told = (hint: string): void => void hints.push(hint);
  const rows = rowBlocks(pieces, where, told);
  const first = await rows.next();
  if (first.done) throw new InputError(CSV.nothing(where));
  const cells = first.value[0]!.cells.map((cell) => cell.trim());
  const table = new Table(where, columnsOf(cells, form, told, fileName), form, form.preprocessing.channels, hints);
  const kept = new KeptSamples();
  const stream = new SampleStream(table, (rateHz) => kept.at(rateHz));
  stream.push(first.value.slice(1));
  for await (const more of rows) stream.push(more);
  stream.flush();
  if (kept.times.length === 0) throw new InputError(CSV.noSamples(where, stream.count));
  const time = table.time === null ? null : { name: table.time, unitS: table.unitS };
  return { name: fileName, rateHz: kept.rateHz, times: kept.times, rows: kept.rows, marks: kept.marks, time, hints };
}

/** Where a stream's readings go. */
interface SampleSink {
  readonly counters: ReadonlyMap<string, IntakeCounters>;
  mark(timeS: number, label: number): void;
  push(sensor: string, timesS: readonly number[], rows: readonly Float64Array[]): Window[];
  flush(): Window[];
}

/** Keeps readings as they are. */
class KeptSamples implements SampleSink {
  readonly counters = new Map<string, IntakeCounters>();
  readonly times: number[] = [];
  readonly rows: Float64Array[] = [];
  readonly marks: [number, number][] = [];
  rateHz = 0;

  at(rateHz: number): this {
    this.rateHz = rateHz;
    return this;
  }

  mark(timeS: number, label: number): void {
    this.marks.push([timeS, label]);
  }

  push(_sensor: string, timesS: readonly number[], rows: readonly Float64Array[]): Window[] {
    timesS.forEach((time, k) => {
      if (!Number.isFinite(time)) return;
      this.times.push(time);
      this.rows.push(rows[k]!);
    });
    return [];
  }

  flush(): Window[] {
    return [];
  }
}

function isStream(header: readonly string[], { window, channels }: Preprocessing): boolean {
  return Boolean(window) && channels.length > 0 && channels.every((name) => header.includes(name));
}

/** Class names and numbers, as a column holds them. */
export class Labels {
  readonly #known: ReadonlyMap<string, number>;
  readonly #told = new Set<string>();

  constructor(readonly classes: readonly string[], readonly hints: string[]) {
    this.#known = new Map([
      ...classes.map((_, k) => [String(k), k] as const),
      ...classes.map((name, k) => [name, k] as const),
    ]);
  }

  /** The class's number, -1 for none; a name that is no class is told once. */
  of(text: string, line: number): number {
    const name = text.trim();
    const found = this.#known.get(name);
    if (found !== undefined) return found;
    if (!isGap(name) && !this.#told.has(name) && this.#told.size < MOST_TOLD) {
      this.#told.add(name);
      this.hints.push(CSV.label(line, name.slice(0, 40), this.classes.join(", ")));
    }
    return NO_LABEL;
  }
}

/** Columns by name, and numbers from their rows. */
class Table {
  readonly #columns: readonly number[];
  readonly #names: readonly string[];
  readonly #label: number;
  readonly #labels: Labels;
  /** The class of all rows, where no column says it. */
  #constant = NO_LABEL;
  readonly #targets: readonly number[];
  readonly #factors: number[];
  #gravity: Gravity | null;
  readonly #time: number;
  readonly header: readonly string[];
  readonly time: string | null;
  /** Seconds of a unit of `time`; null: its steps tell. */
  unitS: number | null;

  /** `values`: names of the columns that hold numbers of the model's input. */
  constructor(
    readonly where: string,
    { names: header, factors, time, gravity }: Columns,
    readonly form: Form,
    values: readonly string[],
    readonly hints: string[],
  ) {
    this.header = header;
    const used = new Set([...values, LABEL, ...form.targets, ...Object.keys(SECONDS)]);
    const twice = [...used].sort().find((name) => header.indexOf(name) !== header.lastIndexOf(name));
    if (twice !== undefined) throw new InputError(CSV.twice(where, twice));
    this.#columns = values.map((name) => header.indexOf(name));
    this.#factors = values.map((name) => factors.get(name) ?? 1);
    this.#gravity = gravity;
    this.#names = values;
    this.#label = form.classes.length > 0 ? header.indexOf(LABEL) : -1;
    this.#labels = new Labels(form.classes, hints);
    const told = form.targets.every((name) => header.includes(name));
    this.#targets = told ? form.targets.map((name) => header.indexOf(name)) : [];
    this.time = time?.name ?? null;
    this.unitS = time?.unitS ?? null;
    this.#time = this.time === null ? -1 : header.indexOf(this.time);
  }

  /** One row's numbers; a cell without a value is NaN. */
  values(row: Row): Float64Array {
    return Float64Array.from(this.#columns, (column, at) => this.#factors[at]! * this.#number(row, column));
  }

  /** Takes the unit of accelerations from the first that are there, and tells of another. */
  findScale(rows: readonly Row[]): void {
    const gravity = this.#gravity;
    if (gravity === null) return;
    const places = gravity.channels.map((name) => this.#names.indexOf(name));
    const lengths = rows.map((row) => Math.hypot(...places.map((at) => this.#number(row, this.#columns[at]!)))).filter(Number.isFinite);
    if (lengths.length === 0) return;
    this.#gravity = null;
    const other = gravityFactor(gravity, lengths);
    if (other === null) return;
    for (const at of places) this.#factors[at]! *= other[1];
    this.hints.push(CSV.gravity(gravity.channels.join(", "), other[0], Number(other[1].toPrecision(5))));
  }

  targets(row: Row): number[] {
    return this.#targets.map((column) => this.#number(row, column));
  }

  label(row: Row): number {
    return this.#label < 0 ? this.#constant : this.#labels.of(this.#cell(row, this.#label), row.line);
  }

  /** Takes the class that a name says, where there is no column of labels. */
  takeLabel(label: number | null): void {
    if (label === null || this.#label >= 0 || this.form.classes.length === 0) return;
    this.#constant = label;
    this.hints.push(CSV.byItsName(this.where, this.form.classes[label]!));
  }

  /** Seconds; null without a column of times. */
  timeS(row: Row): number | null {
    if (this.time === null) return null;
    const text = this.#cell(row, this.#time).trim();
    const value = isGap(text) ? NaN : toTime(text);
    if (value === null) throw new InputError(CSV.timeText(this.#at(row), this.time, text.slice(0, 40)));
    return (this.unitS ?? 1) * value;
  }

  /** Takes the unit by which times so far apart come near the bundle's rate; its name, null: seconds. */
  findUnit(rows: readonly Row[], step: number, wantedHz: number | null): string | null {
    const texts = rows.map((row) => this.#cell(row, this.#time).trim());
    const dated = texts.some((text) => !isGap(text) && toNumber(text) === null);
    const slow = wantedHz !== null && (1 / step < wantedHz / FAR_BELOW || 1 / step > wantedHz * FAR_ABOVE);
    const near = (unitS: number): boolean => {
      const rate = 1 / (step * unitS);
      return rate >= wantedHz! / FAR_BELOW && rate <= wantedHz! * FAR_BELOW;
    };
    const found = dated || !slow ? undefined : Object.entries(UNITS).find(([, unitS]) => near(unitS));
    this.unitS = found?.[1] ?? 1;
    return dated ? "dates" : (found?.[0] ?? null);
  }

  #number(row: Row, column: number): number {
    const text = this.#cell(row, column).trim();
    if (isGap(text)) return NaN;
    const value = toNumber(text);
    if (value === null) throw new InputError(CSV.number(this.#place(row, column), text.slice(0, 40)));
    return value;
  }

  /** Throws InputError unless all of a row's values are finite. */
  checkFinite(row: Row, values: Float64Array): void {
    const broken = values.findIndex((value) => !Number.isFinite(value));
    if (broken < 0) return;
    const column = this.#columns[broken]!;
    throw new InputError(CSV.empty(this.#place(row, column), row.cells[column]!.trim().slice(0, 40)));
  }

  #place(row: Row, column: number): string {
    return CSV.column(this.#at(row), CSV.columnOf(column + 1), this.header[column]!.slice(0, 40));
  }

  #cell(row: Row, column: number): string {
    if (row.cells.length !== this.header.length) {
      throw new InputError(CSV.columns(this.#at(row), this.header.length, row.cells.length));
    }
    return row.cells[column]!;
  }

  #at({ line }: Row): string {
    return CSV.line(this.where, line);
  }
}

/** The columns of examples, one per row. */
function exampleTable(
  where: string, header: readonly string[], form: Form, named: boolean, hints: string[],
): Table {
  const { input_shape: shape, channels, window } = form.preprocessing;
  const size = sizeOf(shape);
  const names = named ? header : header.map((_, k) => `column ${k + 1}`);
  const values = names.filter((name) => name !== LABEL && !form.targets.includes(name));
  if (named && values.length === size + 1 && values[0] === "") values.shift(); // the index of a table
  if (named && channels.length === size && channels.every((name) => values.includes(name))) {
    return new Table(where, plain(names), form, channels, hints);
  }
  if (values.length !== size || (named && channels.length === size)) {
    const byName = channels.length > 0 && window ? CSV.byName(channels.join(", ")) : "";
    const input = channels.length > 0 ? CSV.channels(channels.join(", ")) : CSV.input;
    const got = values.join(", ").slice(0, 200) + nearMiss(names, channels);
    throw new InputError(CSV.examples(where, `${byName}${size}`, `${input} (${shapeText(shape)})`, got));
  }
  return new Table(where, plain(names), form, values, hints);
}

function plain(names: readonly string[]): Columns {
  return { names, factors: new Map(), time: null, gravity: null };
}

/** What may be wrong with a first row that does not name the channels; "" if nobody can say. */
function nearMiss(names: readonly string[], channels: readonly string[]): string {
  const lacking = channels.filter((name) => !names.includes(name));
  const lower = new Set(names.map((name) => name.trim().toLowerCase()));
  if (lacking.length > 0 && channels.every((name) => lower.has(name.toLowerCase()))) {
    return CSV.letters;
  }
  return lacking.length > 0 && lacking.length < channels.length ? CSV.lacks(lacking.join(", ")) : "";
}

function exampleBlock(table: Table, rows: readonly Row[]): Block {
  const size = sizeOf(table.form.preprocessing.input_shape);
  const x = new Float32Array(rows.length * size);
  rows.forEach((row, k) => {
    const values = table.values(row);
    table.checkFinite(row, values);
    x.set(values, k * size);
  });
  return {
    x,
    labels: rows.map((row) => table.label(row)),
    targets: rows.flatMap((row) => table.targets(row)),
    startS: null,
  };
}

async function readStream(table: Table, begin: readonly Row[], rows: AsyncIterable<Row[]>): Promise<CsvExamples> {
  const { preprocessing } = table.form;
  const stream = new SampleStream(table, (rateHz) => new SensorIntake(preprocessing, new Map([[SENSOR, rateHz]])));
  const windows = stream.push(begin);
  for await (const more of rows) windows.push(...stream.push(more));
  windows.push(...stream.flush());
  if (windows.length === 0) {
    const { window, rate_hz: rate } = table.form.preprocessing;
    throw new InputError(CSV.noWindow(table.where, `${window} at ${rate} Hz`, stream.count) + stream.lasted);
  }
  return { blocks: [windowBlock(windows)], lost: stream.lost, hints: table.hints };
}

export function windowBlock(windows: readonly Window[]): Block {
  const size = windows[0]?.x.length ?? 0;
  const x = new Float32Array(windows.length * size);
  windows.forEach((window, k) => x.set(window.x, k * size));
  return {
    x,
    labels: windows.map((window) => window.label),
    targets: [],
    startS: windows.map((window) => window.startS),
  };
}

/** Rows of samples into what takes them, from when the stream's rate is known. */
class SampleStream {
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
