/**
 * Enrols this phone with an invitation; closed anywhere, the same invitation goes on.
 *
 * The device's key is kept before anything is asked. Committing the enrolment is what enrols; an
 * earlier one counts until then.
 */

import { ProvisionError, RefusedError, UnavailableError } from "../errors.ts";
import { toHex } from "../hash.ts";
import { ENROLMENT } from "../texts.ts";
import { newKeys, publicBytes } from "../wire/ciphers.ts";
import {
  type Asked,
  ask,
  checkGrant,
  type EnrolmentAnswer,
  type EnrolmentGrant,
  type EnrolmentRequest,
  type Invitation,
  type InvitationKeys,
  invitationKeys,
  openAnswer,
  readAnswer,
} from "../wire/enrolment.ts";
import { DEVICE_GRANT, readStatement } from "../wire/identity.ts";
import { invitedAccount, Topics } from "../wire/topics.ts";
import type { Enrolment } from "./store.ts";

/** How long a device asks for its grant: whoever invites may still have to start something. */
export const ANSWER_S = 180;
/** How long it waits to be told that the federation knows; it is enrolled anyway. */
const PARTING_S = 10;
const REPEAT_S = [1, 2, 4, 8, 16, 30] as const;
/** How long a better answer is waited for after a refusal, which anybody may have sent. */
const DOUBT_S = 2;
/** Requests before a word about it: Mosquitto loses messages while it reads its accounts anew. */
const PATIENT = 3;
const CLOCKS_S = 300;
const MOST_REASON = 300;

/** What is needed of the store. */
export interface EnrolmentStore {
  readonly enrolment: Enrolment | null;
  readonly asking: { readonly invitation: string; readonly keys: CryptoKeyPair } | null;
  keepAsking(invitation: string, keys: CryptoKeyPair): Promise<void>;
  commitEnrolment(enrolment: Enrolment): Promise<void>;
}

/** What is needed of a link (`wire/link.ts`), already started. */
export interface EnrolmentLink {
  readonly connected: boolean;
  publish(topic: string, payload: Uint8Array): boolean;
  get(timeoutS: number): Promise<EnrolmentEvent | null>;
  close(): Promise<void>;
}

export type EnrolmentEvent =
  | { readonly kind: "connected" | "drained" | "woken" }
  | { readonly kind: "disconnected"; readonly reason: string; readonly final: boolean; readonly forbidden?: boolean }
  | MqttMessage;

interface MqttMessage {
  readonly kind: "delivery";
  readonly payload: Uint8Array;
  readonly retained: boolean;
}

/** Where and as whom the link connects; an empty user: as nobody. */
export interface EnrolmentAccess {
  readonly url: string;
  readonly user: string;
  readonly password: string;
}

export interface EnrolOptions {
  readonly invitation: Invitation;
  readonly store: EnrolmentStore;
  /** WebSocket address of the broker. */
  readonly broker: string;
  /** Starts a link that subscribes to the filter. */
  readonly connect: (access: EnrolmentAccess, filter: string) => EnrolmentLink;
  /** Takes a line about what is being waited for. */
  readonly told: (line: string) => void;
  readonly clock?: EnrolmentClock;
}

/** Seconds. */
export interface EnrolmentClock {
  /** Since 1970. */
  time(): number;
  /** Never goes back. */
  now(): number;
}

/** What came of it. */
export interface Enrolled {
  readonly enrolment: Enrolment;
  /** False: this invitation had enrolled the phone before. */
  readonly isNew: boolean;
  /** Whether the federation knows that the device has its grant. */
  readonly confirmed: boolean;
}

const CLOCK: EnrolmentClock = { time: () => Date.now() / 1000, now: () => performance.now() / 1000 };

/**
 * Makes the store that of an enrolled device.
 *
 * @throws ProvisionError the store is another device's or federation's
 * @throws RefusedError the federation refused, or what answered is not this federation
 * @throws UnavailableError no answer, or the broker lets nobody in with this invitation
 */
export async function enrol(options: EnrolOptions): Promise<Enrolled> {
  const { invitation, store } = options;
  for (const [what, known, invited] of [
    ["device", store.enrolment?.deviceId, invitation.deviceId],
    ["federation", store.enrolment?.federation, invitation.federation],
  ] as const) {
    if (known === undefined || known === invited) continue;
    throw new ProvisionError(ENROLMENT.belongs(what, known, invited));
  }
  const keys = await invitationKeys(invitation);
  const own = await ownKeys(store, keys.name);
  return new Enrolling(options, keys, own).run();
}

/**
 * Whether what was granted still holds, before a process begins to use it.
 *
 * @throws ProvisionError the grant's time is over, or it is for another key
 */
export async function checkEnrolment(enrolment: Enrolment, now = CLOCK.time()): Promise<void> {
  const { federation, deviceId, federationKey, keys } = enrolment;
  if (keys === null) return;
  try {
    const grant = await readStatement(enrolment.grant, DEVICE_GRANT, { signer: federationKey, federation, now });
    if (grant.device_id === deviceId && grant.key === toHex(await publicBytes(keys.publicKey))) return;
  } catch (error) {
    if (!(error instanceof RefusedError)) throw error;
    throw new ProvisionError(ENROLMENT.grant(error.message, minute(now)));
  }
  throw new ProvisionError(ENROLMENT.otherKey);
}

/** The device's key for this invitation, made and kept if there is none. */
async function ownKeys(store: EnrolmentStore, invitation: string): Promise<CryptoKeyPair> {
  const { enrolment, asking } = store;
  if (enrolment !== null && enrolment.invitation === invitation && enrolment.keys !== null) return enrolment.keys;
  if (asking?.invitation === invitation) return asking.keys;
  const made = await newKeys("Ed25519");
  await store.keepAsking(invitation, made);
  return made;
}

class Enrolling {
  readonly #options: EnrolOptions;
  readonly #invitation: Invitation;
  readonly #keys: InvitationKeys;
  readonly #own: CryptoKeyPair;
  readonly #clock: EnrolmentClock;
  readonly #asks: string;
  readonly #answers: string;
  #clockTold = false;
  /** Why the broker has never been reached; "": it was. */
  #unreached = "";

  constructor(options: EnrolOptions, keys: InvitationKeys, own: CryptoKeyPair) {
    const { federation, deviceId } = options.invitation;
    const topics = new Topics(federation);
    this.#options = options;
    this.#invitation = options.invitation;
    this.#keys = keys;
    this.#own = own;
    this.#clock = options.clock ?? CLOCK;
    this.#asks = topics.enrolmentRequest(deviceId);
    this.#answers = topics.enrolmentAnswer(deviceId);
  }

  async run(): Promise<Enrolled> {
    const before = this.#options.store.enrolment;
    const known = before?.invitation === this.#keys.name ? before : null;
    const link = this.#options.connect(this.#access(), this.#answers);
    try {
      const enrolment = known ?? (await this.#keep(await this.#granted(link)));
      return { enrolment, isNew: known === null, confirmed: await this.#confirmed(link) };
    } finally {
      await link.close();
    }
  }

  #access(): EnrolmentAccess {
    const { account, deviceId } = this.#invitation;
    return {
      url: this.#options.broker,
      user: account ? invitedAccount(deviceId) : "",
      password: account ? this.#keys.password : "",
    };
  }

  async #granted(link: EnrolmentLink): Promise<EnrolmentGrant> {
    const asked = await this.#ask("grant");
    const found = await this.#exchange(link, asked, ANSWER_S, (answer) => this.#grantIn(asked, answer));
    if (found !== null) return found;
    if (this.#unreached !== "") throw new UnavailableError(ENROLMENT.unreached(this.#unreached));
    throw new UnavailableError(ENROLMENT.noAnswer(this.#invitation.federation, ANSWER_S));
  }

  async #grantIn(asked: Asked, answer: EnrolmentAnswer): Promise<EnrolmentGrant> {
    try {
      const found = await openAnswer(answer, asked, this.#keys.answer, this.#answers);
      const own = await publicBytes(this.#own.publicKey);
      await checkGrant(found, this.#invitation, own, this.#clock.time());
      return found;
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      throw new RefusedError(error.rule, ENROLMENT.atClock(error.message, minute(this.#clock.time())));
    }
  }

  async #keep(found: EnrolmentGrant): Promise<Enrolment> {
    const enrolment: Enrolment = {
      federation: this.#invitation.federation,
      deviceId: this.#invitation.deviceId,
      broker: this.#options.broker,
      password: found.password,
      grant: found.grant,
      federationKey: found.federation_key,
      invitation: this.#keys.name,
      keys: this.#own,
    };
    await this.#options.store.commitEnrolment(enrolment);
    return enrolment;
  }

  async #confirmed(link: EnrolmentLink): Promise<boolean> {
    try {
      const asked = await this.#ask("taken");
      return (await this.#exchange(link, asked, PARTING_S, async () => true)) ?? false;
    } catch (error) {
      // The grant is ours all the same; its first use tells the federation.
      if (error instanceof UnavailableError || error instanceof RefusedError) return false;
      throw error;
    }
  }

  #ask(step: EnrolmentRequest["step"]): Promise<Asked> {
    const { deviceId } = this.#invitation;
    return ask(this.#own, this.#keys, this.#asks, { deviceId, step, now: this.#clock.time() });
  }

  /**
   * Asks until `take` takes an answer; null: none came in time.
   *
   * Throws RefusedError for a refusal, or what `take` refuses, if nothing better follows: whoever can
   * publish here can be quicker than the federation.
   */
  async #exchange<T>(
    link: EnrolmentLink, asked: Asked, waitS: number, take: (answer: EnrolmentAnswer) => Promise<T>,
  ): Promise<T | null> {
    let due = this.#clock.now();
    let until = due + waitS;
    let attempt = 0;
    let refused: RefusedError | null = null;
    for (let now = due; now < until; now = this.#clock.now()) {
      if (now >= due && link.connected) {
        due = now + this.#send(link, asked, attempt);
        attempt += 1;
      }
      const event = await link.get(Math.min(Math.max(due - now, 0.05), until - now, 1));
      if (event?.kind === "connected") {
        due = now;
        this.#unreached = "";
      }
      if (event?.kind === "disconnected") {
        if (refused !== null) throw refused;
        this.#onDisconnected(event);
      }
      if (event?.kind !== "delivery") continue;
      try {
        const answer = this.#answerIn(event, asked);
        if (answer !== null) return await take(answer);
      } catch (error) {
        if (!(error instanceof RefusedError)) throw error;
        if (refused === null) until = Math.min(until, now + DOUBT_S);
        refused ??= error;
      }
    }
    if (refused !== null) throw refused;
    return null;
  }

  /** Asks; returns the seconds until the next time. */
  #send(link: EnrolmentLink, asked: Asked, attempt: number): number {
    link.publish(this.#asks, asked.payload);
    if (attempt + 1 === PATIENT) this.#options.told(ENROLMENT.waiting);
    return REPEAT_S[Math.min(attempt, REPEAT_S.length - 1)] as number;
  }

  /** The answer to this request; what is none was sent by anybody, and is passed over. */
  #answerIn(delivery: MqttMessage, asked: Asked): EnrolmentAnswer | null {
    const answer = anAnswer(delivery.payload);
    if (answer === null || delivery.retained || answer.answers !== asked.request.nonce) return null;
    this.#compareClocks(answer);
    if (answer.rule !== "") {
      const reason = answer.reason.slice(0, MOST_REASON).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "");
      throw new RefusedError(answer.rule.slice(0, 40), ENROLMENT.refused(this.#invitation.federation, reason));
    }
    return answer;
  }

  #onDisconnected(
    { reason, final, forbidden }: { readonly reason: string; readonly final: boolean; readonly forbidden?: boolean },
  ): void {
    if (forbidden) throw new UnavailableError(ENROLMENT.forbidden(reason, this.#invitation.federation));
    if (final) throw new UnavailableError(ENROLMENT.over(reason, minute(this.#invitation.until)));
    this.#unreached = reason;
    this.#options.told(ENROLMENT.again(reason));
  }

  #compareClocks(answer: EnrolmentAnswer): void {
    const ahead = Math.floor(this.#clock.time()) - answer.time;
    if (Math.abs(ahead) <= CLOCKS_S || this.#clockTold) return;
    this.#clockTold = true;
    this.#options.told(ENROLMENT.clock(Math.abs(ahead), ahead > 0 ? "ahead of" : "behind"));
  }
}

function anAnswer(payload: Uint8Array): EnrolmentAnswer | null {
  try {
    return readAnswer(payload);
  } catch (error) {
    if (error instanceof RefusedError) return null;
    throw error;
  }
}

function minute(seconds: number): string {
  const date = new Date(1000 * Math.min(seconds, 2 ** 35));
  return `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
