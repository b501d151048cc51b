/** A recording whose sensors have a table each, as phones' loggers write them: `edge/data/sensor_tables.py`. */

import { InputError } from "../errors.ts";
import { CSV, RECORDINGS } from "../texts.ts";
import { AnnotationTable, type Mark, spanOf } from "./annotations.ts";
import { channelsIn, sensorsIn } from "./columns.ts";
import { type CsvExamples, windowBlock } from "./csv.ts";
import { type Row, rowBlocks } from "./csv_rows.ts";
import { type Form, NO_LABEL } from "./examples.ts";
import { labelIn, type RecordingFile } from "./recording_files.ts";
import type { IntakeCounters } from "./resampler.ts";
import { readSensor, type SensorSamples } from "./sensor_samples.ts";
import { SensorIntake, type Window } from "./windows.ts";

/** Sensors take turns of so long: the intake waits a minute for one that lags. */
const TURN_S = 10;

/** A table's first row, and which of the bundle's channels its columns are. */
interface Look {
  readonly file: RecordingFile;
  readonly header: readonly string[];
  readonly channels: readonly string[];
}

/** The tables of a folder's recording. */
export interface SensorTables {
  /** One for each sensor, in the order of the bundle's channels. */
  readonly tables: readonly Look[];
  /** Tables of what the person has marked. */
  readonly marks: readonly { readonly file: RecordingFile; readonly table: AnnotationTable }[];
  /** Names of tables that are neither. */
  readonly others: readonly string[];
}

/**
 * The recording that tables of one folder make together; null: they do not.
 *
 * They do if some are named after sensors, and have all channels of the bundle's windows between them. Of two that have
 * the same, that with the shorter name is taken.
 */
export async function sensorTables(files: readonly RecordingFile[], form: Form): Promise<SensorTables | null> {
  const { window, channels } = form.preprocessing;
  if (!window || channels.length === 0) return null;
  const looks = await Promise.all(files.map((file) => look(file, channels)));
  const named = looks.filter((one) => one.channels.length > 0 && sensorsIn(one.file.name).length > 0);
  named.sort((one, other) => one.file.name.length - other.file.name.length || (one.file.name < other.file.name ? -1 : 1));
  const of = channels.map((channel) => named.find((one) => one.channels.includes(channel)));
  if (of.some((one) => one === undefined)) return null;
  const chosen: Look[] = [];
  for (const one of of as Look[]) {
    if (chosen.at(-1) === one) continue;
    if (chosen.includes(one)) throw new InputError(RECORDINGS.apart(channels.join(", "), one.file.where));
    chosen.push(one);
  }
  const tables = chosen.map((one) => ({ ...one, channels: channels.filter((_, k) => of[k] === one) }));
  const marks = looks.flatMap(({ file, header, channels: own }) => {
    const table = own.length === 0 && sensorsIn(file.name).length === 0 ? AnnotationTable.of(header) : null;
    return table === null ? [] : [{ file, table }];
  });
  const used = new Set([...tables, ...marks].map(({ file }) => file));
  return { tables, marks, others: files.filter((file) => !used.has(file)).map(({ where }) => where) };
}

/** Its windows; throws InputError: a table cannot be read, or the sensors never overlap. */
export async function readSensorTables({ tables, marks, others }: SensorTables, form: Form): Promise<CsvExamples> {
  const hints = others.length > 0 ? [RECORDINGS.others(others.join(", "))] : [];
  const sensors: SensorSamples[] = [];
  for (const { file, channels } of tables) {
    sensors.push(await readSensor(await file.pieces(), file.where, partOf(form, channels), file.name));
  }
  for (const one of sensors) hints.push(...one.hints);
  const found: Mark[] = [];
  for (const { file, table } of form.classes.length > 0 ? marks : []) {
    const [, ...rows] = await allRows(file);
    if (rows.length > 0) found.push(...table.marks(rows, form.classes, file.where, sensors, hints));
  }
  // Notes of a device, such as "recording starts", say nothing of classes.
  if (found.every(([, label]) => label === NO_LABEL)) found.splice(0);
  if (found.length === 0) found.push(...(sensors.find((one) => one.marks.length > 0)?.marks ?? []));
  const label = labelIn(tables[0]!.file.parts.slice(0, -1), form.classes);
  if (found.length === 0 && label !== null) {
    hints.push(CSV.byItsName(tables[0]!.file.parts.slice(0, -1).join("/"), form.classes[label]!));
    found.push([-Infinity, label]);
  }
  const { windows, lost } = joined(sensors, found, form);
  return { blocks: [windowBlock(windows)], lost, hints };
}

function partOf(form: Form, channels: readonly string[]): Form {
  const { preprocessing } = form;
  const places = channels.map((name) => preprocessing.channels.indexOf(name));
  const [mean, std] = [preprocessing.mean, preprocessing.std].map((values) => places.map((k) => values[k % values.length]!));
  return { ...form, preprocessing: { ...preprocessing, channels, mean: mean!, std: std! } };
}

/** Windows of sensors that were recorded together, in the order of time. */
function joined(sensors: readonly SensorSamples[], marks: readonly Mark[], form: Form): { windows: Window[]; lost: IntakeCounters } {
  const { window, rate_hz: rate } = form.preprocessing;
  const intake = new SensorIntake(form.preprocessing, new Map(sensors.map(({ name, rateHz }) => [name, rateHz])));
  for (const [timeS, label] of [...marks].sort((one, other) => one[0] - other[0])) intake.mark(timeS, label);
  const [begin, end] = spanOf(sensors);
  const ordered = sensors.map((one) => new Turns(one));
  const windows: Window[] = [];
  for (let untilS = begin + TURN_S; ; untilS += TURN_S) {
    for (const one of ordered) windows.push(...intake.push(one.name, ...one.until(untilS)));
    if (untilS > end) break;
    // Where nobody has readings for long, nobody has a turn.
    const next = Math.min(...ordered.map((one) => one.nextS));
    if (next > untilS) untilS = begin + TURN_S * Math.floor((next - begin) / TURN_S);
  }
  windows.push(...intake.flush());
  if (windows.length === 0) {
    const spans = sensors.map((one) => spanOf([one]).map((time) => time.toFixed(1)));
    const got = sensors.map(({ name }, k) => `${name} from ${spans[k]![0]} to ${spans[k]![1]} s`).join("; ");
    throw new InputError(RECORDINGS.never(`${window} samples at ${rate} Hz`, got));
  }
  const lost = [...intake.counters.values()].reduce((all, one) => sums(all, one));
  return { windows, lost };
}

function sums(one: IntakeCounters, other: IntakeCounters): IntakeCounters {
  const names = Object.keys(one) as (keyof IntakeCounters)[];
  return Object.fromEntries(names.map((name) => [name, one[name] + other[name]])) as unknown as IntakeCounters;
}

/** A sensor's readings in the order of time. */
class Turns {
  readonly name: string;
  readonly #order: readonly number[];
  readonly #samples: SensorSamples;
  #at = 0;

  constructor(samples: SensorSamples) {
    this.name = samples.name;
    this.#samples = samples;
    const order = samples.times.map((_, k) => k);
    this.#order = order.sort((one, other) => samples.times[one]! - samples.times[other]! || one - other);
  }

  /** When the next reading was; infinite: there is none. */
  get nextS(): number {
    const next = this.#order[this.#at];
    return next === undefined ? Infinity : this.#samples.times[next]!;
  }

  /** Those before a time that were not given yet. */
  until(timeS: number): [number[], Float64Array[]] {
    const begin = this.#at;
    while (this.nextS < timeS) this.#at += 1;
    const places = this.#order.slice(begin, this.#at);
    return [places.map((k) => this.#samples.times[k]!), places.map((k) => this.#samples.rows[k]!)];
  }
}

/** What is no table has no columns, as others of a folder may do. */
async function look(file: RecordingFile, channels: readonly string[]): Promise<Look> {
  try {
    const first = await rowBlocks(await file.pieces(), file.where, () => {}).next();
    const header = first.done ? [] : first.value[0]!.cells.map((one) => one.trim());
    return { file, header, channels: channelsIn(header, channels, file.name) };
  } catch (error) {
    if (error instanceof InputError) return { file, header: [], channels: [] };
    throw error;
  }
}

async function allRows(file: RecordingFile): Promise<Row[]> {
  const rows: Row[] = [];
  for await (const block of rowBlocks(await file.pieces(), file.where, () => {})) rows.push(...block);
  return rows;
}
