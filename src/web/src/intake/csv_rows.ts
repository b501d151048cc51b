/**
 * Rows of a text file from bytes as they come, however its writer separates and encodes them, as
 * `edge/data/csv_rows.py` reads them.
 *
 * A first look settles that, at the lines that come first: the encoding (UTF-8, UTF-16, else Windows-1252), lines
 * before the table, and what stands between cells. Where it is not a comma, numbers may have decimal commas.
 */

import { InputError } from "../errors.ts";
import { CSV } from "../texts.ts";
import { toTime } from "./times.ts";

export interface Row {
  readonly line: number;
  readonly cells: readonly string[];
}

interface Line {
  readonly number: number;
  readonly text: string;
  /** Whether a newline ends it. */
  readonly whole: boolean;
}

/** Lines of which the table's first must be one. */
const LOOK_LINES = 40;
const COMMENT = /^\s*(?:#|%|\/\/)/;
/** In the order in which they are looked for: a comma may be a decimal one. */
const SEPARATORS = ["\t", ";", ",", "|"];
const DECIMAL_COMMA = /^\s*([+-]?(?:\d{1,3}(?:\.\d{3})+|\d*)),(\d+(?:[eE][+-]?\d+)?)\s*$/;

/** Whether a cell says that there is no value: empty, or `NA` (R) or `null` (SQL). */
export function isGap(text: string): boolean {
  return ["", "na", "null"].includes(text.trim().toLowerCase());
}

/** Whether a cell of a first row is no name; an empty one is, as that of a table's index. */
export function isValue(cell: string): boolean {
  return isGap(cell) ? cell.trim() !== "" : toTime(cell) !== null;
}

/** Whole rows as they come, without blank lines, comments and lines before the table; `told` takes what a person should know. */
export async function* rowBlocks(
  pieces: AsyncIterable<Uint8Array>, where: string, told: (hint: string) => void,
): AsyncGenerator<Row[]> {
  let waiting: Line[] = [];
  let table: TableRows | null = null;
  const sniffer = new Sniffer(where, told);
  for await (const { lines, over } of lineBlocks(pieces, where, told)) {
    waiting.push(...lines.filter(({ text }) => text.trim() !== "" && !COMMENT.test(text)));
    table ??= sniffer.table(waiting, over);
    if (table === null) continue;
    const rows = table;
    const found = waiting.flatMap((line) => rows.row(line) ?? []);
    waiting = [];
    if (found.length > 0) yield found;
  }
}

/** How a text file writes its rows; those before the line `first` are none of its. */
class TableRows {
  #columns: number | null = null;

  constructor(
    readonly where: string, readonly separator: string, readonly first: number, readonly told: (hint: string) => void,
  ) {}

  /** The row of a line; null: it is none of the table, or was cut off. */
  row({ number, text, whole }: Line): Row | null {
    if (number < this.first) return null;
    const cells = cellsOf(text, this.separator, CSV.line(this.where, number));
    if (this.#columns === null) {
      // A separator behind the last name, which then stands behind the last value, too.
      this.#columns = cells.length - Number(isClosed(cells));
      return { line: number, cells: cells.slice(0, this.#columns) };
    }
    if (cells.length === this.#columns + 1 && cells.at(-1)!.trim() === "") cells.pop();
    if (cells.length < this.#columns && !whole) {
      this.told(CSV.cutOff(number));
      return null;
    }
    return { line: number, cells };
  }
}

function isClosed(cells: readonly string[]): boolean {
  return cells.length > 1 && cells.at(-1)!.trim() === "";
}

/**
 * Finds how a table is written, by its first two rows. Lines before it have another number of cells than the two that
 * follow, of which the second has numbers; one of names is wanted behind them. Each line is looked at once.
 */
class Sniffer {
  #next = 0;
  #begun = false;

  constructor(readonly where: string, readonly told: (hint: string) => void) {}

  /** The table in the lines that have come; null: more have to. */
  table(lines: readonly Line[], over: boolean): TableRows | null {
    const looked = lines.slice(0, LOOK_LINES);
    const [first] = looked;
    if (first !== undefined && !this.#begun) {
      this.#begun = true;
      if (hasValues(first, this.where)) return this.#from(first);
    }
    while (this.#next + 1 < looked.length) {
      const place = this.#next++;
      const line = looked[place]!;
      if (!isHead(line.text, looked[place + 1]!.text)) continue;
      if (place > 0 && hasValues(line, this.where)) return this.#from(first!);
      if (place > 0) this.told(CSV.before(place));
      return this.#from(line);
    }
    if (!over && lines.length < LOOK_LINES) return null;
    return first === undefined ? null : this.#from(first);
  }

  #from({ text, number }: Line): TableRows {
    return new TableRows(this.where, separatorOf(text), number, this.told);
  }
}

/** Whether a line may name the columns of the row below it. */
function isHead(text: string, below: string): boolean {
  const separator = separatorOf(text);
  const count = cellsOrNone(text, separator).length;
  const cells = cellsOrNone(below, separator);
  const numbers = cells.filter((cell) => isValue(cell) && !isGap(cell)).length;
  // Between the words of a sentence are blanks, too.
  const enough = separator === " " ? 2 * numbers >= cells.length : numbers > 0;
  return count > 1 && count === cells.length && enough;
}

function hasValues({ text, number }: Line, where: string): boolean {
  return cellsOf(text, separatorOf(text), CSV.line(where, number)).every(isValue);
}

/** What stands between the cells of a row; a comma if nothing does. */
function separatorOf(text: string): string {
  const bare = text.replace(/"[^"]*"/g, "");
  const found = SEPARATORS.find((one) => bare.includes(one));
  if (found !== undefined) return found;
  return bare.trim().split(/\s+/).length > 1 && !text.includes('"') ? " " : ",";
}

/** Cells of a row, without an empty one at its end; none if it is no row. */
function cellsOrNone(text: string, separator: string): readonly string[] {
  try {
    const cells = cellsOf(text, separator, "");
    return isClosed(cells) ? cells.slice(0, -1) : cells;
  } catch (error) {
    if (error instanceof InputError) return [];
    throw error;
  }
}

/** One row's cells, numbers with decimal points; a quoted cell may hold separators and doubled quotes. */
function cellsOf(text: string, separator: string, where: string): string[] {
  if (separator === " ") return text.trim().split(/\s+/).map(withPoint);
  const cells: string[] = [];
  const row = text.replace(/\r$/, "");
  const mark = separator === "|" ? "\\|" : separator;
  const cell = new RegExp(`(?:"((?:[^"]|"")*)"|([^${mark}]*))(${mark}|$)`, "y");
  for (;;) {
    const plain = row[cell.lastIndex] !== '"';
    const found = cell.exec(row);
    if (found === null || (plain && found[2]!.includes("\r")) || (!plain && found[1] === undefined)) {
      throw new InputError(CSV.row(where));
    }
    cells.push(found[1]?.replaceAll('""', '"') ?? found[2]!);
    if (found[3] === "") return separator === "," ? cells : cells.map(withPoint);
  }
}

/** A number with a decimal comma as one with a point; other text as it is. */
function withPoint(cell: string): string {
  const found = DECIMAL_COMMA.exec(cell);
  return found === null ? cell : `${found[1]!.replaceAll(".", "")}.${found[2]}`;
}

/** Lines as they come, at least once, and whether those are the last. */
async function* lineBlocks(
  pieces: AsyncIterable<Uint8Array>, where: string, told: (hint: string) => void,
): AsyncGenerator<{ readonly lines: Line[]; readonly over: boolean }> {
  const decoder = new TextOfBytes(where, told);
  let [rest, number] = ["", 0];
  const numbered = (texts: readonly string[], whole: boolean): Line[] => texts.map((text) => ({ number: (number += 1), text, whole }));
  for await (const piece of pieces) {
    const texts = (rest + decoder.decode(piece)).split("\n");
    rest = texts.pop()!;
    yield { lines: numbered(texts, true), over: false };
  }
  const texts = (rest + decoder.decode(null)).split("\n");
  const last = texts.pop()!;
  yield { lines: [...numbered(texts, true), ...numbered(last === "" ? [] : [last], false)], over: true };
}

/** Makes text of a file's bytes; what is no UTF-8 is taken as Windows-1252, as spreadsheets of the West write it. */
class TextOfBytes {
  #decoder: TextDecoder | null = null;
  /** Bytes of a character that is not whole yet. */
  #pending = new Uint8Array();
  #turned = false;

  constructor(readonly where: string, readonly told: (hint: string) => void) {}

  /** The text of more bytes; null: there are no more. */
  decode(piece: Uint8Array | null): string {
    const bytes = piece ?? new Uint8Array();
    if (this.#decoder === null && bytes.length > 0) this.#decoder = new TextDecoder(encodingOf(bytes), { fatal: true });
    const data = joinedBytes(this.#pending, bytes);
    try {
      const text = (this.#decoder ??= new TextDecoder("utf-8", { fatal: true })).decode(bytes, { stream: piece !== null });
      this.#pending = tailOf(data);
      return text;
    } catch {
      if (this.#turned || data.includes(0)) throw new InputError(CSV.encoding(this.where));
      this.#turned = true;
      this.told(CSV.notUtf8);
      this.#decoder = new TextDecoder("windows-1252");
      return this.#decoder.decode(data, { stream: piece !== null });
    }
  }
}

function encodingOf([first, second]: Uint8Array): string {
  if (first === 0xff && second === 0xfe) return "utf-16le";
  return first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
}

/** The bytes at the end that begin a character of UTF-8 without ending it. */
function tailOf(data: Uint8Array): Uint8Array<ArrayBuffer> {
  for (let back = 1; back <= Math.min(3, data.length); back += 1) {
    const byte = data[data.length - back]!;
    if (byte < 0x80) break;
    const size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 0;
    if (size > 0) return size > back ? data.slice(data.length - back) : new Uint8Array();
  }
  return new Uint8Array();
}

function joinedBytes(one: Uint8Array, other: Uint8Array): Uint8Array {
  const joined = new Uint8Array(one.length + other.length);
  joined.set(one);
  joined.set(other, one.length);
  return joined;
}
