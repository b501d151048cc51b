/**
 * The receiving side of a device's transfers: checks of offers, receipts, bounded memory.
 *
 * Pure but for the partial blobs: bytes and times in, actions out. Flow control of a single blob is in
 * `inbound.ts`. A device has one peer and one blob on its way at a time, so nobody waits for a turn.
 */

import { RefusedError } from "../errors.ts";
import { MAX_CHUNKS, MAX_DATA_BYTES, MIN_DATA_BYTES, parse } from "./chunks.ts";
import { NAMES } from "./codecs.ts";
import { InboundTransfer, partialKey } from "./inbound.ts";
import { type Need, type Receipt, type TransferOffer, encode, message } from "./messages.ts";
import type { PartialBlobs } from "./partial_blobs.ts";
import { type Action, type Send, transferId } from "./transfer.ts";

/** Receipts that are remembered, so that a repeated offer is answered again without another fetch. */
const SETTLED_MAX = 100;
const REASON_CHARS = 500;
/** Characters of what was sent in a reason. */
const SHOWN = 64;
const DIGEST = /^[0-9a-f]{64}$/;

export interface ReceiverOptions {
  readonly deviceId: string;
  readonly blobs: PartialBlobs;
  /** Whether chunks must be sealed. */
  readonly sealed: boolean;
  readonly maxBlobBytes: number;
}

/** A device's incoming transfer; a newer one replaces it unless the caller still holds the blob. */
export class Receiver {
  readonly #options: ReceiverOptions;
  #active: InboundTransfer | null = null;
  /** Complete, and neither accepted nor rejected yet. */
  readonly #held = new Map<string, InboundTransfer>();
  readonly #settled = new Map<string, Receipt>();

  constructor(options: ReceiverOptions) {
    this.#options = options;
  }

  /**
   * Takes the offered blob; call it for every offer that comes, repeated ones too.
   *
   * An offer that breaks a limit is answered with `reject` and nothing is kept.
   */
  async expect(offer: TransferOffer, now: number): Promise<Action[]> {
    const key = offer.transfer_id;
    const broken = await this.#broken(offer);
    if (broken !== null) return [answer(refusal(key, broken.rule, broken.message))];
    const receipt = this.#settled.get(key);
    if (receipt !== undefined) return [answer(receipt)];
    if (this.#held.has(key)) return [];
    const active = this.#active;
    if (active !== null && partialKey(active.offer) === partialKey(offer)) {
      await active.rekey(offer);
      return [answer(active.offered(now))];
    }
    return this.#begin(offer, now);
  }

  /**
   * Takes a chunk; those of unknown transfers are ignored.
   *
   * Throws RefusedError: it broke a rule; nothing has changed.
   */
  async chunk(payload: Uint8Array, now: number): Promise<Action[]> {
    const chunk = parse(payload);
    const transfer = this.#active;
    if (transfer === null || transfer.offer.transfer_id !== chunk.transferId) return [];
    const need = await transfer.take(chunk, now);
    if (transfer.complete) return this.#finish(transfer, now);
    return need === null ? [] : [answer(need)];
  }

  /** The received blob is stored: send `done`, now and whenever it is offered again. */
  async accept(key: string): Promise<Action[]> {
    if (!this.#held.has(key)) return [];
    return this.#settle(done(key));
  }

  /**
   * Sends `reject`, and again whenever a blob that was here is offered; drops it.
   *
   * Nothing is kept of one that was only offered: whoever refused it is asked again.
   */
  async reject(key: string, rule: string, reason: string): Promise<Action[]> {
    const receipt = refusal(key, rule, reason);
    return this.#knows(key) ? this.#settle(receipt) : [answer(receipt)];
  }

  /** After a restart: this transfer was accepted before; answer `done` when it is offered. */
  remember(key: string): void {
    this.#note(done(key));
  }

  /** Forgets a transfer, its bytes and what was decided about it. */
  async cancel(key: string): Promise<void> {
    await this.#forget(key);
    this.#settled.delete(key);
  }

  /** Asks again where it is silent, and no more where that is no use: what is here stays. */
  tick(now: number): Action[] {
    const transfer = this.#active;
    if (transfer === null || now < transfer.due) return [];
    const need = transfer.silent(now);
    if (need !== null) return [answer(need)];
    this.#active = null;
    return [];
  }

  /** When `tick` has something to do; Infinity: only after another call. */
  get due(): number {
    return this.#active?.due ?? Infinity;
  }

  /** Our link is new, what was in flight is lost: ask again. */
  reconnected(now: number): Action[] {
    return this.#active === null ? [] : [answer(this.#active.ask(now))];
  }

  async #begin(offer: TransferOffer, now: number): Promise<Action[]> {
    // Dropped first, so that nothing is left over if the store fails.
    this.#active = null;
    const held = [...this.#held.values()].map((transfer) => partialKey(transfer.offer));
    await this.#options.blobs.keepOnly([partialKey(offer), ...held]);
    const transfer = await InboundTransfer.open(this.#options.blobs, offer);
    this.#active = transfer;
    return transfer.complete ? this.#finish(transfer, now) : [answer(transfer.ask(now))];
  }

  async #finish(transfer: InboundTransfer, now: number): Promise<Action[]> {
    const { offer } = transfer;
    let blob: Uint8Array | null;
    try {
      blob = await transfer.verify();
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      return this.reject(offer.transfer_id, error.rule, error.message);
    }
    if (blob === null) return [answer(transfer.ask(now))];
    this.#active = null;
    this.#held.set(offer.transfer_id, transfer);
    return [{ kind: "received", offer, blob }];
  }

  async #settle(receipt: Receipt): Promise<Action[]> {
    await this.#forget(receipt.transfer_id);
    this.#note(receipt);
    return [answer(receipt)];
  }

  async #forget(key: string): Promise<void> {
    const transfer = this.#active?.offer.transfer_id === key ? this.#active : this.#held.get(key);
    if (transfer === undefined) return;
    if (transfer === this.#active) this.#active = null;
    this.#held.delete(key);
    await transfer.delete();
  }

  #knows(key: string): boolean {
    return this.#active?.offer.transfer_id === key || this.#held.has(key) || this.#settled.has(key);
  }

  #note(receipt: Receipt): void {
    this.#settled.set(receipt.transfer_id, receipt);
    for (const oldest of this.#settled.keys()) {
      if (this.#settled.size <= SETTLED_MAX) break;
      this.#settled.delete(oldest);
    }
  }

  /** The first rule that an offer breaks; null: none. */
  async #broken(offer: TransferOffer): Promise<RefusedError | null> {
    const most = this.#options.maxBlobBytes;
    const least = Math.max(MIN_DATA_BYTES, Math.ceil(offer.total_bytes / MAX_CHUNKS));
    const sealed = this.#options.sealed;
    const id = await transferId(offer.sha256, this.#options.deviceId, offer.round_id);
    const within = (bytes: number): boolean => 1 <= bytes && bytes <= most;
    const rules: readonly (readonly [string, boolean, string, string | number])[] = [
      ["codec", NAMES.includes(offer.codec), `codec in ${NAMES.join(", ")}`, offer.codec.slice(0, SHOWN)],
      ["blob-size", within(offer.total_bytes), `1 to ${most} bytes`, offer.total_bytes],
      [
        "raw-bytes",
        offer.codec === "raw" || within(offer.raw_bytes),
        `1 to ${most} bytes before compression`,
        offer.raw_bytes,
      ],
      [
        "base",
        offer.base === "" || DIGEST.test(offer.base),
        "a base of 64 hexadecimal digits, or none",
        offer.base.slice(0, SHOWN),
      ],
      [
        "chunk-bytes",
        least <= offer.chunk_bytes && offer.chunk_bytes <= MAX_DATA_BYTES,
        `chunks of ${least} to ${MAX_DATA_BYTES} bytes`,
        offer.chunk_bytes,
      ],
      [
        "key",
        (offer.key !== "") === sealed && (offer.key === "" || DIGEST.test(offer.key)),
        sealed ? "a key of 64 hexadecimal digits" : "no key",
        offer.key === "" ? "none" : "another",
      ],
      ["transfer-id", offer.transfer_id === id, id, offer.transfer_id],
    ];
    const broken = rules.find(([, holds]) => !holds);
    if (broken === undefined) return null;
    const [rule, , wanted, got] = broken;
    return new RefusedError(rule, `offer: expected ${wanted}, got ${got}`);
  }
}

function refusal(key: string, rule: string, reason: string): Receipt {
  return message("receipt", { transfer_id: key, status: "reject", reason: reason.slice(0, REASON_CHARS), rule });
}

function done(key: string): Receipt {
  return message("receipt", { transfer_id: key, status: "done" });
}

function answer(record: Need | Receipt): Send {
  return { kind: "send", lane: "answer", payload: encode(record) };
}
