/** Columns of a table by name, and numbers and labels from its rows, as `edge/data/csv_table.py` has them. */

import { InputError } from "../errors.ts";
import { CSV } from "../texts.ts";
import { type Columns, type Gravity, gravityFactor, LABEL, SECONDS } from "./columns.ts";
import { isGap, type Row } from "./csv_rows.ts";
import { type Form, NO_LABEL } from "./examples.ts";
import { toNumber, toTime } from "./times.ts";

/** Seconds of the units in which times may be that do not say it. */
export const UNITS: Readonly<Record<string, number>> = {
  seconds: 1, milliseconds: 1e-3, microseconds: 1e-6, nanoseconds: 1e-9, days: 86_400,
};
/** By how much a stream's rate may be below the bundle's before its times are refused. */
export const FAR_BELOW = 4;
/** By how much it may be above before they are doubted. */
export const FAR_ABOVE = 100;
/** Labels that are no classes. */
const MOST_TOLD = 10;

/** Class names and numbers, as a column holds them; in other letters where that is one class. */
export class Labels {
  readonly #known: ReadonlyMap<string, number>;
  readonly #small: ReadonlyMap<string, number>;
  readonly #told = new Set<string>();

  constructor(readonly classes: readonly string[], readonly hints: string[]) {
    this.#known = new Map([
      ...classes.map((_, k) => [String(k), k] as const),
      ...classes.map((name, k) => [name, k] as const),
    ]);
    const small = classes.map((name) => name.toLowerCase());
    const once = small.flatMap((name, k) => (small.indexOf(name) === small.lastIndexOf(name) ? [[name, k] as const] : []));
    this.#small = new Map(once);
  }

  /** The class's number, -1 for none; a name that is no class is told once. */
  of(text: string, line: number): number {
    const name = text.trim();
    const gap = isGap(name);
    const found = this.#known.get(name) ?? (gap ? undefined : this.#small.get(name.toLowerCase()));
    if (found !== undefined) return found;
    if (!gap && !this.#told.has(name) && this.#told.size < MOST_TOLD) {
      this.#told.add(name);
      this.hints.push(CSV.label(line, name.slice(0, 40), this.classes.join(", ")));
    }
    return NO_LABEL;
  }
}

/** Columns by name, and numbers from their rows. */
export class Table {
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
