/**
 * Optimisers on packed buffers, as `strategies/optimisers.py` and `kernels/steps.py` have them.
 *
 * All arithmetic is float32 in the kernels' order, so that both devices move parameters to the same bits.
 */

import { InputError } from "../errors.ts";
import type { Layout, Tensor, TensorMap, Tensors } from "../tensors/tensors.ts";
import type { Adam, Sgd } from "./training_settings.ts";

const PREFIX = "optimiser/";
const f32 = Math.fround;

/** Tensors that one optimiser moves; without names all. */
export interface Group {
  readonly names?: Iterable<string>;
  readonly optimiser: Adam | Sgd;
}

/** `mu (params - reference)` is added to the gradient. */
export interface Proximal {
  readonly mu: number;
  readonly reference: TensorMap;
}

/** A part of a buffer, from `start` up to `stop`. */
interface Run {
  readonly start: number;
  readonly stop: number;
}

/** Moves the parameters of some groups, no tensor in two of them; those of no group stay as they are. */
export class Optimiser {
  readonly #parts: readonly Part[];
  readonly #frozen: readonly Run[];

  /** `moments` are what `moments` returned in an earlier round; null or without moments: fresh ones. */
  constructor(layout: Layout, groups: readonly Group[], moments: Tensors | null = null) {
    const named = groups.map(({ names }) => new Set(names ?? layout.names));
    this.#parts = groups.map(
      ({ optimiser }, at) => new Part(`${PREFIX}${at}.`, runsOf(layout, named[at]!), optimiser),
    );
    const moved = new Set(named.flatMap((names) => [...names]));
    this.#frozen = runsOf(layout, new Set(layout.names.filter((name) => !moved.has(name))));
    if (moments !== null && [...moments.keys()].some((name) => name.startsWith(PREFIX))) {
      for (const part of this.#parts) part.restore(moments);
    }
  }

  /** Moves `params` in place; a proximal term and a correction are added to `grads` there. */
  step(
    params: TensorMap,
    grads: TensorMap,
    proximal: Proximal | null = null,
    correction: TensorMap | null = null,
  ): void {
    for (const part of this.#parts) part.step(params.buffer, grads.buffer, proximal, correction?.buffer ?? null);
  }

  /** Scales the gradients of all groups together, in place, to a Euclidean norm of at most that. */
  clip(grads: TensorMap, maxNorm: number): void {
    for (const { start, stop } of this.#frozen) grads.buffer.fill(0, start, stop);
    clipByNorm(grads.buffer, maxNorm);
  }

  /** What a device must keep to go on in the next round: the optimiser's own memory. */
  moments(): Map<string, Tensor> {
    return new Map(this.#parts.flatMap((part) => part.moments()));
  }
}

/** One group: its runs of the buffer and their moments. */
class Part {
  #moments: Float32Array[];
  #steps = 0;

  constructor(
    readonly prefix: string,
    readonly runs: readonly Run[],
    readonly settings: Adam | Sgd,
  ) {
    const size = runs.reduce((sum, { start, stop }) => sum + stop - start, 0);
    const count = settings.kind === "sgd" ? 1 : 2;
    this.#moments = Array.from({ length: count }, () => new Float32Array(size));
  }

  step(
    params: Float32Array,
    grads: Float32Array,
    proximal: Proximal | null,
    correction: Float32Array | null,
  ): void {
    const { settings } = this;
    this.#steps += 1;
    let at = 0;
    for (const { start, stop } of this.runs) {
      const moments = this.#moments.map((moment) => moment.subarray(at, at + stop - start));
      const own = params.subarray(start, stop);
      const gradient = grads.subarray(start, stop);
      if (proximal !== null) pull(own, gradient, start, proximal);
      if (correction !== null) {
        for (let index = start; index < stop; index += 1) grads[index] = grads[index]! + correction[index]!;
      }
      if (settings.kind === "sgd") sgdStep(own, gradient, moments[0]!, settings);
      else adamStep(own, gradient, moments[0]!, moments[1]!, this.#steps, settings);
      at += stop - start;
    }
  }

  moments(): [string, Tensor][] {
    const named = this.#moments.map((data, at): [string, Tensor] => [
      `${this.prefix}${at}`,
      { dtype: "float32", shape: [data.length], data },
    ]);
    const steps = BigInt64Array.of(BigInt(this.#steps));
    return [...named, [`${this.prefix}steps`, { dtype: "int64", shape: [], data: steps }]];
  }

  /** Throws InputError for moments of other shapes. */
  restore(kept: Tensors): void {
    for (const [name, fresh] of this.moments()) {
      const found = kept.get(name);
      if (found?.dtype !== fresh.dtype || found.shape.join() !== fresh.shape.join()) {
        const got = found === undefined ? "nothing" : `[${found.shape.join(", ")}] ${found.dtype}`;
        throw new InputError(
          `kept moments '${name}': expected [${fresh.shape.join(", ")}] ${fresh.dtype}, got ${got}`,
        );
      }
    }
    this.#moments = this.#moments.map((_, at) =>
      (kept.get(`${this.prefix}${at}`)!.data as Float32Array).slice(),
    );
    this.#steps = Number(kept.get(`${this.prefix}steps`)!.data[0]);
  }
}

/** Adds the proximal term to the gradient of the run that begins at `start`, in place. */
function pull(params: Float32Array, grads: Float32Array, start: number, { mu, reference }: Proximal): void {
  const factor = f32(mu);
  const towards = reference.buffer;
  for (let at = 0; at < params.length; at += 1) {
    grads[at] = grads[at]! + f32(factor * f32(params[at]! - towards[start + at]!));
  }
}

/**
 * One step of stochastic gradient descent as in `torch.optim.SGD`: `velocity = momentum velocity + g`,
 * `params -= lr velocity`; without momentum the velocity is not touched.
 */
export function sgdStep(params: Float32Array, grads: Float32Array, velocity: Float32Array, settings: Sgd): void {
  const decay = f32(settings.weightDecay), rate = f32(settings.lr), keep = f32(settings.momentum);
  for (let at = 0; at < params.length; at += 1) {
    const value = params[at]!;
    let moved = f32(grads[at]! + f32(decay * value));
    if (keep !== 0) {
      moved = f32(f32(keep * velocity[at]!) + moved);
      velocity[at] = moved;
    }
    params[at] = value - f32(rate * moved);
  }
}

/**
 * Step `count` (from 1) of Adam (Kingma and Ba, arXiv:1412.6980): `params -= rate m / (sqrt(v) + eps)`; the
 * form `torch` scales eps with the bias correction (algorithm 1), `keras` does not (end of section 2).
 */
export function adamStep(
  params: Float32Array,
  grads: Float32Array,
  m: Float32Array,
  v: Float32Array,
  count: number,
  settings: Adam,
): void {
  const { beta1, beta2 } = settings;
  const root = Math.sqrt(1 - beta2 ** count);
  const rate = f32((settings.lr * root) / (1 - beta1 ** count));
  const eps = f32(settings.epsForm === "keras" ? settings.eps : settings.eps * root);
  const decay = f32(settings.weightDecay);
  const keepM = f32(beta1), keepV = f32(beta2), takeM = f32(1 - beta1), takeV = f32(1 - beta2);
  for (let at = 0; at < params.length; at += 1) {
    const value = params[at]!;
    const g = f32(grads[at]! + f32(decay * value));
    const mean = f32(f32(keepM * m[at]!) + f32(takeM * g));
    const square = f32(f32(keepV * v[at]!) + f32(takeV * f32(g * g)));
    m[at] = mean;
    v[at] = square;
    params[at] = value - f32(f32(rate * mean) / f32(f32(Math.sqrt(square)) + eps));
  }
}

/** Elements whose squares are summed at a time, as in the kernels. */
const SQUARES = 1 << 12;

/**
 * Scales `grads` in place to a Euclidean norm of at most `maxNorm`, by `maxNorm / (norm + 1e-6)` as in
 * `torch.nn.utils.clip_grad_norm_`; the norm is summed in float64. NaN stays NaN.
 */
export function clipByNorm(grads: Float32Array, maxNorm: number): void {
  let total = 0;
  for (let start = 0; start < grads.length; start += SQUARES) {
    const stop = Math.min(start + SQUARES, grads.length);
    let sum = 0;
    for (let at = start; at < stop; at += 1) sum += grads[at]! * grads[at]!;
    total += sum;
  }
  const factor = maxNorm / (Math.sqrt(total) + 1e-6);
  if (!(factor < 1)) return;
  const scale = f32(factor);
  for (let at = 0; at < grads.length; at += 1) grads[at] = grads[at]! * scale;
}

/** Parts of the buffer that hold the named tensors, neighbours joined. */
function runsOf(layout: Layout, names: ReadonlySet<string>): Run[] {
  const unknown = [...names].filter((name) => !layout.has(name)).sort();
  if (unknown.length > 0) {
    throw new InputError(
      `optimiser: expected names of parameters (${layout.names.join(", ")}), got '${unknown[0]}'`,
    );
  }
  const runs: Run[] = [];
  for (const { name, offset, size } of layout.spans) {
    if (!names.has(name)) continue;
    const before = runs.at(-1);
    const joins = before?.stop === offset;
    if (joins) runs.pop();
    runs.push({ start: joins ? before.start : offset, stop: offset + size });
  }
  return runs;
}
