/**
 * The receiving half of one transfer: asks for chunks, keeps them, checks the hash.
 *
 * Flow control is the receiver's alone. It names the chunks that it wants now (`Need`), never more than
 * its window, and asks for the next half window when half of the last one has come. The window starts
 * small and doubles while nothing is lost, so that a slow link is not filled with repetitions.
 */

import { RefusedError } from "../errors.ts";
import { sha256Hex } from "../hash.ts";
import { type Chunk, ChunkCipher } from "./chunks.ts";
import { type Need, type TransferOffer, message } from "./messages.ts";
import type { PartialBlob, PartialBlobs } from "./partial_blobs.ts";

/** Ask again after this long without a chunk: several round trips of any usable link. */
export const SILENCE_S = 1.5;
/** The same before the first chunk, when the link's pace is unknown: 64 KiB at 256 kbit/s is 2 s. */
export const FIRST_SILENCE_S = 5;
/** Doubling stops here; below the keep-alive's own detection of a dead link. */
export const SILENCE_MAX_S = 30;
/** After so many unanswered asks (some two minutes) nothing is asked until the next offer. */
export const SILENT_ASKS_MAX = 6;
export const START_WINDOW = 4;
export const MIN_WINDOW = 2;
export const MAX_WINDOW = 16;
/** A wrong hash may come from a disk that lost writes: fetch all once more, then give up. */
const HASH_ATTEMPTS = 2;

const WANTED = 0;
const FLYING = 1;
const HERE = 2;

/** Under which name the chunks of a blob in its grid are kept. */
export function partialKey(offer: TransferOffer): string {
  return `${offer.transfer_id}-${offer.total_bytes}-${offer.chunk_bytes}`;
}

/** One blob on its way here; survives a restart through its partial blob. */
export class InboundTransfer {
  readonly count: number;
  /** When to call `silent` unless a chunk comes. */
  due = Infinity;
  #offer: TransferOffer;
  #cipher: ChunkCipher | null = null;
  readonly #blob: PartialBlob;
  readonly #state: Uint8Array;
  #missing: number;
  #cursor = 0;
  #window = START_WINDOW;
  /** Chunks in flight, by the number of the ask that named them. */
  readonly #flying = new Map<number, number>();
  /** The same of those that were in flight when nothing came for too long. */
  readonly #late = new Map<number, number>();
  readonly #askedAgain = new Set<number>();
  #asks = 0;
  #silentAsks = 0;
  #failures = 0;
  #last = 0;
  #gap = 0;

  private constructor(offer: TransferOffer, blob: PartialBlob, count: number) {
    this.#offer = offer;
    this.#blob = blob;
    this.count = count;
    this.#state = new Uint8Array(count);
    this.#missing = count;
    for (const index of blob.present) {
      if (index < count && this.#state[index] !== HERE) {
        this.#state[index] = HERE;
        this.#missing -= 1;
      }
    }
  }

  /** Begins or continues the transfer of an offer that is within limits. */
  static async open(blobs: PartialBlobs, offer: TransferOffer): Promise<InboundTransfer> {
    const count = Math.ceil(offer.total_bytes / offer.chunk_bytes);
    const transfer = new InboundTransfer(offer, await blobs.open(partialKey(offer), count), count);
    await transfer.rekey(offer);
    return transfer;
  }

  get offer(): TransferOffer {
    return this.#offer;
  }

  /** Whether every chunk is here (the hash is another question). */
  get complete(): boolean {
    return this.#missing === 0;
  }

  /** The same blob in the same grid is offered again, by a process with another key. */
  async rekey(offer: TransferOffer): Promise<void> {
    this.#offer = offer;
    this.#cipher = offer.key ? await ChunkCipher.create(offer.key, offer.transfer_id) : null;
  }

  /** The answer to an offer: ask, or only say that we are still waiting for the last ask. */
  offered(now: number): Need {
    return this.#flying.size > 0 && now < this.due ? this.#alive() : this.ask(now);
  }

  /** Takes all that was in flight for lost and starts again with a small window. */
  ask(now: number): Need {
    this.#forgetLate();
    this.#land([...this.#flying.keys()]);
    this.#window = Math.min(START_WINDOW, this.#window);
    this.#last = now;
    return this.#need(now) ?? this.#alive();
  }

  /**
   * `due` has come: ask again with a smaller window; null: it is no use.
   *
   * What was asked for may be lost, or late: it is not asked for a second time before the first of it comes, but for
   * its end. A link keeps the order, so if the end comes first, the rest is lost; and if the rest begins to come, it was
   * late, and nothing need be asked for.
   */
  silent(now: number): Need | null {
    this.#silentAsks += 1;
    if (this.#silentAsks > SILENT_ASKS_MAX) return null;
    this.#window = Math.max(MIN_WINDOW, Math.floor(this.#window / 2));
    for (const [index, ask] of this.#flying) this.#late.set(index, ask);
    if (this.#late.size === 0) return this.ask(now);
    this.#window = Math.min(START_WINDOW, this.#window);
    this.#land([...this.#flying.keys()]);
    this.#last = now;
    const late = [...this.#late.keys()].sort((one, other) => one - other);
    const left = late.filter((index) => !this.#askedAgain.has(index));
    const again = (left.length > 0 ? left : late).slice(-this.#window);
    for (const index of again) this.#askedAgain.add(index);
    return this.#request(again, now);
  }

  /**
   * Keeps a chunk; repeated ones change nothing. Returns what to ask for next, if due.
   *
   * Throws RefusedError, rule `chunk-index`, `chunk-grid` (not of this offer's grid) or `chunk-seal` (not
   * made by who offered it).
   */
  async take(sealed: Chunk, now: number): Promise<Need | null> {
    const { index, last, data } = await this.#opened(sealed);
    this.#check(index, last, data.length);
    if (this.#state[index] === HERE) return null;
    // A view into a packet would keep, and a database copy, all that the socket has read with it.
    const own = data.byteLength === data.buffer.byteLength ? data : data.slice();
    await this.#blob.write(index, own);
    this.#state[index] = HERE;
    this.#missing -= 1;
    this.#observe(now);
    this.#arrived(index);
    this.due = now + this.#patience();
    return this.#missing > 0 ? this.#need(now) : null;
  }

  /**
   * The complete blob if it has the offer's sha256; null: all is wanted again.
   *
   * Throws RefusedError, rule `sha256`: it was wrong after a second complete fetch too.
   */
  async verify(): Promise<Uint8Array | null> {
    const blob = await this.#blob.read();
    const digest = await sha256Hex(blob);
    if (digest === this.#offer.sha256) return blob;
    this.#failures += 1;
    this.#state.fill(WANTED);
    this.#missing = this.count;
    this.#cursor = 0;
    await this.#blob.delete();
    if (this.#failures >= HASH_ATTEMPTS) {
      const { transfer_id, sha256 } = this.#offer;
      throw new RefusedError("sha256", `transfer ${transfer_id}: expected ${sha256}, got ${digest}`);
    }
    return null;
  }

  /** Deletes what was kept. */
  delete(): Promise<void> {
    return this.#blob.delete();
  }

  async #opened(chunk: Chunk): Promise<Chunk> {
    if (this.#cipher !== null) return this.#cipher.open(chunk);
    if (chunk.sealed) {
      throw new RefusedError("chunk-seal", `chunk ${chunk.index}: sealed, but not its transfer`);
    }
    return chunk;
  }

  #check(index: number, last: boolean, got: number): void {
    if (index >= this.count) {
      throw new RefusedError("chunk-index", `chunk: expected index < ${this.count}, got ${index}`);
    }
    const isLast = index === this.count - 1;
    const { total_bytes, chunk_bytes } = this.#offer;
    const size = isLast ? total_bytes - chunk_bytes * index : chunk_bytes;
    if (got !== size || last !== isLast) {
      throw new RefusedError(
        "chunk-grid",
        `chunk ${index} of ${this.count}: expected ${size} bytes, last ${isLast}, got ${got} bytes, last ${last}`,
      );
    }
  }

  #observe(now: number): void {
    const gap = now - this.#last;
    this.#gap = this.#gap === 0 ? gap : 0.75 * this.#gap + 0.25 * gap;
    this.#last = now;
    this.#silentAsks = 0;
  }

  #patience(): number {
    const usual = this.#gap > 0 ? Math.max(SILENCE_S, 4 * this.#gap) : FIRST_SILENCE_S;
    return Math.min(usual * 2 ** this.#silentAsks, SILENCE_MAX_S);
  }

  /** Concludes from a chunk that is here now what is lost, late, or on its way. */
  #arrived(index: number): void {
    const ask = this.#flying.get(index);
    const late = this.#late.delete(index);
    if (ask !== undefined) {
      this.#flying.delete(index);
      this.#forgetLate();
      this.#noticeLosses(ask);
    } else if (late && !this.#askedAgain.has(index)) {
      for (const [other, earlier] of this.#late) {
        if (this.#state[other] !== WANTED) continue;
        this.#state[other] = FLYING;
        this.#flying.set(other, earlier);
      }
      this.#forgetLate();
    }
  }

  #forgetLate(): void {
    this.#late.clear();
    this.#askedAgain.clear();
  }

  #noticeLosses(ask: number): void {
    // Packets keep their order on one connection, so what an ask two before this one still misses is
    // lost; one before is spared because a little reordering does happen.
    const lost = [...this.#flying].filter(([, earlier]) => earlier < ask - 1).map(([index]) => index);
    if (lost.length > 0) this.#land(lost);
    else if (ask === this.#asks) this.#window = Math.min(MAX_WINDOW, this.#window * 2);
  }

  #land(indices: readonly number[]): void {
    for (const index of indices) {
      this.#flying.delete(index);
      this.#state[index] = WANTED;
      this.#cursor = Math.min(this.#cursor, index);
    }
  }

  #need(now: number): Need | null {
    const room = this.#window - this.#flying.size;
    if (room < Math.max(1, Math.floor(this.#window / 2))) return null;
    const wanted = this.#pick(room);
    return wanted.length === 0 ? null : this.#request(wanted, now);
  }

  #request(wanted: readonly number[], now: number): Need {
    this.#asks += 1;
    for (const index of wanted) {
      this.#state[index] = FLYING;
      this.#flying.set(index, this.#asks);
    }
    this.due = now + this.#patience();
    return this.#message(ranges(wanted), wanted.length);
  }

  #alive(): Need {
    return this.#message([], 0);
  }

  #message(missing: [number, number][], credit: number): Need {
    return message("need", { transfer_id: this.#offer.transfer_id, missing, credit });
  }

  #pick(room: number): number[] {
    const wanted: number[] = [];
    while (wanted.length < room) {
      const index = this.#state.indexOf(WANTED, this.#cursor);
      if (index < 0) break;
      wanted.push(index);
      this.#cursor = index + 1;
    }
    return wanted;
  }
}

/** Ascending indices as half-open ranges. */
function ranges(indices: readonly number[]): [number, number][] {
  const found: [number, number][] = [];
  for (const index of indices) {
    const last = found.at(-1);
    if (last !== undefined && last[1] === index) last[1] = index + 1;
    else found.push([index, index + 1]);
  }
  return found;
}
