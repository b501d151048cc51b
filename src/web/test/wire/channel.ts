/** A simulated channel between a sender and a receiver: loss, duplication, delay, damage, virtual time. */

import { RefusedError } from "../../src/errors.ts";
import { pack } from "../../src/wire/chunks.ts";
import { type Need, type Receipt, type TransferOffer, decode } from "../../src/wire/messages.ts";
import { Receiver } from "../../src/wire/receiver.ts";
import { Sender } from "../../src/wire/sender.ts";
import { type Action, type Delivered, type Rejected, type Send, describe } from "../../src/wire/transfer.ts";
import { MemoryBlobs } from "./memory_blobs.ts";

export const DEVICE = "pi-7";
export const CHUNK = 256;
export const LIMIT = 100_000;

/** Uniform on [0, 1), the same for the same seed (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function blobOf(size: number): Uint8Array {
  const draw = seeded(size);
  return Uint8Array.from({ length: size }, () => 256 * draw());
}

export function offerOf(blob: Uint8Array, roundId = 1, chunkBytes = CHUNK): Promise<TransferOffer> {
  return describe(blob, { kind: "update", deviceId: DEVICE, roundId }, null, chunkBytes);
}

export function countOf(blob: Uint8Array): number {
  return Math.ceil(blob.length / CHUNK);
}

/** The packets that carry a blob. */
export function chunksOf(blob: Uint8Array, offer: TransferOffer): Uint8Array[] {
  const step = offer.chunk_bytes;
  const count = Math.ceil(blob.length / step);
  return Array.from({ length: count }, (_, index) =>
    pack({
      transferId: offer.transfer_id,
      index,
      last: index === count - 1,
      data: blob.subarray(index * step, (index + 1) * step),
      sealed: false,
    }),
  );
}

export function answersIn(actions: readonly Action[]): (Need | Receipt)[] {
  return actions.flatMap((action) => (action.kind === "send" ? [decode(action.payload, "need", "receipt")] : []));
}

export function receiverOf(blobs: MemoryBlobs, sealed = false): Receiver {
  return new Receiver({ deviceId: DEVICE, blobs, sealed, maxBlobBytes: LIMIT });
}

/** How often the channel does what to a packet, and how often at most. */
export interface Faults {
  readonly loss: number;
  readonly duplicate: number;
  readonly reorder: number;
  readonly corrupt: number;
  readonly budget: number;
}

export const PERFECT: Faults = { loss: 0, duplicate: 0, reorder: 0, corrupt: 0, budget: 0 };

interface Packet {
  readonly at: number;
  readonly origin: "sender" | "receiver";
  readonly send: Send;
}

/** Carries one blob from `sender` to `receiver`, both of one device id. */
export class Channel {
  now = 0;
  chunksSent = 0;
  offersSent = 0;
  faultsDone = 0;
  received: Uint8Array | null = null;
  outcome: Delivered | Rejected | null = null;
  /** What is sent from and until then arrives behind it, in its order; chunks are so far apart. */
  held = { from: 0, until: 0, spacing: 0 };
  readonly refused: string[] = [];
  readonly sender: Sender;
  #receiver: Receiver;
  readonly #blobs = new MemoryBlobs();
  readonly #draw: () => number;
  #wire: Packet[] = [];
  #freeAt = 0;

  constructor(
    seed: number,
    private readonly faults: Faults = PERFECT,
    private readonly key = "",
  ) {
    this.#draw = seeded(seed);
    this.sender = new Sender(async () => key, this.#draw);
    this.#receiver = receiverOf(this.#blobs, key !== "");
  }

  /** As after a kill: only what was kept is there. */
  restartReceiver(): void {
    this.#receiver = receiverOf(this.#blobs, this.key !== "");
  }

  async send(blob: Uint8Array, offer: TransferOffer): Promise<void> {
    await this.#carry("sender", await this.sender.send(blob, offer, this.now));
  }

  /** Lets time pass until the sender has its receipt, or so many chunks were sent. */
  async run(until = Infinity): Promise<void> {
    while (this.outcome === null && this.chunksSent < until) {
      await this.#step();
      if (this.now > 3600) throw new Error("no receipt after an hour");
    }
  }

  async #step(): Promise<void> {
    for (let chunk = await this.sender.nextChunk(); chunk !== null; chunk = await this.sender.nextChunk()) {
      this.chunksSent += 1;
      await this.#carry("sender", [chunk]);
    }
    const arrival = this.#wire[0]?.at ?? Infinity;
    this.now = Math.max(this.now, Math.min(arrival, this.sender.due, this.#receiver.due));
    await this.#carry("sender", this.sender.tick(this.now));
    await this.#carry("receiver", this.#receiver.tick(this.now));
    while ((this.#wire[0]?.at ?? Infinity) <= this.now) await this.#arrive(this.#wire.shift() as Packet);
  }

  async #arrive({ origin, send }: Packet): Promise<void> {
    if (origin === "receiver") await this.#carry("sender", this.sender.answer(send.payload, this.now));
    else if (send.lane === "offer") {
      await this.#carry("receiver", await this.#receiver.expect(decode(send.payload, "manifest"), this.now));
    } else await this.#carry("receiver", await this.#chunk(send.payload));
  }

  async #chunk(payload: Uint8Array): Promise<Action[]> {
    try {
      return await this.#receiver.chunk(payload, this.now);
    } catch (error) {
      if (!(error instanceof RefusedError) || !error.rule.startsWith("chunk-")) throw error;
      this.refused.push(error.rule);
      return [];
    }
  }

  async #carry(origin: Packet["origin"], actions: readonly Action[]): Promise<void> {
    for (const action of actions) {
      if (action.kind === "send") this.#put(origin, action);
      else if (action.kind === "received") {
        this.received = action.blob;
        await this.#carry("receiver", await this.#receiver.accept(action.offer.transfer_id));
      } else this.outcome = action;
    }
  }

  #put(origin: Packet["origin"], send: Send): void {
    this.offersSent += Number(send.lane === "offer");
    if (this.#strikes(this.faults.loss)) return;
    const late = this.#strikes(this.faults.reorder) ? 0.5 * this.#draw() : 0;
    const damaged = send.lane === "chunk" && this.#strikes(this.faults.corrupt);
    const sent = damaged ? { ...send, payload: this.#flipped(send.payload) } : send;
    let at = Math.max(this.now + 0.01 + late, this.now >= this.held.from ? this.held.until : 0);
    if (send.lane === "chunk" && this.held.spacing > 0) {
      this.#freeAt = Math.max(this.#freeAt + this.held.spacing, at);
      at = this.#freeAt;
    }
    const packet = { at, origin, send: sent };
    this.#wire.push(packet);
    if (this.#strikes(this.faults.duplicate)) this.#wire.push(packet);
    this.#wire.sort((a, b) => a.at - b.at);
  }

  #flipped(payload: Uint8Array): Uint8Array {
    const damaged = payload.slice();
    const place = Math.floor(this.#draw() * damaged.length);
    damaged[place] = (damaged[place] as number) ^ (1 << Math.floor(8 * this.#draw()));
    return damaged;
  }

  #strikes(rate: number): boolean {
    if (this.faultsDone >= this.faults.budget || this.#draw() >= rate) return false;
    this.faultsDone += 1;
    return true;
  }
}
