/**
 * Transfers of blobs over a lossy channel, without sockets or clocks: what both directions share.
 *
 * A `Sender` runs the device's outgoing transfer, a `Receiver` the incoming one: feed them what
 * arrives and the time, and carry out the `Action` records that they return. Times are seconds of a
 * monotonic clock. The rules are specified in docs/protocol.md, section Transfer.
 *
 * Hashes and ciphers of the browser are asynchronous, so most calls are; whoever makes them waits for
 * one before the next.
 */

import { InputError } from "../errors.ts";
import { sha256Hex } from "../hash.ts";
import { MAX_DATA_BYTES } from "./chunks.ts";
import type { Coding } from "./codecs.ts";
import { type TransferOffer, message } from "./messages.ts";

/** The three ways of a transfer; `endpoint.ts` maps them to topics. */
export type Lane = "offer" | "chunk" | "answer";

/** Action: publish `payload` on a lane. */
export interface Send {
  readonly kind: "send";
  readonly lane: Lane;
  readonly payload: Uint8Array;
}

/** Event: a blob is complete and its sha256 right; it is kept until it is accepted or rejected. */
export interface Received {
  readonly kind: "received";
  readonly offer: TransferOffer;
  readonly blob: Uint8Array;
}

/** Event: the coordinator has the blob and stored it; it is no longer needed here. */
export interface Delivered {
  readonly kind: "delivered";
  readonly offer: TransferOffer;
}

/** Event: a blob that we offered will never be taken; `rule` is for programs, `reason` for people. */
export interface Rejected {
  readonly kind: "rejected";
  readonly offer: TransferOffer;
  readonly rule: string;
  readonly reason: string;
}

export type Action = Send | Received | Delivered | Rejected;

/** What a blob is for. */
export interface Purpose {
  readonly kind: "payload" | "update";
  readonly deviceId: string;
  readonly roundId: number;
}

/**
 * Identity of a transfer, the same after every restart: the first 32 hexadecimal digits of sha256 over
 * `<sha256>/<device id>/<round id>`.
 */
export async function transferId(sha256: string, deviceId: string, roundId: number): Promise<string> {
  const text = new TextEncoder().encode(`${sha256}/${deviceId}/${roundId}`);
  return (await sha256Hex(text)).slice(0, 32);
}

/** The offer of `blob`, raw unless `coding` says how it is coded; throws InputError if it is empty. */
export async function describe(
  blob: Uint8Array,
  purpose: Purpose,
  coding: Coding | null = null,
  chunkBytes: number = MAX_DATA_BYTES,
): Promise<TransferOffer> {
  const { kind, deviceId, roundId } = purpose;
  if (blob.length === 0) {
    throw new InputError(`blob for ${deviceId}, round ${roundId}: expected bytes, got none`);
  }
  const sha256 = await sha256Hex(blob);
  return message("manifest", {
    transfer_id: await transferId(sha256, deviceId, roundId),
    kind,
    round_id: roundId,
    total_bytes: blob.length,
    sha256,
    chunk_bytes: chunkBytes,
    codec: coding?.codec ?? "raw",
    raw_bytes: coding?.rawBytes ?? 0,
    base: coding?.reference ?? "",
  });
}
