import assert from "node:assert/strict";
import { test } from "node:test";

import { encode, decode, message } from "../../src/wire/messages.ts";
import { Sender } from "../../src/wire/sender.ts";
import { CHUNK, blobOf, offerOf, seeded } from "./channel.ts";

const unsealed = async (): Promise<string> => "";

function need(transfer_id: string, missing: readonly (readonly [number, number])[], credit: number): Uint8Array {
  return encode(message("need", { transfer_id, missing, credit }));
}

async function drain(sender: Sender): Promise<number> {
  let sent = 0;
  while ((await sender.nextChunk()) !== null) sent += 1;
  return sent;
}

for (const missing of [[0, 0], [2, 1], [-1, 1], [0, 3], [9, 10]] as const) {
  test(`a range outside the blob is refused: ${missing.join("..")}`, async () => {
    const offer = await offerOf(blobOf(300));
    const sender = new Sender(unsealed);
    await sender.send(blobOf(300), offer, 0);
    assert.throws(() => sender.answer(need(offer.transfer_id, [missing], 1), 0), { rule: "need-range" });
    assert.equal(await sender.nextChunk(), null);
  });
}

test("a greedy need gets one window", async () => {
  const blob = blobOf(100 * CHUNK);
  const offer = await offerOf(blob);
  const sender = new Sender(unsealed);
  await sender.send(blob, offer, 0);
  for (let time = 0; time < 3; time += 1) sender.answer(need(offer.transfer_id, [[0, 100]], 1e9), 0);
  assert.equal(await drain(sender), 16);
});

test("who asks for everything again and again gets three copies, and then one in ten minutes", async () => {
  const blob = blobOf(40 * CHUNK);
  const offer = await offerOf(blob);
  const sender = new Sender(unsealed);
  await sender.send(blob, offer, 0);
  const flood = async (now: number): Promise<number> => {
    let sent = 0;
    for (let time = 0; time < 100; time += 1) {
      sender.answer(need(offer.transfer_id, [[0, 40]], 16), now);
      sent += await drain(sender);
    }
    return sent;
  };
  assert.equal(await flood(0), 120);
  await sender.send(blob, offer, 1);
  assert.equal(await flood(1), 0);
  assert.equal(await flood(601), 40);
  await sender.reconnected(602);
  assert.equal(await flood(602), 120);
});

test("an unanswered offer is repeated ever more slowly", async () => {
  const sender = new Sender(unsealed, seeded(0));
  await sender.send(blobOf(4), await offerOf(blobOf(4)), 0);
  const times = [0];
  while (times.at(-1)! < 600) {
    times.push(sender.due);
    assert.deepEqual(sender.tick(sender.due).map((action) => action.kind === "send" && action.lane), ["offer"]);
  }
  const gaps = times.slice(1).map((time, index) => time - times[index]!);
  assert.ok(2.25 <= gaps[0]! && gaps[0]! <= 3.75);
  assert.ok(gaps.slice(6).every((gap) => 45 <= gap && gap <= 75));
});

test("the same blob given twice is offered once a second", async () => {
  const offer = await offerOf(blobOf(4));
  const sender = new Sender(unsealed);
  assert.equal((await sender.send(blobOf(4), offer, 0)).length, 1);
  assert.deepEqual(await sender.send(blobOf(4), offer, 0.2), []);
  assert.equal(sender.due, 1);
});

test("chunks shrink with the broker, and each grid has a key of its own", async () => {
  const blob = blobOf(1000);
  const offer = await offerOf(blob, 1, 512);
  const sender = new Sender(async (sha256, chunkBytes) => `${sha256.slice(0, 60)}${chunkBytes + 1000}`);
  const [first] = await sender.send(blob, offer, 0);
  const [again] = await sender.reconnected(1, 300);
  assert.ok(first?.kind === "send" && again?.kind === "send");
  const [coarse, fine] = [decode(first.payload, "manifest"), decode(again.payload, "manifest")];
  assert.deepEqual([coarse.chunk_bytes, fine.chunk_bytes], [512, 300]);
  assert.deepEqual([coarse.key.slice(60), fine.key.slice(60)], ["1512", "1300"]);
});

test("a newer blob replaces the older one", async () => {
  const [older, newer] = [await offerOf(blobOf(300), 1), await offerOf(blobOf(300), 2)];
  const sender = new Sender(unsealed);
  await sender.send(blobOf(300), older, 0);
  await sender.send(blobOf(300), newer, 0.1);
  assert.deepEqual(sender.answer(need(older.transfer_id, [[0, 2]], 2), 1), []);
  assert.equal(await drain(sender), 0);
  sender.answer(need(newer.transfer_id, [[0, 2]], 2), 1);
  assert.equal(await drain(sender), 2);
});

test("whoever is told to wait is asked again in a minute", async () => {
  const offer = await offerOf(blobOf(300));
  const sender = new Sender(unsealed);
  await sender.send(blobOf(300), offer, 0);
  sender.answer(need(offer.transfer_id, [], 0), 1);
  assert.ok(sender.due >= 46 && sender.due <= 76);
});
