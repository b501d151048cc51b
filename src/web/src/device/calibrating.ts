/**
 * A device's part in a calibration, as `edge/learning/calibrating.py` has it: it tries learning rates, and tells what came of
 * each. A round goes before: a task that comes meanwhile ends the trial, which then begins again. Nothing is stored.
 */

import { RefusedError } from "../errors.ts";
import type { RatesToTry } from "../federation/calibration.ts";
import { DEVICE } from "../texts.ts";
import type { Announcement, CalibrationAnswer, CalibrationOrder, Task } from "../wire/messages.ts";
import type { Learner } from "./learner.ts";
import { Running } from "./training.ts";

const MOST_SEED = 2n ** 63n - 1n;

export class CalibrationClient {
  readonly #learner: Pick<Learner, "control" | "tryRates">;
  readonly #deviceId: string;
  readonly #wake: () => void;
  readonly #log: (line: string) => void;
  #asked: { readonly order: CalibrationOrder; readonly strategy: string } | null = null;
  #running: { readonly order: CalibrationOrder; readonly trial: Running<readonly number[]> } | null = null;
  #waiting: Task | null = null;
  /** For the presence. */
  answer: CalibrationAnswer = { key: "", ratios: [] };

  /** `wake` is called when a trial has ended. */
  constructor(learner: Pick<Learner, "control" | "tryRates">, deviceId: string, wake: () => void, log: (line: string) => void) {
    this.#learner = learner;
    this.#deviceId = deviceId;
    this.#wake = wake;
    this.#log = log;
  }

  /** Whether rates are being tried. */
  get trying(): boolean {
    return this.#running !== null;
  }

  /** Takes an announcement that fits the device. */
  announced({ calibration: order, strategy }: Announcement): void {
    this.#asked = order !== null && order.devices.includes(this.#deviceId) ? { order, strategy } : null;
    if (this.#running !== null && this.#running.order.key !== this.#asked?.order.key) this.#learner.control.cancel();
  }

  /** Whether a task has to wait, for a moment, for the end of a trial. */
  endsFor(task: Task): boolean {
    if (this.#running === null) return false;
    this.#learner.control.cancel();
    this.#waiting = task;
    return true;
  }

  /** The task that has waited, once the trial has ended; null: there is none. */
  takeWaiting(): Task | null {
    if (this.#running !== null) return null;
    const task = this.#waiting;
    this.#waiting = null;
    return task;
  }

  /** Begins if it is time, and takes what has come; whether there is an answer to publish. */
  advance(idle: boolean): boolean {
    if (this.#running !== null) return this.#running.trial.finished && this.#take();
    if (this.#asked === null || !idle || this.#waiting !== null || this.#asked.order.key === this.answer.key) return false;
    return this.#begin(this.#asked.order, this.#asked.strategy);
  }

  #begin(order: CalibrationOrder, strategy: string): boolean {
    try {
      checkOrder(order);
    } catch (error) {
      this.#log(DEVICE.noRates((error as Error).message));
      return this.#tell(order, []);
    }
    const { settings, seed, rates } = order;
    const asked: RatesToTry = { strategy, settings, seed, rates };
    this.#running = { order, trial: new Running(this.#learner.tryRates(asked), this.#wake) };
    return false;
  }

  #take(): boolean {
    const { order, trial } = this.#running!;
    this.#running = null;
    try {
      const ratios = trial.take();
      return ratios !== null && this.#tell(order, ratios);
    } catch (error) {
      // Whatever an order led to, the device stays.
      this.#log(DEVICE.noRates(error instanceof Error ? error.message : String(error)));
      return this.#tell(order, []);
    }
  }

  #tell({ key }: CalibrationOrder, ratios: readonly number[]): boolean {
    this.answer = { key, ratios };
    return true;
  }
}

function checkOrder({ rates, seed }: CalibrationOrder): void {
  if (!rates.every((rate, at) => rate > (rates[at - 1] ?? 0))) {
    throw new RefusedError("calibration", `calibration: expected rates above 0, ascending, got ${rates.join(", ")}`);
  }
  if (seed < 0n || seed > MOST_SEED) throw new RefusedError("seed", `calibration: expected a seed from 0 to ${MOST_SEED}`);
}
