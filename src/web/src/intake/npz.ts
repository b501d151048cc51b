/** Arrays of an `.npz` file: a ZIP archive of NumPy's plain arrays, stored or deflated. */

import { InputError } from "../errors.ts";
import { sizeOf } from "../tensors/tensors.ts";
import { NPZ } from "../texts.ts";
import { unpacked, zipEntries } from "./zip.ts";

/** Numbers in row-major order, or texts. */
export interface NpyArray {
  readonly shape: readonly number[];
  readonly values: Float32Array | Float64Array | readonly string[];
  /** Whether NumPy had whole numbers. */
  readonly whole: boolean;
}

/** The arrays of `names` that the file holds; throws InputError for what is no plain `.npz`. */
export async function readNpz(file: Uint8Array, where: string, names: readonly string[]): Promise<Map<string, NpyArray>> {
  const entries = zipEntries(file, where);
  const arrays = new Map<string, NpyArray>();
  for (const name of names) {
    const found = entries.filter((entry) => entry.name === `${name}.npy`);
    if (found.length > 1) throw new InputError(NPZ.twice(where, name));
    if (found.length === 1) {
      const what = `${where}: array '${name}'`;
      arrays.set(name, parseNpy(await unpacked(file, found[0]!, what), what));
    }
  }
  return arrays;
}

const HEADER = /^\{'descr': '([<>|=])([a-zA-Z])(\d+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\),? *\}\s*$/;

function parseNpy(bytes: Uint8Array, what: string): NpyArray {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const magic = bytes.length >= 12 && view.getUint32(0) === 0x934e554d && view.getUint16(4) === 0x5059;
  if (!magic) throw new InputError(NPZ.notArray(what));
  const long = bytes[6]! >= 2;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const begin = (long ? 12 : 10) + length;
  const header = new TextDecoder("latin1").decode(bytes.subarray(long ? 12 : 10, begin));
  const found = HEADER.exec(header);
  if (found === null) {
    throw new InputError(NPZ.values(what, header.trim().slice(0, 80)));
  }
  const [, order, kind, width, fortran, axes] = found as unknown as [string, string, string, string, string, string];
  const shape = axes.split(",").map((axis) => axis.trim()).filter(Boolean).map(Number);
  const type = elementOf(kind, Number(width), order !== ">", what);
  const count = sizeOf(shape);
  if (bytes.length - begin !== count * type.bytes) {
    throw new InputError(NPZ.length(what, count, type.bytes, shape.join(", "), bytes.length - begin));
  }
  const data = new DataView(bytes.buffer, bytes.byteOffset + begin, bytes.length - begin);
  const position = fortran === "True" ? fortranOrder(shape) : (k: number) => k;
  return { shape, values: type.read(data, count, position), whole: "iu".includes(kind) };
}

interface Element {
  readonly bytes: number;
  readonly read: (data: DataView, count: number, position: (k: number) => number) => NpyArray["values"];
}

type Getter = (data: DataView, at: number, little: boolean) => number;

const GETTERS: Readonly<Record<string, Getter>> = {
  f4: (data, at, little) => data.getFloat32(at, little),
  f8: (data, at, little) => data.getFloat64(at, little),
  f2: (data, at, little) => fromHalf(data.getUint16(at, little)),
  i1: (data, at) => data.getInt8(at),
  i2: (data, at, little) => data.getInt16(at, little),
  i4: (data, at, little) => data.getInt32(at, little),
  i8: (data, at, little) => Number(data.getBigInt64(at, little)),
  u1: (data, at) => data.getUint8(at),
  u2: (data, at, little) => data.getUint16(at, little),
  u4: (data, at, little) => data.getUint32(at, little),
  u8: (data, at, little) => Number(data.getBigUint64(at, little)),
  b1: (data, at) => data.getUint8(at),
};

function elementOf(kind: string, width: number, little: boolean, what: string): Element {
  if (kind === "U" || kind === "S") {
    const unit = kind === "U" ? 4 : 1;
    return {
      bytes: width * unit,
      read: (data, count, position) =>
        Array.from({ length: count }, (_, k) => textAt(data, position(k) * width * unit, width, unit, little)),
    };
  }
  const get = GETTERS[`${kind}${width}`];
  if (get === undefined) {
    const remedy = kind === "O" ? "Python objects; save numbers in rows of one length" : `type ${kind}${width}`;
    throw new InputError(NPZ.numbers(what, remedy));
  }
  return {
    bytes: width,
    read: (data, count, position) => {
      const values = kind === "f" && width < 8 ? new Float32Array(count) : new Float64Array(count);
      for (let k = 0; k < count; k++) values[k] = get(data, position(k) * width, little);
      return values;
    },
  };
}

function textAt(data: DataView, at: number, width: number, unit: number, little: boolean): string {
  const codes = Array.from({ length: width }, (_, k) =>
    unit === 4 ? data.getUint32(at + 4 * k, little) : data.getUint8(at + k),
  );
  while (codes.at(-1) === 0) codes.pop();
  return unit === 4 ? String.fromCodePoint(...codes) : new TextDecoder().decode(Uint8Array.from(codes));
}

function fromHalf(bits: number): number {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

/** Where element k of row-major order lies in column-major order. */
function fortranOrder(shape: readonly number[]): (k: number) => number {
  const strides = shape.map((_, axis) => sizeOf(shape.slice(0, axis)));
  return (k) => {
    let [rest, at] = [k, 0];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      at += (rest % shape[axis]!) * strides[axis]!;
      rest = Math.floor(rest / shape[axis]!);
    }
    return at;
  };
}
