/**
 * What an endpoint does to every record: nothing (`Plain`), or signing, sealing and checking.
 *
 * Announcement and presence are *signed*: 64 bytes of Ed25519 signature over topic and JSON, then the
 * JSON. They carry the handshakes; every other record is *sealed* with the session that follows from
 * them. Without keys all records are bare JSON, which only a network that one trusts excuses.
 */

import { concat, utf8 } from "../bytes.ts";
import { RefusedError } from "../errors.ts";
import { fromHex, toHex } from "../hash.ts";
import { hmacSha256, randomBytes } from "./ciphers.ts";
import {
  COORDINATOR_CERTIFICATE, type CoordinatorCertificate, KEY_ROTATION, SIGNATURE_BYTES, readStatement, sign,
  signOffer, verify,
} from "./identity.ts";
import {
  type Announcement, type CoordinatorHandshake, type Kind, MAX_MESSAGE_BYTES, type Message, type Messages,
  type Presence, type TransferOffer, decode, encode,
} from "./messages.ts";
import { type Handshake, Session, deriveKeys, newHandshake } from "./session.ts";

const NONCE = /^[0-9a-f]{32}$/;
const SHARE = /^[0-9a-f]{64}$/;
const MOST_ROTATIONS = 100;
const OPENING = utf8('{"type"');

/** Kinds that are sealed where there are keys. */
export type SealedKind = Exclude<Kind, "announcement" | "presence">;

/** A device's end of every record that it sends and hears. */
export interface Protection {
  /** Whether chunks are sealed, and offers have to name a key. */
  readonly sealed: boolean;
  /** The payload that carries `message`; null as long as the coordinator is not known. A last will never is. */
  write(message: Message, topic: string): Promise<Uint8Array | null>;
  /** The payload that carries an encoded record; null as long as there is no session. */
  seal(record: Uint8Array, topic: string): Promise<Uint8Array | null>;
  /** The announcement in `payload`; throws RefusedError if it broke a rule. */
  readAnnouncement(payload: Uint8Array, topic: string): Promise<Announcement>;
  /** Another record in `payload`, of one of the kinds; throws RefusedError if it broke a rule. */
  read<K extends SealedKind>(payload: Uint8Array, topic: string, ...kinds: readonly K[]): Promise<Messages[K]>;
  /** The encoded record in `payload`; throws RefusedError, rule `session`, `seal` or `replay`. */
  open(payload: Uint8Array, topic: string): Promise<Uint8Array>;
  /** What seals the chunks of a blob in a grid, for its offer; "": nothing does. */
  contentKey(sha256: string, chunkBytes: number): Promise<string>;
  /** The device's own offer of an update with its signature. */
  signOffer(offer: TransferOffer): Promise<TransferOffer>;
}

/** Records as they are, for a federation without keys. */
export class Plain implements Protection {
  readonly sealed = false;

  async write(message: Message): Promise<Uint8Array> {
    return encode(message);
  }

  async seal(record: Uint8Array): Promise<Uint8Array> {
    return record;
  }

  async readAnnouncement(payload: Uint8Array): Promise<Announcement> {
    return decode(payload, "announcement");
  }

  async read<K extends SealedKind>(payload: Uint8Array, _topic: string, ...kinds: readonly K[]): Promise<Messages[K]> {
    return decode(payload, ...kinds);
  }

  async open(payload: Uint8Array): Promise<Uint8Array> {
    return payload;
  }

  async contentKey(): Promise<string> {
    return "";
  }

  async signOffer(offer: TransferOffer): Promise<TransferOffer> {
    return offer;
  }
}

/** What an enrolled device has. */
export interface DeviceCredentials {
  readonly federation: string;
  readonly deviceId: string;
  /** The private half of its own Ed25519 key. */
  readonly key: CryptoKey;
  /** The federation key's statement about it. */
  readonly grant: string;
  /** The public key that the device trusts, 64 hex digits. */
  readonly federationKey: string;
  /** Of this process, higher than of every one before it. */
  readonly start: number;
  /** Sequence of the latest announcement that was ever heard. */
  readonly announced: number;
  /** Keeps a later sequence, and the federation key then in force, over restarts. */
  readonly note: (announced: number, federationKey: string) => Promise<void>;
}

/** The end of an enrolled device. */
export class DeviceProtection implements Protection {
  readonly sealed = true;
  readonly #own: DeviceCredentials;
  readonly #handshake: Handshake;
  readonly #secret = randomBytes(32);
  #federationKey: string;
  #announced: number;
  #session: Session | null = null;
  #answers = "";
  #presences = 0;

  private constructor(own: DeviceCredentials, handshake: Handshake) {
    this.#own = own;
    this.#handshake = handshake;
    this.#federationKey = own.federationKey;
    this.#announced = own.announced;
  }

  static async create(credentials: DeviceCredentials): Promise<DeviceProtection> {
    return new DeviceProtection(credentials, await newHandshake());
  }

  /** A presence signed, anything else sealed; null before an announcement was heard. */
  async write(message: Message, topic: string): Promise<Uint8Array | null> {
    return message.type === "presence" ? this.#signed(message, topic) : this.seal(encode(message), topic);
  }

  async seal(record: Uint8Array, topic: string): Promise<Uint8Array | null> {
    return this.#session === null ? null : this.#session.seal(topic, record);
  }

  /** Checked, and answered by a session of its own. */
  async readAnnouncement(payload: Uint8Array, topic: string): Promise<Announcement> {
    const announcement = unverified(payload);
    const handshake = announced(announcement);
    const trusted = await this.#successor(handshake.rotations);
    const certificate = await this.#certified(handshake, payload, topic, trusted);
    if (handshake.sequence < this.#announced) {
      throw new RefusedError(
        "replay",
        `announcement ${handshake.sequence}: later ones are known, up to ${this.#announced}`,
      );
    }
    await this.#takeUp(handshake, certificate.run_id, announcement.bundle);
    if (handshake.sequence !== this.#announced || trusted !== this.#federationKey) {
      await this.#own.note(handshake.sequence, trusted);
      this.#announced = handshake.sequence;
      this.#federationKey = trusted;
    }
    return announcement;
  }

  async read<K extends SealedKind>(payload: Uint8Array, topic: string, ...kinds: readonly K[]): Promise<Messages[K]> {
    return decode(await this.open(payload, topic), ...kinds);
  }

  async open(payload: Uint8Array, topic: string): Promise<Uint8Array> {
    if (this.#session === null) {
      throw new RefusedError("session", "record: no coordinator has announced itself yet");
    }
    return this.#session.open(topic, payload);
  }

  /** One for all transfers of a blob in a grid, from this process. */
  async contentKey(sha256: string, chunkBytes: number): Promise<string> {
    return toHex(await hmacSha256(this.#secret, utf8(`${sha256}/${chunkBytes}`)));
  }

  async signOffer(offer: TransferOffer): Promise<TransferOffer> {
    const { key, federation, deviceId } = this.#own;
    return { ...offer, signature: await signOffer(key, offer, federation, deviceId) };
  }

  async #signed(presence: Presence, topic: string): Promise<Uint8Array | null> {
    const lastWill = presence.status === "offline";
    if (this.#answers === "" && !lastWill) return null;
    this.#presences += 1;
    const handshake = {
      grant: this.#own.grant,
      nonce: toHex(this.#handshake.nonce),
      share: toHex(this.#handshake.share),
      answers: lastWill ? "" : this.#answers,
      start: this.#own.start,
      sequence: this.#presences,
    };
    const body = encode({ ...presence, handshake });
    return concat(await sign(this.#own.key, "presence", place(topic, body)), body);
  }

  /** The federation key in force, after those that handed over since ours was noted. */
  async #successor(rotations: readonly string[]): Promise<string> {
    let trusted = this.#federationKey;
    for (const text of rotations.slice(0, MOST_ROTATIONS)) {
      try {
        const rotation = await readStatement(text, KEY_ROTATION, this.#signer(trusted));
        if (rotation.old === trusted) trusted = rotation.new;
      } catch (error) {
        // It is of a key before the one that this device trusts.
        if (!(error instanceof RefusedError)) throw error;
      }
    }
    return trusted;
  }

  /** The certificate of an announcement, which its key has signed. */
  async #certified(
    handshake: CoordinatorHandshake, payload: Uint8Array, topic: string, trusted: string,
  ): Promise<CoordinatorCertificate> {
    const certificate = await readStatement(handshake.certificate, COORDINATOR_CERTIFICATE, this.#signer(trusted));
    const [signature, body] = [payload.subarray(0, SIGNATURE_BYTES), payload.subarray(SIGNATURE_BYTES)];
    if (!(await verify(fromHex(certificate.key), signature, "announcement", place(topic, body)))) {
      throw new RefusedError("signature", "announcement: not signed by who it says it is");
    }
    return certificate;
  }

  async #takeUp(handshake: CoordinatorHandshake, runId: string, bundle: string): Promise<void> {
    if (!(NONCE.test(handshake.nonce) && SHARE.test(handshake.share) && handshake.sequence >= 0)) {
      throw new RefusedError("handshake", "handshake: expected nonce, share and counts, got others");
    }
    if (handshake.nonce === this.#answers) return;
    const { up, down } = await deriveKeys(this.#handshake.privateKey, fromHex(handshake.share), {
      coordinatorNonce: fromHex(handshake.nonce),
      deviceNonce: this.#handshake.nonce,
      runId,
      bundle,
      deviceId: this.#own.deviceId,
    });
    this.#session = await Session.create(up, down);
    this.#answers = handshake.nonce;
  }

  #signer(key: string): { signer: string; federation: string; now: number } {
    return { signer: key, federation: this.#own.federation, now: Date.now() / 1000 };
  }
}

function unverified(payload: Uint8Array): Announcement {
  if (OPENING.every((byte, index) => byte === payload[index])) throw withoutKeys();
  if (payload.length > SIGNATURE_BYTES + MAX_MESSAGE_BYTES) {
    throw new RefusedError("message-size", `message: ${payload.length} bytes`);
  }
  return decode(payload.subarray(SIGNATURE_BYTES), "announcement");
}

function announced({ handshake }: Announcement): CoordinatorHandshake {
  if (handshake === null) throw withoutKeys();
  return handshake;
}

function withoutKeys(): RefusedError {
  return new RefusedError("signature", "announcement: expected a signed one, got one without keys");
}

function place(topic: string, body: Uint8Array): Uint8Array {
  return concat(utf8(topic), Uint8Array.of(0), body);
}
