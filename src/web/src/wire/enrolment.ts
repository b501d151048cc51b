/**
 * Enrolment: what an invitation says, and how a device uses it once (`docs/protocol.md`, Enrolment).
 *
 * An invitation is one line of text for one device. Its token never travels: keys derived from it
 * prove the device's request and open the federation's answer.
 */

import { bigEndian, concat, equal, fromBase64url, toBase64url, utf8 } from "../bytes.ts";
import { InputError, RefusedError } from "../errors.ts";
import { fromHex, sha256, sha256Hex, toHex } from "../hash.ts";
import { aesKey, exchangeX25519, hkdfSha256, hmacSha256, open, publicBytes } from "./ciphers.ts";
import { DEVICE_GRANT, type DeviceGrant, fingerprint, readStatement, sign } from "./identity.ts";
import { MAX_MESSAGE_BYTES } from "./messages.ts";
import { type RecordOf, TEXT, WHOLE, make, oneOf, optional, readAny, schema, write } from "./schema.ts";
import { newHandshake } from "./session.ts";
import { checkId, invitedAccount } from "./topics.ts";

export const SCHEME = "protofleet:";
export const MAX_CA_CHARS = 16 * 1024;
const FORMAT = 1;
const HEAD_BYTES = 1 + 1 + 16 + 16 + 32 + 8;
const PINNED = 1;
const ACCOUNT = 2;
const CHECK_BYTES = 4;
const MOST_TEXT = 1024;
const PURPOSE = "enrolment request";
const COPY = `copy it whole, from '${SCHEME}' to its last character`;
const ANEW = "ask for a new one";
const KEY = /^[0-9a-f]{64}$/;
/** A page's address in front of an invitation, as a code to scan has it. */
const PAGE = /^https?:\/\/[^#]*#/;
const HOST = /(?:\[[0-9a-fA-F:.]+\]|[^\s:@/?#[\]]+)(?::[0-9]{1,5})?/.source;
const BROKER = new RegExp(`^mqtts?://(?:([^/?#]*)@)?${HOST}/?(?:\\?version=(?:5|3\\.1\\.1))?$`);

/** What a device needs to enrol, once. */
export interface Invitation {
  readonly federation: string;
  readonly deviceId: string;
  /** MQTT address, without an account. */
  readonly broker: string;
  /** 16 secret bytes. */
  readonly token: Uint8Array;
  /** Of the federation key, 32 hex digits. */
  readonly fingerprint: string;
  /** SHA-256 of the broker's certificate (DER), hex; "": not pinned. No page can see a certificate. */
  readonly certificate: string;
  /** Whether the broker has an account for the invitation. */
  readonly account: boolean;
  /** Seconds since 1970, by the clock of whoever invites. */
  readonly until: number;
}

/** What an invitation's token gives, and the token does not follow from. */
export interface InvitationKeys {
  /** 32 bytes, of the HMAC over requests. */
  readonly proof: Uint8Array;
  /** 32 bytes, salt of the answers' keys. */
  readonly answer: Uint8Array;
  /** Of the invitation's account at the broker, 32 characters. */
  readonly password: string;
  /** 16 hex digits that tell invitations apart and reveal nothing of them. */
  readonly name: string;
}

const REQUEST = schema("enrolment-request", {
  step: oneOf("grant", "taken"), device_id: TEXT, key: TEXT, share: TEXT, nonce: TEXT, time: WHOLE,
});
const ANSWER = schema("enrolment-answer", {
  answers: TEXT,
  time: WHOLE,
  rule: optional(TEXT, ""),
  reason: optional(TEXT, ""),
  share: optional(TEXT, ""),
  sealed: optional(TEXT, ""),
});
const GRANT = schema("enrolment-grant", {
  grant: TEXT, federation_key: TEXT, ca: optional(TEXT, ""), password: optional(TEXT, ""),
});

/** Device → federation: `step` is `grant` (give me one) or `taken` (I keep it); `time` in s since 1970. */
export interface EnrolmentRequest extends RecordOf<typeof REQUEST> {}
/** Federation → device: a sealed `EnrolmentGrant`, or, with a `rule`, why there is none. */
export interface EnrolmentAnswer extends RecordOf<typeof ANSWER> {}
/** What an enrolled device has from then on; `ca` and `password` are empty where there is none. */
export interface EnrolmentGrant extends RecordOf<typeof GRANT> {}

/** A request that was sent, and what opens its answer. */
export interface Asked {
  readonly request: EnrolmentRequest;
  /** Of the MQTT packet. */
  readonly payload: Uint8Array;
  /** X25519. */
  readonly privateKey: CryptoKey;
}

/**
 * The invitation in a text, or behind the `#` of a page's address; white space does not matter.
 *
 * @throws InputError it is none, or not whole; the message does not repeat it
 */
export async function parseInvitation(given: string): Promise<Invitation> {
  const packed = given.replace(/\s+/gu, "").replace(PAGE, "");
  if (!packed.startsWith(SCHEME) || packed.length > MOST_TEXT) {
    throw new InputError(`invitation: expected text that begins with '${SCHEME}'; ${COPY}`);
  }
  const data = fromBase64url(packed.slice(SCHEME.length));
  if (data === null) throw new InputError(`invitation: not whole or damaged; ${COPY}`);
  const body = data.subarray(0, -CHECK_BYTES);
  const checksum = (await sha256(body)).subarray(0, CHECK_BYTES);
  if (body.length < HEAD_BYTES || !equal(data.subarray(body.length), checksum)) {
    throw new InputError(`invitation: its checksum is wrong; ${COPY}`);
  }
  return checked(body);
}

/** What is derived from the token. */
export async function invitationKeys(invitation: Invitation): Promise<InvitationKeys> {
  const info = utf8(`protofleet/2 invitation\0${invitation.federation}/${invitation.deviceId}`);
  const derived = await hkdfSha256(invitation.token, new Uint8Array(), info, 88);
  const proof = derived.slice(0, 32);
  return {
    proof,
    answer: derived.slice(32, 64),
    password: toBase64url(derived.subarray(64)),
    name: (await sha256Hex(concat(utf8("protofleet/2 name\0"), proof))).slice(0, 16),
  };
}

/**
 * A request for `topic`, proven by the invitation and signed by the device's own key.
 *
 * @param own the device's Ed25519 key
 * @param now seconds since 1970
 */
export async function ask(
  own: CryptoKeyPair,
  keys: InvitationKeys,
  topic: string,
  { deviceId, step, now }: { deviceId: string; step: EnrolmentRequest["step"]; now: number },
): Promise<Asked> {
  const { privateKey, share, nonce } = await newHandshake();
  const request = make(REQUEST, {
    step,
    device_id: deviceId,
    key: toHex(await publicBytes(own.publicKey)),
    share: toHex(share),
    nonce: toHex(nonce),
    time: Math.floor(now),
  });
  return { request, payload: await writeRequest(request, own.privateKey, keys.proof, topic), privateKey };
}

/** 32 bytes of HMAC-SHA256 over all that follows, 64 of the device's signature, JSON. */
export async function writeRequest(
  request: EnrolmentRequest, key: CryptoKey, proof: Uint8Array, topic: string,
): Promise<Uint8Array> {
  const body = utf8(write(REQUEST, request));
  const signed = concat(await sign(key, PURPOSE, place(topic, body)), body);
  return concat(await hmacSha256(proof, concat(utf8("protofleet/2 enrolment proof\0"), place(topic, signed))), signed);
}

/** An answer's record, believed for nothing before `openAnswer`; throws RefusedError: it is none. */
export function readAnswer(payload: Uint8Array): EnrolmentAnswer {
  if (payload.length > MAX_MESSAGE_BYTES) {
    throw new RefusedError("message-size", `message: ${payload.length} bytes > ${MAX_MESSAGE_BYTES}`);
  }
  return readAny([ANSWER], payload, "message-schema", "message");
}

/**
 * The grant in an answer, from somebody who has the invitation's keys.
 *
 * @param answerKey of the invitation
 * @param topic of the answer
 * @throws RefusedError rule `seal`, `share` or `message-schema`
 */
export async function openAnswer(
  answer: EnrolmentAnswer, asked: Asked, answerKey: Uint8Array, topic: string,
): Promise<EnrolmentGrant> {
  const share = fromHex(KEY.test(answer.share) ? answer.share : "");
  const secret = await exchangeX25519(asked.privateKey, share);
  if (secret === null) throw new RefusedError("share", "the answer has no X25519 share");
  const info = concat(utf8("protofleet/2 enrolment answer\0"), await sha256(asked.payload), share);
  const key = await aesKey(await hkdfSha256(secret, answerKey, info, 32));
  const sealed = fromBase64url(answer.sealed) ?? new Uint8Array();
  const found = await open(key, bigEndian(0n, 12), sealed, utf8(topic));
  if (found === null) throw new RefusedError("seal", "the answer is not by whoever made the invitation");
  return readAny([GRANT], found, "message-schema", "message");
}

/**
 * The grant for the device's own key, by the key that the invitation names.
 *
 * @param own the device's public key, 32 raw bytes
 * @param now seconds since 1970
 * @throws RefusedError rule `federation-key` or `statement`: it is not; or `ca`: too long
 */
export async function checkGrant(
  found: EnrolmentGrant, invitation: Invitation, own: Uint8Array, now: number,
): Promise<DeviceGrant> {
  const signer = KEY.test(found.federation_key) ? found.federation_key : "";
  const print = await fingerprint(fromHex(signer));
  if (print !== invitation.fingerprint) {
    throw new RefusedError(
      "federation-key",
      `federation key: expected fingerprint ${invitation.fingerprint}, got ${print}; ${ANEW}`,
    );
  }
  if (found.ca.length > MAX_CA_CHARS) {
    throw new RefusedError("ca", `the broker's authority: ${found.ca.length} characters`);
  }
  const { federation, deviceId } = invitation;
  const grant = await readStatement(found.grant, DEVICE_GRANT, { signer, federation, now });
  if (grant.device_id !== deviceId || grant.key !== toHex(own)) {
    throw new RefusedError("statement", `the grant is for '${grant.device_id.slice(0, 64)}' or another key`);
  }
  return grant;
}

function checked(body: Uint8Array): Invitation {
  const head = new DataView(body.buffer, body.byteOffset, HEAD_BYTES);
  const [version, flags] = [head.getUint8(0), head.getUint8(1)];
  const names = decoded(body.subarray(HEAD_BYTES))?.split("\n") ?? [];
  const [broker, federation, deviceId] = names;
  if (broker === undefined || federation === undefined || deviceId === undefined || names.length !== 3) {
    throw new InputError(`invitation: not whole or damaged; ${COPY}`);
  }
  if (version !== FORMAT || (flags & ~(PINNED | ACCOUNT)) !== 0) {
    throw new InputError(`invitation: expected format ${FORMAT}, got ${version}; load this page anew`);
  }
  checkBroker(broker);
  checkId(federation, "federation");
  invitedAccount(deviceId);
  return {
    federation,
    deviceId,
    broker,
    token: body.slice(2, 18),
    fingerprint: toHex(body.subarray(18, 34)),
    certificate: (flags & PINNED) === 0 ? "" : toHex(body.subarray(34, 66)),
    account: (flags & ACCOUNT) !== 0,
    until: Number(head.getBigUint64(66)),
  };
}

function checkBroker(broker: string): void {
  const found = BROKER.exec(broker);
  if (found === null) {
    const shown = JSON.stringify(broker.slice(broker.lastIndexOf("@") + 1).slice(0, 100));
    const expected = "expected mqtt://host:port or mqtts://…";
    throw new InputError(`invitation: its broker's address: ${expected}, got ${shown}; ${ANEW}`);
  }
  if (found[1] !== undefined) throw new InputError(`invitation: its broker's address has an account; ${ANEW}`);
}

function decoded(data: Uint8Array): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return null;
  }
}

function place(topic: string, body: Uint8Array): Uint8Array {
  return concat(utf8(topic), Uint8Array.of(0), body);
}
