/**
 * The sending side of a device's transfers: offers a blob and hands out the chunks that are asked for.
 *
 * Pure: bytes and times in, actions out. The receiver decides the pace; this end repeats what was not
 * answered.
 */

import { RefusedError } from "../errors.ts";
import { ChunkCipher, MAX_DATA_BYTES, pack } from "./chunks.ts";
import { type Need, type Receipt, type TransferOffer, decode, encode } from "./messages.ts";
import type { Action, Rejected, Send } from "./transfer.ts";

/** First repetition of an unanswered offer: long against a round trip, short for a person. */
export const REPEAT_S = 3;
/** Doubling stops here; an absent receiver costs one small packet a minute. */
export const REPEAT_MAX_S = 60;
/** However often the same blob is given to `send`, it is offered no more often. */
const OFFER_GAP_S = 1;
/** A link that loses every other packet needs fewer; a receiver that asks for more has to wait. */
const FREE_COPIES = 3;
/** Then it gets the blob in the former time, or a chunk in the latter if that is more. */
const COPY_S = 600;
const CHUNK_S = 15;
/** After an answer the receiver asks by itself; this only helps one that lost its memory. */
const ANSWERED_REPEAT_S = 15;
const WINDOW_MAX = 16;
const RULE_CHARS = 64;
const REASON_CHARS = 500;

/** From a blob's SHA-256 and the grid: the key that seals its chunks; "": they are not sealed. */
export type ContentKey = (sha256: string, chunkBytes: number) => Promise<string>;

/** Uniform on [0, 1), for the jitter of repetitions. */
export type Jitter = () => number;

/**
 * Bytes of one blob that a receiver may still ask for; refilled slowly.
 *
 * Without it, a few hundred kilobytes of asking are answered with gigabytes.
 */
class Allowance {
  readonly #most: number;
  readonly #rate: number;
  #left: number;

  constructor(
    offer: TransferOffer,
    private at: number,
  ) {
    this.#most = FREE_COPIES * offer.total_bytes;
    this.#rate = Math.max(offer.total_bytes / COPY_S, chunkSize(offer) / CHUNK_S);
    this.#left = this.#most;
  }

  /** Bytes that may be sent now. */
  left(now: number): number {
    this.#left = Math.min(this.#most, this.#left + this.#rate * (now - this.at));
    this.at = now;
    return this.#left;
  }

  spend(count: number): void {
    this.#left -= count;
  }
}

/** One blob on its way out. */
class OutboundTransfer {
  /** When to offer again. */
  due = Infinity;
  /** When it was offered last on this connection. */
  offeredAt = -Infinity;
  /** Chunk indices that were asked for and not yet handed out, in order. */
  readonly wanted = new Set<number>();
  #cipher: ChunkCipher | null = null;
  #repeatS = REPEAT_S;

  constructor(
    private readonly blob: Uint8Array,
    public offer: TransferOffer,
    public allowance: Allowance,
    private readonly jitter: Jitter,
  ) {}

  /** Takes a grid, which has a key of its own: a nonce names one place of one grid. */
  async cut(chunkBytes: number, contentKey: ContentKey): Promise<void> {
    const key = await contentKey(this.offer.sha256, chunkBytes);
    this.offer = { ...this.offer, chunk_bytes: chunkBytes, key };
    this.#cipher = key ? await ChunkCipher.create(key, this.offer.transfer_id) : null;
  }

  /** The offer, sent now; the next one is due later and later. */
  announce(now: number): Send {
    this.offeredAt = now;
    this.#schedule(now);
    return { kind: "send", lane: "offer", payload: encode(this.offer) };
  }

  /** The link is new: nothing that was asked for before counts. */
  reset(now: number): void {
    this.wanted.clear();
    this.#repeatS = REPEAT_S;
    this.allowance = new Allowance(this.offer, now);
  }

  /**
   * Queues the first `credit` chunks of the ranges that are not queued already.
   *
   * Throws RefusedError, rule `need-range`: a range is empty or outside the blob.
   */
  asked(need: Need, now: number): void {
    for (const [start, stop] of need.missing) {
      if (0 <= start && start < stop && stop <= this.#count) continue;
      throw new RefusedError("need-range", `need: expected ranges within 0..${this.#count}, got ${start}..${stop}`);
    }
    let credit = Math.min(need.credit, WINDOW_MAX, this.#affordable(now));
    for (const [start, stop] of need.missing) {
      for (let index = start; index < stop && credit > 0; index += 1, credit -= 1) {
        if (this.wanted.size < WINDOW_MAX) this.wanted.add(index);
      }
    }
    this.#repeatS = need.credit > 0 ? ANSWERED_REPEAT_S : REPEAT_MAX_S;
    this.#schedule(now);
  }

  /** The first wanted chunk, which is wanted no longer; null: none is. */
  async nextChunk(): Promise<Send | null> {
    const [index] = this.wanted;
    if (index === undefined) return null;
    this.wanted.delete(index);
    const start = index * this.offer.chunk_bytes;
    const data = this.blob.subarray(start, start + this.offer.chunk_bytes);
    this.allowance.spend(data.length);
    const last = index === this.#count - 1;
    const chunk = { transferId: this.offer.transfer_id, index, last, data, sealed: false };
    const payload = pack(this.#cipher === null ? chunk : await this.#cipher.seal(chunk));
    return { kind: "send", lane: "chunk", payload };
  }

  get #count(): number {
    return Math.ceil(this.offer.total_bytes / this.offer.chunk_bytes);
  }

  #affordable(now: number): number {
    return Math.max(0, Math.floor(this.allowance.left(now) / chunkSize(this.offer)) - this.wanted.size);
  }

  #schedule(now: number): void {
    this.due = now + this.#repeatS * (0.75 + 0.5 * this.jitter());
    this.#repeatS = Math.min(REPEAT_MAX_S, 2 * this.#repeatS);
  }
}

/** A device's outgoing transfer; a newer blob replaces it. */
export class Sender {
  #open: OutboundTransfer | null = null;
  #delivered: TransferOffer | null = null;
  /** Of the latest blob, whether it is still offered or not. */
  #allowance: { readonly key: string; readonly of: Allowance } | null = null;

  constructor(
    private readonly contentKey: ContentKey,
    private readonly jitter: Jitter = Math.random,
  ) {}

  /** Offers `blob` now, or soon if it was offered just now, until the receipt comes. */
  async send(blob: Uint8Array, offer: TransferOffer, now: number): Promise<Action[]> {
    const key = offer.transfer_id;
    const before = this.#open;
    this.#delivered = null;
    const known = this.#allowance?.key === key ? this.#allowance.of : null;
    const transfer = new OutboundTransfer(blob, offer, known ?? new Allowance(offer, now), this.jitter);
    await transfer.cut(offer.chunk_bytes, this.contentKey);
    this.#install(transfer);
    if (before?.offer.transfer_id === key) transfer.offeredAt = before.offeredAt;
    const soonest = transfer.offeredAt + OFFER_GAP_S;
    if (now >= soonest) return [transfer.announce(now)];
    transfer.due = soonest;
    return [];
  }

  /**
   * Takes a need or a receipt; those of unknown transfers are ignored.
   *
   * A blob that was delivered may still be rejected: it was stored, but cannot be used. Throws
   * RefusedError: it broke a rule; nothing has changed.
   */
  answer(record: Uint8Array, now: number): Action[] {
    const message = decode(record, "need", "receipt");
    const transfer = this.#open;
    if (transfer === null || transfer.offer.transfer_id !== message.transfer_id) {
      return this.#rejectedLate(message);
    }
    if (message.type === "need") {
      transfer.asked(message, now);
      return [];
    }
    this.#open = null;
    if (message.status === "reject") return [rejected(transfer.offer, message)];
    this.#delivered = transfer.offer;
    return [{ kind: "delivered", offer: transfer.offer }];
  }

  /** The next chunk to publish; null if none is wanted. Call it when the link has room. */
  async nextChunk(): Promise<Send | null> {
    return this.#open === null ? null : this.#open.nextChunk();
  }

  /** Repeats what was not answered. */
  tick(now: number): Action[] {
    const transfer = this.#open;
    return transfer === null || now < transfer.due ? [] : [transfer.announce(now)];
  }

  /** When `tick` has something to do; Infinity: only after another call. */
  get due(): number {
    return this.#open?.due ?? Infinity;
  }

  /** Our link is new, what was in flight is lost: offer again, in chunks that fit. */
  async reconnected(now: number, maxChunkBytes: number = MAX_DATA_BYTES): Promise<Action[]> {
    const transfer = this.#open;
    if (transfer === null) return [];
    if (transfer.offer.chunk_bytes > maxChunkBytes) await transfer.cut(maxChunkBytes, this.contentKey);
    transfer.reset(now);
    this.#install(transfer);
    return [transfer.announce(now)];
  }

  /** Stops offering. */
  forget(key: string): void {
    if (this.#open?.offer.transfer_id === key) this.#open = null;
  }

  #install(transfer: OutboundTransfer): void {
    this.#open = transfer;
    this.#allowance = { key: transfer.offer.transfer_id, of: transfer.allowance };
  }

  #rejectedLate(message: Need | Receipt): Action[] {
    const offer = this.#delivered;
    if (offer === null || offer.transfer_id !== message.transfer_id) return [];
    if (message.type === "need" || message.status === "done") return [];
    this.#delivered = null;
    return [rejected(offer, message)];
  }
}

function chunkSize(offer: TransferOffer): number {
  return Math.min(offer.chunk_bytes, offer.total_bytes);
}

function rejected(offer: TransferOffer, receipt: Receipt): Rejected {
  const rule = receipt.rule.slice(0, RULE_CHARS);
  return { kind: "rejected", offer, rule, reason: receipt.reason.slice(0, REASON_CHARS) };
}
