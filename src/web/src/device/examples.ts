/**
 * The owner's labelled examples: kept on the phone, checked against the bundle, split for training.
 *
 * Where a file does not say which part examples are for, the last fifth of each class in time,
 * rounded down, is the test part, which is never trained on; where the task has no classes it is the
 * last fifth of all. Windows that overlap one of the test part are left out. Examples stay in the
 * order in which they came, so that the same examples make the same batches.
 */

import type { Manifest } from "../bundle/manifest.ts";
import { InputError } from "../errors.ts";
import { rowsOf, sizeOf, type Tensor } from "../tensors/tensors.ts";
import { EXAMPLES } from "../texts.ts";
import type { Database } from "./database.ts";
import { otherInput, rescaled } from "./inputs.ts";
import type { Examples } from "./page_messages.ts";

/** One part in five is for testing. */
const PARTS = 5;
/** 250 MB of float32: more does not fit into the memory of a page beside a model in training. */
const MOST_NUMBERS = 62_500_000;

/** What the bundle says of inputs and outputs for which examples were made. */
type Form = Pick<Manifest, "preprocessing" | "classes" | "targets">;

interface Batch extends Examples {
  readonly source: string;
  readonly added: number;
  readonly form: Form;
}

/** Examples with their labels, as the bundle's programs take them. */
export interface Labelled {
  readonly x: Tensor;
  readonly y: Tensor;
}

/** Training and test part; each may have no examples at all. */
export interface Split {
  readonly train: Labelled;
  readonly test: Labelled;
}

/** Numbers of examples, of each class or in all. */
interface Counted {
  readonly all: readonly number[];
  readonly train: readonly number[];
}

export class OwnExamples {
  readonly #database: Database;
  readonly #manifest: Manifest;
  #batches: Map<number, Batch>;
  #counted: Counted | null = null;

  private constructor(database: Database, manifest: Manifest, batches: Map<number, Batch>) {
    this.#database = database;
    this.#manifest = manifest;
    this.#batches = batches;
  }

  /** What the store has of them, as far as it fits the bundle. */
  static async open(database: Database, manifest: Manifest): Promise<OwnExamples> {
    const keys = (await database.keys("examples")) as number[];
    const found = (await database.getAll("examples")) as Batch[];
    const batches = new Map<number, Batch>();
    keys.forEach((key, i) => {
      const suited = fitted(found[i]!, manifest);
      if (suited !== null) batches.set(key, suited);
    });
    return new OwnExamples(database, manifest, batches);
  }

  /** Keeps more; throws InputError, and nothing has changed, if they are not what the bundle takes. */
  async add(examples: Examples, source: string): Promise<void> {
    const { x } = examples;
    const wrong = mismatch(examples, this.#manifest);
    if (wrong !== null) throw new InputError(EXAMPLES.refused(source, wrong));
    if (this.#numbers() + x.data.length > MOST_NUMBERS) {
      throw new InputError(EXAMPLES.tooMany(source));
    }
    const { preprocessing, classes, targets } = this.#manifest;
    const batch: Batch = { ...examples, source, added: Date.now(), form: { preprocessing, classes, targets } };
    this.#batches.set(await this.#database.add("examples", batch), batch);
    this.#counted = null;
  }

  async clear(): Promise<void> {
    await this.#database.write([{ table: "examples", clear: true }]);
    this.#batches = new Map();
    this.#counted = null;
  }

  get count(): number {
    return [...this.#batches.values()].reduce((sum, { x }) => sum + x.shape[0]!, 0);
  }

  /** Key of the last ones; 0: there are none. */
  get last(): number {
    return Math.max(0, ...this.#batches.keys());
  }

  /** Of each class; of a task without classes only their number. */
  get counts(): readonly number[] {
    return this.#count().all;
  }

  /** The same of the training part. */
  get trainCounts(): readonly number[] {
    return this.#count().train;
  }

  /** Those up to the key `last`, in two parts. */
  split(last = Infinity): Split {
    const batches = this.#upTo(last);
    const { x, y } = emptyOf(this.#manifest);
    const all = { x: joined(x, batches.map((batch) => batch.x)), y: joined(y, batches.map((batch) => batch.y)) };
    const { train, test } = splitRows(batches, all.y, this.#manifest);
    return { train: taken(all, train), test: taken(all, test) };
  }

  /** Without a copy of the examples themselves. */
  #count(): Counted {
    if (this.#counted !== null) return this.#counted;
    const batches = this.#upTo(Infinity);
    const y = joined(emptyOf(this.#manifest).y, batches.map((batch) => batch.y));
    this.#counted = {
      all: countsOf(y, this.#manifest),
      train: countsOf(rowsOf(y, splitRows(batches, y, this.#manifest).train), this.#manifest),
    };
    return this.#counted;
  }

  #upTo(last: number): Batch[] {
    return [...this.#batches].filter(([key]) => key <= last).map(([, batch]) => batch);
  }

  #numbers(): number {
    return [...this.#batches.values()].reduce((sum, { x }) => sum + x.data.length, 0);
  }
}

/** How many examples there are of each class; without classes, in all. */
function countsOf(y: Tensor, { classes }: Manifest): number[] {
  if (classes.length === 0) return [y.shape[0]!];
  const counts = new Array<number>(classes.length).fill(0);
  for (const label of y.data as BigInt64Array) counts[Number(label)]! += 1;
  return counts;
}

/**
 * Examples of another bundle as those of this one: classes and targets by their names, in this one's scale. Those of
 * a class that it does not have are left out; null: nothing of them fits.
 */
function fitted(batch: Batch, manifest: Manifest): Batch | null {
  const { form, x, y, follows } = batch;
  const { preprocessing, classes, targets } = manifest;
  if (JSON.stringify(form) === JSON.stringify({ preprocessing, classes, targets })) {
    return mismatch(batch, manifest) === null ? batch : null;
  }
  if (otherInput(form.preprocessing, preprocessing) !== null) return null;
  if ((form.classes.length > 0) !== (classes.length > 0)) return null;
  const numbers = form.classes.map((name) => classes.indexOf(name));
  const columns = targets.map((name) => form.targets.indexOf(name));
  if (columns.includes(-1)) return null;
  const rows = [...Array(x.shape[0]!).keys()].filter((row) => classes.length === 0 || numbers[Number(y.data[row])]! >= 0);
  const made: Batch = {
    ...batch,
    x: rescaled(rowsOf(x, rows), form.preprocessing, preprocessing),
    y: classes.length > 0 ? renumbered(y, rows, numbers) : columnsOf(y, columns),
    // Behind one that was left out a row follows none that is here.
    follows: follows && rows.map((row, k) => follows[row]! && rows[k - 1] === row - 1),
  };
  return mismatch(made, manifest) === null ? made : null;
}

function renumbered({ data }: Tensor, rows: readonly number[], numbers: readonly number[]): Tensor {
  const labels = BigInt64Array.from(rows, (row) => BigInt(numbers[Number(data[row])]!));
  return { dtype: "int64", shape: [rows.length], data: labels };
}

function columnsOf({ data, shape }: Tensor, columns: readonly number[]): Tensor {
  const [count, width] = [shape[0]!, shape[1]!];
  const values = Float32Array.from({ length: count * columns.length }, (_, at) => {
    return Number(data[Math.floor(at / columns.length) * width + columns[at % columns.length]!]);
  });
  return { dtype: "float32", shape: [count, columns.length], data: values };
}

/** What is wrong with examples for a bundle; null: nothing. */
function mismatch({ x, y, follows }: Examples, manifest: Manifest): string | null {
  const { preprocessing, classes, targets, task } = manifest;
  const { input_shape: shape, tokens } = preprocessing;
  const count = x.shape[0] ?? 0;
  const dtype = tokens === null ? "float32" : "int64";
  if (x.dtype !== dtype || x.shape.slice(1).join() !== shape.join()) {
    return `expected (n, ${shape.join(", ")}) ${dtype} as the bundle's input, got (${x.shape.join(", ")}) ${x.dtype}`;
  }
  if (tokens === null ? !finite(x.data as Float32Array) : !within(x.data as BigInt64Array, tokens)) {
    return tokens === null ? "a number is NaN or infinite" : `a token is not between 0 and ${tokens - 1}`;
  }
  if (follows !== null && follows.length !== count) return `expected ${count} overlaps, got ${follows.length}`;
  const labels = task === "classification" ? [count] : [count, targets.length];
  const labelType = task === "classification" ? "int64" : "float32";
  if (count === 0 || y.dtype !== labelType || y.shape.join() !== labels.join()) {
    return `expected labels (${labels.join(", ")}) ${labelType}, at least one, got (${y.shape.join(", ")}) ${y.dtype}`;
  }
  if (task === "classification") {
    return within(y.data as BigInt64Array, classes.length) ? null : `a label is none of the ${classes.length} classes`;
  }
  if (!finite(y.data as Float32Array)) return "a target is NaN or infinite";
  const flags = task === "multilabel" && (y.data as Float32Array).some((value) => value !== 0 && value !== 1);
  return flags ? "a label is neither 0 nor 1" : null;
}

function finite(values: Float32Array): boolean {
  return values.every(Number.isFinite);
}

function within(values: BigInt64Array, count: number): boolean {
  const most = BigInt(count);
  return values.every((value) => value >= 0n && value < most);
}

function emptyOf({ preprocessing, task, targets }: Manifest): Labelled {
  const shape = [0, ...preprocessing.input_shape];
  const tokens = preprocessing.tokens !== null;
  return {
    x: tokens
      ? { dtype: "int64", shape, data: new BigInt64Array() }
      : { dtype: "float32", shape, data: new Float32Array() },
    y:
      task === "classification"
        ? { dtype: "int64", shape: [0], data: new BigInt64Array() }
        : { dtype: "float32", shape: [0, targets.length], data: new Float32Array() },
  };
}

function joined(empty: Tensor, parts: readonly Tensor[]): Tensor {
  const count = parts.reduce((sum, { shape }) => sum + shape[0]!, 0);
  const shape = [count, ...empty.shape.slice(1)];
  const data = arrayOf(empty, sizeOf(shape));
  let offset = 0;
  for (const part of parts) {
    data.set(part.data as never, offset);
    offset += part.data.length;
  }
  return { dtype: empty.dtype, shape, data };
}

/** Which rows of all batches, one behind the other, train and which test. */
function splitRows(batches: readonly Batch[], y: Tensor, manifest: Manifest): { train: number[]; test: number[] } {
  const parts = batches.flatMap(({ x, part }) => new Array<Examples["part"]>(x.shape[0]!).fill(part));
  const follows = batches.flatMap(({ x, follows: told }) => told ?? new Array<boolean>(x.shape[0]!).fill(false));
  const test = new Set(parts.flatMap((part, row) => (part === "test" ? [row] : [])));
  const open = parts.flatMap((part, row) => (part === "both" ? [row] : []));
  for (const rows of byClass(open, y, manifest).values()) {
    for (const row of rows.slice(rows.length - Math.floor(rows.length / PARTS))) test.add(row);
  }
  const apart = overlapping(test, follows, Math.max(0, ...batches.map(({ form }) => overlaps(form))));
  const train = parts.flatMap((_, row) => (test.has(row) || apart.has(row) ? [] : [row]));
  return { train, test: [...test].sort((one, other) => one - other) };
}

/** Rows that share readings with one of `rows`, up to `most` of them away on either side. */
function overlapping(rows: ReadonlySet<number>, follows: readonly boolean[], most: number): Set<number> {
  const found = new Set<number>();
  for (const row of rows) {
    for (let k = 0; k < most && follows[row - k]; k += 1) found.add(row - k - 1);
    for (let k = 1; k <= most && follows[row + k]; k += 1) found.add(row + k);
  }
  return found;
}

/** Rows by their class, all together where the task has none. */
function byClass(rows: readonly number[], y: Tensor, { classes }: Manifest): Map<string, number[]> {
  const groups = new Map<string, number[]>();
  for (const row of rows) {
    const label = classes.length > 0 ? String(y.data[row]) : "";
    const group = groups.get(label);
    if (group === undefined) groups.set(label, [row]);
    else group.push(row);
  }
  return groups;
}

/** How many windows before one overlap it. */
function overlaps({ preprocessing: { window, hop } }: Form): number {
  return window === null || hop === null ? 1 : Math.ceil(window / hop) - 1;
}

function taken({ x, y }: Labelled, rows: readonly number[]): Labelled {
  return { x: rowsOf(x, rows), y: rowsOf(y, rows) };
}

function arrayOf({ data }: Tensor, length: number): Tensor["data"] {
  return new (data.constructor as new (length: number) => Tensor["data"])(length);
}
