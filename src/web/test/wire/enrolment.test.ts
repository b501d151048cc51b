import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { concat, toBase64url, utf8 } from "../../src/bytes.ts";
import { InputError } from "../../src/errors.ts";
import { sha256, toHex } from "../../src/hash.ts";
import { newKeys, publicBytes } from "../../src/wire/ciphers.ts";
import {
  type Asked, type EnrolmentAnswer, type EnrolmentGrant, type EnrolmentRequest, type Invitation, ask, checkGrant,
  invitationKeys, openAnswer, parseInvitation, readAnswer, writeRequest,
} from "../../src/wire/enrolment.ts";
import { fingerprint } from "../../src/wire/identity.ts";
import { Topics } from "../../src/wire/topics.ts";
import { answerBytes, grantRecord, invitationText, openRequest, sealedAnswer } from "./invited.ts";
import { bytesOf, keysOf, publicHex } from "./keys.ts";

const GOLDEN = new URL("../../../../tests/wire/golden/", import.meta.url);
const NOW = 1_800_000_000;
const FEDERATION = await keysOf("Ed25519", bytesOf(null));
const DEVICE = await keysOf("Ed25519", bytesOf(7));
const OTHER = await keysOf("Ed25519", bytesOf(9));
const SHARES = [await keysOf("X25519", bytesOf(1)), await keysOf("X25519", bytesOf(2))] as const;
const OWN = await publicBytes(DEVICE.publicKey);
const ASKS = new Topics("lab").enrolmentRequest("pi-7");
const ANSWERS = new Topics("lab").enrolmentAnswer("pi-7");
const INVITATION: Invitation = {
  federation: "lab",
  deviceId: "pi-7",
  broker: "mqtts://broker.example:8883",
  token: bytesOf(null, 16),
  fingerprint: await fingerprint(await publicBytes(FEDERATION.publicKey)),
  certificate: "cd".repeat(32),
  account: true,
  until: 4_000_000_000,
};
const TEXT =
  "protofleet:AQMAAQIDBAUGBwgJCgsMDQ4PVkdap1RjR0wChd9dvyvKt83Nzc3Nzc3Nzc3Nzc3Nzc3Nz" +
  "c3Nzc3Nzc3Nzc3Nzc3NAAAAAO5rKABtcXR0czovL2Jyb2tlci5leGFtcGxlOjg4ODMKbGFiCnBpLTd3C" +
  "veg";
const KEYS = await invitationKeys(INVITATION);
const REQUEST: EnrolmentRequest = {
  type: "enrolment-request",
  step: "grant",
  device_id: "pi-7",
  key: toHex(OWN),
  share: await publicHex(SHARES[0]),
  nonce: "0f".repeat(16),
  time: NOW,
};
const PAYLOAD = await writeRequest(REQUEST, DEVICE.privateKey, KEYS.proof, ASKS);
const ASKED: Asked = { request: REQUEST, payload: PAYLOAD, privateKey: SHARES[0].privateKey };
const GRANT = (await grantRecord(FEDERATION, REQUEST.key)) as unknown as EnrolmentGrant;

async function answer(answerKey = KEYS.answer, topic = ANSWERS): Promise<EnrolmentAnswer> {
  const request = { payload: PAYLOAD, share: REQUEST.share };
  const sealed = await sealedAnswer(GRANT, request, answerKey, topic, SHARES[1]);
  return readAnswer(answerBytes({ answers: REQUEST.nonce, time: NOW, ...sealed }));
}

test("the invitation of docs/protocol.md and its keys", async () => {
  assert.equal(await invitationText(INVITATION), TEXT);
  assert.deepEqual(await parseInvitation(TEXT), INVITATION);
  assert.equal(toHex(KEYS.proof), "5c5015a47a6071729efc05679a05d06ea79e5968b16c043d6f8ce88989f27e64");
  assert.equal(toHex(KEYS.answer), "82a4f0897640f1dd5b864e7acb2211b33215e386df03e2e61647a1b6eba7ba8c");
  assert.equal(KEYS.password, "IQEZDOpJhsqrrEQP1TgHVoyRxWgZ4lPN");
  assert.match(KEYS.name, /^[0-9a-f]{16}$/);
});

test("the golden request and its answer", async () => {
  assert.equal(toHex(PAYLOAD), toHex(readFileSync(new URL("enrolment-request.bin", GOLDEN))));
  const golden = readAnswer(readFileSync(new URL("enrolment-answer.json", GOLDEN)));
  assert.deepEqual(golden, await answer());
  const grant = await openAnswer(golden, ASKED, KEYS.answer, ANSWERS);
  assert.deepEqual(grant, GRANT);
  assert.equal((await checkGrant(grant, INVITATION, OWN, NOW)).serial, 1);
});

test("white space and a page's address in front do not matter", async () => {
  const given = [
    ` ${TEXT.slice(0, 40)}\n  ${TEXT.slice(40)}\r\n`, `https://hub.example:8443/#${TEXT}`, `http://10.0.0.7/?a=b#${TEXT}\n`,
  ];
  for (const text of given) assert.deepEqual(await parseInvitation(text), INVITATION);
  const bare = { ...INVITATION, certificate: "", account: false, until: 0, federation: "x".repeat(64), deviceId: "a" };
  assert.deepEqual(await parseInvitation(await invitationText(bare)), bare);
});

test("text that is no invitation, or is cut short, is an error", async () => {
  const texts = ["", "protofleet", "protofleet:", "protofleet:A", "protofleet:!!!", "mqtts://broker", `${TEXT}=`, `x${TEXT}`,
    `protofleet:${"A".repeat(2000)}`, `https://hub.example/#`, `https://hub.example/${TEXT}`];
  for (let length = 0; length < TEXT.length; length += 1) texts.push(TEXT.slice(0, length));
  for (const text of texts) await assert.rejects(parseInvitation(text), { name: "InputError", message: /^invitation: / });
});

test("a misread character is noticed, and the message does not repeat the secret", async () => {
  for (let place = "protofleet:".length; place < TEXT.length - 1; place += 1) {
    for (const letter of "AZz09-_") {
      if (TEXT[place] === letter) continue;
      const misread = TEXT.slice(0, place) + letter + TEXT.slice(place + 1);
      await assert.rejects(parseInvitation(misread), (error: Error) => {
        assert.ok(error instanceof InputError);
        return !error.message.includes(misread.slice(20, 60));
      });
    }
  }
});

test("an invitation with a wrong part is an error", async () => {
  const cases: readonly (readonly [Partial<Invitation>, RegExp])[] = [
    [{ broker: "mqtts://eve:secret@broker" }, /has an account; ask for a new one/],
    [{ broker: "http://broker" }, /expected mqtt:\/\//],
    [{ broker: "mqtts://broker/path" }, /expected mqtt:\/\//],
    [{ broker: "mqtts://broker?version=4" }, /expected mqtt:\/\//],
    [{ broker: "mqtts://eve:secret@broker/path" }, /got "broker\/path"/],
    [{ broker: "mqtts://" }, /expected mqtt:\/\//],
    [{ broker: "mqtts://host:port" }, /expected mqtt:\/\//],
    [{ federation: "a/b" }, /federation/],
    [{ deviceId: "invite.x" }, /expected another one/],
    [{ deviceId: "x".repeat(58) }, /1 to 64 characters/],
    [{ deviceId: "a\nb" }, /not whole or damaged/],
  ];
  for (const [changed, message] of cases) {
    const text = await invitationText({ ...INVITATION, ...changed });
    await assert.rejects(parseInvitation(text), { name: "InputError", message });
  }
  for (const broker of ["mqtt://10.0.0.7", "mqtts://[fe80::1]:8883/", "mqtt://a.b-c:1883?version=3.1.1"]) {
    assert.equal((await parseInvitation(await invitationText({ ...INVITATION, broker }))).broker, broker);
  }
});

test("an invitation of a later format or with unknown flags is an error", async () => {
  await assert.rejects(parseInvitation(await invitationText(INVITATION, 2)), /expected format 1, got 2; load this page anew/);
  await assert.rejects(parseInvitation(await invitationText(INVITATION, 1, 7)), /expected format 1/);
  const noText = concat(Uint8Array.of(1, 0), new Uint8Array(72), Uint8Array.of(0xff, 0xfe));
  const whole = toBase64url(concat(noText, (await sha256(noText)).subarray(0, 4)));
  await assert.rejects(parseInvitation(`protofleet:${whole}`), /not whole or damaged/);
});

test("every request has a share and a nonce of its own, and proves invitation and key", async () => {
  const own = await newKeys("Ed25519");
  const [first, second] = await Promise.all(
    (["grant", "taken"] as const).map((step) => ask(own, KEYS, ASKS, { deviceId: "pi-7", step, now: NOW + 0.75 })),
  ) as [Asked, Asked];
  assert.deepEqual(await openRequest(first.payload, KEYS.proof, ASKS), first.request);
  assert.deepEqual([first.request.step, second.request.step, first.request.time], ["grant", "taken", NOW]);
  assert.notEqual(first.request.share, second.request.share);
  assert.notEqual(first.request.nonce, second.request.nonce);
  assert.ok(first.payload.length <= 1024);
  const guessed = await invitationKeys({ ...INVITATION, token: new Uint8Array(16) });
  await assert.rejects(openRequest(first.payload, guessed.proof, ASKS), { rule: "token" });
  await assert.rejects(openRequest(first.payload, KEYS.proof, `${ASKS}x`), { rule: "token" });
});

test("only who asked opens the answer, and only who invited can make it", async () => {
  const another = await writeRequest({ ...REQUEST, nonce: "00".repeat(16) }, DEVICE.privateKey, KEYS.proof, ASKS);
  const cases: readonly (readonly [Asked, EnrolmentAnswer])[] = [
    [{ ...ASKED, privateKey: SHARES[1].privateKey }, await answer()],
    [{ ...ASKED, payload: another }, await answer()],
    [ASKED, await answer(new Uint8Array(32))],
    [ASKED, await answer(KEYS.answer, "fl/v2/lab/en/invite.pi-8/a")],
    [ASKED, { ...(await answer()), sealed: "" }],
    [ASKED, { ...(await answer()), sealed: "A".repeat(21) }],
    [ASKED, { ...(await answer()), sealed: "no base64url!" }],
  ];
  for (const [asked, made] of cases) {
    await assert.rejects(openAnswer(made, asked, KEYS.answer, ANSWERS), { rule: "seal" });
  }
});

test("an answer without a share, or with one that gives everybody the same key, is refused", async () => {
  for (const share of ["", "00".repeat(32), "ab", "é".repeat(64), "AB".repeat(32)]) {
    await assert.rejects(openAnswer({ ...(await answer()), share }, ASKED, KEYS.answer, ANSWERS), { rule: "share" });
  }
});

test("noise is no answer", () => {
  for (const noise of [utf8("noise"), utf8("{}"), utf8('{"type":"enrolment-answer"}'), new Uint8Array(65_000)]) {
    assert.throws(() => readAnswer(noise), { name: "RefusedError" });
  }
});

test("a sealed record that is no grant is refused", async () => {
  const request = { payload: PAYLOAD, share: REQUEST.share };
  for (const record of [{}, { ...GRANT, type: "task" }, { ...GRANT, grant: 7 }]) {
    const sealed = await sealedAnswer(record, request, KEYS.answer, ANSWERS);
    const made = readAnswer(answerBytes({ answers: REQUEST.nonce, ...sealed }));
    await assert.rejects(openAnswer(made, ASKED, KEYS.answer, ANSWERS), { rule: "message-schema" });
  }
});

test("a grant counts for its key, under the federation that was named", async () => {
  const signed = async (federation: CryptoKeyPair, changed = {}): Promise<Partial<EnrolmentGrant>> => {
    const { grant } = await grantRecord(federation, REQUEST.key, changed);
    return { grant: grant as string };
  };
  const cases: readonly (readonly [Partial<EnrolmentGrant>, string])[] = [
    [{ federation_key: await publicHex(OTHER) }, "federation-key"],
    [{ federation_key: "no key" }, "federation-key"],
    [await signed(OTHER), "statement"],
    [await signed(FEDERATION, { key: "ab".repeat(32) }), "statement"],
    [await signed(FEDERATION, { device_id: "pi-8" }), "statement"],
    [await signed(FEDERATION, { federation: "other" }), "statement"],
    [await signed(FEDERATION, { until: 1 }), "statement"],
    [{ ca: "x".repeat(20_000) }, "ca"],
  ];
  for (const [changed, rule] of cases) {
    await assert.rejects(checkGrant({ ...GRANT, ...changed }, INVITATION, OWN, NOW), { rule });
  }
});
