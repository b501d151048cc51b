/** A table of what a person has marked, as `edge/data/annotations.py`: from when on, or from when to when, which activity. */

import { InputError } from "../errors.ts";
import { MARKS } from "../texts.ts";
import { secondsIn, wordsIn } from "./columns.ts";
import { Labels } from "./csv_table.ts";
import type { Row } from "./csv_rows.ts";
import { NO_LABEL } from "./examples.ts";
import type { SensorSamples } from "./sensor_samples.ts";
import { toTime } from "./times.ts";

const TEXTS = ["text", "label", "activity", "annotation", "marker", "event", "tag"];
const STARTS = ["start", "begin", "from", "onset", "time", "timestamp"];
const ENDS = ["end", "stop", "to", "until", "offset"];
const UNITS: Readonly<Record<string, number>> = { seconds: 1, milliseconds: 1e-3, microseconds: 1e-6, nanoseconds: 1e-9 };
/** A mark is set so long before or after the samples at most. */
const NEAR_S = 60;

/** Seconds, and the class that is done from then on; -1: none that is known. */
export type Mark = readonly [number, number];

/** The columns of a table of marks. */
export class AnnotationTable {
  readonly #text: number;
  readonly #start: number;
  readonly #name: string;
  readonly #end: number | null;

  private constructor(text: number, start: number, name: string, end: number | null) {
    [this.#text, this.#start, this.#name, this.#end] = [text, start, name, end];
  }

  /** null: it has no column of times, or none of labels. */
  static of(header: readonly string[]): AnnotationTable | null {
    const text = header.findIndex((name) => TEXTS.some((word) => wordsIn(name).has(word)));
    const [start] = places(header, STARTS);
    const [end = null] = places(header, ENDS);
    return text < 0 || start === undefined ? null : new AnnotationTable(text, start, header[start]!, end);
  }

  /** What the rows say, at least one; throws InputError: a time is none, or none of them is near the samples. */
  marks(rows: readonly Row[], classes: readonly string[], where: string, sensors: readonly SensorSamples[], hints: string[]): Mark[] {
    const labels = new Labels(classes, hints);
    const times = rows.map((row) => when(row, this.#start, where));
    const [unitS, sinceS] = this.#clock(times, sensors, where, hints);
    const found: Mark[] = [];
    rows.forEach((row, k) => {
      found.push([sinceS + unitS * times[k]!, labels.of(cell(row, this.#text), row.line)]);
      // Of what nobody ended the next mark is the end.
      if (this.#end !== null && cell(row, this.#end) !== "") {
        found.push([sinceS + unitS * when(row, this.#end, where), NO_LABEL]);
      }
    });
    // Where one ends and the next begins at once, it is the next.
    return found.sort((one, other) => one[0] - other[0] || Number(one[1] !== NO_LABEL) - Number(other[1] !== NO_LABEL));
  }

  /** Seconds of the unit of times, and when they count from. */
  #clock(times: readonly number[], sensors: readonly SensorSamples[], where: string, hints: string[]): readonly [number, number] {
    const [begin, end] = spanOf(sensors);
    const near = (unitS: number, sinceS = 0): number =>
      times.filter((time) => sinceS + unitS * time >= begin - NEAR_S && sinceS + unitS * time <= end + NEAR_S).length;
    const alike = sensors.find(({ time }) => time?.name === this.#name)?.time;
    let unitS = secondsIn(this.#name) ?? (alike ? (alike.unitS ?? 1) : null);
    if (unitS === null) {
      const names = Object.keys(UNITS);
      const best = names.reduce((one, other) => (near(UNITS[other]!) > near(UNITS[one]!) ? other : one));
      hints.push(MARKS.taken(where, this.#name, best));
      unitS = UNITS[best]!;
    }
    if (near(unitS) > 0) return [unitS, 0];
    if (near(unitS, begin) > 0) {
      hints.push(MARKS.fromBegin(where, this.#name));
      return [unitS, begin];
    }
    const got = times.map((time) => unitS * time);
    throw new InputError(MARKS.clock(where, begin, end, Math.min(...got), Math.max(...got)));
  }
}

/** First and last time of several sensors' readings. */
export function spanOf(sensors: readonly SensorSamples[]): readonly [number, number] {
  const times = sensors.flatMap((one) => [least(one.times, Math.min), least(one.times, Math.max)]);
  return [Math.min(...times), Math.max(...times)];
}

function least(values: readonly number[], of: (one: number, other: number) => number): number {
  return values.reduce((one, other) => of(one, other));
}

function when(row: Row, column: number, where: string): number {
  const text = cell(row, column);
  const time = text === "" ? null : toTime(text);
  if (time === null || !Number.isFinite(time)) throw new InputError(MARKS.noTime(where, row.line, text.slice(0, 40)));
  return time;
}

/** What a row has there; "" where it ends before. */
function cell(row: Row, column: number): string {
  return row.cells[column]?.trim() ?? "";
}

/** Columns with such words in their names, those of the first words first. */
function places(header: readonly string[], wanted: readonly string[]): number[] {
  return wanted.flatMap((word) => header.flatMap((name, k) => (wordsIn(name).has(word) ? [k] : [])));
}
