import assert from "node:assert/strict";
import { test } from "node:test";

import { AnnouncedRun, checkAnnouncement, checkOffer, checkTask, MOST_ROUNDS } from "../../src/device/checks.ts";
import { Refusals } from "../../src/device/refusals.ts";
import { InputError, RefusedError } from "../../src/errors.ts";
import { largestBlob } from "../../src/federation/coding.ts";
import type { Strategy, TensorSchemas } from "../../src/strategies/types.ts";
import { type Announcement, message, type Task, type TransferOffer } from "../../src/wire/messages.ts";

const BINDING = { federation: "home", bundle: "b", layoutHash: "l", signer: "s" };
const FORMS: TensorSchemas = { required: new Map([["params/w", { shape: [4, 3], dtype: "float32", most: 0 }]]), optional: new Map() };

function announcement(changes: Partial<Announcement> = {}): Announcement {
  const given = { federation: "home", boot_id: "1", phase: "training", round_id: 2, rounds: 5 } as const;
  return { ...message("announcement", { ...given, strategy: "fedavg", bundle: "b", layout_hash: "l" }), ...changes };
}

function offer(changes: Partial<TransferOffer> = {}): TransferOffer {
  const given = { transfer_id: "a".repeat(32), kind: "payload", round_id: 2, total_bytes: 9 } as const;
  return { ...message("manifest", { ...given, sha256: "", chunk_bytes: 1 }), ...changes };
}

function task(changes: Partial<Task> = {}): Task {
  const given = { task: "train", round_id: 2, federation: "home", strategy: "fedavg", payload: offer() } as const;
  return { ...message("task", given), ...changes };
}

function ruleOf(work: () => void): string {
  try {
    work();
  } catch (error) {
    if (error instanceof RefusedError) return error.rule;
    throw error;
  }
  return "";
}

test("a task that breaks a rule is refused by its name", () => {
  const broken: [string, Partial<Task>][] = [
    ["announcement", { round_id: 4 }],
    ["round", { round_id: 7 }],
    ["round", { round_id: 0 }],
    ["round", { final: true }],
    ["seed", { seed: -1n }],
    ["seed", { seed: 2n ** 63n }],
    ["offer", { payload: null }],
    ["kind", { payload: offer({ kind: "update" }) }],
    ["round", { payload: offer({ round_id: 1 }) }],
  ];
  for (const [rule, changes] of broken) assert.equal(ruleOf(() => checkTask(task(changes), announcement())), rule);
  assert.equal(ruleOf(() => checkTask(task(), null)), "announcement");
  assert.equal(ruleOf(() => checkTask(task({ round_id: 3, payload: offer({ round_id: 3 }) }), announcement())), "");
});

test("where updates may be late, an announcement may be of some rounds ago", () => {
  const of = (roundId: number): Task => task({ round_id: roundId, payload: offer({ round_id: roundId }) });
  assert.equal(ruleOf(() => checkTask(of(5), announcement({ staleness: 2 }))), "");
  assert.equal(ruleOf(() => checkTask(of(6), announcement({ staleness: 2 }))), "announcement");
});

test("a finish that nobody announced ends no device", () => {
  const finish = (roundId: number): Task => message("task", { task: "finish", round_id: roundId, federation: "home" });
  assert.equal(ruleOf(() => checkTask(finish(5), announcement({ round_id: 2 }))), "finish");
  assert.equal(ruleOf(() => checkTask(finish(4), announcement({ round_id: 4 }))), "finish");
  assert.equal(ruleOf(() => checkTask(finish(MOST_ROUNDS + 2), announcement({ round_id: 5 }))), "finish");
  assert.equal(ruleOf(() => checkTask(finish(5), announcement({ round_id: 4 }))), "");
});

test("an announcement whose rounds cannot be is refused", () => {
  const broken = [{ rounds: 0 }, { rounds: MOST_ROUNDS + 1 }, { round_id: -1 }, { round_id: MOST_ROUNDS + 2 }];
  for (const changes of broken) assert.equal(ruleOf(() => checkAnnouncement(announcement(changes))), "round");
  assert.equal(ruleOf(() => checkAnnouncement(announcement({ phase: "finished" }))), "finish");
  // An operator may lower the number of rounds below the present one.
  assert.equal(ruleOf(() => checkAnnouncement(announcement({ round_id: 7 }))), "");
});

test("more bytes than the strategy sends are not even fetched", () => {
  const most = largestBlob(FORMS);
  assert.equal(ruleOf(() => checkOffer(offer({ total_bytes: most }), FORMS)), "");
  assert.equal(ruleOf(() => checkOffer(offer({ total_bytes: most + 1 }), FORMS)), "blob-size");
  assert.equal(ruleOf(() => checkOffer(offer({ raw_bytes: most + 1 }), FORMS)), "raw-bytes");
});

test("what is not of this device's federation changes nothing", () => {
  const run = new AnnouncedRun(BINDING, () => ({ payload: FORMS }) as Strategy);
  run.announced(announcement());
  const others: [string, Partial<Announcement>][] = [
    ["federation", { federation: "other" }],
    ["bundle", { bundle: "c" }],
    ["layout", { layout_hash: "m" }],
    ["round", { rounds: 0 }],
  ];
  for (const [rule, changes] of others) assert.equal(ruleOf(() => run.announced(announcement(changes))), rule);
  assert.equal(run.latest?.rounds, 5);
  assert.equal(ruleOf(() => run.check(task({ federation: "other" }))), "federation");
  assert.equal(ruleOf(() => run.check(task())), "");
});

test("a strategy that this device cannot do is refused by rule strategy, and built once otherwise", () => {
  let built = 0;
  const run = new AnnouncedRun(BINDING, (name) => {
    if (name !== "fedavg") throw new InputError(`strategy '${name}': this device cannot do it`);
    built += 1;
    return { payload: FORMS } as Strategy;
  });
  run.announced(announcement());
  assert.equal(ruleOf(() => run.check(task({ strategy: "cdfl" }))), "strategy");
  run.check(task());
  run.check(task());
  assert.equal(built, 1);
  run.check(task({ settings: { epochs: 2 } }));
  assert.equal(built, 2);
});

test("refusals are counted by rule, long ones are cut, and of a flood few are written", () => {
  const lines: string[] = [];
  const refusals = new Refusals((line) => lines.push(line));
  for (let count = 0; count < 100; count += 1) refusals.note("ignored a message", new RefusedError("seal", "x".repeat(1000)));
  refusals.note("refused a task", new RefusedError("round", "no"));
  assert.deepEqual(refusals.byRule, { seal: 100, round: 1 });
  assert.equal(lines[0]!.length, "ignored a message: seal: ".length + 401);
  assert.equal(lines.at(-1), "refused a task: round: no");
  assert.ok(lines.length < 12);
});
