/** float16 as its bits, both ways. */

/** Largest finite float16; larger magnitudes are cut off to it. */
export const MOST_HALF = 65504;
/** Least normal one; smaller magnitudes lose bits. */
export const LEAST_HALF = 2 ** -14;

/** Added and taken away again, it leaves a float64 of up to 2^51 rounded to a whole number, ties to even. */
const ROUNDING = 1.5 * 2 ** 52;

/** The nearest whole number, of two the even one. */
export function rint(value: number): number {
  return value + ROUNDING - ROUNDING;
}

/** Bits of finite float32 numbers as float16, rounded to nearest, ties to even. */
export function toHalves(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const halves = new Uint16Array(values.length);
  for (let at = 0; at < halves.length; at++) halves[at] = toHalf(bits[at]!, values[at]!);
  return halves;
}

/** The numbers of float16 bits; NaN and infinities are NaN. */
export function ofHalves(halves: Uint16Array): Float32Array {
  const values = new Float32Array(halves.length);
  for (let at = 0; at < values.length; at++) values[at] = ofHalf(halves[at]!);
  return values;
}

function toHalf(word: number, value: number): number {
  const sign = (word >>> 16) & 0x8000;
  const size = word & 0x7fffffff;
  if (size >= 0x477fe000) return sign | 0x7bff; // 65504
  if (size < 0x38800000) return sign | rint(Math.abs(value) * 2 ** 24); // 2^-14
  return sign | ((size + 0xfff + ((size >>> 13) & 1) - 0x38000000) >>> 13);
}

function ofHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 31;
  const fraction = half & 0x3ff;
  if (exponent === 31) return Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}
