/** The federation's side of an enrolment, as `wire/trust/enrolment.py` has it. */

import { bigEndian, concat, equal, fromBase64url, toBase64url, utf8 } from "../../src/bytes.ts";
import { RefusedError } from "../../src/errors.ts";
import { fromHex, sha256, toHex } from "../../src/hash.ts";
import { aesKey, exchangeX25519, hkdfSha256, hmacSha256, newKeys, publicBytes, seal } from "../../src/wire/ciphers.ts";
import type { EnrolmentRequest, Invitation } from "../../src/wire/enrolment.ts";
import { DEVICE_GRANT, type DeviceGrant, verify } from "../../src/wire/identity.ts";
import { signStatement } from "./keys.ts";

const PROOF_BYTES = 32;

const place = (topic: string, body: Uint8Array): Uint8Array => concat(utf8(`${topic}\0`), body);

/** The text of an invitation; `changed` replaces its first two bytes, format and flags. */
export async function invitationText(invitation: Invitation, format = 1, flags?: number): Promise<string> {
  const { federation, deviceId, broker, token, fingerprint, certificate, account, until } = invitation;
  const body = concat(
    Uint8Array.of(format, flags ?? (certificate === "" ? 0 : 1) + (account ? 2 : 0)),
    token, fromHex(fingerprint), fromHex(certificate || "00".repeat(32)), bigEndian(BigInt(until), 8),
    utf8(`${broker}\n${federation}\n${deviceId}`),
  );
  return `protofleet:${toBase64url(concat(body, (await sha256(body)).subarray(0, 4)))}`;
}

/** The record of a request that proves the invitation and its own key. */
export async function openRequest(payload: Uint8Array, proof: Uint8Array, topic: string): Promise<EnrolmentRequest> {
  const signed = payload.subarray(PROOF_BYTES);
  const ours = await hmacSha256(proof, concat(utf8("protofleet/2 enrolment proof\0"), place(topic, signed)));
  if (!equal(payload.subarray(0, PROOF_BYTES), ours)) throw new RefusedError("token", "another invitation");
  const body = signed.subarray(64);
  const request = JSON.parse(new TextDecoder().decode(body)) as EnrolmentRequest;
  if (!(await verify(fromHex(request.key), signed.subarray(0, 64), "enrolment request", place(topic, body)))) {
    throw new RefusedError("signature", "not signed by the key that it names");
  }
  return request;
}

/** What a federation grants. */
export async function grantRecord(
  federation: CryptoKeyPair, key: string, changed: Partial<DeviceGrant> = {},
): Promise<Record<string, string>> {
  const fields = { federation: "lab", device_id: "pi-7", key, serial: 1, until: 4_000_000_000, ...changed };
  return {
    type: "enrolment-grant",
    grant: await signStatement(federation.privateKey, DEVICE_GRANT, fields),
    federation_key: toHex(await publicBytes(federation.publicKey)),
    ca: "",
    password: "A".repeat(32),
  };
}

/** `share` and `sealed` of the answer to a request. */
export async function sealedAnswer(
  record: unknown,
  request: { readonly payload: Uint8Array; readonly share: string },
  answerKey: Uint8Array,
  topic: string,
  own?: CryptoKeyPair,
): Promise<{ share: string; sealed: string }> {
  const keys = own ?? (await newKeys("X25519"));
  const share = await publicBytes(keys.publicKey);
  const secret = await exchangeX25519(keys.privateKey, fromHex(request.share));
  if (secret === null) throw new RefusedError("share", "no share");
  const info = concat(utf8("protofleet/2 enrolment answer\0"), await sha256(request.payload), share);
  const key = await aesKey(await hkdfSha256(secret, answerKey, info, 32));
  const sealed = await seal(key, new Uint8Array(12), utf8(JSON.stringify(record)), utf8(topic));
  return { share: toHex(share), sealed: toBase64url(sealed) };
}

export function answerBytes(fields: object): Uint8Array {
  return utf8(JSON.stringify({ type: "enrolment-answer", time: Math.floor(Date.now() / 1000), ...fields }));
}

/** The bytes of an invitation's text, to spoil them. */
export function invitationBytes(text: string): Uint8Array {
  return fromBase64url(text.slice("protofleet:".length)) ?? new Uint8Array();
}
