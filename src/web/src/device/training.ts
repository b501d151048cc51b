/** One local training at a time, held or given up between two steps. */

/** The round in progress was given up between two steps; nothing has changed. */
export class TrainingCancelled extends Error {
  override name = "TrainingCancelled";
}

/** How training waits and stops; `between` is called before every step. */
export class TrainingControl {
  #cancelled = false;
  #free: Promise<void> | null = null;
  #release: () => void = () => {};
  /** Training steps of the round in progress. */
  steps = 0;

  /** Training waits before its next step until `release`. */
  hold(): void {
    this.#free ??= new Promise((resolve) => (this.#release = resolve));
  }

  /** Whether the next step waits. */
  get held(): boolean {
    return this.#free !== null;
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

  /** Resolves when the next step may be made; throws TrainingCancelled. */
  async between(): Promise<void> {
    while (this.#free !== null && !this.#cancelled) await this.#free;
    if (this.#cancelled) throw new TrainingCancelled("given up");
    this.steps += 1;
  }
}

/** A training that runs, and what came of it. */
export class Running<T> {
  #ended: { readonly made: T | null; readonly error: unknown } | null = null;

  /** `wake` is called when it is done. */
  constructor(work: Promise<T>, wake: () => void) {
    void work
      .then(
        (made) => (this.#ended = { made, error: null }),
        (error: unknown) => (this.#ended = { made: null, error }),
      )
      .then(wake);
  }

  get finished(): boolean {
    return this.#ended !== null;
  }

  /** What it made, or what it threw; null if it was given up. */
  take(): T | null {
    const { made = null, error = null } = this.#ended ?? {};
    if (error === null || error instanceof TrainingCancelled) return made;
    throw error;
  }
}
