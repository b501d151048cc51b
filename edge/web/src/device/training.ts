/** One local round at a time, held or given up between two steps. */

import type { TrainedRound } from "../federation/client.ts";

/** The round in progress was given up between two steps; nothing has changed. */
export class TrainingCancelled extends Error {
  override name = "TrainingCancelled";
}

/** How training lets others work, waits, and stops; `between` is called before every step. */
export class TrainingControl {
  #cancelled = false;
  #free: Promise<void> | null = null;
  #release: () => void = () => {};
  #yielded = performance.now();
  /** Training steps of the round in progress. */
  steps = 0;

  /** Training waits before its next step until `release`. */
  hold(): void {
    this.#free ??= new Promise((resolve) => (this.#release = resolve));
  }

  release(): void {
    this.#free = null;
    this.#release();
  }

  /** Gives the round in progress up at its next step, a held one too. */
  cancel(): void {
    this.#cancelled = true;
    this.#release();
  }

  /** A round begins. */
  begin(): void {
    this.#cancelled = false;
    this.steps = 0;
  }

  /** Lets messages and timers through; throws TrainingCancelled. */
  async between(): Promise<void> {
    if (performance.now() - this.#yielded > YIELD_MS) {
      await nextTask();
      this.#yielded = performance.now();
    }
    while (this.#free !== null && !this.#cancelled) await this.#free;
    if (this.#cancelled) throw new TrainingCancelled("given up");
  }
}

/** What is asked of the worker meanwhile waits no longer than this and a training step. */
const YIELD_MS = 8;

/** Timers of a worker are delayed by 4 ms; a message to itself is not. */
function nextTask(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** A round that runs, and what came of it. */
export class RunningRound {
  #ended: { readonly trained: TrainedRound | null; readonly error: unknown } | null = null;

  /** `wake` is called when it is done. */
  constructor(work: Promise<TrainedRound>, wake: () => void) {
    void work
      .then(
        (trained) => (this.#ended = { trained, error: null }),
        (error: unknown) => (this.#ended = { trained: null, error }),
      )
      .then(wake);
  }

  get finished(): boolean {
    return this.#ended !== null;
  }

  /** What it made, or what it threw; null if it was given up. */
  take(): TrainedRound | null {
    const { trained = null, error = null } = this.#ended ?? {};
    if (error === null || error instanceof TrainingCancelled) return trained;
    throw error;
  }
}
