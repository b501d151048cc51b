import assert from "node:assert/strict";
import { test } from "node:test";

import { decide, type DevicePhase, type RoundProgress } from "../../src/device/decide.ts";
import { message, type Task } from "../../src/wire/messages.ts";

const PHASES: readonly DevicePhase[] = ["idle", "receive", "train", "send"];
const FINISH = message("task", { task: "finish", round_id: 9, federation: "f" });

function id(name: string): string {
  return name.padEnd(32, "0");
}

function task(roundId: number, transfer = `${roundId}`): Task {
  const payload = message("manifest", {
    transfer_id: id(transfer), kind: "payload", round_id: roundId, total_bytes: 1, sha256: "", chunk_bytes: 1,
  });
  return message("task", { task: "train", round_id: roundId, federation: "f", payload });
}

function at(phase: DevicePhase): RoundProgress {
  const last = { lastRoundId: 4, lastTransferId: id("4") };
  return phase === "idle" ? { phase, roundId: 0, transferId: "", ...last } : { phase, roundId: 5, transferId: id("5"), ...last };
}

test("a newer task and the finish", () => {
  const expected = { idle: "begin", receive: "replace", train: "replace", send: "settle" } as const;
  for (const [phase, decision] of Object.entries(expected)) {
    assert.equal(decide(at(phase as DevicePhase), task(6)), decision);
    assert.equal(decide(at(phase as DevicePhase), FINISH), decision);
  }
});

test("the task in progress, and the round delivered last, are only answered again", () => {
  for (const phase of PHASES.slice(1)) assert.equal(decide(at(phase), task(5)), "repeat");
  for (const phase of PHASES) assert.equal(decide(at(phase), task(4)), "repeat");
});

test("an older round is refused, and so is a task without a payload", () => {
  for (const phase of PHASES) {
    assert.equal(decide(at(phase), task(3)), "refuse");
    assert.equal(decide(at(phase), task(4, "abc")), "refuse");
  }
  assert.equal(decide(at("idle"), message("task", { task: "train", round_id: 9, federation: "f" })), "refuse");
});

test("another payload of the round in progress replaces it", () => {
  assert.equal(decide(at("receive"), task(5, "abc")), "replace");
  assert.equal(decide(at("send"), task(5, "abc")), "settle");
});
