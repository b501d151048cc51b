/** What the Python package makes, the browser's device opens; and the other way round. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { utf8 } from "../../src/bytes.ts";
import { RefusedError } from "../../src/errors.ts";
import { toHex } from "../../src/hash.ts";
import { type Chunk, ChunkCipher, MAX_DATA_BYTES, pack, parse } from "../../src/wire/chunks.ts";
import { newKeys, publicBytes, randomBytes } from "../../src/wire/ciphers.ts";
import { ask, checkGrant, invitationKeys, openAnswer, parseInvitation, readAnswer } from "../../src/wire/enrolment.ts";
import { type Message, decode, encode, message } from "../../src/wire/messages.ts";
import { type DeviceCredentials, DeviceProtection } from "../../src/wire/protection.ts";
import { Topics } from "../../src/wire/topics.ts";
import { Peer, WITHOUT_PYTHON } from "./peer.ts";

const TOPICS = new Topics("lab");
const PRESENCE = TOPICS.of("presence", "pi-7");
const STATUS = TOPICS.of("upStatus", "pi-7");
const TASK = TOPICS.of("downTask", "pi-7");
const OFFER = message("manifest", {
  transfer_id: "000102030405060708090a0b0c0d0e0f", kind: "update", round_id: 2 ** 31, total_bytes: 2 ** 52,
  sha256: "ab".repeat(32), chunk_bytes: 256, codec: "topk+zlib", raw_bytes: 99, base: "cd".repeat(32),
});
const ANNOUNCEMENT = message("announcement", {
  federation: "lab", boot_id: "c1", phase: "waiting", round_id: 0, rounds: 2, strategy: "fedavg",
  bundle: "cd".repeat(32), layout_hash: "ef".repeat(32), roll_call: 3, spread_s: 0.25,
});
const ONLINE = message("presence", {
  device_id: "pi-7", boot_id: "phone ☎ \u0007\"\\/", status: "online", num_examples: 3, class_counts: [1, 2],
  strategies: ["fedavg", "moon"], chunk_bytes: 3900,
});
const BEAT = message("heartbeat", {
  device_id: "pi-7", boot_id: "b1", round_id: 3, phase: "send", bytes_up: 2 ** 44, bytes_down: 0, peak_rss_bytes: 0,
});
const RECORDS: readonly Message[] = [
  ONLINE, ANNOUNCEMENT, OFFER, BEAT,
  message("task", {
    task: "train", round_id: 1, federation: "lab", strategy: "ditto", payload: { ...OFFER, kind: "payload" },
    settings: { z: [1, 2.5, null, true, "é"], a: { b: -0.001, "𝕊": 1e-7 } }, seed: 2n ** 63n - 1n, deadline_s: 0.5,
    final: true, update_codec: "int4", update_keep: 0.05, scores: false, counts: false,
  }),
  message("task", { task: "finish", round_id: 2, federation: "lab", deadline_s: 12345678 }),
  message("need", { transfer_id: OFFER.transfer_id, missing: [], credit: 0 }),
  message("need", { transfer_id: OFFER.transfer_id, missing: [[0, 1], [5, 2 ** 18]], credit: 16 }),
  message("receipt", { transfer_id: OFFER.transfer_id, status: "done" }),
  message("receipt", { transfer_id: OFFER.transfer_id, status: "reject", reason: "loss\n\u2028is NaN", rule: "diverged" }),
];

describe("both languages", { skip: WITHOUT_PYTHON }, () => {
  let python: Peer;
  before(() => {
    python = new Peer();
  });
  after(() => python.stop());

  const credentials = async (): Promise<DeviceCredentials> => {
    const keys = await newKeys("Ed25519");
    const key = toHex(await publicBytes(keys.publicKey));
    return {
      federation: "lab",
      deviceId: "pi-7",
      key: keys.privateKey,
      grant: (await python.ask("grant", { device_id: "pi-7", key }))["grant"] ?? "",
      federationKey: (await python.ask("federation_key"))["key"] ?? "",
      start: 1,
      announced: 0,
      note: async () => undefined,
    };
  };
  const met = async (): Promise<DeviceProtection> => {
    await python.ask("restart");
    const device = await DeviceProtection.create(await credentials());
    const announced = await python.bytes("announce", { record: toHex(encode(ANNOUNCEMENT)) });
    const heard = await device.readAnnouncement(announced, TOPICS.announcement);
    assert.deepEqual({ ...heard, handshake: null }, ANNOUNCEMENT);
    return device;
  };
  const hex = (payload: Uint8Array | null): string => toHex(payload ?? assert.fail("nothing was made"));

  test("records have the same bytes", async () => {
    for (const record of RECORDS) {
      const ours = encode(record);
      const theirs = await python.bytes("record", { record: toHex(ours) });
      assert.equal(new TextDecoder().decode(ours), new TextDecoder().decode(theirs));
      assert.deepEqual(encode(decode(theirs)), ours);
    }
  });

  test("a device is met, heard and spoken to", async () => {
    const device = await met();
    const presence = await device.write(ONLINE, PRESENCE);
    const found = await python.bytes("meet", { payload: hex(presence), topic: PRESENCE, device_id: "pi-7" });
    assert.deepEqual({ ...decode(found, "presence"), handshake: null }, ONLINE);
    for (let times = 0; times < 70; times += 1) {
      const sealed = hex(await device.write(BEAT, STATUS));
      const opened = await python.bytes("open", { payload: sealed, topic: STATUS, device_id: "pi-7" });
      assert.deepEqual(decode(opened), BEAT);
      if (times > 0) continue;
      const again = python.ask("open", { payload: sealed, topic: STATUS, device_id: "pi-7" });
      await assert.rejects(again, { rule: "replay" });
    }
    const task = RECORDS[4] as Message;
    const down = await python.bytes("seal", { record: toHex(encode(task)), topic: TASK, device_id: "pi-7" });
    assert.equal((await device.read(down, TASK, "task")).seed, 2n ** 63n - 1n);
    await assert.rejects(device.read(down, TASK, "task"), { rule: "replay" });
  });

  test("a last will of this process counts, one of another does not", async () => {
    const device = await met();
    await python.ask("meet", { payload: hex(await device.write(ONLINE, PRESENCE)), topic: PRESENCE, device_id: "pi-7" });
    const offline: Message = { ...ONLINE, status: "offline" };
    const other = await DeviceProtection.create(await credentials());
    for (const [end, counts] of [[other, false], [device, true]] as const) {
      const will = hex(await end.write(offline, PRESENCE));
      const found = await python.ask("meet", { payload: will, topic: PRESENCE, device_id: "pi-7" });
      assert.equal(found["record"] !== "", counts);
    }
  });

  test("an offer's signature is the device's", async () => {
    const device = await met();
    await python.ask("meet", { payload: hex(await device.write(ONLINE, PRESENCE)), topic: PRESENCE, device_id: "pi-7" });
    const signed = await device.signOffer(OFFER);
    await python.ask("check_offer", { record: toHex(encode(signed)), device_id: "pi-7" });
    const other = { ...signed, base: "" };
    await assert.rejects(python.ask("check_offer", { record: toHex(encode(other)), device_id: "pi-7" }), { rule: "signature" });
  });

  test("another's grant, key and topic are refused by name", async () => {
    const own = await credentials();
    const announced = await python.bytes("announce", { record: toHex(encode(ANNOUNCEMENT)) });
    const present = async (changed: Partial<DeviceCredentials>, topic = PRESENCE): Promise<unknown> => {
      const device = await DeviceProtection.create({ ...own, ...changed });
      await device.readAnnouncement(announced, TOPICS.announcement);
      const payload = hex(await device.write(ONLINE, topic));
      return python.ask("meet", { payload, topic: PRESENCE, device_id: "pi-7" });
    };
    const { grant } = await python.ask("grant", { device_id: "pi-8", key: "ab".repeat(32) });
    await assert.rejects(present({ grant: grant ?? "" }), { rule: "grant" });
    await assert.rejects(present({ key: (await newKeys("Ed25519")).privateKey }), { rule: "signature" });
    await assert.rejects(present({ grant: own.grant.replace(/^./, "-") }), { rule: "statement" });
    await assert.rejects(present({}, TOPICS.of("presence", "pi-8")), { rule: "signature" });
  });

  test("chunks, in clear and sealed", async () => {
    const key = toHex(randomBytes(32));
    for (const [size, last] of [[1, true], [3900, false], [MAX_DATA_BYTES, true]] as const) {
      const chunk: Chunk = { transferId: toHex(randomBytes(16)), index: size, last, data: randomBytes(size), sealed: false };
      const fields = { transfer_id: chunk.transferId, index: size, last, data: toHex(chunk.data) };
      assert.deepEqual(pack(chunk), Uint8Array.from(await python.bytes("pack", { chunk: fields, key: "" })));
      const cipher = await ChunkCipher.create(key, chunk.transferId);
      const sealed = pack(await cipher.seal(chunk));
      assert.deepEqual(await python.ask("parse", { payload: toHex(sealed), key }), fields);
      const theirs = await python.bytes("pack", { chunk: fields, key });
      assert.deepEqual(sealed, Uint8Array.from(theirs));
      assert.deepEqual({ ...(await cipher.open(parse(theirs))), data: [] }, { ...chunk, data: [] });
    }
  });

  test("an invitation is used: its text, the request, the sealed answer, the grant", async () => {
    const given = { device_id: "phone-1", broker: "mqtts://broker.example:8883", until: 4_000_000_000 };
    const { text = "", password, name } = await python.ask("invite", given);
    const invitation = await parseInvitation(text);
    assert.deepEqual([invitation.deviceId, invitation.broker, invitation.until, invitation.account],
      [given.device_id, given.broker, given.until, true]);
    const keys = await invitationKeys(invitation);
    assert.deepEqual([keys.password, keys.name], [password, name]);
    const own = await newKeys("Ed25519");
    const [asks, answers] = [TOPICS.enrolmentRequest("phone-1"), TOPICS.enrolmentAnswer("phone-1")];
    for (const step of ["grant", "taken"] as const) {
      const asked = await ask(own, keys, asks, { deviceId: "phone-1", step, now: Date.now() / 1000 });
      const answer = readAnswer(await python.bytes("answer", { payload: toHex(asked.payload), device_id: "phone-1" }));
      assert.equal(answer.answers, asked.request.nonce);
      if (step === "taken") continue;
      const found = await openAnswer(answer, asked, keys.answer, answers);
      assert.deepEqual([found.password, found.ca], ["päss", "-----BEGIN CERTIFICATE-----\n"]);
      const grant = await checkGrant(found, invitation, await publicBytes(own.publicKey), Date.now() / 1000);
      assert.equal(grant.device_id, "phone-1");
    }
    const altered = await ask(own, { ...keys, proof: randomBytes(32) }, asks, { deviceId: "phone-1", step: "grant", now: 0 });
    const refused = python.ask("answer", { payload: toHex(altered.payload), device_id: "phone-1" });
    await assert.rejects(refused, { rule: "token" });
  });

  test("whatever stands in a field, both take it or both refuse it", async () => {
    const values = [
      "0", "-1", "-0", "1.0", "-0.0", "1e3", "1e-400", "1e400", "01", "+1", ".5", "5.", "-", "NaN", "Infinity", "null", "true",
      "tru", "[]", "{}", "[1,2]", '["a"]', '["a",1]', "[[0,1],[2]]", "[[0,1.0]]", '{"type":"manifest"}', '""', '"presence"',
      '"\\ud800"', '"\\u00e9\\/"', '"\\x"', '"\t"', '"\u2028\u007f"', `"${"x".repeat(65)}"`, `"${"é".repeat(64)}"`,
      `"${"\\ud83d\\ude00".repeat(64)}"`, '"ABCDEF0123456789ABCDEF0123456789"', `"${"0".repeat(32)}\\n"`,
    ];
    // A float64 holds no whole number beyond these; Python's reader does.
    const beyond = ["9007199254740993", "18446744073709551616"];
    const judged = async (attempt: () => unknown): Promise<string> => {
      try {
        await attempt();
        return "taken";
      } catch (error) {
        return error instanceof RefusedError ? error.rule : String(error);
      }
    };
    for (const record of RECORDS) {
      const text = new TextDecoder().decode(encode(record));
      for (const { index, 0: found } of text.matchAll(/:("(?:[^"\\]|\\.)*"|[-0-9.e]+|null|true|false|\[[^[\]]*\])(?=[,}])/g)) {
        for (const value of [...values, ...beyond]) {
          const changed = utf8(`${text.slice(0, index)}:${value}${text.slice(index + found.length)}`);
          const ours = await judged(() => decode(changed));
          const theirs = await judged(() => python.ask("record", { record: toHex(changed) }));
          if (!(beyond.includes(value) && ours === "message-schema")) assert.equal(ours, theirs, `${found} → ${value}`);
        }
      }
    }
  });

  test("noise is refused by both", async () => {
    await met();
    for (const noise of [new Uint8Array(0), utf8("{}"), randomBytes(24), randomBytes(200), utf8('{"type":"task"}')]) {
      assert.throws(() => decode(noise), { rule: "message-schema" });
      await assert.rejects(python.ask("record", { record: toHex(noise) }), { rule: "message-schema" });
      assert.throws(() => parse(noise), { name: "RefusedError" });
      await assert.rejects(python.ask("parse", { payload: toHex(noise), key: "" }), { name: "RefusedError" });
    }
  });
});
