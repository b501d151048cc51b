/** What a device does with a task: a pure decision, apart from sockets, storage and training. */

import type { Strategy } from "../strategies/types.ts";
import type { Task, TransferOffer } from "../wire/messages.ts";
import { type Journal, lastRound } from "./journal.ts";

/** Where a device stands. */
export type DevicePhase = "idle" | "receive" | "train" | "send" | "leave";

/**
 * What to do with a task. `begin`: fetch its payload and train, or leave. `repeat`: it is the one in
 * progress, or the one just delivered: answer its offer again. `replace`: nobody waits for the round
 * in progress any more. `settle`: begin when the fate of the update in the outbox is known.
 * `refuse`: the device is past this round, or the task lacks a payload.
 */
export type Decision = "begin" | "repeat" | "replace" | "settle" | "refuse";

/** What the decision depends on; 0 and "" where there is no such round. */
export interface RoundProgress {
  readonly phase: DevicePhase;
  readonly roundId: number;
  readonly transferId: string;
  readonly lastRoundId: number;
  readonly lastTransferId: string;
}

/** The round in progress, up to its commit. */
export interface ActiveRound {
  readonly task: Task;
  readonly payload: TransferOffer;
  readonly strategy: Strategy;
}

const OF_ONE_BLOB = ["sha256", "total_bytes", "codec", "raw_bytes", "base"] as const;

/** Whether two offers under the same transfer are of the same blob. */
export function sameBlob(one: TransferOffer, other: TransferOffer): boolean {
  return OF_ONE_BLOB.every((name) => one[name] === other[name]);
}

/** Where a device stands, by what it does and by what its store says. */
export function progressOf(phase: DevicePhase, current: ActiveRound | null, journal: Journal): RoundProgress {
  const { pending, state } = journal;
  return {
    phase,
    roundId: pending?.roundId ?? current?.task.round_id ?? 0,
    transferId: pending?.state.transferId ?? current?.payload.transfer_id ?? "",
    lastRoundId: lastRound(journal),
    lastTransferId: state?.transferId ?? "",
  };
}

const OTHERWISE: Readonly<Record<DevicePhase, Decision>> = {
  idle: "begin",
  receive: "replace",
  train: "replace",
  send: "settle",
  leave: "repeat",
};

/** What a device at `progress` does with `task`. */
export function decide(progress: RoundProgress, task: Task): Decision {
  if (task.task === "train") {
    if (task.payload === null) return "refuse";
    const { roundId, transferId, lastRoundId, lastTransferId, phase } = progress;
    const offered = task.payload.transfer_id;
    if (task.round_id === roundId && offered === transferId) return "repeat";
    if (task.round_id === lastRoundId && offered === lastTransferId) return "repeat";
    // What is still being received may never come: it keeps no other round away.
    const behind = task.round_id < roundId && phase !== "receive";
    if (behind || task.round_id <= lastRoundId) return "refuse";
  }
  return OTHERWISE[progress.phase];
}
