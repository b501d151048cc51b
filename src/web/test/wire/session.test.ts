import assert from "node:assert/strict";
import { test } from "node:test";

import { utf8 } from "../../src/bytes.ts";
import { fromHex, toHex } from "../../src/hash.ts";
import { publicBytes } from "../../src/wire/ciphers.ts";
import {
  OVERHEAD_BYTES, ReplayWindow, Session, type SessionTerms, WINDOW, deriveKeys, newHandshake,
} from "../../src/wire/session.ts";
import { bytesOf, keysOf } from "./keys.ts";

const TOPIC = "fl/v2/lab/up/pi-7/s";
const TERMS: SessionTerms = {
  coordinatorNonce: bytesOf(null, 16),
  deviceNonce: bytesOf(null).subarray(16),
  runId: "0123456789abcdef",
  bundle: "cd".repeat(32),
  deviceId: "pi-7",
};
const COORDINATOR = await keysOf("X25519", bytesOf(1));
const DEVICE = await keysOf("X25519", bytesOf(2));
const OURS = await deriveKeys(DEVICE.privateKey, await publicBytes(COORDINATOR.publicKey), TERMS);

async function pair(): Promise<[Session, Session]> {
  return [await Session.create(OURS.up, OURS.down), await Session.create(OURS.down, OURS.up)];
}

test("the keys and the sealed record of docs/protocol.md", async () => {
  const theirs = await deriveKeys(COORDINATOR.privateKey, await publicBytes(DEVICE.publicKey), TERMS);
  assert.deepEqual(theirs, OURS);
  assert.equal(toHex(OURS.up), "2e1cc9d3d1c9f5992f995d11435c84add072aad8de153abb9ec3ad4535e98e25");
  assert.equal(toHex(OURS.down), "bc51aa8cacaed3601e869dd3477f75d73767e0ae9236e42bc2f33bd0c3326ceb");
  const [device, coordinator] = await pair();
  const sealed = await device.seal(TOPIC, utf8("abc"));
  assert.equal(toHex(sealed), "000000000000000125e1b60310321982015413107e8a165b3e5c7f");
  assert.equal(sealed.length, 3 + OVERHEAD_BYTES);
  assert.deepEqual(await coordinator.open(TOPIC, sealed), utf8("abc"));
});

test("every term counts: another run, bundle, device or process has other keys", async () => {
  const changes: Partial<SessionTerms>[] = [
    { coordinatorNonce: bytesOf(0, 16) }, { deviceNonce: bytesOf(0, 16) }, { runId: "f".repeat(16) },
    { bundle: "ab".repeat(32) }, { deviceId: "pi-8" },
  ];
  for (const change of changes) {
    const share = await publicBytes(COORDINATOR.publicKey);
    const { up, down } = await deriveKeys(DEVICE.privateKey, share, { ...TERMS, ...change });
    assert.notDeepEqual(up, OURS.up);
    assert.notDeepEqual(down, OURS.down);
  }
});

test("a share that gives everybody one key is refused", async () => {
  // The points of small order on Curve25519, and one beyond the field.
  const shares = [
    "00".repeat(32), `01${"00".repeat(31)}`, "73686f7274", "",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    `ec${"ff".repeat(30)}7f`, `ed${"ff".repeat(30)}7f`, `ee${"ff".repeat(30)}7f`,
  ];
  for (const share of shares) {
    await assert.rejects(deriveKeys(DEVICE.privateKey, fromHex(share), TERMS), { rule: "share" }, share);
  }
});

test("a flipped bit is noticed", async () => {
  const [device, coordinator] = await pair();
  const sealed = await device.seal(TOPIC, utf8("a record"));
  for (let bit = 0; bit < 8 * sealed.length; bit += 1) {
    const altered = sealed.slice();
    altered[bit >> 3] = (altered[bit >> 3] as number) ^ (1 << (bit & 7));
    await assert.rejects(coordinator.open(TOPIC, altered), { rule: "seal" });
  }
  for (let length = 0; length < sealed.length; length += 1) {
    await assert.rejects(coordinator.open(TOPIC, sealed.subarray(0, length)), { rule: "seal" });
  }
  assert.deepEqual(await coordinator.open(TOPIC, sealed), utf8("a record"));
});

test("a record counts once, on its own topic and way", async () => {
  const [device, coordinator] = await pair();
  const sealed = await device.seal(TOPIC, utf8("abc"));
  await assert.rejects(coordinator.open("fl/v2/lab/up/pi-7/m", sealed), { rule: "seal" });
  await assert.rejects(device.open(TOPIC, sealed), { rule: "seal" });
  await coordinator.open(TOPIC, sealed);
  await assert.rejects(coordinator.open(TOPIC, sealed), { rule: "replay" });
});

test("records may overtake each other by less than the window", async () => {
  const [device, coordinator] = await pair();
  const sealed: Uint8Array[] = [];
  for (let index = 0; index <= Number(WINDOW); index += 1) sealed.push(await device.seal(TOPIC, utf8(`${index}`)));
  const [first, second] = sealed as [Uint8Array, Uint8Array];
  await coordinator.open(TOPIC, sealed.at(-1) as Uint8Array);
  await assert.rejects(coordinator.open(TOPIC, first), { rule: "replay" });
  assert.deepEqual(await coordinator.open(TOPIC, second), utf8("1"));
});

test("the window takes each number once", () => {
  for (let run = 0; run < 20; run += 1) {
    const window = new ReplayWindow();
    const seen = new Set<bigint>();
    let highest = 0n;
    for (let step = 0; step < 300; step += 1) {
      const jump = BigInt(Math.floor(Math.random() * (2 * Number(WINDOW) + 4))) - 2n * WINDOW;
      const number = highest + jump < 1n ? 1n : highest + jump;
      const fresh = !seen.has(number) && number > highest - WINDOW;
      assert.equal(window.take(number), fresh, `${number} after ${highest}`);
      seen.add(number);
      if (number > highest) highest = number;
    }
  }
  for (const number of [0n, -1n]) assert.ok(!new ReplayWindow().take(number));
  const far = new ReplayWindow();
  assert.ok(far.take(2n ** 64n - 1n) && !far.take(2n ** 64n - 1n) && far.take(2n ** 64n - 2n));
});

test("a process's own half is new every time and cannot be taken out", async () => {
  const [first, second] = [await newHandshake(), await newHandshake()];
  assert.equal(first.privateKey.extractable, false);
  assert.notDeepEqual(first.share, second.share);
  assert.notDeepEqual(first.nonce, second.nonce);
  assert.deepEqual([first.share.length, first.nonce.length], [32, 16]);
});
