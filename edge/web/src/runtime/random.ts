/** NumPy's generators, bit for bit: SeedSequence, PCG64 and what `numpy.random.Generator` makes of them. */

/** The part of `numpy.random.Generator` that training asks for. */
export interface Generator {
  /** Uniform on [0, 1), as `random(out=…, dtype=float32)`. */
  uniform(out: Float32Array): void;
  /** As `standard_normal(out=…, dtype=float32)`. */
  normal(out: Float32Array): void;
  /** As `permutation(count)`. */
  permutation(count: number): Int32Array;
}
