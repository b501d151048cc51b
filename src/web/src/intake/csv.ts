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
import { type Columns, columnsOf, LABEL } from "./columns.ts";
import { isValue, type Row, rowBlocks } from "./csv_rows.ts";
import { Table } from "./csv_table.ts";
import { type Block, type Form, shapeText } from "./examples.ts";
import { SampleStream, SENSOR } from "./sample_stream.ts";
import { type IntakeCounters, SensorIntake, type Window } from "./windows.ts";

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

function isStream(header: readonly string[], { window, channels }: Preprocessing): boolean {
  return Boolean(window) && channels.length > 0 && channels.every((name) => header.includes(name));
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
