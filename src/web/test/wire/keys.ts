/** Keys of known private bytes, for golden bytes; those of the device are drawn by the browser and never known. */

import { concat, toBase64url, utf8 } from "../../src/bytes.ts";
import { fromHex, toHex } from "../../src/hash.ts";
import { type StatementSchema, sign } from "../../src/wire/identity.ts";
import { type RecordOf, make, write } from "../../src/wire/schema.ts";

const HEADS = { Ed25519: "302e020100300506032b657004220420", X25519: "302e020100300506032b656e04220420" };

/** A key pair whose private half is these 32 bytes. */
export async function keysOf(algorithm: keyof typeof HEADS, secret: Uint8Array): Promise<CryptoKeyPair> {
  const pkcs8 = concat(fromHex(HEADS[algorithm]), secret) as Uint8Array<ArrayBuffer>;
  const [uses, publicUses]: [KeyUsage[], KeyUsage[]] =
    algorithm === "Ed25519" ? [["sign"], ["verify"]] : [["deriveBits"], []];
  const privateKey = await crypto.subtle.importKey("pkcs8", pkcs8, { name: algorithm }, true, uses);
  const { kty, crv, x } = await crypto.subtle.exportKey("jwk", privateKey);
  const publicKey = await crypto.subtle.importKey(
    "jwk", { kty, crv, x } as JsonWebKey, { name: algorithm }, true, publicUses,
  );
  return { privateKey, publicKey };
}

/** The same byte, 32 times; or 0, 1, 2 … if it is null. */
export function bytesOf(byte: number | null, count = 32): Uint8Array {
  return Uint8Array.from({ length: count }, (_, index) => byte ?? index);
}

export async function publicHex(keys: CryptoKeyPair): Promise<string> {
  return toHex(new Uint8Array(await crypto.subtle.exportKey("raw", keys.publicKey)));
}

/** A statement as text, signed by the federation key. */
export async function signStatement<S extends StatementSchema>(
  key: CryptoKey, kind: S, statement: Omit<RecordOf<S>, "type">,
): Promise<string> {
  const body = utf8(write(kind as never, make(kind as never, statement as never)));
  return toBase64url(concat(await sign(key, `${kind.name} statement`, body), body));
}
