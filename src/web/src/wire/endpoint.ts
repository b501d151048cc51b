/**
 * The device's end of the wire: link, topics and transfers behind a single `poll`.
 *
 * The agent sees typed messages and finished blobs; which topic, chunk or repetition carried them is
 * decided here. A device's loop:
 *
 *     endpoint.start();
 *     for (;;) {
 *       const event = await endpoint.poll(1);
 *       if (event?.kind === "connected") await endpoint.publish(presence); // again after every reconnect
 *       if (event?.kind === "message" && event.message.type === "task") await endpoint.expect(offer);
 *       if (event?.kind === "received") { …; await endpoint.accept(id); await endpoint.sendUpdate(…); }
 *     }
 *
 * One caller at a time: it waits for each call before the next, except `wake` and `hurry`.
 */

import { RefusedError } from "../errors.ts";
import type { Coding } from "./codecs.ts";
import type { Broker, Connected, MqttMessage } from "./connection.ts";
import { type Disconnected, Link, type LinkEvent, type Traffic } from "./link.ts";
import type { Announcement, Heartbeat, Presence, Task, TransferOffer } from "./messages.ts";
import type { PartialBlobs } from "./partial_blobs.ts";
import type { Protection } from "./protection.ts";
import { Receiver } from "./receiver.ts";
import { Sender } from "./sender.ts";
import { type Channel, type DeviceChannel, Topics, isRetained } from "./topics.ts";
import { type Action, type Delivered, type Lane, type Received, type Rejected, describe } from "./transfer.ts";

/** A record of the coordinator; `retained`: the broker kept it, so that it may be out of date. */
export interface PeerMessage {
  readonly kind: "message";
  readonly message: Announcement | Task;
  readonly retained: boolean;
}

/** Bytes that broke a rule were discarded; count or log it. */
export interface Ignored {
  readonly kind: "ignored";
  readonly rule: string;
  readonly detail: string;
}

export type EndpointEvent = Connected | Disconnected | PeerMessage | Received | Delivered | Rejected | Ignored;

export interface EndpointOptions {
  readonly broker: Broker;
  readonly federation: string;
  readonly deviceId: string;
  readonly protection: Protection;
  /** Where chunks are kept, so that a device that was killed goes on with them. */
  readonly blobs: PartialBlobs;
  /** What the broker publishes when this device vanishes. */
  readonly will: Presence | null;
  /** Largest blob that is accepted, before and after decoding. */
  readonly maxBlobBytes?: number;
}

const MAX_BLOB_BYTES = 256 * 1024 * 1024;
const CHANNELS: Readonly<Record<Lane, DeviceChannel>> = { offer: "upOffer", chunk: "upChunk", answer: "upRequest" };

/** A device's end; its link is made with it and not yet started. */
export class DeviceEndpoint {
  readonly #options: EndpointOptions;
  readonly #topics: Topics;
  readonly #link: Link;
  readonly #sender: Sender;
  readonly #receiver: Receiver;
  readonly #ready: EndpointEvent[] = [];
  /** The caller announces itself first, and only then are transfers taken up again. */
  #fresh = false;

  private constructor(options: EndpointOptions, topics: Topics, link: Link) {
    const { deviceId, blobs, protection, maxBlobBytes = MAX_BLOB_BYTES } = options;
    this.#options = options;
    this.#topics = topics;
    this.#link = link;
    this.#sender = new Sender((sha256, chunkBytes) => protection.contentKey(sha256, chunkBytes));
    this.#receiver = new Receiver({ deviceId, blobs, sealed: protection.sealed, maxBlobBytes });
  }

  /** Throws InputError: a name that no topic may have, or an address that no browser can reach. */
  static async create(options: EndpointOptions): Promise<DeviceEndpoint> {
    const topics = new Topics(options.federation);
    const place = topics.of("presence", options.deviceId);
    const payload = options.will === null ? null : await options.protection.write(options.will, place);
    const link = new Link({
      broker: options.broker,
      filters: topics.deviceFilters(options.deviceId),
      will: payload === null ? null : { topic: place, payload },
    });
    return new DeviceEndpoint(options, topics, link);
  }

  /** Whether the link is up. */
  get connected(): boolean {
    return this.#link.connected;
  }

  /** Byte counters of the link. */
  get traffic(): Traffic {
    return this.#link.traffic;
  }

  /** Begins to connect; `connected` comes from `poll`, again after each reconnect. */
  start(): void {
    this.#link.start();
  }

  /**
   * The next event, waiting at most so many seconds; null if none came.
   *
   * All transfer work is done inside, so call it again soon. Announce yourself on every `connected`: the
   * next call offers and asks again. Throws what `blobs` throws.
   */
  async poll(timeoutS = Infinity): Promise<EndpointEvent | null> {
    const stop = seconds() + timeoutS;
    for (;;) {
      if (this.#ready.length === 0) await this.#work();
      const event = this.#ready.shift();
      if (event !== undefined) return event;
      const due = Math.min(stop, this.#sender.due, this.#receiver.due);
      const news = await this.#link.get(due - seconds());
      if (news?.kind === "woken") return null;
      if (news !== null) await this.#take(news);
      // Checked after every packet: a flood of chunks must not keep the caller from its clock.
      if (this.#ready.length === 0 && seconds() >= stop) return null;
    }
  }

  /** Makes `poll` return null now. */
  wake(): void {
    this.#link.wake();
  }

  /** The network may be back: connects without waiting. */
  hurry(): void {
    this.#link.hurry();
  }

  /** Sends a record on its topic; false if the link is down, or the coordinator is not known yet. */
  async publish(record: Presence | Heartbeat): Promise<boolean> {
    const channel = record.type === "presence" ? "presence" : "upStatus";
    const topic = this.#topics.of(channel, this.#options.deviceId);
    const payload = await this.#options.protection.write(record, topic);
    return payload !== null && this.#link.publish(topic, payload, isRetained(topic));
  }

  /** Takes an offered payload; call it for every offer, repeated ones too. */
  async expect(offer: TransferOffer): Promise<void> {
    await this.#act(await this.#receiver.expect(offer, seconds()));
  }

  /** After the received blob is stored durably: sends `done`, now and when asked again. */
  async accept(transferId: string): Promise<void> {
    await this.#act(await this.#receiver.accept(transferId));
  }

  /** Sends `reject` with the broken rule, now and when offered again; drops the bytes. */
  async reject(transferId: string, rule: string, reason: string): Promise<void> {
    await this.#act(await this.#receiver.reject(transferId, rule, reason));
  }

  /** After a restart: accepted in an earlier life; answers `done` when it is offered. */
  remember(transferId: string): void {
    this.#receiver.remember(transferId);
  }

  /** Forgets a transfer in either direction, partial bytes and receipt with it. */
  async cancel(transferId: string): Promise<void> {
    this.#sender.forget(transferId);
    await this.#receiver.cancel(transferId);
  }

  /** Offers an update until the coordinator's receipt (`delivered`, `rejected`). */
  async sendUpdate(blob: Uint8Array, roundId: number, coding: Coding | null): Promise<TransferOffer> {
    const purpose = { kind: "update", deviceId: this.#options.deviceId, roundId } as const;
    const offer = await describe(blob, purpose, coding, this.#link.chunkBytes);
    const signed = await this.#options.protection.signOffer(offer);
    await this.#act(await this.#sender.send(blob, signed, seconds()));
    return signed;
  }

  /** Asks the broker for the retained announcement once more: it may have been lost. */
  listenAgain(): void {
    this.#link.subscribeAgain();
  }

  /** Over how many seconds the fleet is to come back to a broker that has lost it. */
  spread(seconds: number): void {
    this.#link.spread(seconds);
  }

  /** Disconnects gracefully; what is unfinished continues in the next process. */
  close(): Promise<void> {
    return this.#link.close();
  }

  async #take(event: LinkEvent): Promise<void> {
    if (event.kind === "delivery") {
      await this.#deliver(event);
    } else if (event.kind === "connected" || event.kind === "disconnected") {
      this.#fresh = event.kind === "connected";
      this.#ready.push(event);
    }
  }

  async #deliver(delivery: MqttMessage): Promise<void> {
    const { topic, retained } = delivery;
    const address = this.#topics.parse(topic);
    const ours = address?.deviceId === "" || address?.deviceId === this.#options.deviceId;
    if (address === null || !ours) return;
    if (retained && !isRetained(topic)) {
      this.#ignore("retained", `'${address.channel}': expected a message of now, got a retained one`);
      return;
    }
    try {
      await this.#dispatch(address.channel, delivery);
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      this.#ignore(error.rule, error.message);
    }
  }

  async #dispatch(channel: Channel, { topic, payload, retained }: MqttMessage): Promise<void> {
    const { protection } = this.#options;
    if (channel === "downChunk") {
      await this.#act(await this.#receiver.chunk(payload, seconds()));
    } else if (channel === "downAnswer") {
      await this.#act(this.#sender.answer(await protection.open(payload, topic), seconds()));
    } else if (channel === "downTask") {
      this.#ready.push({ kind: "message", message: await protection.read(payload, topic, "task"), retained });
    } else if (channel === "announcement") {
      const message = await protection.readAnnouncement(payload, topic);
      this.#ready.push({ kind: "message", message, retained });
    }
  }

  #ignore(rule: string, detail: string): void {
    this.#ready.push({ kind: "ignored", rule, detail });
  }

  async #work(): Promise<void> {
    const now = seconds();
    if (this.#fresh) {
      this.#fresh = false;
      await this.#act(await this.#sender.reconnected(now, this.#link.chunkBytes));
      await this.#act(this.#receiver.reconnected(now));
    }
    await this.#pump();
    await this.#act(this.#sender.tick(now));
    await this.#act(this.#receiver.tick(now));
  }

  /** Hands chunks over as far as the link has room, so that memory stays bounded. */
  async #pump(): Promise<void> {
    while (this.#link.room > 0) {
      const chunk = await this.#sender.nextChunk();
      if (chunk === null) return;
      await this.#act([chunk]);
    }
  }

  async #act(actions: readonly Action[]): Promise<void> {
    for (const action of actions) {
      if (action.kind === "send") await this.#send(action.lane, action.payload);
      else this.#ready.push(action);
    }
  }

  async #send(lane: Lane, record: Uint8Array): Promise<void> {
    const topic = this.#topics.of(CHANNELS[lane], this.#options.deviceId);
    // Chunks were sealed when they were cut.
    const payload = lane === "chunk" ? record : await this.#options.protection.seal(record, topic);
    if (payload !== null) this.#link.publish(topic, payload);
  }
}

function seconds(): number {
  return performance.now() / 1000;
}
