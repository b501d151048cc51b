/** What a device says about itself and its data, and when it says so again. */

import type { Announcement, CalibrationAnswer, Heartbeat, Presence } from "../wire/messages.ts";
import { message } from "../wire/messages.ts";
import type { DevicePhase } from "./decide.ts";
import type { StoreBinding } from "./journal.ts";
import type { ByteTotals } from "./store.ts";

/** After 45 s of silence, at the default keep-alive, a broker publishes the will of a connection. */
const WILLS_OUT_MS = 60_000;
/** However often the roll is called, a device answers about twice a second at most. */
const SPREAD_MIN_S = 0.5;
const SPREAD_MAX_S = 600;

/** What the presence says of the data; class counts only where the strategy asks for them. */
export interface DataSummary {
  readonly numExamples: number;
  readonly classCounts: readonly number[];
}

/** One device in one process. */
export interface Identity {
  readonly deviceId: string;
  /** Drawn anew by every process. */
  readonly bootId: string;
  readonly binding: StoreBinding;
  /** Of the bundle. */
  readonly sequence: number;
  /** Names of the strategies that this client has. */
  readonly strategies: readonly string[];
  /** Largest chunk data that it takes; 0: no limit of its own. */
  readonly chunkBytes: number;
}

/** The retained record, or the last will; `calibration`: what came of learning rates, where the device is there. */
export function presenceOf(
  who: Identity,
  status: Presence["status"],
  data: DataSummary,
  held: readonly string[] = [],
  calibration: CalibrationAnswer | null = null,
): Presence {
  return message("presence", {
    device_id: who.deviceId,
    boot_id: who.bootId,
    status,
    bundle: who.binding.bundle,
    layout_hash: who.binding.layoutHash,
    num_examples: data.numExamples,
    class_counts: [...data.classCounts],
    strategies: [...who.strategies],
    chunk_bytes: who.chunkBytes,
    held: [...held],
    sequence: who.sequence,
    calibration,
  });
}

/** Liveness and costs; a browser does not tell how much memory a page takes. */
export function heartbeatOf(who: Identity, phase: DevicePhase, roundId: number, totals: ByteTotals): Heartbeat {
  return message("heartbeat", {
    device_id: who.deviceId,
    boot_id: who.bootId,
    round_id: roundId,
    phase,
    bytes_up: totals.up,
    bytes_down: totals.down,
    peak_rss_bytes: 0,
  });
}

/** When this process is to publish its presence again; times are milliseconds of one clock. */
export class PresenceTimer {
  #called = Infinity;
  #willsOut = Infinity;
  #answered: string | null = null;
  readonly #random: () => number;

  constructor(random: () => number = Math.random) {
    this.#random = random;
  }

  /** The presence goes out now, and again when the will of a lost connection is out, too. */
  connected(now: number): void {
    this.#willsOut = now + WILLS_OUT_MS;
  }

  /** Infinite: not before something happens. */
  get due(): number {
    return Math.min(this.#called, this.#willsOut);
  }

  /** The presence went out because it was due. */
  answered(now: number): void {
    this.#called = Infinity;
    if (now >= this.#willsOut) this.#willsOut = Infinity;
  }

  /**
   * Presence is due soon if the announcement calls the roll. The first one that the broker kept is
   * older than this process's presence, which has answered it.
   */
  announced(announcement: Announcement, now: number, retained: boolean): void {
    const call = `${announcement.boot_id}/${announcement.roll_call}`;
    if (call !== this.#answered && (this.#answered !== null || !retained)) {
      const spreadS = Math.min(Math.max(announcement.spread_s, SPREAD_MIN_S), SPREAD_MAX_S);
      this.#called = Math.min(this.#called, now + 1000 * spreadS * this.#random());
    }
    this.#answered = call;
  }
}
