/** Files of the phone's owner → labelled examples: tables, zips of them, or an `.npz` of examples or of a device. */

import { InputError } from "../errors.ts";
import { sizeOf } from "../tensors/tensors.ts";
import { FILES, NPZ } from "../texts.ts";
import { type CsvExamples, readCsv } from "./csv.ts";
import { type Block, type Form, labelled, type Labelled, shapeText } from "./examples.ts";
import { type NpyArray, readNpz } from "./npz.ts";
import { isRecording, labelIn, type RecordingFile, recordingFiles } from "./recording_files.ts";
import { readSensorTables, sensorTables } from "./sensor_tables.ts";
import type { IntakeCounters } from "./windows.ts";

/** Normalised values have a standard deviation of 1; beyond these they are doubted. */
const FAR = 20;

export interface FileExamples {
  readonly parts: readonly Labelled[];
  /** Of sensor samples: what could not be used. */
  readonly lost: IntakeCounters | null;
  /** What may be wrong with its times, and what to do. */
  readonly hints: readonly string[];
  /** Standard deviation of values that do not look preprocessed; null where they do. */
  readonly doubted: number | null;
}

/** What was found in a recording. */
export interface Found {
  /** As messages say it. */
  readonly where: string;
  readonly examples: FileExamples;
}

/** What files hold. */
export interface FilesRead {
  readonly found: readonly Found[];
  /** Why others are not used, in sentences. */
  readonly refused: readonly string[];
}

/**
 * Reads files whole, as `edge/data/recordings.py`; `form` is the bundle's.
 *
 * A table without a column of labels has the class that its name, or its folder's, says. Tables of one folder that are
 * named after sensors are one recording. Of several those that hold something else, or too little, are left out, and
 * told of. Throws InputError with the remedy where nothing is left.
 */
export async function readFiles(files: readonly File[], form: Form): Promise<FilesRead> {
  const other = files.find((file) => !isRecording(file) && !/\.npz$/i.test(file.name));
  if (other !== undefined) throw new InputError(FILES.other(other.name));
  const recordings = [
    ...files.filter((file) => !isRecording(file)).map((file) => ({ where: `'${file.name}'`, read: () => readArrays(file, form) })),
    ...await recordingsOf(await recordingFiles(files.filter(isRecording)), form),
  ];
  const found: Found[] = [];
  const refused: string[] = [];
  for (const { where, read } of recordings) {
    try {
      found.push({ where, examples: await read() });
    } catch (error) {
      if (!(error instanceof InputError) || recordings.length === 1) throw error;
      refused.push(error.message);
    }
  }
  if (found.length === 0) throw new InputError(refused[0]!);
  return { found, refused };
}

interface Recording {
  readonly where: string;
  readonly read: () => Promise<FileExamples>;
}

/** Each table by itself, but for those that sensors of one recording have. */
async function recordingsOf(files: readonly RecordingFile[], form: Form): Promise<Recording[]> {
  const folders = new Map<string, RecordingFile[]>();
  for (const file of files) folders.set(file.folder, [...(folders.get(file.folder) ?? []), file]);
  const found: Recording[] = [];
  for (const [folder, tables] of folders) {
    const joined = folder !== "" && tables.length > 1 ? await sensorTables(tables, form) : null;
    if (joined === null) found.push(...tables.map((file) => ({ where: file.where, read: () => readTable(file, form) })));
    else found.push({ where: `'${folder}'`, read: async () => examplesOf(await readSensorTables(joined, form), form) });
  }
  return found;
}

async function readTable(file: RecordingFile, form: Form): Promise<FileExamples> {
  const about = { fileName: file.name, label: labelIn(file.parts, form.classes) };
  return examplesOf(await readCsv(await file.pieces(), file.where, form, about), form);
}

function examplesOf({ blocks, lost, hints }: CsvExamples, form: Form): FileExamples {
  const part = labelled(blocks, form, "both");
  const streamed = blocks[0]?.startS !== null;
  return { parts: [part], lost, hints, doubted: streamed ? null : doubt([part], form) };
}

async function readArrays(file: File, form: Form): Promise<FileExamples> {
  const parts = await readParts(new Uint8Array(await file.arrayBuffer()), `'${file.name}'`, form);
  return { parts, lost: null, hints: [], doubted: doubt(parts, form) };
}

async function readParts(bytes: Uint8Array, where: string, form: Form): Promise<Labelled[]> {
  const names = ["x", "y", "x_train", "y_train", "x_test", "y_test", "classes", "targets"];
  const arrays = await readNpz(bytes, where, names);
  checkNames(arrays, where, form);
  if (arrays.has("x_train")) {
    const parts: Labelled[] = [];
    for (const part of ["train", "test"] as const) {
      const block = blockOf(arrays, `x_${part}`, `y_${part}`, where, form);
      if (block.x.length > 0) parts.push(labelled([block], form, part));
    }
    if (parts.length === 0) throw new InputError(NPZ.none(where));
    return parts;
  }
  return [labelled([blockOf(arrays, "x", "y", where, form)], form, "both")];
}

function checkNames(arrays: ReadonlyMap<string, NpyArray>, where: string, form: Form): void {
  for (const [kind, expected] of [["classes", form.classes], ["targets", form.targets]] as const) {
    const got = arrays.get(kind)?.values;
    if (got === undefined) continue;
    const names = [...got].map(String);
    if (names.length !== expected.length || names.some((name, k) => name !== expected[k])) {
      throw new InputError(NPZ.names(where, kind, expected.join(", ") || "(none)", names.join(", ").slice(0, 200)));
    }
  }
}

function blockOf(
  arrays: ReadonlyMap<string, NpyArray>,
  xName: string,
  yName: string,
  where: string,
  form: Form,
): Block {
  const [x, y] = [arrays.get(xName), arrays.get(yName)];
  const missing = x === undefined ? xName : yName;
  if (x === undefined || y === undefined) {
    throw new InputError(NPZ.missing(where, `${xName} and ${yName}`, missing));
  }
  const shape = form.preprocessing.input_shape;
  const fits = x.shape.length === shape.length + 1 && shape.every((axis, k) => x.shape[k + 1] === axis);
  if (!fits || !("BYTES_PER_ELEMENT" in x.values)) {
    throw new InputError(NPZ.shape(where, `${xName} (n, ${shapeText(shape)})`, `(${shapeText(x.shape)})`));
  }
  if (y.shape[0] !== x.shape[0]) {
    throw new InputError(NPZ.count(where, `${yName} as ${xName}`, x.shape[0]!, y.shape[0] ?? 1));
  }
  const what = `${where}: ${yName}`;
  const isTargets = form.targets.length > 0;
  return {
    x: x.values instanceof Float32Array ? x.values : Float32Array.from(x.values),
    labels: isTargets ? [] : classNumbers(y, what, form.classes),
    targets: isTargets ? targetValues(y, what, form.targets) : [],
    startS: null,
  };
}

function classNumbers(y: NpyArray, what: string, classes: readonly string[]): number[] {
  if (y.shape.length !== 1) {
    throw new InputError(NPZ.classShape(what, `(${shapeText(y.shape)})`));
  }
  return [...y.values].map((value) => {
    const found = typeof value === "string" ? classes.indexOf(value) : value;
    if (Number.isInteger(found) && found >= 0 && found < classes.length) return found;
    throw new InputError(NPZ.classes(what, classes, String(value).slice(0, 40)));
  });
}

function targetValues(y: NpyArray, what: string, targets: readonly string[]): number[] {
  const width = y.shape.length === 1 ? 1 : sizeOf(y.shape.slice(1));
  if (y.shape.length > 2 || width !== targets.length || !("BYTES_PER_ELEMENT" in y.values)) {
    throw new InputError(NPZ.targets(what, targets, `(${shapeText(y.shape)})`));
  }
  if (!y.values.every(Number.isFinite)) {
    throw new InputError(NPZ.notFinite(what));
  }
  return [...y.values];
}

function doubt(parts: readonly Labelled[], { preprocessing }: Form): number | null {
  const known = !(preprocessing.mean.every((value) => value === 0) && preprocessing.std.every((value) => value === 1));
  if (!known || preprocessing.tokens !== null) return null;
  const values = parts[0]!.examples.x.data as Float32Array;
  let [sum, squares] = [0, 0];
  for (const value of values) {
    sum += value;
    squares += value * value;
  }
  const spread = Math.sqrt(Math.max(squares / values.length - (sum / values.length) ** 2, 0));
  return spread > FAR || spread < 1 / FAR || Math.abs(sum / values.length) > FAR ? spread : null;
}
