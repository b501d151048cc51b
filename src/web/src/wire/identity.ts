/**
 * Who may speak in a federation: statements signed by its key (`docs/protocol.md`, Keys).
 *
 * A statement travels as one line of text: base64url without padding of 64 bytes of Ed25519 signature
 * and the JSON that it signs. What is signed begins with a purpose, so that no signature can stand for
 * another one. Keys are 64 hex digits.
 */

import { concat, fromBase64url, utf8 } from "../bytes.ts";
import { RefusedError } from "../errors.ts";
import { fromHex, sha256Hex, toHex } from "../hash.ts";
import { signEd25519, verifyEd25519 } from "./ciphers.ts";
import type { TransferOffer } from "./messages.ts";
import { type RecordOf, TEXT, WHOLE, readAny, schema } from "./schema.ts";

export const SIGNATURE_BYTES = 64;
const STATEMENT = /^[A-Za-z0-9_-]{88,4096}$/;
const KEY = /^[0-9a-f]{64}$/;
/** The last second that a date is written of. */
const LAST_DATE_S = 2 ** 35;

/** `key` speaks for the coordinator of one run. `until`: seconds since 1970, in all statements. */
export const COORDINATOR_CERTIFICATE = schema("coordinator", {
  federation: TEXT, run_id: TEXT, key: TEXT, until: WHOLE,
});
/** `key` speaks for `device_id`; a later grant has a higher `serial`. */
export const DEVICE_GRANT = schema("device", {
  federation: TEXT, device_id: TEXT, key: TEXT, serial: WHOLE, until: WHOLE,
});
/** The federation key `old` hands over to `new`; signed by `old`. */
export const KEY_ROTATION = schema("rotation", { federation: TEXT, old: TEXT, new: TEXT });

export type CoordinatorCertificate = RecordOf<typeof COORDINATOR_CERTIFICATE>;
export type DeviceGrant = RecordOf<typeof DEVICE_GRANT>;
export type KeyRotation = RecordOf<typeof KEY_ROTATION>;
export type StatementSchema = typeof COORDINATOR_CERTIFICATE | typeof DEVICE_GRANT | typeof KEY_ROTATION;
type Statement = CoordinatorCertificate | DeviceGrant | KeyRotation;

/** First 32 hex digits of the SHA-256 of a raw public key, for people to compare. */
export async function fingerprint(key: Uint8Array): Promise<string> {
  return (await sha256Hex(key)).slice(0, 32);
}

/** The 64-byte signature over `protofleet/2 <purpose>`, a zero byte and `message`. */
export async function sign(key: CryptoKey, purpose: string, message: Uint8Array): Promise<Uint8Array> {
  return signEd25519(key, signed(purpose, message));
}

/** Whether `sign` made the signature with the private half of `key` (32 raw bytes). */
export async function verify(
  key: Uint8Array, signature: Uint8Array, purpose: string, message: Uint8Array,
): Promise<boolean> {
  return verifyEd25519(key, signature, signed(purpose, message));
}

/**
 * The statement in `text`, if the federation key `signer` made it.
 *
 * @param now seconds since 1970
 * @throws RefusedError rule `statement`: no text of a statement, another kind or federation, another
 *   signer, a key that is none, or one whose time is over
 */
export async function readStatement<S extends StatementSchema>(
  text: string, kind: S, { signer, federation, now }: { signer: string; federation: string; now: number },
): Promise<RecordOf<S>> {
  const name = purposeOf(kind);
  const data = STATEMENT.test(text) ? fromBase64url(text) : null;
  if (data === null) {
    throw refused(`${name}: expected base64url text, got ${JSON.stringify(text.slice(0, 40))}`);
  }
  const [signature, body] = [data.subarray(0, SIGNATURE_BYTES), data.subarray(SIGNATURE_BYTES)];
  if (!(await verify(fromHex(signer), signature, name, body))) {
    throw refused(`${name}: not signed by this federation's key`);
  }
  const statement = readAny([kind], body, "statement", name) as RecordOf<S>;
  check(statement as Statement, name, federation, now);
  return statement;
}

/** A device's signature (hex) for an update that it offers. */
export async function signOffer(
  key: CryptoKey, offer: TransferOffer, federation: string, deviceId: string,
): Promise<string> {
  const { round_id, sha256, total_bytes, codec, raw_bytes, base } = offer;
  const fields = [federation, deviceId, round_id, sha256, total_bytes, codec, raw_bytes, base];
  return toHex(await sign(key, "update", utf8(fields.join("\n"))));
}

function check(statement: Statement, name: string, federation: string, now: number): void {
  if (statement.federation !== federation) {
    throw refused(
      `${name}: expected one of federation '${federation}', got '${statement.federation.slice(0, 64)}'`,
    );
  }
  const keys = statement.type === "rotation" ? { old: statement.old, new: statement.new } : { key: statement.key };
  for (const [field, key] of Object.entries(keys)) {
    if (!KEY.test(key)) throw refused(`${name}: ${field} is no key: ${JSON.stringify(key.slice(0, 70))}`);
  }
  if (statement.type !== "rotation" && statement.until <= now) {
    const over = new Date(1000 * Math.max(0, Math.min(statement.until, LAST_DATE_S))).toISOString().slice(0, 10);
    throw refused(`${name}: valid until ${over}, which is over`);
  }
}

function purposeOf(kind: StatementSchema): string {
  return `${kind.name} statement`;
}

function signed(purpose: string, message: Uint8Array): Uint8Array {
  return concat(utf8(`protofleet/2 ${purpose}\0`), message);
}

function refused(message: string): RefusedError {
  return new RefusedError("statement", message);
}
