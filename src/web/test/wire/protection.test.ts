import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { fromHex, toHex } from "../../src/hash.ts";
import { newKeys } from "../../src/wire/ciphers.ts";
import { KEY_ROTATION } from "../../src/wire/identity.ts";
import { decode, encode, message } from "../../src/wire/messages.ts";
import { DeviceProtection, Plain } from "../../src/wire/protection.ts";
import { Topics } from "../../src/wire/topics.ts";
import { BUNDLE, Keyed, type ScriptedCoordinator } from "./keyed.ts";
import { publicHex, signStatement } from "./keys.ts";

const TOPICS = new Topics("lab");
const ALL = TOPICS.announcement;
const PRESENCE = TOPICS.of("presence", "pi-7");
const STATUS = TOPICS.of("upStatus", "pi-7");
const TASK = TOPICS.of("downTask", "pi-7");
const ANNOUNCEMENT = message("announcement", {
  federation: "lab", boot_id: "c1", phase: "training", round_id: 3, rounds: 20, strategy: "fedavg",
  bundle: BUNDLE, layout_hash: "ef".repeat(32),
});
const ONLINE = message("presence", { device_id: "pi-7", boot_id: "b1", status: "online" });
const OFFLINE = message("presence", { device_id: "pi-7", boot_id: "b1", status: "offline" });
const BEAT = message("heartbeat", {
  device_id: "pi-7", boot_id: "b1", round_id: 3, phase: "idle", bytes_up: 1, bytes_down: 2, peak_rss_bytes: 3,
});
const FINISH = message("task", { task: "finish", round_id: 3, federation: "lab" });
const OFFER = message("manifest", {
  transfer_id: "0".repeat(32), kind: "update", round_id: 3, total_bytes: 10, sha256: "ab".repeat(32), chunk_bytes: 256,
});

let keyed: Keyed;
beforeEach(async () => {
  keyed = await Keyed.create();
});

const sent = async (payload: Promise<Uint8Array | null>): Promise<Uint8Array> =>
  (await payload) ?? assert.fail("nothing is sent yet");

/** A device that has presented itself, and its presence as it travelled. */
async function met(coordinator: ScriptedCoordinator): Promise<[DeviceProtection, Uint8Array]> {
  const device = await DeviceProtection.create(await keyed.device());
  await device.readAnnouncement(await coordinator.announce(ANNOUNCEMENT), ALL);
  const presence = await sent(device.write(ONLINE, PRESENCE));
  assert.equal((await coordinator.meet(presence, "pi-7"))?.status, "online");
  return [device, presence];
}

test("a device is met, and then both ends seal", async () => {
  const coordinator = await keyed.coordinator();
  const [device] = await met(coordinator);
  const beat = await sent(device.write(BEAT, STATUS));
  assert.ok(!toHex(beat).includes(toHex(new TextEncoder().encode("heartbeat"))));
  assert.equal(beat.length, encode(BEAT).length + 24);
  assert.deepEqual(await coordinator.read(beat, STATUS, "pi-7", "heartbeat"), BEAT);
  const task = await coordinator.write(FINISH, TASK, "pi-7");
  assert.equal((await device.read(task, TASK, "task")).task, "finish");
  await assert.rejects(device.read(task, TASK, "task"), { rule: "replay" });
  await assert.rejects(coordinator.read(beat, STATUS, "pi-7"), { rule: "replay" });
});

test("only the kinds of the topic are read", async () => {
  const coordinator = await keyed.coordinator();
  const [device] = await met(coordinator);
  const task = await coordinator.write(FINISH, TASK, "pi-7");
  await assert.rejects(device.read(task, TASK, "need", "receipt"), { rule: "message-schema" });
});

test("nothing is sent before the other end is known, but for the last will", async () => {
  const device = await DeviceProtection.create(await keyed.device());
  assert.equal(await device.write(ONLINE, PRESENCE), null);
  assert.equal(await device.write(BEAT, STATUS), null);
  assert.equal(await device.seal(new Uint8Array(3), STATUS), null);
  await assert.rejects(device.open(new Uint8Array(100), TASK), { rule: "session" });
  assert.ok(await device.write(OFFLINE, PRESENCE));
});

test("an altered announcement is refused and begins nothing", async () => {
  const coordinator = await keyed.coordinator();
  const announcement = await coordinator.announce(ANNOUNCEMENT);
  const device = await DeviceProtection.create(await keyed.device());
  for (const where of [0, 63, 64, 65, 200, 700, announcement.length - 1]) {
    const altered = announcement.slice();
    altered[where] = (altered[where] as number) ^ 1;
    await assert.rejects(device.readAnnouncement(altered, ALL), { name: "RefusedError" }, `byte ${where}`);
  }
  await assert.rejects(device.readAnnouncement(announcement, "fl/v2/other/all/ctl"), { rule: "signature" });
  assert.equal(await device.write(ONLINE, PRESENCE), null);
  assert.equal(keyed.heard.size, 0);
});

test("an announcement needs the federation's key", async () => {
  const device = await DeviceProtection.create(await keyed.device());
  const stranger = await (await Keyed.create()).coordinator();
  const over = await keyed.coordinator({ until: Math.floor(Date.now() / 1000) });
  const elsewhere = await keyed.coordinator({ federation: "other" });
  const cases = [
    [await stranger.announce(ANNOUNCEMENT), "statement"],
    [await over.announce(ANNOUNCEMENT), "statement"],
    [await elsewhere.announce(ANNOUNCEMENT), "statement"],
    [await new Plain().write(ANNOUNCEMENT), "signature"],
    [new Uint8Array(64 * 1024), "message-size"],
    [new Uint8Array(0), "message-schema"],
  ] as const;
  for (const [payload, rule] of cases) {
    await assert.rejects(device.readAnnouncement(payload, ALL), { rule });
  }
  const unsigned = new Uint8Array(64 + encode(ANNOUNCEMENT).length);
  unsigned.set(encode(ANNOUNCEMENT), 64);
  await assert.rejects(device.readAnnouncement(unsigned, ALL), { rule: "signature" });
});

test("a certificate is public: whoever repeats it lacks the key", async () => {
  const coordinator = await keyed.coordinator();
  const thief = await newKeys("Ed25519");
  const forged = await coordinator.announce(ANNOUNCEMENT, thief.privateKey);
  const device = await DeviceProtection.create(await keyed.device());
  await assert.rejects(device.readAnnouncement(forged, ALL), { rule: "signature" });
});

test("an announcement without nonce, share or count is refused", async () => {
  for (const changed of [{ nonce: new Uint8Array(15) }, { share: new Uint8Array(31) }]) {
    const honest = await keyed.coordinator();
    Object.assign(honest, { handshake: { ...honest.handshake, ...changed } });
    const device = await DeviceProtection.create(await keyed.device());
    await assert.rejects(device.readAnnouncement(await honest.announce(ANNOUNCEMENT), ALL), { rule: "handshake" });
  }
  const zeros = await keyed.coordinator();
  Object.assign(zeros, { handshake: { ...zeros.handshake, share: new Uint8Array(32) } });
  const device = await DeviceProtection.create(await keyed.device());
  await assert.rejects(device.readAnnouncement(await zeros.announce(ANNOUNCEMENT), ALL), { rule: "share" });
  assert.equal(await device.write(ONLINE, PRESENCE), null);
});

test("an older announcement is a replay, even after a restart", async () => {
  const coordinator = await keyed.coordinator();
  const old = await coordinator.announce(ANNOUNCEMENT);
  const latest = await coordinator.announce(ANNOUNCEMENT);
  const device = await DeviceProtection.create(await keyed.device());
  // Retained: it comes with every connection.
  for (let times = 0; times < 2; times += 1) await device.readAnnouncement(latest, ALL);
  for (const process of [device, await DeviceProtection.create(await keyed.device())]) {
    await assert.rejects(process.readAnnouncement(old, ALL), { rule: "replay" });
  }
});

test("what a device noted is kept before it counts", async () => {
  const credentials = await keyed.device();
  const full = new Error("storage is full");
  const device = await DeviceProtection.create({ ...credentials, note: () => Promise.reject(full) });
  const announcement = await (await keyed.coordinator()).announce(ANNOUNCEMENT);
  for (let times = 0; times < 2; times += 1) await assert.rejects(device.readAnnouncement(announcement, ALL), full);
});

test("the same coordinator goes on with its session, another begins one", async () => {
  const coordinator = await keyed.coordinator();
  const [device, first] = await met(coordinator);
  const beat = await sent(device.write(BEAT, STATUS));
  await device.readAnnouncement(await coordinator.announce(ANNOUNCEMENT), ALL);
  const second = await sent(device.write(ONLINE, PRESENCE));
  const [one, two] = [first, second].map((payload) => decode(payload.subarray(64), "presence").handshake);
  assert.deepEqual([one?.sequence, two?.sequence], [1, 2]);
  assert.equal(one?.nonce, two?.nonce);
  await coordinator.read(beat, STATUS, "pi-7");
  const restarted = await keyed.coordinator();
  assert.equal(await restarted.meet(second, "pi-7"), null);
  await device.readAnnouncement(await restarted.announce(ANNOUNCEMENT), ALL);
  assert.ok(await restarted.meet(await sent(device.write(ONLINE, PRESENCE)), "pi-7"));
  const later = await sent(device.write(BEAT, STATUS));
  assert.ok(await restarted.read(later, STATUS, "pi-7"));
  await assert.rejects(coordinator.read(later, STATUS, "pi-7"), { rule: "seal" });
  await assert.rejects(device.read(await coordinator.write(FINISH, TASK, "pi-7"), TASK, "task"), { rule: "seal" });
});

test("a presence needs a grant for its device and key", async () => {
  const cases = [
    [{ device_id: "pi-8" }, "grant"], [{ key: "ab".repeat(32) }, "signature"],
    [{ until: 1 }, "statement"], [{ federation: "other" }, "statement"],
  ] as const;
  for (const [changed, rule] of cases) {
    const coordinator = await keyed.coordinator();
    const device = await DeviceProtection.create(await keyed.device("pi-7", changed));
    await device.readAnnouncement(await coordinator.announce(ANNOUNCEMENT), ALL);
    await assert.rejects(coordinator.meet(await sent(device.write(ONLINE, PRESENCE)), "pi-7"), { rule });
  }
});

test("a last will counts for its own process", async () => {
  const coordinator = await keyed.coordinator();
  const old = await sent((await DeviceProtection.create(await keyed.device())).write(OFFLINE, PRESENCE));
  const [device] = await met(coordinator);
  assert.equal(await coordinator.meet(old, "pi-7"), null);
  const will = await sent(device.write(OFFLINE, PRESENCE));
  assert.equal(decode(will.subarray(64), "presence").handshake?.answers, "");
  assert.equal((await coordinator.meet(will, "pi-7"))?.status, "offline");
});

test("an offer is signed by the device", async () => {
  const coordinator = await keyed.coordinator();
  const [device] = await met(coordinator);
  const offer = await device.signOffer(OFFER);
  assert.ok(await coordinator.signedOffer(offer, "pi-7"));
  assert.ok(!(await coordinator.signedOffer({ ...offer, round_id: 4 }, "pi-7")));
  assert.equal((await new Plain().signOffer(OFFER)).signature, "");
});

test("a device follows the federation key as it rotates", async () => {
  const device = await DeviceProtection.create(await keyed.device());
  const lost = await DeviceProtection.create(await keyed.device("lost"));
  const keys = [keyed.keys, await newKeys("Ed25519"), await newKeys("Ed25519")] as const;
  const rotations: string[] = [];
  let announced = new Uint8Array();
  for (const count of [1, 2] as const) {
    const [older, newer] = [keys[count - 1] as CryptoKeyPair, keys[count]];
    rotations.push(await signStatement(older.privateKey, KEY_ROTATION, {
      federation: "lab", old: await publicHex(older), new: await publicHex(newer),
    }));
    keyed.keys = newer;
    announced = Uint8Array.from(await (await keyed.coordinator({}, [...rotations])).announce(ANNOUNCEMENT));
    await device.readAnnouncement(announced, ALL);
    assert.equal(keyed.trusted.get("pi-7"), await publicHex(newer));
  }
  await lost.readAnnouncement(announced, ALL);
  keyed.keys = keys[0];
  const back = await keyed.coordinator();
  await assert.rejects(device.readAnnouncement(await back.announce(ANNOUNCEMENT), ALL), { rule: "statement" });
});

test("a device follows no rotation by another key or of another federation", async () => {
  const stranger = await newKeys("Ed25519");
  const before = await keyed.publicKey;
  const after = await publicHex(stranger);
  const forged = [
    await signStatement(stranger.privateKey, KEY_ROTATION, { federation: "lab", old: before, new: after }),
    await signStatement(keyed.keys.privateKey, KEY_ROTATION, { federation: "other", old: before, new: after }),
    await signStatement(keyed.keys.privateKey, KEY_ROTATION, { federation: "lab", old: "ab".repeat(32), new: after }),
  ];
  const device = await DeviceProtection.create(await keyed.device());
  keyed.keys = stranger;
  const announced = await (await keyed.coordinator({}, forged)).announce(ANNOUNCEMENT);
  await assert.rejects(device.readAnnouncement(announced, ALL), { rule: "statement" });
  assert.equal(keyed.trusted.size, 0);
});

test("a blob's key is one per grid and process", async () => {
  const [device, again] = [await DeviceProtection.create(await keyed.device()), await DeviceProtection.create(await keyed.device())];
  const found = [
    await device.contentKey("ab".repeat(32), 256), await device.contentKey("ab".repeat(32), 512),
    await device.contentKey("cd".repeat(32), 256), await again.contentKey("ab".repeat(32), 256),
  ];
  assert.equal(new Set(found).size, 4);
  for (const key of found) assert.equal(fromHex(key).length, 32);
  assert.equal(await device.contentKey("ab".repeat(32), 256), found[0]);
  assert.equal(await new Plain().contentKey(), "");
});

test("without keys records travel as they are", async () => {
  const plain = new Plain();
  assert.deepEqual(await plain.write(BEAT), encode(BEAT));
  assert.equal((await plain.readAnnouncement(encode(ANNOUNCEMENT))).boot_id, "c1");
  assert.equal((await plain.read(encode(FINISH), TASK, "task")).type, "task");
  await assert.rejects(plain.readAnnouncement(encode(FINISH)), { rule: "message-schema" });
});
