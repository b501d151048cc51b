/**
 * Sensor Logger's JSON as tables, as `edge/data/sensor_logger.py` has them: one list with an object for each reading,
 * those of all sensors one after the other. A table is written as it is read, in a pass of its own.
 */

import { InputError, RefusedError } from "../errors.ts";
import { RECORDINGS } from "../texts.ts";
import { isObject, parseExact } from "../wire/strict_json.ts";

/** Letters of one object. */
const MOST_LETTERS = 1 << 20;
const MOST_NAME = 200;
/** Sensors, and columns of one. */
const MOST_NAMES = 1000;
/** That are written at a time. */
const ROWS = 256;
const TIMES = ["time", "seconds_elapsed"];
/** What may come next, by what has come. */
const NEXT: Readonly<Record<string, string>> = { "[": "{]", ",": "{", "]": "" };

type Pieces = () => Promise<AsyncIterable<Uint8Array>>;
type Reading = ReadonlyMap<string, string>;

/** The readings of one sensor, or what the person has marked. */
export interface LoggedTable {
  readonly name: string;
  /** The table as text. */
  pieces(): Promise<AsyncIterable<Uint8Array>>;
}

/** The tables in a file, in the order of their names; throws InputError for what is no such file. */
export async function loggedTables(pieces: Pieces, where: string): Promise<LoggedTable[]> {
  const found = new Map<string, Set<string>>();
  for await (const [sensor, said] of readings(await pieces(), where)) {
    const columns = found.get(sensor) ?? new Set();
    found.set(sensor, columns);
    for (const name of said.keys()) if (name.length <= MOST_NAME) columns.add(name);
    if (Math.max(found.size, columns.size) > MOST_NAMES) throw new InputError(RECORDINGS.manyNames(where, MOST_NAMES));
  }
  const named = [...found].filter(([, columns]) => columns.size > 0).sort(([one], [other]) => (one < other ? -1 : 1));
  if (named.length === 0) throw new InputError(RECORDINGS.noReadings(where));
  return named.map(([name, columns]) => {
    // Times first: a line that begins with a number is no comment.
    const header = [...TIMES.filter((one) => columns.has(one)), ...[...columns].filter((one) => !TIMES.includes(one))];
    return { name, pieces: async () => written(readings(await pieces(), where), name, header) };
  });
}

/** Whether a file begins as Sensor Logger's does; one of another program may be any JSON. */
export async function isLogged(pieces: Pieces): Promise<boolean> {
  try {
    for await (const _ of readings(await pieces(), "")) return true;
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
  }
  return false;
}

async function* written(
  found: AsyncIterable<readonly [string, Reading]>, name: string, header: readonly string[],
): AsyncGenerator<Uint8Array> {
  const encoder = new TextEncoder();
  let lines = [header.map(cell).join(",")];
  for await (const [sensor, said] of found) {
    if (sensor !== name) continue;
    lines.push(header.map((column) => cell(said.get(column) ?? "")).join(","));
    if (lines.length < ROWS) continue;
    yield encoder.encode(`${lines.join("\n")}\n`);
    lines = [];
  }
  if (lines.length > 0) yield encoder.encode(`${lines.join("\n")}\n`);
}

function cell(text: string): string {
  const line = text.replace(/[\r\n]+/g, " ");
  return /[",]/.test(line) ? `"${line.replaceAll('"', '""')}"` : line;
}

/** The sensor of each object, and what else it says as text. */
async function* readings(pieces: AsyncIterable<Uint8Array>, where: string): AsyncGenerator<readonly [string, Reading]> {
  let number = 0;
  for await (const one of objects(pieces, where)) {
    number += 1;
    const sensor = one.get("sensor") ?? "";
    if (sensor === "" || sensor.length > MOST_NAME) throw new InputError(RECORDINGS.noSensor(where, number));
    one.delete("sensor");
    yield [sensor, one];
  }
}

/** The objects of a list as its text comes. */
async function* objects(pieces: AsyncIterable<Uint8Array>, where: string): AsyncGenerator<Map<string, string>> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const list = new List(where);
  for await (const piece of pieces) yield* list.objects(decoded(decoder, piece, where));
  yield* list.objects(decoded(decoder, null, where));
  list.end();
}

function decoded(decoder: TextDecoder, piece: Uint8Array | null, where: string): string {
  try {
    return piece === null ? decoder.decode() : decoder.decode(piece, { stream: true });
  } catch {
    throw new InputError(RECORDINGS.noUtf8(where));
  }
}

/** A JSON list of objects, of which text comes in pieces. */
class List {
  #text = "";
  /** What may come next. */
  #wanted = "[";
  #count = 0;
  readonly #where: string;

  constructor(where: string) {
    this.#where = where;
  }

  /** Those that are whole now. */
  *objects(text: string): Generator<Map<string, string>> {
    this.#text += text;
    let place = blanksAfter(this.#text, 0);
    for (; place < this.#text.length; place = blanksAfter(this.#text, place)) {
      const mark = this.#text[place]!;
      if (!this.#wanted.includes(mark)) throw this.#refused(`got '${this.#text.slice(place, place + 20)}'`);
      if (mark !== "{") {
        this.#wanted = NEXT[mark]!;
        place += 1;
        continue;
      }
      const end = endOf(this.#text, place);
      if (end === null) {
        if (this.#text.length - place > MOST_LETTERS) throw this.#refused(`one has no end within ${MOST_LETTERS} letters`);
        break;
      }
      const said = this.#said(this.#text.slice(place, end));
      [place, this.#wanted] = [end, ",]"];
      this.#count += 1;
      yield said;
    }
    this.#text = this.#text.slice(place);
  }

  end(): void {
    if (this.#wanted !== "") throw this.#refused("its end is missing; export it again");
  }

  #said(text: string): Map<string, string> {
    let value: unknown;
    try {
      value = parseExact(new TextEncoder().encode(text), "object", "json");
    } catch (error) {
      if (error instanceof RefusedError) throw this.#refused(error.message);
      throw error;
    }
    if (!isObject(value)) throw this.#refused("one is none");
    const plain = Object.entries(value).map(([name, one]) => [name, valueText(one)] as const);
    return new Map(plain);
  }

  #refused(why: string): InputError {
    return new InputError(RECORDINGS.notLogged(this.#where, this.#count, why));
  }
}

/** A text or a number; anything else, such as a list, is an empty cell. */
function valueText(value: unknown): string {
  return typeof value === "string" || typeof value === "number" || typeof value === "bigint" ? String(value) : "";
}

function blanksAfter(text: string, place: number): number {
  let at = place;
  while (at < text.length && " \t\r\n".includes(text[at]!)) at += 1;
  return at;
}

/** Where the object that begins there ends; null: more text has to come. */
function endOf(text: string, place: number): number | null {
  let [depth, quoted] = [0, false];
  for (let at = place; at < text.length; at += 1) {
    const letter = text[at];
    if (quoted) {
      if (letter === "\\") at += 1;
      else if (letter === '"') quoted = false;
    } else if (letter === '"') quoted = true;
    else if (letter === "{" || letter === "[") depth += 1;
    else if (letter === "}" || letter === "]") {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return null;
}
