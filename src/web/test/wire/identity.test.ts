import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex } from "../../src/hash.ts";
import {
  COORDINATOR_CERTIFICATE, DEVICE_GRANT, KEY_ROTATION, fingerprint, readStatement, signOffer,
} from "../../src/wire/identity.ts";
import { newKeys } from "../../src/wire/ciphers.ts";
import { message } from "../../src/wire/messages.ts";
import { bytesOf, keysOf, publicHex, signStatement } from "./keys.ts";

const F = await keysOf("Ed25519", bytesOf(null));
const SIGNER = await publicHex(F);
const UNTIL = 4_000_000_000;
const FIELDS = { federation: "lab", device_id: "pi-7", key: "ab".repeat(32), serial: 3, until: UNTIL };
const GOLDEN =
  "DTOyV7unFhN7iCgfZcC-SWsiVVLdbv7s_Ck-axIGTwTBaEJStSN1NDa-y9zcjXdfKubuqGjPMpA4Gqjs" +
  "IcGKBnsidHlwZSI6ImRldmljZSIsImZlZGVyYXRpb24iOiJsYWIiLCJkZXZpY2VfaWQiOiJwaS03Iiwi" +
  "a2V5IjoiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFi" +
  "YWJhYmFiYWJhYiIsInNlcmlhbCI6MywidW50aWwiOjQwMDAwMDAwMDB9";
const READER = { signer: SIGNER, federation: "lab", now: 1_800_000_000 };

test("the grant of docs/protocol.md", async () => {
  assert.equal(await signStatement(F.privateKey, DEVICE_GRANT, FIELDS), GOLDEN);
  assert.deepEqual(await readStatement(GOLDEN, DEVICE_GRANT, READER), { type: "device", ...FIELDS });
  assert.equal(await fingerprint(fromHex(SIGNER)), "56475aa75463474c0285df5dbf2bcab7");
});

test("another character anywhere is refused", async () => {
  for (let place = 0; place < GOLDEN.length; place += 1) {
    for (const character of "Az-+= \0é") {
      if (GOLDEN[place] === character) continue;
      const changed = GOLDEN.slice(0, place) + character + GOLDEN.slice(place + 1);
      await assert.rejects(readStatement(changed, DEVICE_GRANT, READER), { rule: "statement" });
    }
  }
  for (const text of ["", "A".repeat(87), "A".repeat(5000), "A".repeat(89), `${GOLDEN}\n`, GOLDEN.slice(0, -4)]) {
    await assert.rejects(readStatement(text, DEVICE_GRANT, READER), { rule: "statement" });
  }
});

test("a statement stands for nothing else", async () => {
  const other = await newKeys("Ed25519");
  const grant = (changed: object): Promise<string> =>
    signStatement(F.privateKey, DEVICE_GRANT, { ...FIELDS, ...changed });
  const certificate = { federation: "lab", run_id: "r", key: "ab".repeat(32), until: UNTIL };
  const rotation = { federation: "lab", old: "ab".repeat(32), new: "no key" };
  const cases = [
    [await signStatement(other.privateKey, DEVICE_GRANT, FIELDS), DEVICE_GRANT, /not signed by this federation's key/],
    [GOLDEN, COORDINATOR_CERTIFICATE, /not signed/],
    [await signStatement(F.privateKey, COORDINATOR_CERTIFICATE, certificate), DEVICE_GRANT, /not signed/],
    [await grant({ federation: "x" }), DEVICE_GRANT, /federation 'lab', got 'x'/],
    [await grant({ until: READER.now }), DEVICE_GRANT, /valid until 2027-01-15, which is over/],
    [await grant({ until: -(2 ** 52) }), DEVICE_GRANT, /valid until 1970-01-01, which is over/],
    [await grant({ key: "AB".repeat(32) }), DEVICE_GRANT, /key is no key/],
    [await signStatement(F.privateKey, KEY_ROTATION, rotation), KEY_ROTATION, /new is no key/],
  ] as const;
  for (const [text, kind, message] of cases) {
    await assert.rejects(readStatement(text, kind, READER), { rule: "statement", message });
  }
});

test("a signer that is no key signs nothing", async () => {
  for (const signer of ["", "ab", "00".repeat(32), "ff".repeat(32)]) {
    await assert.rejects(readStatement(GOLDEN, DEVICE_GRANT, { ...READER, signer }), { rule: "statement" });
  }
});

test("an offer's signature covers who offers what", async () => {
  const offer = message("manifest", {
    transfer_id: "0".repeat(32), kind: "update", round_id: 3, total_bytes: 10, sha256: "ab".repeat(32), chunk_bytes: 256,
  });
  const of = (changed: object, federation = "lab", deviceId = "pi-7"): Promise<string> =>
    signOffer(F.privateKey, { ...offer, ...changed }, federation, deviceId);
  const ours = await of({});
  assert.match(ours, /^[0-9a-f]{128}$/);
  const changes = [{ round_id: 4 }, { sha256: "cd".repeat(32) }, { codec: "fp16" }, { base: "ab".repeat(32) },
    { total_bytes: 11 }, { raw_bytes: 1 }];
  const others = [...changes.map((change) => of(change)), of({}, "x"), of({}, "lab", "pi-8")];
  for (const other of await Promise.all(others)) assert.notEqual(other, ours);
  assert.equal(await of({ chunk_bytes: 512, key: "ab".repeat(32) }), ours);
});
