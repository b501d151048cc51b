/** Labelled examples as the device's worker takes them, from what a sensor or a file gave. */

import type { Preprocessing } from "../bundle/manifest.ts";
import type { Examples } from "../device/page_messages.ts";
import { InputError } from "../errors.ts";
import { sizeOf, type Tensor } from "../tensors/tensors.ts";
import { EXAMPLES } from "../texts.ts";

export const NO_LABEL = -1;

/** What the bundle says of its inputs and outputs. */
export interface Form {
  readonly preprocessing: Preprocessing;
  /** Empty where the bundle has targets. */
  readonly classes: readonly string[];
  readonly targets: readonly string[];
}

/** Examples that have arrived. */
export interface Block {
  /** Example after example. */
  readonly x: Float32Array;
  /** Class numbers, -1 where none is known; empty where the bundle has targets. */
  readonly labels: readonly number[];
  /** Example after example, NaN where a value is not known; empty where the bundle has classes. */
  readonly targets: readonly number[];
  /** Time of the first sample of each window; null for examples that are no windows of a stream. */
  readonly startS: readonly number[] | null;
}

export interface Labelled {
  readonly examples: Examples;
  /** How many had no label and were left out. */
  readonly unlabelled: number;
}

/** Text of a shape: 128, 6. */
export function shapeText(shape: readonly number[]): string {
  return shape.join(", ");
}

/**
 * The labelled ones among `blocks`, checked against the bundle.
 *
 * Throws InputError if there is none, or if a number is not finite or no token.
 */
export function labelled(blocks: readonly Block[], form: Form, part: Examples["part"]): Labelled {
  const size = sizeOf(form.preprocessing.input_shape);
  const [x, y, starts]: [Float32Array[], number[], number[]] = [[], [], []];
  let unlabelled = 0;
  for (const block of blocks) {
    const count = block.x.length / size;
    for (let k = 0; k < count; k++) {
      const values = outputsOf(block, k, form);
      if (values === null) {
        unlabelled += 1;
        continue;
      }
      x.push(block.x.subarray(k * size, (k + 1) * size));
      y.push(...values);
      // Examples that are no windows of a stream overlap no other.
      starts.push(block.startS?.[k] ?? Infinity);
    }
  }
  if (x.length === 0) {
    throw new InputError(EXAMPLES.noLabel);
  }
  checkNumbers(x, form.preprocessing);
  return { examples: made(x, y, starts, form, part), unlabelled };
}

function outputsOf(block: Block, k: number, form: Form): readonly number[] | null {
  const width = form.targets.length;
  if (width === 0) return block.labels[k] === NO_LABEL ? null : [block.labels[k]!];
  const values = block.targets.slice(k * width, (k + 1) * width);
  return values.length === width && values.every(Number.isFinite) ? values : null;
}

function checkNumbers(x: readonly Float32Array[], preprocessing: Preprocessing): void {
  const broken = x.findIndex((one) => !one.every(Number.isFinite));
  if (broken >= 0) {
    throw new InputError(EXAMPLES.notFinite(broken));
  }
  const tokens = preprocessing.tokens;
  if (tokens === null) return;
  const foreign = x.find((one) => one.some((value) => value < 0 || value >= tokens || !Number.isInteger(value)));
  if (foreign !== undefined) {
    const value = foreign.find((one) => one < 0 || one >= tokens || !Number.isInteger(one));
    throw new InputError(EXAMPLES.noToken(tokens - 1, value!));
  }
}

function made(
  x: readonly Float32Array[],
  y: readonly number[],
  starts: readonly number[],
  form: Form,
  part: Examples["part"],
): Examples {
  const { input_shape: shape, window, rate_hz: rate, tokens } = form.preprocessing;
  const packed = new Float32Array(x.length * sizeOf(shape));
  x.forEach((one, k) => packed.set(one, k * one.length));
  const lengthS = window && rate ? window / rate : 0;
  // A start before the last one is by a clock that was set back.
  const steps = starts.map((start, k) => (k > 0 ? start - starts[k - 1]! : Infinity));
  const follows = steps.map((stepS) => stepS > 0 && stepS < lengthS);
  return {
    x: inputTensor(packed, [x.length, ...shape], tokens !== null),
    y: form.targets.length > 0
      ? { dtype: "float32", shape: [x.length, form.targets.length], data: Float32Array.from(y) }
      : { dtype: "int64", shape: [x.length], data: BigInt64Array.from(y, BigInt) },
    follows: follows.includes(true) ? follows : null,
    part,
  };
}

/** Examples as the bundle's programs take them: float32, or int64 of tokens. */
export function inputTensor(values: Float32Array, shape: readonly number[], tokens: boolean): Tensor {
  return tokens
    ? { dtype: "int64", shape, data: BigInt64Array.from(values, BigInt) }
    : { dtype: "float32", shape, data: values };
}
