import assert from "node:assert/strict";
import { test } from "node:test";

import { Meter } from "../../src/device/meter.ts";
import { PresenceTimer } from "../../src/device/presence.ts";
import { updateRecord } from "../../src/federation/records.ts";
import type { Update } from "../../src/strategies/types.ts";
import { type Announcement, message } from "../../src/wire/messages.ts";

function called(rollCall: number, spreadS = 10): Announcement {
  const given = { federation: "f", boot_id: "1", phase: "training", round_id: 1, rounds: 2, strategy: "fedavg" } as const;
  return message("announcement", { ...given, bundle: "b", layout_hash: "l", roll_call: rollCall, spread_s: spreadS });
}

test("the roll is answered once, after a wait within its spread", () => {
  const timer = new PresenceTimer(() => 0.5);
  timer.announced(called(1), 0, true);
  assert.equal(timer.due, Infinity, "the presence of the connection has answered what the broker kept");
  timer.announced(called(2), 1000, false);
  assert.equal(timer.due, 6000);
  timer.answered(6000);
  timer.announced(called(2), 7000, false);
  assert.equal(timer.due, Infinity);
  timer.announced(called(3, 0), 8000, false);
  assert.equal(timer.due, 8250);
});

test("the presence goes out again when the will of a lost connection is out", () => {
  const timer = new PresenceTimer(() => 0.5);
  timer.connected(0);
  assert.equal(timer.due, 60_000);
  timer.answered(100);
  assert.equal(timer.due, 60_000);
  timer.answered(60_000);
  assert.equal(timer.due, Infinity);
});

test("no second of a device is counted twice", async () => {
  let now = 0;
  const meter = new Meter(() => now);
  const pass = (seconds: number): void => void (now += 1000 * seconds);
  pass(5);
  meter.enter("receive");
  pass(1);
  await meter.within("train", async () => {
    pass(2);
    await meter.within("evaluate", async () => pass(3));
    pass(4);
  });
  pass(10);
  meter.step(1.5);
  meter.inference(0.5);
  assert.deepEqual(meter.take(), {
    trainStepMs: [1.5],
    inferMs: [0.5],
    phasesS: { receive: 11, train: 6, evaluate: 3 },
  });
  assert.deepEqual(meter.take(), { trainStepMs: [], inferMs: [], phasesS: { receive: 0 } });
});

const UPDATE: Update = {
  clientId: "d", roundId: 3, numExamples: 12, tensors: new Map(), loss: NaN,
  evaluation: { own: [[3, 1], [0, 2]], ownLoss: 0.5, more: new Map() },
};
const COSTS = { trainStepMs: Array.from({ length: 500 }, (_, i) => i / 3), inferMs: [], phasesS: { train: 1.5 } };
const ALL = { scores: true, counts: true };

test("an update's record says what the round was like, and no more than is asked for", () => {
  const record = JSON.parse(updateRecord(UPDATE, COSTS, ALL, "classification", 1e6));
  assert.deepEqual([record.client_id, record.round_id, record.num_examples, record.loss], ["d", 3, 12, null]);
  assert.deepEqual(record.evaluation, { own: [[3, 1], [0, 2]], own_loss: 0.5, more: {} });
  assert.deepEqual([record.costs.train_step_ms.length, record.costs.train_step_ms[199]], [200, 166.333]);
  const little = JSON.parse(updateRecord(UPDATE, COSTS, { scores: false, counts: false }, "classification", 1e6));
  assert.deepEqual(little, { client_id: "d", round_id: 3, num_examples: 1 });
});

test("sums of a regression are written with a point, whole or not", () => {
  const evaluation = { ...UPDATE.evaluation, own: [[2, -3, 0.5]] };
  const text = updateRecord({ ...UPDATE, evaluation }, COSTS, ALL, "regression", 1e6);
  assert.match(text, /"own":\[\[2\.0,-3\.0,0\.5\]\]/);
});

test("statistics that do not fit are left out, further ones first", () => {
  const more = new Map([["global", [[1, 2], [3, 4]]]]);
  const update = { ...UPDATE, evaluation: { ...UPDATE.evaluation, more } };
  const whole = updateRecord(update, COSTS, ALL, "classification", 1e6).length;
  const fewer = JSON.parse(updateRecord(update, COSTS, ALL, "classification", whole - 1));
  assert.deepEqual([fewer.evaluation.own, fewer.evaluation.more], [[[3, 1], [0, 2]], {}]);
  const least = JSON.parse(updateRecord(update, COSTS, ALL, "classification", whole - 28));
  assert.deepEqual([least.evaluation.own, least.evaluation.more], [null, {}]);
});
