/** What the device publishes of itself: presence, heartbeat, and the bytes that it has paid. */

import type { DeviceEndpoint } from "../wire/endpoint.ts";
import type { Announcement, CalibrationAnswer } from "../wire/messages.ts";
import type { DevicePhase } from "./decide.ts";
import type { Learner } from "./learner.ts";
import { type DataSummary, heartbeatOf, type Identity, presenceOf, PresenceTimer } from "./presence.ts";
import type { ByteTotals, Store } from "./store.ts";

/** Below every sensible liveness limit of a coordinator; 15 kB an hour. */
const HEARTBEAT_MS = 60_000;
/** Counted bytes that a killed page may lose are those of this time. */
const TOTALS_MS = 5_000;

/** The device's end of the wire, as far as the agent needs it. */
export type DeviceEnd = Pick<
  DeviceEndpoint,
  | "connected" | "traffic" | "start" | "poll" | "wake" | "publish" | "expect" | "accept" | "reject" | "remember"
  | "cancel" | "sendUpdate" | "listenAgain" | "spread" | "close"
>;

/** What trains, as far as the agent needs it. */
export type AgentLearner = Pick<
  Learner,
  | "model" | "meter" | "control" | "numExamples" | "classCounts" | "lastExample" | "asksClassCounts" | "strategy" | "round"
  | "figures" | "tryRates" | "holdOut"
>;

/** Where the device stands, as it is told. */
export interface Standing {
  readonly phase: DevicePhase;
  readonly roundId: number;
  /** The owner's conditions that are not met: with any it is not to be invited to rounds. */
  readonly held: readonly string[];
}

export class Reporter {
  readonly #end: DeviceEnd;
  readonly #store: Store;
  readonly #learner: AgentLearner;
  readonly #who: Identity;
  readonly #rollCall = new PresenceTimer();
  readonly #totalsBefore: ByteTotals;
  #summary: DataSummary;
  /** What held the device when it presented itself; null: it has not. */
  #presented: string | null = null;
  #calibration: CalibrationAnswer = { key: "", ratios: [] };
  #heartbeatDue = Infinity;
  #totalsDue = 0;

  constructor(end: DeviceEnd, store: Store, learner: AgentLearner, who: Identity) {
    this.#end = end;
    this.#store = store;
    this.#learner = learner;
    this.#who = who;
    this.#summary = { numExamples: learner.numExamples, classCounts: [] };
    this.#totalsBefore = store.totals;
  }

  /** When `advance` has something to do; infinite: not before something happens. */
  get due(): number {
    return Math.min(this.#heartbeatDue, this.#rollCall.due);
  }

  /** Bytes at the socket since the device joined. */
  get totals(): ByteTotals {
    const { socketUpBytes, socketDownBytes } = this.#end.traffic;
    return { up: this.#totalsBefore.up + socketUpBytes, down: this.#totalsBefore.down + socketDownBytes };
  }

  async connected(standing: Standing): Promise<void> {
    this.#presented = null;
    await this.#present(standing);
    const now = performance.now();
    this.#rollCall.connected(now);
    this.#heartbeatDue = now + HEARTBEAT_MS;
  }

  /** With keys nothing could be said before an announcement was heard. */
  async announced(announcement: Announcement, retained: boolean, standing: Standing): Promise<void> {
    if (this.#presented === null) await this.#present(standing);
    this.#rollCall.announced(announcement, performance.now(), retained);
  }

  /** Tells what the strategy asks of the data; without a link, when it is back. */
  async register(strategy: string, standing: Standing): Promise<void> {
    const before = this.#summary;
    const { numExamples } = this.#learner;
    const classCounts = this.#learner.asksClassCounts(strategy) ? this.#learner.classCounts : [];
    this.#summary = { numExamples, classCounts };
    const same = before.numExamples === numExamples && before.classCounts.join() === classCounts.join();
    if (!same) await this.#present(standing);
  }

  /** Tells what came of learning rates; without a link, when it is back. */
  async calibrated(answer: CalibrationAnswer, standing: Standing): Promise<void> {
    this.#calibration = answer;
    await this.#present(standing);
  }

  /** Does what is due. */
  async advance(now: number, standing: Standing): Promise<void> {
    const changed = this.#presented !== null && this.#presented !== standing.held.join();
    if (now >= this.#rollCall.due || changed) {
      this.#rollCall.answered(now);
      await this.#present(standing);
    }
    if (now >= this.#heartbeatDue) await this.heartbeat(standing);
    if (now >= this.#totalsDue) {
      this.#totalsDue = now + TOTALS_MS;
      await this.#keepTotals();
    }
  }

  async heartbeat({ phase, roundId }: Standing): Promise<void> {
    this.#heartbeatDue = performance.now() + HEARTBEAT_MS;
    await this.#end.publish(heartbeatOf(this.#who, phase, roundId, this.totals));
  }

  /** Says goodbye. */
  async leave(standing: Standing): Promise<void> {
    if (this.#end.connected) {
      await this.heartbeat({ ...standing, phase: "leave" });
      await this.#end.publish(presenceOf(this.#who, "left", this.#summary));
    }
    await this.#end.close();
    if (!this.#store.database.lost) await this.#keepTotals();
  }

  async #present(standing: Standing): Promise<void> {
    const { held } = standing;
    const presence = presenceOf(this.#who, "online", this.#summary, held, this.#calibration);
    if (await this.#end.publish(presence)) this.#presented = held.join();
  }

  async #keepTotals(): Promise<void> {
    const { totals } = this;
    if (totals.up !== this.#store.totals.up) await this.#store.keepTotals(totals);
  }
}
