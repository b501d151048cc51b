/**
 * Sessions: keys that two ends agree on, and records that nobody else can read, make or repeat.
 *
 * X25519 over both shares and HKDF-SHA256 over both nonces, the run, its bundle and the device give
 * one AES-256-GCM key per direction (`docs/protocol.md`, Sealed sessions).
 */

import { bigEndian, concat, utf8 } from "../bytes.ts";
import { RefusedError } from "../errors.ts";
import {
  TAG_BYTES, aesKey, exchangeX25519, hkdfSha256, newKeys, open, publicBytes, randomBytes, seal,
} from "./ciphers.ts";

export const NONCE_BYTES = 16;
const SEQUENCE_BYTES = 8;
export const OVERHEAD_BYTES = SEQUENCE_BYTES + TAG_BYTES;
/** Records that may overtake each other: a broker keeps the order per topic, not across topics. */
export const WINDOW = 64n;
const WINDOW_MASK = (1n << WINDOW) - 1n;

/** One process's part of every session that it takes part in. */
export interface Handshake {
  /** X25519, never written anywhere. */
  readonly privateKey: CryptoKey;
  /** Its public half, 32 raw bytes. */
  readonly share: Uint8Array;
  /** 16 random bytes. */
  readonly nonce: Uint8Array;
}

/** What the keys of a session depend on besides the shares. */
export interface SessionTerms {
  readonly coordinatorNonce: Uint8Array;
  readonly deviceNonce: Uint8Array;
  /** Of the coordinator's certificate. */
  readonly runId: string;
  /** Digest of the announced bundle, hex. */
  readonly bundle: string;
  readonly deviceId: string;
}

export async function newHandshake(): Promise<Handshake> {
  const { privateKey, publicKey } = await newKeys("X25519");
  return { privateKey, share: await publicBytes(publicKey), nonce: randomBytes(NONCE_BYTES) };
}

/** Which sequence numbers have come: none counts twice, and none that is older than 64 others (RFC 4303, A2). */
export class ReplayWindow {
  #highest = 0n;
  #seen = 0n;

  /** Whether `sequence` is new; it is not from now on. */
  take(sequence: bigint): boolean {
    const ahead = sequence - this.#highest;
    if (ahead > 0n) {
      this.#seen = ahead < WINDOW ? ((this.#seen << ahead) | 1n) & WINDOW_MASK : 1n;
      this.#highest = sequence;
      return true;
    }
    if (-ahead >= WINDOW || sequence < 1n) return false;
    const bit = 1n << -ahead;
    if ((this.#seen & bit) !== 0n) return false;
    this.#seen |= bit;
    return true;
  }
}

/** One end of the sealed way between a coordinator's and a device's process. */
export class Session {
  readonly #send: CryptoKey;
  readonly #receive: CryptoKey;
  readonly #window = new ReplayWindow();
  #sequence = 0n;

  private constructor(send: CryptoKey, receive: CryptoKey) {
    this.#send = send;
    this.#receive = receive;
  }

  /** Keys of 32 bytes each. */
  static async create(sendKey: Uint8Array, receiveKey: Uint8Array): Promise<Session> {
    return new Session(await aesKey(sendKey), await aesKey(receiveKey));
  }

  /** The payload of the MQTT packet that carries `record` on `topic`. */
  async seal(topic: string, record: Uint8Array): Promise<Uint8Array> {
    this.#sequence += 1n;
    const sequence = bigEndian(this.#sequence, SEQUENCE_BYTES);
    return concat(sequence, await seal(this.#send, nonceOf(sequence), record, utf8(topic)));
  }

  /**
   * The record in a packet's payload.
   *
   * @throws RefusedError rule `seal` (not made by the other end of this session for this topic), or
   *   `replay` (it has come before, or is much older than others)
   */
  async open(topic: string, payload: Uint8Array): Promise<Uint8Array> {
    if (payload.length <= OVERHEAD_BYTES) {
      throw new RefusedError("seal", `record: expected a sealed one, got ${payload.length} bytes`);
    }
    const sequence = payload.subarray(0, SEQUENCE_BYTES);
    const record = await open(this.#receive, nonceOf(sequence), payload.subarray(SEQUENCE_BYTES), utf8(topic));
    if (record === null) throw new RefusedError("seal", "record: not sealed with this session's key");
    const number = new DataView(sequence.buffer, sequence.byteOffset).getBigUint64(0);
    if (!this.#window.take(number)) throw new RefusedError("replay", `record ${number}: it came before`);
    return record;
  }
}

/** The keys of a session, 32 bytes each. */
export interface SessionKeys {
  /** Device to coordinator. */
  readonly up: Uint8Array;
  /** Coordinator to device. */
  readonly down: Uint8Array;
}

/**
 * The keys of a session.
 *
 * @param privateKey our own half, X25519
 * @param peer the other end's share, 32 raw bytes
 * @param terms the same at both ends
 * @throws RefusedError rule `share`: no share, or one that gives everybody the same key
 */
export async function deriveKeys(privateKey: CryptoKey, peer: Uint8Array, terms: SessionTerms): Promise<SessionKeys> {
  const secret = await exchangeX25519(privateKey, peer);
  if (secret === null) throw new RefusedError("share", "X25519 share: expected one that nobody else has");
  const salt = concat(terms.coordinatorNonce, terms.deviceNonce);
  const info = utf8(`protofleet/2 session\0${terms.runId}/${terms.bundle}/${terms.deviceId}`);
  const keys = await hkdfSha256(secret, salt, info, 64);
  return { up: keys.slice(0, 32), down: keys.slice(32) };
}

function nonceOf(sequence: Uint8Array): Uint8Array {
  return concat(new Uint8Array(12 - SEQUENCE_BYTES), sequence);
}
