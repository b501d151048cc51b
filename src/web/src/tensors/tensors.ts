/** Named arrays, and parameters packed into one buffer, as in `tensors/` of the Python package. */

import { InputError } from "../errors.ts";

export type DType =
  | "float64" | "float32" | "float16" | "int64" | "int32" | "int16" | "int8"
  | "uint64" | "uint32" | "uint16" | "uint8" | "bool";

export type TensorData =
  | Float64Array | Float32Array | Uint16Array | BigInt64Array | Int32Array | Int16Array | Int8Array
  | BigUint64Array | Uint32Array | Uint8Array;

/** An array in row-major order; float16 as its bits in a Uint16Array, bool as 0 and 1. */
export interface Tensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly data: TensorData;
}

/** Tensors by name; nothing is ever written into one that came from elsewhere. */
export type Tensors = ReadonlyMap<string, Tensor>;

export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, axis) => product * axis, 1);
}

export function sameShape(left: readonly unknown[], right: readonly unknown[]): boolean {
  return left.length === right.length && left.every((axis, index) => axis === right[index]);
}

/** A float32 tensor; its shape must fill its data. */
export function float32(shape: readonly number[], data: Float32Array): Tensor {
  if (sizeOf(shape) !== data.length) {
    throw new InputError(`tensor: expected ${sizeOf(shape)} numbers for [${shape.join(", ")}], got ${data.length}`);
  }
  return { dtype: "float32", shape, data };
}

/** The rows of these numbers along the first axis, copied. */
export function rowsOf(tensor: Tensor, rows: ArrayLike<number>): Tensor {
  const { dtype, data } = tensor;
  const [, ...axes] = tensor.shape;
  const width = sizeOf(axes);
  const copied = new (data.constructor as Float32ArrayConstructor)(rows.length * width) as TensorData;
  for (let at = 0; at < rows.length; at += 1) {
    const from = rows[at]! * width;
    copied.set(data.subarray(from, from + width) as never, at * width);
  }
  return { dtype, shape: [rows.length, ...axes], data: copied };
}

/** Where one tensor lies in the packed buffer. */
export interface Span {
  readonly name: string;
  readonly shape: readonly number[];
  readonly offset: number;
  readonly size: number;
}

/** Names and shapes of float32 tensors that share one buffer, in its order. */
export class Layout {
  readonly spans: readonly Span[];
  readonly size: number;
  readonly #byName: ReadonlyMap<string, Span>;

  constructor(entries: Iterable<readonly [string, readonly number[]]>) {
    const spans: Span[] = [];
    let offset = 0;
    for (const [name, shape] of entries) {
      const size = sizeOf(shape);
      spans.push({ name, shape, offset, size });
      offset += size;
    }
    this.spans = spans;
    this.size = offset;
    this.#byName = new Map(spans.map((span) => [span.name, span]));
  }

  get names(): readonly string[] {
    return this.spans.map((span) => span.name);
  }

  has(name: string): boolean {
    return this.#byName.has(name);
  }

  span(name: string): Span {
    const found = this.#byName.get(name);
    if (found === undefined) throw new InputError(`tensor '${name}': not in the layout`);
    return found;
  }
}

/** The tensors of a layout over one Float32Array. */
export class TensorMap {
  constructor(
    readonly layout: Layout,
    readonly buffer: Float32Array,
  ) {
    if (buffer.length !== layout.size) {
      throw new InputError(`buffer: expected ${layout.size} numbers, got ${buffer.length}`);
    }
  }

  static zeros(layout: Layout): TensorMap {
    return new TensorMap(layout, new Float32Array(layout.size));
  }

  /** A view into the buffer. */
  view(name: string): Float32Array {
    const { offset, size } = this.layout.span(name);
    return this.buffer.subarray(offset, offset + size);
  }

  copy(): TensorMap {
    return new TensorMap(this.layout, this.buffer.slice());
  }

  /** Tensors over the same memory, by name behind a prefix. */
  tensors(prefix = ""): Map<string, Tensor> {
    return new Map(
      this.layout.spans.map(({ name, shape }) => [prefix + name, float32(shape, this.view(name))]),
    );
  }
}

/** Parameters and buffers of a model. */
export interface Network {
  readonly params: TensorMap;
  readonly buffers: TensorMap;
}
