/**
 * ONNX files hold all their tensors: a tensor may name another file, whose bytes nobody signed.
 *
 * A reader of the protobuf wire format that knows just the way from a model to its tensors
 * (`onnx.proto`). It keeps a list of what is still to be read and looks at each field once.
 */

import { RefusedError } from "../errors.ts";

export const MAX_FIELDS = 2_000_000;
/** Of messages within messages. */
export const MAX_DEPTH = 64;

const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5];
const MAX_VARINT_BYTES = 10;
const [EXTERNAL_DATA, DATA_LOCATION] = [13, 14]; // of a TensorProto

type Kind =
  | "ModelProto" | "TrainingInfoProto" | "GraphProto" | "FunctionProto" | "NodeProto"
  | "AttributeProto" | "SparseTensorProto" | "TensorProto";

/** Messages that lead to tensors: by field number, what stands in the field. */
const INNER: Readonly<Record<Kind, Readonly<Record<number, Kind>>>> = {
  ModelProto: { 7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto" },
  TrainingInfoProto: { 1: "GraphProto", 2: "GraphProto" },
  GraphProto: { 1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto" },
  FunctionProto: { 7: "NodeProto", 11: "AttributeProto" },
  NodeProto: { 5: "AttributeProto" },
  AttributeProto: {
    5: "TensorProto",
    6: "GraphProto",
    10: "TensorProto",
    11: "GraphProto",
    22: "SparseTensorProto",
    23: "SparseTensorProto",
  },
  SparseTensorProto: { 1: "TensorProto", 2: "TensorProto" },
  TensorProto: {},
};

interface Part {
  readonly kind: Kind;
  readonly start: number;
  readonly end: number;
  readonly depth: number;
}

/**
 * Refuses, by rule `onnx`, a serialised `ModelProto` that is not complete in itself: a tensor's
 * values lie in another file, or the bytes are no plain protobuf message of bounded size.
 */
export function checkOnnx(bytes: Uint8Array, file: string, maxFields = MAX_FIELDS): void {
  const reader = new Reader(bytes, file);
  const parts: Part[] = [{ kind: "ModelProto", start: 0, end: bytes.length, depth: 0 }];
  let fields = 0;
  for (let part = parts.pop(); part !== undefined; part = parts.pop()) {
    const { kind, end, depth } = part;
    if (depth > MAX_DEPTH) throw reader.refused(`messages within messages, more than ${MAX_DEPTH} deep`);
    reader.at = part.start;
    while (reader.at < end) {
      fields += 1;
      if (fields > maxFields) throw reader.refused(`more than ${maxFields} fields`);
      const { number, wire, value, start } = reader.field(end);
      if (kind === "TensorProto" && isElsewhere(number, wire, value)) {
        throw reader.refused("a tensor with its values in another file, which nobody has signed");
      }
      const inner = wire === BYTES ? INNER[kind][number] : undefined;
      if (inner !== undefined) parts.push({ kind: inner, start, end: reader.at, depth: depth + 1 });
    }
  }
}

function isElsewhere(number: number, wire: number, value: number): boolean {
  return number === EXTERNAL_DATA || (number === DATA_LOCATION && (wire !== VARINT || value !== 0));
}

class Reader {
  at = 0;

  constructor(
    readonly bytes: Uint8Array,
    readonly file: string,
  ) {}

  /** The next field: its number of a varint, and where its content begins; `at` is then its end. */
  field(end: number): { number: number; wire: number; value: number; start: number } {
    const wire = this.bytes[this.at]! & 7;
    const number = Math.floor(this.#varint(end) / 8);
    let [value, start] = [0, this.at];
    if (wire === VARINT) {
      value = this.#varint(end);
    } else if (wire === BYTES) {
      const length = this.#varint(end);
      start = this.at;
      this.at += length;
    } else if (wire === FIXED64 || wire === FIXED32) {
      this.at += wire === FIXED64 ? 8 : 4;
    } else {
      throw this.refused(`protobuf wire type ${wire}, which no ONNX file has`);
    }
    if (this.at > end) throw this.refused("a field ends behind its message");
    return { number, wire, value, start };
  }

  refused(what: string): RefusedError {
    return new RefusedError(
      "onnx", `bundle file '${this.file}': expected a whole ONNX model, got ${what}`,
    );
  }

  /** Beyond 2^53 only roughly, which is far beyond every field number, length and offset. */
  #varint(end: number): number {
    let value = 0;
    for (let index = 0; index < MAX_VARINT_BYTES && this.at < end; index++) {
      const byte = this.bytes[this.at++]!;
      value += (byte & 0x7f) * 2 ** (7 * index);
      if (byte < 0x80) return value;
    }
    throw this.refused("a number that does not end");
  }
}
