/** Tables of recordings in files and zips, and what their names say of them: `edge/data/recording_files.py`. */

import { InputError } from "../errors.ts";
import { RECORDINGS } from "../texts.ts";
import { isLogged, loggedTables } from "./sensor_logger.ts";
import { unpacked, type ZipEntry, zipEntries } from "./zip.ts";

/** Endings of files in which a table is looked for in a zip. */
const TABLE = /\.(csv|tsv|txt)$/i;
/** Of Sensor Logger's, which holds tables of several sensors. */
const LOGGED = /\.json$/i;
const MOST_FILES = 10_000;
/** Tables shrink to a tenth; what shrinks more, and is not small, is made to fill the memory. */
const [MOST_RATIO, SMALL_BYTES] = [200, 100_000_000];
const WORD = /\p{L}+/gu;
const CAPITAL = /(?<=[a-zß-ÿ])(?=[A-Z])/g;

/** A table. */
export interface RecordingFile {
  /** As messages say it. */
  readonly where: string;
  /** Where it lies with others; "" of the only file that was chosen. */
  readonly folder: string;
  /** Names of the folders and the file, without its ending, that may say what it holds. */
  readonly parts: readonly string[];
  /** The last of them. */
  readonly name: string;
  /** Its bytes, from the beginning each time. */
  pieces(): Promise<AsyncIterable<Uint8Array>>;
}

/** Whether a file is a table, or may hold some. */
export function isRecording({ name }: File): boolean {
  return TABLE.test(name) || LOGGED.test(name) || isZip(name);
}

/** The tables of files and zips; throws InputError: a zip that cannot be read, or too many. */
export async function recordingFiles(files: readonly File[]): Promise<RecordingFile[]> {
  const found: RecordingFile[] = [];
  for (const file of files) {
    if (isZip(file.name)) found.push(...await zipped(file));
    else if (LOGGED.test(file.name)) found.push(...await logged(file.name, [file.name.replace(LOGGED, "")], async () => streamed(file)));
    else found.push(plain(file, files.length === 1 ? "" : "."));
  }
  if (found.length > MOST_FILES) throw new InputError(RECORDINGS.many(MOST_FILES, found.length));
  return found;
}

/**
 * The class that a file's own name, or else its folder's, says; null: none, or several.
 *
 * Of two that fit, one within the other, the longer: walking upstairs, not walking.
 */
export function labelIn(parts: readonly string[], classes: readonly string[]): number | null {
  const words = classes.map(wordsOf);
  for (const part of [...parts].reverse()) {
    const said = wordsOf(part);
    const fitting = words.flatMap((one, k) => (one.size > 0 && isPart(one, said) ? [k] : []));
    const longest = fitting.filter((k) => !fitting.some((other) => words[other]!.size > words[k]!.size && isPart(words[k]!, words[other]!)));
    if (longest.length === 1) return longest[0]!;
    if (longest.length > 1) return null;
  }
  return null;
}

function wordsOf(name: string): ReadonlySet<string> {
  return new Set((name.replace(CAPITAL, " ").match(WORD) ?? []).map((word) => word.toLowerCase()));
}

function isPart(one: ReadonlySet<string>, other: ReadonlySet<string>): boolean {
  return [...one].every((word) => other.has(word));
}

function isZip(name: string): boolean {
  return /\.zip$/i.test(name);
}

function plain(file: File, folder: string): RecordingFile {
  const name = file.name.replace(TABLE, "");
  return { where: `'${file.name}'`, folder, parts: [name], name, pieces: async () => streamed(file) };
}

/** The tables of Sensor Logger's JSON. */
async function logged(
  name: string, parts: readonly string[], pieces: RecordingFile["pieces"],
): Promise<RecordingFile[]> {
  const tables = await loggedTables(pieces, `'${name}'`);
  return tables.map((one) => ({
    where: `'${name}: ${one.name}'`, folder: name, parts: [...parts, one.name], name: one.name, pieces: () => one.pieces(),
  }));
}

async function* streamed(file: File): AsyncGenerator<Uint8Array> {
  const reader = file.stream().getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

async function zipped(file: File): Promise<RecordingFile[]> {
  const where = `'${file.name}'`;
  const bytes = new Uint8Array(await file.arrayBuffer());
  const entries = zipEntries(bytes, where).filter(({ name }) => isTable(name));
  entries.sort((one, other) => (one.name < other.name ? -1 : 1));
  const found: RecordingFile[] = [];
  for (const entry of entries) {
    const one = member(bytes, entry, file.name);
    if (!LOGGED.test(entry.name)) found.push(one);
    else if (await isLogged(one.pieces)) found.push(...await logged(`${file.name}: ${entry.name}`, one.parts, one.pieces));
  }
  if (found.length === 0) throw new InputError(RECORDINGS.none(where));
  return found;
}

function isTable(path: string): boolean {
  const parts = path.split("/");
  return (TABLE.test(path) || LOGGED.test(path)) && parts[0] !== "__MACOSX" && !parts.at(-1)!.startsWith(".");
}

function member(bytes: Uint8Array, entry: ZipEntry, zip: string): RecordingFile {
  const where = `'${zip}: ${entry.name}'`;
  if (entry.size > Math.max(SMALL_BYTES, MOST_RATIO * entry.packed)) {
    throw new InputError(RECORDINGS.explodes(where, entry.packed, entry.size));
  }
  const path = entry.name.replace(TABLE, "").replace(LOGGED, "").split("/");
  const folder = [zip, ...path.slice(0, -1)].join("/");
  return {
    where,
    folder,
    parts: [zip.replace(/\.zip$/i, ""), ...path],
    name: path.at(-1)!,
    pieces: async () => whole(await unpacked(bytes, entry, where)),
  };
}

async function* whole(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}
