import assert from "node:assert/strict";
import { test } from "node:test";

import { InputError } from "../../src/errors.ts";
import { encode, message } from "../../src/wire/messages.ts";
import { Sender } from "../../src/wire/sender.ts";
import { transferId } from "../../src/wire/transfer.ts";
import {
  CHUNK, Channel, DEVICE, type Faults, blobOf, chunksOf, countOf, offerOf, receiverOf, seeded,
} from "./channel.ts";
import { MemoryBlobs } from "./memory_blobs.ts";

const KEY = "00".repeat(32);
const unsealed = async (): Promise<string> => "";

test("the id is the specified hash", async () => {
  assert.equal(await transferId("ab".repeat(32), DEVICE, 3), "cabe5cf183b117ab492041e61422fe86");
});

test("a perfect channel carries each chunk once", async () => {
  const draw = seeded(0);
  for (let trial = 0; trial < 30; trial += 1) {
    const blob = blobOf(1 + Math.floor(60 * CHUNK * draw()));
    const channel = new Channel(1);
    await channel.send(blob, await offerOf(blob));
    await channel.run();
    assert.deepEqual(channel.received, blob);
    assert.equal(channel.chunksSent, countOf(blob));
    assert.equal(channel.offersSent, 1);
  }
});

for (const key of ["", KEY]) {
  test(`a bad channel delays but never damages${key && ", sealed"}`, async () => {
    const draw = seeded(2);
    const rules = new Set<string>();
    for (let trial = 0; trial < 60; trial += 1) {
      const rate = (): number => 0.4 * draw();
      const faults: Faults = { loss: rate(), duplicate: rate(), reorder: rate(), corrupt: rate(), budget: 40 };
      const blob = blobOf(1 + Math.floor(60 * CHUNK * draw()));
      const channel = new Channel(trial, faults, key);
      await channel.send(blob, await offerOf(blob));
      await channel.run();
      assert.equal(channel.outcome?.kind, "delivered");
      assert.deepEqual(channel.received, blob);
      assert.ok(channel.chunksSent <= countOf(blob) + 16 * channel.faultsDone);
      channel.refused.forEach((rule) => rules.add(rule));
    }
    assert.ok(rules.has("chunk-crc"), [...rules].join());
  });
}

test("what is late is hardly sent again", async () => {
  const blob = blobOf(60 * CHUNK);
  const offer = await offerOf(blob);
  for (const [seconds, again] of [[2, 4], [6, 10], [12, 14]] as const) {
    for (let from = 0; from < 0.4; from += 0.01) {
      const channel = new Channel(1);
      channel.held = { from, until: from + seconds, spacing: 0.005 };
      await channel.send(blob, offer);
      await channel.run();
      assert.deepEqual(channel.received, blob);
      assert.ok(channel.chunksSent <= 60 + again, `held from ${from} s on: ${channel.chunksSent}`);
    }
  }
});

test("a restarted receiver continues from what it kept", async () => {
  const draw = seeded(3);
  for (let trial = 0; trial < 30; trial += 1) {
    const blob = blobOf(Math.floor(CHUNK * (20 + 40 * draw())));
    const channel = new Channel(1);
    await channel.send(blob, await offerOf(blob));
    await channel.run(1 + Math.floor(19 * draw()));
    channel.restartReceiver();
    await channel.run();
    assert.deepEqual(channel.received, blob);
    assert.ok(channel.chunksSent <= countOf(blob) + 2 * 16);
  }
});

test("reject reaches the sender with its reason", async () => {
  const blob = blobOf(100);
  const offer = await offerOf(blob);
  const sender = new Sender(unsealed);
  await sender.send(blob, offer, 0);
  const [answer] = await receiverOf(new MemoryBlobs()).reject(offer.transfer_id, "offer", "round 1 is over");
  assert.equal(answer?.kind, "send");
  const events = sender.answer(answer.payload, 0);
  assert.deepEqual(events, [{ kind: "rejected", offer, rule: "offer", reason: "round 1 is over" }]);
  assert.deepEqual(sender.tick(1000), []);
  assert.equal(sender.due, Infinity);
});

test("chunks and answers of unknown transfers are ignored", async () => {
  const blob = blobOf(100);
  const offer = await offerOf(blob);
  const [chunk] = chunksOf(blob, offer);
  assert.deepEqual(await receiverOf(new MemoryBlobs()).chunk(chunk!, 0), []);
  const sender = new Sender(unsealed);
  await sender.send(blob, offer, 0);
  const receipt = (id: string): Uint8Array => encode(message("receipt", { transfer_id: id, status: "done" }));
  assert.deepEqual(sender.answer(receipt("0".repeat(32)), 0), []);
  assert.deepEqual(sender.answer(receipt(offer.transfer_id), 0), [{ kind: "delivered", offer }]);
});

test("an empty blob has no offer", async () => {
  await assert.rejects(offerOf(new Uint8Array()), InputError);
});

test("what was delivered can still be rejected once", async () => {
  const blob = blobOf(100);
  const offer = await offerOf(blob);
  const sender = new Sender(unsealed);
  await sender.send(blob, offer, 0);
  const receipt = { transfer_id: offer.transfer_id, reason: "why" };
  const done = encode(message("receipt", { ...receipt, status: "done" }));
  const reject = encode(message("receipt", { ...receipt, status: "reject", rule: "diverged" }));
  assert.equal(sender.answer(done, 0)[0]?.kind, "delivered");
  assert.deepEqual(sender.answer(done, 0), []);
  assert.deepEqual(sender.answer(reject, 0), [{ kind: "rejected", offer, rule: "diverged", reason: "why" }]);
  assert.deepEqual(sender.answer(reject, 0), []);
});
