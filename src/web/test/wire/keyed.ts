/** A federation with keys, in memory: its key, a coordinator's end of the protocol, and devices' credentials. */

import assert from "node:assert/strict";

import { concat, utf8 } from "../../src/bytes.ts";
import { RefusedError } from "../../src/errors.ts";
import { fromHex, toHex } from "../../src/hash.ts";
import { newKeys } from "../../src/wire/ciphers.ts";
import {
  COORDINATOR_CERTIFICATE, type CoordinatorCertificate, DEVICE_GRANT, type DeviceGrant, SIGNATURE_BYTES, readStatement,
  sign, verify,
} from "../../src/wire/identity.ts";
import {
  type Announcement, type Kind, type Message, type Messages, type Presence, type TransferOffer, decode, encode,
} from "../../src/wire/messages.ts";
import type { DeviceCredentials } from "../../src/wire/protection.ts";
import { type Handshake, Session, deriveKeys, newHandshake } from "../../src/wire/session.ts";
import { Topics } from "../../src/wire/topics.ts";
import { publicHex, signStatement } from "./keys.ts";

export const BUNDLE = "cd".repeat(32);
export const RUN_ID = "0123456789abcdef";

export const inADay = (): number => Math.floor(Date.now() / 1000) + 86_400;

const place = (topic: string, body: Uint8Array): Uint8Array => concat(utf8(`${topic}\0`), body);

/** The keys of a federation, and what its devices have noted. */
export class Keyed {
  announced = Date.now();
  readonly heard = new Map<string, number>();
  readonly trusted = new Map<string, string>();
  readonly #starts = new Map<string, number>();
  readonly #keys = new Map<string, CryptoKeyPair>();

  constructor(
    public keys: CryptoKeyPair,
    readonly name = "lab",
  ) {}

  static async create(name = "lab"): Promise<Keyed> {
    return new Keyed(await newKeys("Ed25519"), name);
  }

  get publicKey(): Promise<string> {
    return publicHex(this.keys);
  }

  /** A coordinator's process; `changed` replaces fields of its certificate. */
  async coordinator(
    changed: Partial<CoordinatorCertificate> = {}, rotations: readonly string[] = [],
  ): Promise<ScriptedCoordinator> {
    const keys = await newKeys("Ed25519");
    const certificate = await signStatement(this.keys.privateKey, COORDINATOR_CERTIFICATE, {
      federation: this.name, run_id: RUN_ID, key: await publicHex(keys), until: inADay(), ...changed,
    });
    return new ScriptedCoordinator(this, keys.privateKey, await newHandshake(), { certificate, rotations });
  }

  /** Of a device's next process; `changed` replaces fields of its grant. */
  async device(deviceId = "pi-7", changed: Partial<DeviceGrant> = {}): Promise<DeviceCredentials> {
    const keys = this.#keys.get(deviceId) ?? (await newKeys("Ed25519"));
    this.#keys.set(deviceId, keys);
    const start = (this.#starts.get(deviceId) ?? 0) + 1;
    this.#starts.set(deviceId, start);
    return {
      federation: this.name,
      deviceId,
      key: keys.privateKey,
      grant: await signStatement(this.keys.privateKey, DEVICE_GRANT, {
        federation: this.name, device_id: deviceId, key: await publicHex(keys), serial: 1, until: inADay(), ...changed,
      }),
      federationKey: this.trusted.get(deviceId) ?? (await this.publicKey),
      start,
      announced: this.heard.get(deviceId) ?? 0,
      note: async (announced, federationKey) => {
        this.heard.set(deviceId, announced);
        this.trusted.set(deviceId, federationKey);
      },
    };
  }
}

/** The coordinator's end as far as a device notices it. */
export class ScriptedCoordinator {
  readonly #topics: Topics;
  readonly #sessions = new Map<string, { readonly session: Session; readonly nonce: string; readonly key: string }>();

  constructor(
    readonly keyed: Keyed,
    readonly key: CryptoKey,
    readonly handshake: Handshake,
    readonly said: { readonly certificate: string; readonly rotations: readonly string[] },
  ) {
    this.#topics = new Topics(keyed.name);
  }

  /** The announcement as it travels; `key` signs it. */
  async announce(announcement: Announcement, key = this.key): Promise<Uint8Array> {
    this.keyed.announced += 1;
    const handshake = {
      ...this.said,
      nonce: toHex(this.handshake.nonce),
      share: toHex(this.handshake.share),
      sequence: this.keyed.announced,
    };
    const body = encode({ ...announcement, handshake });
    return concat(await sign(key, "announcement", place(this.#topics.announcement, body)), body);
  }

  /** A presence as `wire/trust/protection.py` checks it; null if it answers another process. */
  async meet(payload: Uint8Array, deviceId: string): Promise<Presence | null> {
    const body = payload.subarray(SIGNATURE_BYTES);
    const presence = decode(body, "presence");
    const handshake = presence.handshake;
    assert.ok(handshake);
    const known = this.#sessions.get(deviceId);
    if (presence.status === "offline" && known?.nonce !== handshake.nonce) return null;
    if (presence.status !== "offline" && handshake.answers !== toHex(this.handshake.nonce)) return null;
    const grant = await readStatement(handshake.grant, DEVICE_GRANT, {
      signer: await this.keyed.publicKey, federation: this.keyed.name, now: Date.now() / 1000,
    });
    if (grant.device_id !== deviceId) throw new RefusedError("grant", `${deviceId}: of another device`);
    const signature = payload.subarray(0, SIGNATURE_BYTES);
    const topic = this.#topics.of("presence", deviceId);
    if (!(await verify(fromHex(grant.key), signature, "presence", place(topic, body)))) {
      throw new RefusedError("signature", `${deviceId}: not signed by who it says it is`);
    }
    if (known?.nonce !== handshake.nonce) await this.#begin(deviceId, handshake, grant.key);
    return presence;
  }

  /** A record for the device on a topic. */
  async write(message: Message, topic: string, deviceId: string): Promise<Uint8Array> {
    return this.#of(deviceId).session.seal(topic, encode(message));
  }

  async read<K extends Kind>(
    payload: Uint8Array, topic: string, deviceId: string, ...kinds: K[]
  ): Promise<Messages[K]> {
    return decode(await this.#of(deviceId).session.open(topic, payload), ...kinds);
  }

  /** Whether the device's own key has signed for the update that it offers. */
  async signedOffer(offer: TransferOffer, deviceId: string): Promise<boolean> {
    const { round_id, sha256, total_bytes, codec, raw_bytes, base } = offer;
    const said = [this.keyed.name, deviceId, round_id, sha256, total_bytes, codec, raw_bytes, base].join("\n");
    return verify(fromHex(this.#of(deviceId).key), fromHex(offer.signature), "update", utf8(said));
  }

  async #begin(deviceId: string, handshake: { nonce: string; share: string }, key: string): Promise<void> {
    const { up, down } = await deriveKeys(this.handshake.privateKey, fromHex(handshake.share), {
      coordinatorNonce: this.handshake.nonce,
      deviceNonce: fromHex(handshake.nonce),
      runId: RUN_ID,
      bundle: BUNDLE,
      deviceId,
    });
    this.#sessions.set(deviceId, { session: await Session.create(down, up), nonce: handshake.nonce, key });
  }

  #of(deviceId: string): { readonly session: Session; readonly key: string } {
    const found = this.#sessions.get(deviceId);
    if (found === undefined) throw new RefusedError("session", `${deviceId}: has not presented itself yet`);
    return found;
  }
}
