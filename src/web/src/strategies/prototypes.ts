/** Prototypes of classes: means of features, and the nearest of them, as in `strategies/prototypes.py`. */

import { InputError } from "../errors.ts";
import { float32, rowsOf } from "../tensors/tensors.ts";
import type { Network, Tensor, Tensors } from "../tensors/tensors.ts";
import { numbersOf, numExamples, scalar, tensorOf } from "./common.ts";
import type { Batch, ClientTools, Model, Score, TensorSchema } from "./types.ts";

/** Name of the prototypes where they travel, and of the flags that say which classes have one. */
export const PROTOTYPES = "prototypes";
export const PRESENT = "present";

/** Forms of global prototypes (C, d) and of the flags beside them, by name. */
export function prototypeForms(model: Model): Map<string, TensorSchema> {
  const classes = model.numClasses;
  return new Map([
    [PROTOTYPES, { shape: [classes, featureWidth(model)], dtype: "float32", most: 0 }],
    [PRESENT, { shape: [classes], dtype: "uint8", most: 0 }],
  ]);
}

/** The form of a client's own prototypes, by name. */
export function ownPrototypeForms(model: Model): Map<string, TensorSchema> {
  return new Map([...prototypeForms(model)].filter(([name]) => name === PROTOTYPES));
}

/** No class has a prototype. */
export function noPrototypes({ numClasses, features }: Model): Map<string, Tensor> {
  return new Map<string, Tensor>([
    [PROTOTYPES, float32([numClasses, features], new Float32Array(numClasses * features))],
    [PRESENT, { dtype: "uint8", shape: [numClasses], data: new Uint8Array(numClasses) }],
  ]);
}

/** Inputs of the objective `prototype_mse`. */
export function prototypeInputs(payload: Tensors, weight: number): Batch {
  const present = tensorOf(payload, PRESENT);
  return new Map([
    [PROTOTYPES, tensorOf(payload, PROTOTYPES)],
    [PRESENT, float32(present.shape, Float32Array.from(present.data, Number))],
    ["weight", scalar(weight)],
  ]);
}

/** Class means of a trained network's features; zeros for absent classes. */
export async function localPrototypes(model: Model, network: Network, tools: ClientTools): Promise<Tensor> {
  if (numExamples(tools) === 0) return tensorOf(noPrototypes(model), PROTOTYPES);
  const features = await tools.features(network, tools.training.x);
  return classMeans(features, tools.training.y, model.numClasses);
}

/** Examples of a batch, and their features (b, d) before its step. */
export interface SeenBatch {
  readonly rows: Int32Array;
  readonly features: Tensor;
}

/** Class means of what was seen, and of a trained network's features for the other classes. */
export async function joinedMeans(
  model: Model,
  network: Network,
  seen: readonly SeenBatch[],
  tools: ClientTools,
): Promise<Tensor> {
  const { x, y } = tools.training;
  if (seen.length === 0) return localPrototypes(model, network, tools);
  const rows = Int32Array.from(seen.flatMap((batch) => [...batch.rows]));
  const data = Float32Array.from(seen.flatMap(({ features }) => [...numbersOf(features)]));
  const labels = rowsOf(y, rows);
  const means = classMeans(float32([rows.length, model.features], data), labels, model.numClasses);
  const known = new Set(Array.from(labels.data, Number));
  const missed = Int32Array.from([...y.data.keys()].filter((row) => !known.has(Number(y.data[row]))));
  if (missed.length === 0) return means;
  const others = await tools.features(network, rowsOf(x, missed));
  const more = numbersOf(classMeans(others, rowsOf(y, missed), model.numClasses));
  return float32(means.shape, numbersOf(means).map((value, at) => value + more[at]!));
}

/** Mean of each class's rows of features (n, d), summed in float64: (C, d), zeros for a class without rows. */
export function classMeans(features: Tensor, y: Tensor, numClasses: number): Tensor {
  const [count = 0, width = 0] = features.shape;
  const { data } = features;
  const labels = y.data;
  if (!(data instanceof Float32Array) || !(labels instanceof BigInt64Array) || labels.length !== count) {
    throw new InputError(
      `class means: expected features (n, d) and n classes, got [${features.shape.join(", ")}] ${features.dtype} ` +
        `and [${y.shape.join(", ")}] ${y.dtype}`,
    );
  }
  const sums = new Float64Array(numClasses * width);
  const counts = new Float64Array(numClasses);
  for (let row = 0; row < count; row += 1) {
    const label = Number(labels[row]);
    if (!(label >= 0 && label < numClasses)) {
      throw new InputError(`class means: expected classes below ${numClasses}, got ${label}`);
    }
    counts[label]! += 1;
    for (let column = 0; column < width; column += 1) sums[label * width + column]! += data[row * width + column]!;
  }
  const means = Float32Array.from(sums, (sum, index) => sum / Math.max(counts[Math.floor(index / width)]!, 1));
  return float32([numClasses, width], means);
}

/** Width d of the features; throws InputError if the bundle has none. */
export function featureWidth(model: Model): number {
  if (model.features === 0) {
    throw new InputError(
      "model: the bundle has no program 'features', so nothing says what features are: export it with " +
        "--head NAME, the module that takes them",
    );
  }
  return model.features;
}

/**
 * Scores of features (n, d): minus the squared distance to each of the prototypes (C, d), summed
 * in float64; a class that is not present is never chosen. Null if none is present.
 */
export function nearestPrototype(tensors: Tensors): Score | null {
  const prototypes = numbersOf(tensorOf(tensors, PROTOTYPES));
  const present = Array.from(tensorOf(tensors, PRESENT).data, Number);
  const classes = present.length;
  if (!present.some(Boolean)) return null;
  return (features) => {
    const [count = 0, width = 0] = features.shape;
    const rows = numbersOf(features);
    const scores = new Float32Array(count * classes).fill(-Infinity);
    for (let index = 0; index < scores.length; index += 1) {
      const label = index % classes;
      if (!present[label]) continue;
      const row = rows.subarray(((index - label) / classes) * width);
      scores[index] = -squaredDistance(row, prototypes.subarray(label * width, (label + 1) * width));
    }
    return float32([count, classes], scores);
  };
}

/** From the first numbers of `row`. */
function squaredDistance(row: Float32Array, prototype: Float32Array): number {
  let sum = 0;
  prototype.forEach((value, column) => (sum += (row[column]! - value) ** 2));
  return sum;
}
