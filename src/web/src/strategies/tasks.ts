/**
 * Learning tasks: what a model's outputs are, and what follows for losses and scores, as
 * `strategies/tasks.py` and `strategies/scores.py` have it.
 *
 * | task | y | losses | scores |
 * |---|---|---|---|
 * | classification | (n,) int64 class | cross_entropy | macro-F1, accuracy |
 * | regression | (n, T) float32 | mse, huber | RMSE, MAE, R² |
 * | multilabel | (n, L) float32, 0 or 1 | bce | macro-F1, micro-F1 |
 */

import { InputError } from "../errors.ts";
import type { Tensor } from "../tensors/tensors.ts";
import type { Statistics, TaskName } from "./types.ts";

export type MetricName = "macro_f1" | "accuracy" | "rmse" | "mae" | "r2" | "micro_f1";

/** Scores by name; NaN where one is not defined. */
export type MetricValues = Readonly<Partial<Record<MetricName, number>>>;

/** Mean loss of outputs (n, …) and true values; NaN without examples. */
export type Loss = (outputs: Tensor, y: Tensor) => number;

export interface LearningTask {
  readonly name: TaskName;
  /** By the objective's name, the default first. */
  readonly losses: ReadonlyMap<string, Loss>;
  /** The score that a line has room for. */
  readonly headline: MetricName;
  /** Whether it is a number from 0 to 1, which people read in per cent. */
  readonly headlineIsShare: boolean;
  /** Of outputs (n, outputs) float32, true values and the number of outputs; they add up over test parts. */
  readonly statistics: (outputs: Tensor, y: Tensor, count: number) => Statistics;
  /** Throws InputError for true values that are none of this task. */
  readonly checkLabels: (what: string, y: Tensor, count: number) => void;
  readonly score: (statistics: Statistics) => MetricValues;
  /** The score by which a run's best round is chosen, as a number that is larger for better models. */
  readonly quality: (statistics: Statistics) => number;
  /** Of each example, what outputs (n, outputs) are worth where `y` is true; larger is better. */
  readonly worths: (outputs: Tensor, y: Tensor) => readonly number[];
  /** Whether a difference of worths means something as a share of what there was. */
  readonly relative: boolean;
  /** Which of a bundle's objectives is its task's own loss; without one the default. */
  readonly lossOf: (objectives: Iterable<string>) => string;
}

/** What an output that is infinite or no number counts as, and the most that any error does. */
export const LARGEST_ERROR = 1e15;
const LARGEST_SUM = 1e50;
const VARIES = 1e-12;

/** Confusion counts (C, C), rows true and columns predicted class. */
function confusion(outputs: Tensor, y: Tensor, classes: number): Statistics {
  const counts = zeros(classes, classes);
  const scores = floats(outputs);
  const width = outputs.shape[1]!;
  for (let at = 0; at < y.data.length; at += 1) {
    const truth = Number(y.data[at]);
    const said = largestAt(scores.subarray(at * width, (at + 1) * width));
    const row = counts[truth];
    if (row === undefined || said >= classes) {
      throw new InputError(`confusion: expected classes below ${classes}, got ${truth} and ${said}`);
    }
    row[said]! += 1;
  }
  return counts;
}

/** Place of the first largest number; a NaN counts as the largest, as in NumPy. */
function largestAt(row: Float32Array): number {
  let best = 0;
  for (let at = 0; at < row.length; at += 1) {
    if (Number.isNaN(row[at]!)) return at;
    if (row[at]! > row[best]!) best = at;
  }
  return best;
}

function rightClasses(outputs: Tensor, y: Tensor): readonly number[] {
  const width = outputs.shape[1]!;
  const scores = floats(outputs);
  return Array.from({ length: y.data.length }, (_, at) =>
    Number(largestAt(scores.subarray(at * width, (at + 1) * width)) === Number(y.data[at])));
}

/** Of each example, the mean of the targets' errors, below 0. */
function nearTargets(outputs: Tensor, y: Tensor): readonly number[] {
  checkSameShape("regression", outputs, y);
  const truths = floats(y);
  return rowMeans(y, Array.from(floats(outputs), (said, at) => -errorOf(said, truths[at]!)));
}

/** Of each example, the share of the labels that are right. */
function rightLabels(outputs: Tensor, y: Tensor): readonly number[] {
  checkSameShape("multilabel", outputs, y);
  const truths = floats(y);
  return rowMeans(y, Array.from(floats(outputs), (said, at) => Number(said > 0 === truths[at]! > 0)));
}

function rowMeans({ shape: [rows = 0, columns = 0] }: Tensor, values: readonly number[]): readonly number[] {
  return Array.from({ length: rows }, (_, row) => sum(values.slice(row * columns, (row + 1) * columns)) / columns);
}

function errorOf(said: number, truth: number): number {
  const difference = Math.abs(said - truth);
  return Number.isNaN(difference) ? LARGEST_ERROR : Math.min(difference, LARGEST_ERROR);
}

/** (T, 5): n, and the sums of |e|, e², y and y² with e = output - y, each |e| at most `LARGEST_ERROR`. */
function errorSums(outputs: Tensor, y: Tensor): Statistics {
  checkSameShape("regression", outputs, y);
  const [n = 0, targets = 0] = y.shape;
  const sums = zeros(targets, 5);
  const said = floats(outputs), truths = floats(y);
  for (let at = 0; at < n * targets; at += 1) {
    const truth = truths[at]!;
    const error = errorOf(said[at]!, truth);
    const row = sums[at % targets]!;
    [1, error, error ** 2, truth, truth ** 2].forEach((value, column) => (row[column]! += value));
  }
  return sums;
}

/** (L, 4): true positives, false positives, false and true negatives; a logit above 0 says that a label holds. */
function labelCounts(outputs: Tensor, y: Tensor): Statistics {
  checkSameShape("multilabel", outputs, y);
  const [n = 0, labels = 0] = y.shape;
  const counts = zeros(labels, 4);
  const said = floats(outputs), truths = floats(y);
  for (let at = 0; at < n * labels; at += 1) {
    const truth = truths[at]! > 0;
    const column = said[at]! > 0 ? (truth ? 0 : 1) : truth ? 2 : 3;
    counts[at % labels]![column]! += 1;
  }
  return counts;
}

function meanCrossEntropy(outputs: Tensor, y: Tensor): number {
  const scores = floats(outputs);
  const width = outputs.shape[1]!;
  return meanOf(y.data.length, (at) => {
    const row = scores.subarray(at * width, (at + 1) * width);
    const largest = row.reduce((most, value) => Math.max(most, value), -Infinity);
    let sum = 0;
    for (const value of row) sum += Math.exp(value - largest);
    return Math.log(sum) - (row[Number(y.data[at])]! - largest);
  });
}

/** Mean over examples and targets of a loss of the model's value and the true one. */
function elementwise(loss: (said: number, truth: number) => number): Loss {
  return (outputs, y) => {
    const said = floats(outputs), truths = floats(y);
    return meanOf(said.length, (at) => loss(said[at]!, truths[at]!));
  };
}

const meanSquare = elementwise((said, truth) => (said - truth) ** 2);

/** Huber's loss with a threshold of 1. */
const meanHuber = elementwise((said, truth) => {
  const error = Math.abs(said - truth);
  return error <= 1 ? error ** 2 / 2 : error - 0.5;
});

/** Cross-entropy of a logit's sigmoid. */
const meanBinaryCrossEntropy = elementwise(
  (logit, truth) => Math.max(logit, 0) - logit * truth + Math.log1p(Math.exp(-Math.abs(logit))),
);

function scoreClasses(counts: Statistics): MetricValues {
  const columns = counts.map((_, at) => sum(counts.map((row) => row[at]!)));
  const f1 = counts.map((row, at) => (2 * row[at]!) / (sum(row) + columns[at]!)); // 2 TP / (2 TP + FP + FN)
  const right = sum(counts.map((row, at) => row[at]!));
  return { macro_f1: meanDefined(f1), accuracy: right / sum(columns) };
}

/** Plain means over the targets, as scikit-learn's; R² only of targets whose true values differ. */
function scoreTargets(sums: Statistics): MetricValues {
  const r2 = sums.map((row) => {
    const [n = 0, , squared = 0, total = 0, squares = 0] = row;
    const spread = squares - total ** 2 / n;
    return spread > Math.max(VARIES * squares, 1 / LARGEST_SUM) ? 1 - squared / spread : NaN;
  });
  return {
    rmse: meanDefined(sums.map((row) => Math.sqrt(row[2]! / row[0]!))),
    mae: meanDefined(sums.map((row) => row[1]! / row[0]!)),
    r2: meanDefined(r2),
  };
}

function scoreLabels(counts: Statistics): MetricValues {
  const f1 = (tp: number, fp: number, fn: number): number => (2 * tp) / (2 * tp + fp + fn);
  const [tp, fp, fn] = [0, 1, 2].map((column) => sum(counts.map((row) => row[column]!)));
  return {
    macro_f1: meanDefined(counts.map((row) => f1(row[0]!, row[1]!, row[2]!))),
    micro_f1: f1(tp!, fp!, fn!),
  };
}

function checkClasses(what: string, y: Tensor, classes: number): void {
  if (y.shape.length !== 1 || y.dtype !== "int64") {
    throw new InputError(`${what}: expected (n,) int64 class numbers, got [${y.shape.join(", ")}] ${y.dtype}`);
  }
  for (const label of y.data as BigInt64Array) {
    if (label < 0n || label >= BigInt(classes)) {
      throw new InputError(
        `${what}: expected classes 0…${classes - 1}, got ${label}; number them in the order of the bundle's classes`,
      );
    }
  }
}

function checkNumbers(what: string, y: Tensor, targets: number): void {
  checkRows(what, y, targets);
  if (!floats(y).every((value) => Math.abs(value) <= LARGEST_ERROR)) {
    throw new InputError(
      `${what}: expected numbers of at most ${LARGEST_ERROR}, got NaN, infinite or larger ones; leave those ` +
        "examples out",
    );
  }
}

function checkFlags(what: string, y: Tensor, labels: number): void {
  checkRows(what, y, labels);
  const other = floats(y).find((value) => value !== 0 && value !== 1);
  if (other !== undefined) throw new InputError(`${what}: expected 0 and 1 for each of ${labels} labels, got ${other}`);
}

function checkRows(what: string, y: Tensor, columns: number): void {
  if (y.shape.length !== 2 || y.shape[1] !== columns || y.dtype !== "float32") {
    throw new InputError(
      `${what}: expected (n, ${columns}) float32, a column for each target, got [${y.shape.join(", ")}] ${y.dtype}`,
    );
  }
}

function checkSameShape(what: string, outputs: Tensor, y: Tensor): void {
  if (outputs.shape.join() !== y.shape.join() || y.shape.length !== 2) {
    throw new InputError(
      `${what}: expected outputs and true values (n, targets), got [${outputs.shape.join(", ")}] and ` +
        `[${y.shape.join(", ")}]`,
    );
  }
}

function zeros(rows: number, columns: number): number[][] {
  return Array.from({ length: rows }, () => new Array<number>(columns).fill(0));
}

function floats(tensor: Tensor): Float32Array {
  return tensor.data as Float32Array;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function meanOf(count: number, value: (at: number) => number): number {
  let total = 0;
  for (let at = 0; at < count; at += 1) total += value(at);
  return total / count; // NaN without examples
}

/** Mean of those that are numbers. */
function meanDefined(values: readonly number[]): number {
  const known = values.filter((value) => !Number.isNaN(value));
  return sum(known) / known.length;
}

type Described = Omit<LearningTask, "losses" | "quality" | "lossOf"> & {
  readonly losses: Readonly<Record<string, Loss>>;
  readonly quality: (values: MetricValues) => number;
};

function taskOf({ losses, quality, ...described }: Described): LearningTask {
  const byName = new Map(Object.entries(losses));
  const [first = ""] = byName.keys();
  return {
    ...described,
    losses: byName,
    quality: (statistics) => quality(described.score(statistics)),
    lossOf: (objectives) => [...objectives].find((name) => byName.has(name)) ?? first,
  };
}

export const TASKS: Readonly<Record<TaskName, LearningTask>> = {
  classification: taskOf({
    name: "classification",
    losses: { cross_entropy: meanCrossEntropy },
    headline: "macro_f1",
    headlineIsShare: true,
    statistics: confusion,
    checkLabels: checkClasses,
    score: scoreClasses,
    worths: rightClasses,
    relative: false,
    quality: ({ accuracy = NaN }) => accuracy,
  }),
  regression: taskOf({
    name: "regression",
    losses: { mse: meanSquare, huber: meanHuber },
    headline: "rmse",
    headlineIsShare: false,
    statistics: errorSums,
    checkLabels: checkNumbers,
    score: scoreTargets,
    worths: nearTargets,
    relative: true,
    quality: ({ rmse = NaN }) => -rmse,
  }),
  multilabel: taskOf({
    name: "multilabel",
    losses: { bce: meanBinaryCrossEntropy },
    headline: "macro_f1",
    headlineIsShare: true,
    statistics: labelCounts,
    checkLabels: checkFlags,
    score: scoreLabels,
    worths: rightLabels,
    relative: false,
    quality: ({ macro_f1 = NaN }) => macro_f1,
  }),
};
