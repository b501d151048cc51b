/**
 * What a device believes of announcements and tasks: a message never ends it.
 *
 * What breaks a rule raises RefusedError, and nothing has changed.
 */

import { InputError, ProvisionError, RefusedError } from "../errors.ts";
import { largestBlob } from "../federation/coding.ts";
import type { Strategy, TensorSchemas } from "../strategies/types.ts";
import type { Announcement, Task, TransferOffer } from "../wire/messages.ts";
import type { StoreBinding } from "./journal.ts";

/** What a federation may have, and a device believes; a final fit has the round behind the last. */
export const MOST_ROUNDS = 2 ** 31 - 1;
export const MOST_SEED = 2n ** 63n - 1n;

/** Builds the strategy that a task names, or raises InputError or ProvisionError. */
export type BuildStrategy = (name: string, settings: Task["settings"]) => Strategy;

/** The run that this device has been told of, and what may be asked of it there. */
export class AnnouncedRun {
  readonly #binding: StoreBinding;
  readonly #build: BuildStrategy;
  #announced: Announcement | null = null;
  #built: { readonly key: string; readonly strategy: Strategy } | null = null;

  constructor(binding: StoreBinding, build: BuildStrategy) {
    this.#binding = binding;
    this.#build = build;
  }

  /** The latest announcement that fits the device. */
  get latest(): Announcement | null {
    return this.#announced;
  }

  /** Takes an announcement; rules `federation`, `bundle`, `layout`, `epoch`, `round`, `finish`. */
  announced(announcement: Announcement): void {
    checkBinding(this.#binding, announcement);
    if (this.#announced !== null) checkEpoch(announcement, this.#announced);
    checkAnnouncement(announcement);
    this.#announced = announcement;
  }

  /**
   * Refuses a task that cannot be one of this run, for this device: rule `federation`, one of
   * `checkTask`, `strategy`, `blob-size` or `raw-bytes`.
   */
  check(task: Task): void {
    checkFederation(this.#binding, task.federation);
    checkTask(task, this.#announced);
    if (task.payload !== null) checkOffer(task.payload, this.strategyOf(task).payload);
  }

  /** What a task names, built once; rule `strategy`: this device cannot run it. */
  strategyOf(task: Task): Strategy {
    const key = JSON.stringify([task.strategy, task.settings]);
    if (this.#built?.key !== key) {
      try {
        this.#built = { key, strategy: this.#build(task.strategy, task.settings) };
      } catch (error) {
        if (error instanceof InputError || error instanceof ProvisionError) {
          throw new RefusedError("strategy", error.message);
        }
        throw error;
      }
    }
    return this.#built.strategy;
  }
}

/** Rule `epoch`: of a coordinator that another has replaced; it may not know yet. */
export function checkEpoch(record: Announcement | Task, announced: Announcement): void {
  if (record.epoch >= announced.epoch) return;
  throw new RefusedError(
    "epoch",
    `expected a coordinator of epoch ${announced.epoch} or later, got ${record.epoch}: another one has taken over from it`,
  );
}

/** Refuses what is not of the federation and bundle that the device is bound to. */
export function checkBinding(binding: StoreBinding, announcement: Announcement): void {
  checkFederation(binding, announcement.federation);
  const rules = [
    ["bundle", "bundle", binding.bundle, announcement.bundle],
    ["layout", "layout_hash", binding.layoutHash, announcement.layout_hash],
  ] as const;
  for (const [rule, name, ours, theirs] of rules) {
    if (ours !== theirs && !(rule === "bundle" && announcement.bundles.includes(ours))) {
      throw new RefusedError(
        rule,
        `federation '${announcement.federation.slice(0, 64)}': its ${name} is '${theirs.slice(0, 16)}', this ` +
          `device has '${ours.slice(0, 16)}'`,
      );
    }
  }
}

function checkFederation(binding: StoreBinding, theirs: string): void {
  if (theirs !== binding.federation) {
    throw new RefusedError(
      "federation",
      `federation '${theirs.slice(0, 64)}': this device belongs to '${binding.federation}'`,
    );
  }
}

/** Refuses, by rule `round` or `finish`, an announcement whose rounds cannot be. */
export function checkAnnouncement(announcement: Announcement): void {
  const { rounds, round_id: roundId } = announcement;
  // Behind the last round there is a final fit; and an operator may have lowered their number.
  if (!(rounds >= 1 && rounds <= MOST_ROUNDS && roundId >= 0 && roundId <= MOST_ROUNDS + 1)) {
    throw new RefusedError(
      "round",
      `announcement: expected rounds up to ${MOST_ROUNDS}, got round ${roundId} of ${rounds}`,
    );
  }
  if (announcement.phase === "finished" && roundId < rounds) {
    throw new RefusedError("finish", `announcement: finished, but in round ${roundId} of ${rounds}`);
  }
}

/**
 * Refuses a task that cannot be one of the run that was announced.
 *
 * `announced`: the latest announcement that fits the device; null: it has heard none, and cannot
 * judge. Rules: `announcement` (come again when there is one), `epoch`, `finish`, `round`, `seed`,
 * `offer`, `kind`.
 */
export function checkTask(task: Task, announced: Announcement | null): void {
  if (announced === null) {
    throw new RefusedError(
      "announcement",
      `task of round ${task.round_id}: expected an announcement that fits it first; if none comes, look whether ` +
        "the broker lets this device read them (all/ctl)",
    );
  }
  checkEpoch(task, announced);
  const stands = announced.round_id;
  const last = stands + 1 + announced.staleness;
  if (task.task === "train" && last < task.round_id && task.round_id <= announced.rounds + 1) {
    throw new RefusedError(
      "announcement",
      `task of round ${task.round_id}: expected that its round is announced first; heard was round ${stands}`,
    );
  }
  if (task.task === "finish") checkFinish(task, announced);
  else checkTrain(task, announced);
}

function checkFinish(task: Task, announced: Announcement): void {
  const { rounds, round_id: stands } = announced;
  // One announcement may have been lost.
  if (!(rounds <= task.round_id && task.round_id <= MOST_ROUNDS + 1 && stands + 1 >= rounds)) {
    throw new RefusedError(
      "finish",
      `task to finish in round ${task.round_id}: expected it behind round ${rounds}, the last; the federation is ` +
        `in round ${stands}`,
    );
  }
}

function checkTrain(task: Task, announced: Announcement): void {
  const { rounds } = announced;
  const { payload, round_id: roundId } = task;
  // One announcement may have been lost; where updates may be late, not every round has one.
  const last = announced.round_id + 1 + announced.staleness;
  const rules: [rule: string, holds: boolean, expected: string, got: unknown][] = [
    ["round", roundId >= 1 && roundId <= last, `round 1 to ${last}`, roundId],
    ["round", !task.final || roundId > rounds, `a final fit behind round ${rounds}, the last`, roundId],
    ["seed", task.seed >= 0n && task.seed <= MOST_SEED, `a seed from 0 to ${MOST_SEED}`, task.seed],
    ["offer", payload !== null, "a payload", "none"],
    ["kind", payload === null || payload.kind === "payload", "a payload", "an update"],
    ["round", payload === null || payload.round_id === roundId, "its payload to be of its round", payload?.round_id],
  ];
  for (const [rule, holds, expected, got] of rules) {
    if (!holds) {
      throw new RefusedError(
        rule,
        `task of round ${roundId}: expected ${expected}, got ${shortly(got)}; the federation is in round ` +
          `${announced.round_id} of ${rounds}`,
      );
    }
  }
}

/** Refuses, by rule `blob-size` or `raw-bytes`, more than payloads can need. */
export function checkOffer(offer: TransferOffer, forms: TensorSchemas): void {
  const most = largestBlob(forms);
  const sizes = { "blob-size": offer.total_bytes, "raw-bytes": offer.raw_bytes };
  for (const [rule, size] of Object.entries(sizes)) {
    if (size > most) {
      throw new RefusedError(
        rule,
        `payload: expected at most ${most} bytes for what the strategy sends, got ${size}`,
      );
    }
  }
}

/** A number of thousands of digits is not written out. */
function shortly(value: unknown): string {
  const huge = typeof value === "bigint" && (value >= 2n ** 64n || value <= -(2n ** 64n));
  return huge ? "more than 64 bits" : String(value);
}

/** Why a device that has finished round `last` trains no such task. */
export function roundIsOver(task: Task, last: number): RefusedError {
  return new RefusedError(
    "offer",
    `round ${task.round_id} is over: this device has finished round ${last} of federation '${task.federation}'; ` +
      "a new run needs another name, or devices that have forgotten the one before",
  );
}
