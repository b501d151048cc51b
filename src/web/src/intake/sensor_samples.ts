/** All readings of a sensor that has a table of its own: `edge/data/joined_sensors.py`. */

import { InputError } from "../errors.ts";
import { CSV } from "../texts.ts";
import { columnsOf, type TimeColumn } from "./columns.ts";
import { rowBlocks } from "./csv_rows.ts";
import { Table } from "./csv_table.ts";
import type { Form } from "./examples.ts";
import { type SampleSink, SampleStream } from "./sample_stream.ts";
import type { IntakeCounters, Window } from "./windows.ts";

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
