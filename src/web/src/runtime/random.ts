/**
 * NumPy's generators, bit for bit: SeedSequence, PCG64 and what `numpy.random.Generator` makes of them.
 *
 * PCG64 is the 128-bit linear congruential generator with the output function XSL-RR (O'Neill,
 * HMC-CS-2014-0905); the normal numbers are Marsaglia and Tsang's ziggurat (doi:10.18637/jss.v005.i08) in
 * NumPy's version for float32. The rare numbers of its tail go through a logarithm, whose last bit NumPy
 * leaves to the C library: there one may differ by a unit in the last place from one machine to another.
 */

/** The part of `numpy.random.Generator` that training asks for. */
export interface Generator {
  /** Uniform on [0, 1), as `random(out=…, dtype=float32)`. */
  uniform(out: Float32Array): void;
  /** As `standard_normal(out=…, dtype=float32)`. */
  normal(out: Float32Array): void;
  /** As `permutation(count)`. */
  permutation(count: number): Int32Array;
  /** As `integers(0, most, endpoint=True)`; `most` below 2^32 - 1. */
  integer(most: number): number;
}

/** The randomness of one client in one round, as `federation/randomness.py` has it; `seed` below 2^64. */
export async function clientRng(seed: bigint, roundId: number, clientId: string): Promise<Generator> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(clientId));
  return defaultRng([seed, BigInt(roundId), new DataView(digest).getBigUint64(0)]);
}

/** `numpy.random.default_rng(numpy.random.SeedSequence(entropy))`; whole numbers from 0 on. */
export function defaultRng(entropy: readonly bigint[]): Generator {
  return new Pcg64(seedWords(entropy, 8));
}

/** The first `count` words of `SeedSequence(entropy).generate_state(count, uint32)`. */
export function seedWords(entropy: readonly bigint[], count: number): Uint32Array {
  const words = entropy.flatMap(wordsOf);
  const pool = new Uint32Array(4);
  const hash = hashing(0x43b0d7e5, 0x931e8875);
  for (let at = 0; at < 4; at += 1) pool[at] = hash(words[at] ?? 0);
  for (let from = 0; from < 4; from += 1) {
    for (let to = 0; to < 4; to += 1) {
      if (from !== to) pool[to] = mixed(pool[to]!, hash(pool[from]!));
    }
  }
  for (const word of words.slice(4)) {
    for (let to = 0; to < 4; to += 1) pool[to] = mixed(pool[to]!, hash(word));
  }
  const draw = hashing(0x8b51f9dd, 0x58f38ded);
  return Uint32Array.from({ length: count }, (_, at) => draw(pool[at % 4]!));
}

/** 32-bit words of a whole number, the lowest first. */
function wordsOf(value: bigint): number[] {
  const words: number[] = [];
  let rest = value;
  do {
    words.push(Number(rest & 0xffffffffn));
    rest >>= 32n;
  } while (rest > 0n);
  return words;
}

function hashing(first: number, factor: number): (value: number) => number {
  let constant = first;
  return (value) => {
    const xored = value ^ constant;
    constant = Math.imul(constant, factor);
    const product = Math.imul(xored, constant);
    return (product ^ (product >>> 16)) >>> 0;
  };
}

function mixed(x: number, y: number): number {
  const difference = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) | 0;
  return (difference ^ (difference >>> 16)) >>> 0;
}

const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
// The same in parts of 16 bits, the lowest first: a part times a word of 32 bits, and the sum of four such
// products, is exact in a float64.
const M0 = 0xf645, M1 = 0x9fcc, M2 = 0xdf64, M3 = 0x4385, M4 = 0x5da4, M5 = 0x1fc6, M6 = 0xed05, M7 = 0x2360;
const HALF = 2 ** 16;
const PER_HALF = 2 ** -16;
const PER_WORD = 2 ** -32;
const PER_24_BITS = 2 ** -24;

/** Numbers of 32 bits that are drawn at a time. */
const BLOCK = 512;

class Pcg64 implements Generator {
  /** The generator's 128 bits and its increment's, the lowest word first. */
  readonly #state: Uint32Array;
  readonly #increment: Uint32Array;
  readonly #block = new Uint32Array(BLOCK);
  #taken = BLOCK;

  /** Seeds of eight words: the state's upper and lower 64 bits, then the increment's. */
  constructor(seed: Uint32Array) {
    const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = seed;
    const increment = (numberOf([g, h, e, f]) << 1n) | 1n;
    const state = (increment + numberOf([c, d, a, b])) * MULTIPLIER + increment;
    this.#state = fourWords(state);
    this.#increment = fourWords(increment);
  }

  uniform(out: Float32Array): void {
    const block = this.#block;
    for (let at = 0; at < out.length; ) {
      if (this.#taken === BLOCK) this.#draw();
      const first = this.#taken - at;
      const stop = Math.min(out.length, BLOCK - first);
      for (; at < stop; at += 1) out[at] = (block[first + at]! >>> 8) * PER_24_BITS;
      this.#taken = first + at;
    }
  }

  normal(out: Float32Array): void {
    const { widths, bounds } = ZIGGURAT;
    for (let at = 0; at < out.length; at += 1) {
      const bits = this.#next32();
      const layer = bits & 0xff;
      const magnitude = bits >>> 9;
      const x = magnitude * widths[layer]!;
      out[at] = bits & 0x100 ? -x : x;
      if (magnitude >= bounds[layer]!) out[at] = this.#outside(layer, magnitude, out[at]!);
    }
  }

  permutation(count: number): Int32Array {
    const order = Int32Array.from({ length: count }, (_, at) => at);
    for (let last = count - 1; last > 0; last -= 1) {
      const chosen = this.#upTo(last);
      const moved = order[chosen]!;
      order[chosen] = order[last]!;
      order[last] = moved;
    }
    return order;
  }

  integer(most: number): number {
    if (most === 0) return 0;
    // Lemire, arXiv:1805.10941: the upper half of a product; a lower half that would favour some is drawn again.
    const count = BigInt(most + 1);
    const threshold = 2n ** 32n % count;
    let product = BigInt(this.#next32()) * count;
    while ((product & 0xffffffffn) < threshold) product = BigInt(this.#next32()) * count;
    return Number(product >> 32n);
  }

  /** A number whose magnitude lies beyond its layer's inner rectangle: it, another or one of the tail. */
  #outside(layer: number, magnitude: number, x: number): number {
    const { heights } = ZIGGURAT;
    if (layer === 0) return this.#tail(magnitude);
    const share = Math.fround(Math.fround(heights[layer - 1]! - heights[layer]!) * this.#nextFloat());
    if (Math.fround(share + heights[layer]!) < Math.exp(-0.5 * x * x)) return x;
    const again = new Float32Array(1);
    this.normal(again);
    return again[0]!;
  }

  #tail(magnitude: number): number {
    for (;;) {
      const beyond = Math.fround(-INVERSE_TAIL * Math.fround(Math.log1p(-this.#nextFloat())));
      const y = -Math.fround(Math.log1p(-this.#nextFloat()));
      if (Math.fround(y + y) > Math.fround(beyond * beyond)) {
        const x = Math.fround(Math.fround(TAIL) + beyond);
        return magnitude & 0x100 ? -x : x;
      }
    }
  }

  /** A whole number of at most `last`, below 2^31: bits under a mask, drawn again while too large. */
  #upTo(last: number): number {
    const mask = -1 >>> Math.clz32(last);
    let drawn = this.#next32() & mask;
    while (drawn > last) drawn = this.#next32() & mask;
    return drawn;
  }

  #nextFloat(): number {
    return (this.#next32() >>> 8) * PER_24_BITS;
  }

  /** The next 32 bits: of every 64 the lower half first. */
  #next32(): number {
    if (this.#taken === BLOCK) this.#draw();
    const word = this.#block[this.#taken]!;
    this.#taken += 1;
    return word;
  }

  /** Fills the block: state = state · multiplier + increment modulo 2^128, and 64 bits of each state. */
  #draw(): void {
    const block = this.#block;
    const state = this.#state;
    const [add0 = 0, add1 = 0, add2 = 0, add3 = 0] = this.#increment;
    let [a = 0, b = 0, c = 0, d = 0] = state;
    for (let at = 0; at < BLOCK; at += 2) {
      // What is added at the odd multiples of 16 bits, and its lowest 16 bits.
      const odd0 = a * M1, odd1 = a * M3 + b * M1, odd2 = a * M5 + b * M3 + c * M1;
      const odd3 = a * M7 + b * M5 + c * M3 + d * M1;
      const low0 = odd0 & 0xffff, low1 = odd1 & 0xffff, low2 = odd2 & 0xffff, low3 = odd3 & 0xffff;
      const sum0 = a * M0 + add0 + low0 * HALF;
      const sum1 = a * M2 + b * M0 + add1 + low1 * HALF + (odd0 - low0) * PER_HALF;
      const sum2 = a * M4 + b * M2 + c * M0 + add2 + low2 * HALF + (odd1 - low1) * PER_HALF;
      const sum3 = a * M6 + b * M4 + c * M2 + d * M0 + add3 + low3 * HALF + (odd2 - low2) * PER_HALF;
      a = sum0 >>> 0;
      const full1 = sum1 + (sum0 - a) * PER_WORD;
      b = full1 >>> 0;
      const full2 = sum2 + (full1 - b) * PER_WORD;
      c = full2 >>> 0;
      d = (sum3 + (full2 - c) * PER_WORD) >>> 0;
      const rotation = d >>> 26;
      const swaps = rotation & 32;
      const by = rotation & 31;
      const low = swaps ? b ^ d : a ^ c;
      const high = swaps ? a ^ c : b ^ d;
      block[at] = (low >>> by) | ((high << 1) << (31 - by));
      block[at + 1] = (high >>> by) | ((low << 1) << (31 - by));
    }
    state.set([a, b, c, d]);
    this.#taken = 0;
  }
}

function numberOf(words: readonly number[]): bigint {
  return words.reduceRight((number, word) => (number << 32n) | BigInt(word), 0n);
}

function fourWords(value: bigint): Uint32Array {
  return Uint32Array.from([0n, 32n, 64n, 96n], (shift) => Number((value >> shift) & 0xffffffffn));
}

/** Where the tail of the ziggurat's 256 layers begins, and the area of each. */
const TAIL = 3.6541528853610088;
const AREA = 0.00492867323397465524494;
const INVERSE_TAIL = Math.fround(0.27366123732975828);

/**
 * NumPy's tables `wi_float`, `fi_float` and `ki_float`, computed: rounding to 24 bits leaves nothing of what
 * the logarithms of different engines differ by.
 */
const ZIGGURAT = ziggurat();

function ziggurat(): { widths: Float32Array; heights: Float32Array; bounds: Uint32Array } {
  const density = (x: number): number => Math.exp(-0.5 * x * x);
  const edges = new Float64Array(256);
  edges[255] = TAIL;
  for (let at = 254; at > 0; at -= 1) {
    edges[at] = Math.sqrt(-2 * Math.log(AREA / edges[at + 1]! + density(edges[at + 1]!)));
  }
  const base = AREA / density(TAIL);
  const widths = Float32Array.from(edges, (x, at) => (at === 0 ? base : x) / 2 ** 23);
  const heights = Float32Array.from(edges, density);
  const bounds = Uint32Array.from(edges, (x, at) =>
    Math.round((at === 0 ? TAIL / base : edges[at - 1]! / x) * 2 ** 23),
  );
  return { widths, heights, bounds };
}
