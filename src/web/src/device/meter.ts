/** The one place on a device that counts time: by phase, by training step, by inference. */

import type { Costs } from "../federation/records.ts";

export type MeteredPhase = "idle" | "receive" | "train" | "evaluate" | "infer" | "encode" | "send" | "gate";

/**
 * What the device has spent since the last update. Its time is one line cut into phases: entering a
 * phase ends the one before it. Only `gate` goes on beside them.
 */
export class Meter {
  readonly #now: () => number;
  #phase: MeteredPhase = "idle";
  #since: number;
  #spent = new Map<MeteredPhase, number>();
  #steps: number[] = [];
  #inferences: number[] = [];

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
    this.#since = now();
  }

  /** Begins `phase`; returns the one that ends. */
  enter(phase: MeteredPhase): MeteredPhase {
    const now = this.#now();
    const ended = this.#phase;
    this.#spent.set(ended, (this.#spent.get(ended) ?? 0) + now - this.#since);
    this.#phase = phase;
    this.#since = now;
    return ended;
  }

  /** Is in `phase` until `work` is done, and in the outer one again behind it. */
  async within<T>(phase: MeteredPhase, work: () => Promise<T>): Promise<T> {
    const outer = this.enter(phase);
    try {
      return await work();
    } finally {
      this.enter(outer);
    }
  }

  /** Adds seconds that something took beside the line of phases. */
  count(phase: MeteredPhase, seconds: number): void {
    this.#spent.set(phase, (this.#spent.get(phase) ?? 0) + 1000 * seconds);
  }

  /** Milliseconds of one call of a training program. */
  step(ms: number): void {
    this.#steps.push(ms);
  }

  /** Milliseconds of the inference of one example. */
  inference(ms: number): void {
    this.#inferences.push(ms);
  }

  /** Everything counted since the last `take`. */
  take(): Costs {
    this.enter(this.#phase);
    const spent = [...this.#spent].filter(([phase]) => phase !== "idle");
    const costs = {
      trainStepMs: this.#steps,
      inferMs: this.#inferences,
      phasesS: Object.fromEntries(spent.map(([phase, ms]) => [phase, Math.round(1e3 * ms) / 1e6])),
    };
    this.#spent = new Map();
    this.#steps = [];
    this.#inferences = [];
    return costs;
  }
}
