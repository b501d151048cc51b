/** Web Crypto's algorithms as the protocol uses them; keys are not extractable unless they were drawn outside. */

import { UnavailableError } from "../errors.ts";

export const TAG_BYTES = 16;
export const SHARE_BYTES = 32;

// Web Crypto's types exclude memory that threads share; none of ours is.
type Bytes = Uint8Array<ArrayBuffer>;
const own = (data: Uint8Array): Bytes => data as Bytes;

export function randomBytes(count: number): Uint8Array {
  return crypto.getRandomValues(new Uint8Array(count));
}

export async function hmacSha256(key: Uint8Array, message: Uint8Array): Promise<Uint8Array> {
  const imported = await crypto.subtle.importKey("raw", own(key), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, own(message)));
}

/** RFC 5869; an empty salt is one of zeros. */
export async function hkdfSha256(
  secret: Uint8Array, salt: Uint8Array, info: Uint8Array, bytes: number,
): Promise<Uint8Array> {
  const key = await crypto.subtle.importKey("raw", own(secret), "HKDF", false, ["deriveBits"]);
  const algorithm = { name: "HKDF", hash: "SHA-256", salt: own(salt), info: own(info) };
  return new Uint8Array(await crypto.subtle.deriveBits(algorithm, key, bytes * 8));
}

export async function aesKey(key: Uint8Array): Promise<CryptoKey> {
  return crypto.subtle.importKey("raw", own(key), "AES-GCM", false, ["encrypt", "decrypt"]);
}

/** AES-256-GCM: the encrypted data with the tag behind them. */
export async function seal(
  key: CryptoKey, nonce: Uint8Array, data: Uint8Array, authenticated: Uint8Array,
): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.encrypt(gcm(nonce, authenticated), key, own(data)));
}

/** What `seal` sealed; null if the key, nonce, data or what was authenticated are others. */
export async function open(
  key: CryptoKey, nonce: Uint8Array, sealed: Uint8Array, authenticated: Uint8Array,
): Promise<Uint8Array | null> {
  return attempted(async () =>
    new Uint8Array(await crypto.subtle.decrypt(gcm(nonce, authenticated), key, own(sealed))));
}

/** A new key pair; the private half never leaves the browser's own keeping. */
export async function newKeys(algorithm: "Ed25519" | "X25519"): Promise<CryptoKeyPair> {
  const uses: KeyUsage[] = algorithm === "Ed25519" ? ["sign", "verify"] : ["deriveBits"];
  const made = await supported(algorithm, () => crypto.subtle.generateKey({ name: algorithm }, false, uses));
  return made as CryptoKeyPair;
}

/** The 32 raw bytes of a public key. */
export async function publicBytes(key: CryptoKey): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.exportKey("raw", key));
}

export async function signEd25519(key: CryptoKey, message: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.sign("Ed25519", key, own(message)));
}

/** Whether the private half of `key` (32 raw bytes) signed the message; false for no key, too. */
export async function verifyEd25519(key: Uint8Array, signature: Uint8Array, message: Uint8Array): Promise<boolean> {
  const imported = await supported("Ed25519", () =>
    attempted(() => crypto.subtle.importKey("raw", own(key), { name: "Ed25519" }, false, ["verify"])));
  if (imported === null) return false;
  return (await attempted(() => crypto.subtle.verify("Ed25519", imported, own(signature), own(message)))) ?? false;
}

/** The secret of X25519; null for no share (32 raw bytes), or one that gives everybody the same secret. */
export async function exchangeX25519(key: CryptoKey, share: Uint8Array): Promise<Uint8Array | null> {
  const secret = await attempted(async () => {
    const peer = await crypto.subtle.importKey("raw", own(share), { name: "X25519" }, false, []);
    return new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: peer }, key, 8 * SHARE_BYTES));
  });
  return secret?.some((byte) => byte !== 0) ? secret : null;
}

function gcm(nonce: Uint8Array, authenticated: Uint8Array): AesGcmParams {
  return { name: "AES-GCM", iv: own(nonce), additionalData: own(authenticated), tagLength: 8 * TAG_BYTES };
}

/** Null where Web Crypto says that the data are wrong; it tells no reason. */
async function attempted<T>(operation: () => Promise<T>): Promise<T | null> {
  try {
    return await operation();
  } catch (error) {
    if (error instanceof DOMException && (error.name === "OperationError" || error.name === "DataError")) return null;
    throw error;
  }
}

async function supported<T>(algorithm: string, operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (error) {
    if (!(error instanceof DOMException) || error.name !== "NotSupportedError") throw error;
    throw new UnavailableError(`this browser has no ${algorithm}: update it, or use another one`);
  }
}
