import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { ChunkCipher, pack, parse } from "../../src/wire/chunks.ts";
import { SILENT_ASKS_MAX } from "../../src/wire/inbound.ts";
import { type TransferOffer, decode, message } from "../../src/wire/messages.ts";
import type { Receiver } from "../../src/wire/receiver.ts";
import { transferId } from "../../src/wire/transfer.ts";
import { writtenByPython } from "../python.ts";
import { CHUNK, answersIn, blobOf, chunksOf, offerOf, receiverOf } from "./channel.ts";
import { MemoryBlobs } from "./memory_blobs.ts";

const KEY = "00".repeat(32);

async function fill(receiver: Receiver, blob: Uint8Array, offer: TransferOffer): Promise<void> {
  await receiver.expect(offer, 0);
  for (const chunk of chunksOf(blob, offer)) await receiver.chunk(chunk, 0);
}

test("an offer is answered with what is wanted now, and again with a sign of life", async () => {
  const offer = await offerOf(blobOf(20 * CHUNK));
  const receiver = receiverOf(new MemoryBlobs());
  const transfer_id = offer.transfer_id;
  const asked = answersIn(await receiver.expect(offer, 0));
  assert.deepEqual(asked, [message("need", { transfer_id, missing: [[0, 4]], credit: 4 })]);
  const alive = answersIn(await receiver.expect(offer, 1));
  assert.deepEqual(alive, [message("need", { transfer_id, missing: [], credit: 0 })]);
});

test("a receiver killed before accepting has the blob without asking", async () => {
  const blob = blobOf(1000);
  const offer = await offerOf(blob);
  const blobs = new MemoryBlobs();
  await fill(receiverOf(blobs), blob, offer);
  const [event] = await receiverOf(blobs).expect(offer, 1);
  assert.deepEqual(event, { kind: "received", offer, blob });
});

test("done is repeated for a repeated offer, and nothing is kept", async () => {
  const blob = blobOf(100);
  const offer = await offerOf(blob);
  const blobs = new MemoryBlobs();
  const receiver = receiverOf(blobs);
  await fill(receiver, blob, offer);
  assert.deepEqual(await receiver.expect(offer, 0.1), []);
  const first = await receiver.accept(offer.transfer_id);
  assert.deepEqual(answersIn(first), [message("receipt", { transfer_id: offer.transfer_id, status: "done" })]);
  assert.deepEqual(await receiver.expect(offer, 0.3), first);
  assert.deepEqual(await receiver.accept(offer.transfer_id), []);
  assert.equal([...blobs.kept.values()].reduce((sum, chunks) => sum + chunks.size, 0), 0);
});

test("done is answered after a restart that remembers", async () => {
  const offer = await offerOf(blobOf(3));
  const receiver = receiverOf(new MemoryBlobs());
  receiver.remember(offer.transfer_id);
  assert.deepEqual(answersIn(await receiver.expect(offer, 0)).map((answer) => answer.type), ["receipt"]);
});

interface Offer {
  readonly sealed: boolean;
  readonly offer: string;
  readonly rule: string;
  readonly reason: string;
}

const OFFERS = JSON.parse(readFileSync(join(writtenByPython("golden_messages.py"), "offers.json"), "utf8")) as readonly Offer[];

test("an offer is rejected by the rule that Python names, in its words, and leaves nothing", async () => {
  assert.ok(OFFERS.length > 30);
  for (const { sealed, offer, rule, reason } of OFFERS) {
    const blobs = new MemoryBlobs();
    const [answer] = answersIn(await receiverOf(blobs, sealed).expect(decode(new TextEncoder().encode(offer), "manifest"), 0));
    if (rule === "") {
      assert.equal(answer?.type, "need", offer);
      continue;
    }
    assert.ok(answer?.type === "receipt" && answer.status === "reject", offer);
    assert.deepEqual([answer.rule, answer.reason], [rule, reason], offer);
    assert.equal(blobs.kept.size, 0);
  }
});

test("chunks outside the grid are refused and change nothing", async () => {
  const blob = blobOf(1000);
  const offer = await offerOf(blob);
  const receiver = receiverOf(new MemoryBlobs());
  await receiver.expect(offer, 0);
  const chunk = { transferId: offer.transfer_id, sealed: false };
  const beyond = pack({ ...chunk, index: 4, last: true, data: new Uint8Array(232) });
  const short = pack({ ...chunk, index: 0, last: false, data: new Uint8Array(5) });
  await assert.rejects(receiver.chunk(beyond, 0), { rule: "chunk-index" });
  await assert.rejects(receiver.chunk(short, 0), { rule: "chunk-grid" });
});

test("chunks are taken sealed where there is a key, bare where there is none", async () => {
  const blob = blobOf(100);
  const offer = await offerOf(blob);
  const bare = chunksOf(blob, offer)[0]!;
  const seal = async (key: string): Promise<Uint8Array> =>
    pack(await (await ChunkCipher.create(key, offer.transfer_id)).seal(parse(bare)));
  const keyed = receiverOf(new MemoryBlobs(), true);
  await keyed.expect({ ...offer, key: KEY }, 0);
  await assert.rejects(keyed.chunk(bare, 0), { rule: "chunk-seal" });
  await assert.rejects(keyed.chunk(await seal("11".repeat(32)), 0), { rule: "chunk-seal" });
  const plain = receiverOf(new MemoryBlobs());
  await plain.expect(offer, 0);
  await assert.rejects(plain.chunk(await seal(KEY), 0), { rule: "chunk-seal" });
  assert.equal((await keyed.chunk(await seal(KEY), 0))[0]?.kind, "received");
});

test("a sender that was restarted goes on with another key", async () => {
  const blob = blobOf(3 * CHUNK);
  const offer = await offerOf(blob);
  const receiver = receiverOf(new MemoryBlobs(), true);
  let received: readonly { kind: string }[] = [];
  for (const [index, key] of [KEY, "11".repeat(32), "22".repeat(32)].entries()) {
    await receiver.expect({ ...offer, key }, index);
    const cipher = await ChunkCipher.create(key, offer.transfer_id);
    const sealed = await cipher.seal(parse(chunksOf(blob, offer)[index]!));
    received = await receiver.chunk(pack(sealed), index);
  }
  assert.equal(received[0]?.kind, "received");
});

test("a cancelled transfer is fetched again when it is offered again", async () => {
  const blob = blobOf(100);
  const offer = await offerOf(blob);
  const receiver = receiverOf(new MemoryBlobs());
  await fill(receiver, blob, offer);
  await receiver.accept(offer.transfer_id);
  await receiver.cancel(offer.transfer_id);
  assert.equal(answersIn(await receiver.expect(offer, 1))[0]?.type, "need");
});

test("what was only offered is rejected and may be offered again", async () => {
  const offer = await offerOf(blobOf(100));
  const receiver = receiverOf(new MemoryBlobs());
  await receiver.reject(offer.transfer_id, "offer", "too early");
  assert.equal(answersIn(await receiver.expect(offer, 0))[0]?.type, "need");
  await receiver.reject(offer.transfer_id, "offer", "too late");
  assert.equal(answersIn(await receiver.expect(offer, 0))[0]?.type, "receipt");
});

test("a blob that never has its hash is fetched twice and rejected", async () => {
  const offer = await offerOf(blobOf(300));
  const receiver = receiverOf(new MemoryBlobs());
  await receiver.expect(offer, 0);
  const wrong = chunksOf(new Uint8Array(300), offer);
  const answers = [];
  for (const chunk of [...wrong, ...wrong]) answers.push(...answersIn(await receiver.chunk(chunk, 0)));
  assert.deepEqual(answers.map((answer) => answer.type), ["need", "receipt"]);
  assert.ok(answers[1]?.type === "receipt" && answers[1].rule === "sha256");
});

test("a newer blob replaces the older one, but not one that is still in the caller's hands", async () => {
  const blobs = new MemoryBlobs();
  const receiver = receiverOf(blobs);
  for (let round = 1; round < 20; round += 1) {
    await receiver.expect(await offerOf(blobOf(5000), round), round);
    assert.equal(blobs.kept.size, 1);
  }
  const held = await offerOf(blobOf(100), 20);
  await fill(receiver, blobOf(100), held);
  await receiver.expect(await offerOf(blobOf(5000), 21), 21);
  assert.equal(blobs.kept.size, 2);
  assert.equal(answersIn(await receiver.accept(held.transfer_id))[0]?.type, "receipt");
});

test("the same blob in another grid is fetched anew", async () => {
  const blob = blobOf(1000);
  const receiver = receiverOf(new MemoryBlobs());
  const [coarse, fine] = [await offerOf(blob, 1, 512), await offerOf(blob, 1, 300)];
  await receiver.expect(coarse, 0);
  await receiver.chunk(chunksOf(blob, coarse)[0]!, 0);
  const [need] = answersIn(await receiver.expect(fine, 1));
  assert.ok(need?.type === "need");
  assert.deepEqual(need.missing, [[0, 4]]);
});

test("where nobody answers it asks ever more slowly, then no more until the next offer", async () => {
  const offer = await offerOf(blobOf(5000));
  const blobs = new MemoryBlobs();
  const receiver = receiverOf(blobs);
  await receiver.expect(offer, 0);
  const times = [];
  while (receiver.due < Infinity) {
    times.push(receiver.due);
    receiver.tick(receiver.due);
  }
  assert.equal(times.length, SILENT_ASKS_MAX + 1);
  assert.ok(times.at(-1)! < 180);
  assert.equal(blobs.kept.size, 1);
  assert.equal(answersIn(await receiver.expect(offer, 200))[0]?.type, "need");
});

test("after a reconnect what was in flight is asked for again", async () => {
  const offer = await offerOf(blobOf(5000));
  const receiver = receiverOf(new MemoryBlobs());
  const first = await receiver.expect(offer, 0);
  assert.deepEqual(receiver.reconnected(1), first);
});

test("a transfer id is of this device", async () => {
  const offer = await offerOf(blobOf(10));
  const others = await transferId(offer.sha256, "pi-8", offer.round_id);
  const [answer] = answersIn(await receiverOf(new MemoryBlobs()).expect({ ...offer, transfer_id: others }, 0));
  assert.ok(answer?.type === "receipt" && answer.rule === "transfer-id");
});
