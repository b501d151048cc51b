import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { RefusedError } from "../../src/errors.ts";
import { type Message, MAX_MESSAGE_BYTES, decode, encode, message } from "../../src/wire/messages.ts";

const GOLDEN = new URL("../../../../tests/wire/golden/", import.meta.url);

const OFFER = message("manifest", {
  transfer_id: "000102030405060708090a0b0c0d0e0f",
  kind: "payload",
  round_id: 3,
  total_bytes: 100_000,
  sha256: "ab".repeat(32),
  chunk_bytes: 64_976,
});

const MESSAGES: Readonly<Record<string, Message>> = {
  presence: message("presence", {
    device_id: "pi-7",
    boot_id: "b1",
    status: "online",
    bundle: "cd".repeat(32),
    layout_hash: "ef".repeat(32),
    num_examples: 120,
    class_counts: [100, 20],
    strategies: ["fedavg", "fedali"],
    chunk_bytes: 3900,
    held: ["charging", "quiet-hours"],
    sequence: 4,
    takes_bundles: true,
    progress: { bundle: "ab".repeat(32), state: "tested", rule: "", reason: "" },
  }),
  announcement: message("announcement", {
    federation: "lab",
    boot_id: "c1",
    phase: "training",
    round_id: 3,
    rounds: 20,
    strategy: "fedali",
    bundle: "cd".repeat(32),
    layout_hash: "ef".repeat(32),
    roll_call: 2,
    spread_s: 75,
    bundles: ["ab".repeat(32)],
  }),
  manifest: OFFER,
  task: message("task", {
    task: "train",
    round_id: 3,
    federation: "lab",
    strategy: "fedali",
    settings: { optimiser: { lr: 0.1, kind: "adam" }, epochs: 5 },
    seed: 1n,
    deadline_s: 600,
    payload: OFFER,
    work: 0.5,
  }),
  need: message("need", { transfer_id: OFFER.transfer_id, missing: [[0, 1], [4, 7]], credit: 4 }),
  receipt: message("receipt", { transfer_id: OFFER.transfer_id, status: "reject", reason: "late" }),
  "receipt-done": message("receipt", { transfer_id: OFFER.transfer_id, status: "done" }),
  "receipt-rule": message("receipt", {
    transfer_id: OFFER.transfer_id, status: "reject", reason: "expected raw", rule: "codec",
  }),
  heartbeat: message("heartbeat", {
    device_id: "pi-7", boot_id: "b1", round_id: 3, phase: "train", bytes_up: 10, bytes_down: 20, peak_rss_bytes: 30,
  }),
};

const bytes = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));
const golden = (name: string): Uint8Array => readFileSync(new URL(`${name}.json`, GOLDEN));
const fieldsOf = (name: string): Record<string, unknown> =>
  JSON.parse(new TextDecoder().decode(golden(name))) as Record<string, unknown>;
/** Parsed objects have no prototype. */
const plain = <T>(value: T): T => structuredClone(value);
const refused = (data: Uint8Array): RefusedError => {
  try {
    decode(data);
  } catch (error) {
    if (error instanceof RefusedError) return error;
    throw error;
  }
  return assert.fail("was not refused");
};

for (const [name, record] of Object.entries(MESSAGES)) {
  test(`${name}: the bytes of docs/protocol.md, and back`, () => {
    assert.equal(new TextDecoder().decode(encode(record)), new TextDecoder().decode(golden(name)));
    assert.deepEqual(plain(decode(golden(name))), plain(record));
  });

  test(`${name}: unknown fields are ignored`, () => {
    const fields = { ...fieldsOf(name), from_a_later_minor_version: { deep: [1] } };
    assert.deepEqual(plain(decode(bytes(fields))), plain(record));
  });

  test(`${name}: a wrong field is named`, () => {
    for (const field of Object.keys(fieldsOf(name))) {
      const wrong = { ...fieldsOf(name), [field]: field === "settings" ? 7 : { not: "this" } };
      const error = refused(bytes(wrong));
      assert.equal(error.rule, "message-schema");
      assert.match(error.message, new RegExp(field));
    }
  });
}

test("a missing field is named, and one with a default may be missing", () => {
  const { round_id, ...rest } = fieldsOf("heartbeat");
  assert.equal(round_id, 3);
  assert.match(refused(bytes(rest)).message, /round_id: missing/);
  const { codec, ...offer } = fieldsOf("manifest");
  assert.equal(codec, "raw");
  assert.deepEqual(decode(bytes(offer)), OFFER);
});

test("an epoch is one that a lease may have", () => {
  for (const kind of ["announcement", "task"]) {
    assert.ok(decode(bytes({ ...fieldsOf(kind), epoch: 2 ** 48 })));
    for (const epoch of [-1, 2 ** 48 + 1, 0.5, "1", true, null]) {
      assert.equal(refused(bytes({ ...fieldsOf(kind), epoch })).rule, "message-schema");
    }
  }
});

test("only the kinds that are asked for are read", () => {
  assert.equal(decode(golden("need"), "need", "receipt").type, "need");
  assert.throws(() => decode(golden("task"), "need", "receipt"), /type: expected 'need' or 'receipt', got "task"/);
});

test("a seed has 63 bits, other numbers those of a float64", () => {
  const text = new TextDecoder().decode(golden("task"));
  const seeded = text.replace('"seed":1,', `"seed":${2n ** 63n - 1n},`);
  assert.equal(decode(new TextEncoder().encode(seeded), "task").seed, 2n ** 63n - 1n);
  const round = text.replace('"round_id":3,', `"round_id":${2n ** 53n},`);
  assert.match(refused(new TextEncoder().encode(round)).message, /round_id: expected a whole number below 2\^53/);
});

test("whole numbers are written without a point, and settings come as numbers", () => {
  const text = new TextDecoder().decode(golden("task"));
  assert.match(refused(new TextEncoder().encode(text.replace('"round_id":3,', '"round_id":3.0,'))).message, /round_id/);
  const { settings } = decode(new TextEncoder().encode(text.replace('"epochs":5', '"epochs":[5,2.0,18446744073709551616]')), "task");
  assert.deepEqual(plain(settings), { epochs: [5, 2, 2n ** 64n], optimiser: { kind: "adam", lr: 0.1 } });
});

test("noise, deep nesting and size are refused", () => {
  for (let length = 0; length < 300; length += 1) {
    assert.ok(refused(crypto.getRandomValues(new Uint8Array(length))));
  }
  const deep = `{"type":"task","settings":${"[".repeat(30_000)}${"]".repeat(30_000)}}`;
  assert.equal(refused(new TextEncoder().encode(deep)).rule, "message-schema");
  assert.equal(refused(new TextEncoder().encode(" ".repeat(MAX_MESSAGE_BYTES + 1))).rule, "message-size");
  const long = message("receipt", { transfer_id: "0".repeat(32), status: "reject", reason: "x".repeat(65_000) });
  assert.throws(() => encode(long), { rule: "message-size" });
});
