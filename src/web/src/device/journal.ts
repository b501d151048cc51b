/** What a device store's journal says: everything about rounds that is decided by one commit. */

import { type GateEvidence, helps } from "../federation/gate.ts";
import type { Coding } from "../wire/codecs.ts";
import type { RoundFigures, Use } from "./page_messages.ts";

export type RoundStage = "idle" | "received" | "outbox";

/** A content of the store, named by the SHA-256 (hex) of its bytes. */
export interface StoredBlob {
  readonly sha256: string;
  readonly bytes: number;
}

/**
 * A `ClientState`: its round, its tensors, and the payload that it was trained from.
 * `residual`: what coding its update has left for the next one.
 */
export interface StoredState {
  readonly roundId: number;
  readonly transferId: string;
  readonly blob: StoredBlob;
  readonly residual: StoredBlob | null;
  /** How its model compares with the bundle's; a store of an earlier version has none. */
  readonly evidence?: GateEvidence;
}

/**
 * A complete payload that waits for its training. `examples`: key of the last of the owner's examples
 * that it trains on: those that are added meanwhile change nothing of a round that is repeated.
 */
export interface StoredPayload {
  readonly roundId: number;
  readonly transferId: string;
  readonly blob: StoredBlob;
  readonly examples: number;
}

/** An update in the outbox, and the state that becomes the device's own when it is delivered. */
export interface PendingUpdate {
  readonly roundId: number;
  readonly update: StoredBlob;
  readonly state: StoredState;
  readonly coding: Coding;
  readonly figures: RoundFigures;
  /** Names and bytes of what the update holds. */
  readonly sent: readonly { readonly name: string; readonly bytes: number }[];
}

/** The update that was delivered last. */
export interface SentUpdate {
  readonly roundId: number;
  readonly update: StoredBlob;
  readonly coding: Coding;
}

/** What a store belongs to; its state means nothing elsewhere. `signer`: of its bundles, hex. */
export interface StoreBinding {
  readonly federation: string;
  readonly bundle: string;
  readonly layoutHash: string;
  readonly signer: string;
}

/** A state that a delivered round has made, and what it means something to. */
export interface PersonalState {
  readonly binding: StoreBinding;
  readonly bundle: StoredBlob;
  readonly strategy: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly state: StoredState;
}

/**
 * Everything that is decided by one commit.
 *
 * `delivered`: the update of the last round that counted, because a coordinator that was restored from a backup may ask
 * for it once more.
 * `former`: what the device predicts with after it has moved to another bundle, until a round with that one counts;
 * meanwhile `state`, of round 0, is what training begins with. `payloads`: decoded ones that a later one may refer to: the last one, and the one that it referred
 * to itself, because the coordinator may not know yet that the device is past that.
 * `sequence`: the largest of the bundles that the store has belonged to.
 */
export interface Journal {
  readonly format: 2;
  readonly binding: StoreBinding | null;
  /** The bundle's single file. */
  readonly bundle: StoredBlob | null;
  readonly strategy: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly state: StoredState | null;
  readonly received: StoredPayload | null;
  readonly pending: PendingUpdate | null;
  readonly delivered: SentUpdate | null;
  readonly payloads: readonly StoredBlob[];
  readonly former: PersonalState | null;
  readonly sequence: number;
}

export const EMPTY_JOURNAL: Journal = {
  format: 2,
  binding: null,
  bundle: null,
  strategy: "",
  settings: {},
  state: null,
  received: null,
  pending: null,
  delivered: null,
  payloads: [],
  former: null,
  sequence: 0,
};

/** The last round that counted with the present bundle; 0: none. */
export function lastRound(journal: Journal): number {
  return journal.state?.roundId ?? 0;
}

/** What the device predicts with; null before the first round has counted. */
export function inUse(journal: Journal): PersonalState | null {
  const { binding, bundle, strategy, settings, state, former } = journal;
  if (former !== null || lastRound(journal) === 0) return former;
  return binding === null || bundle === null || state === null ? null : { binding, bundle, strategy, settings, state };
}

/** Whether predictions come of a state's model, and not of the bundle's own. */
export function isServed(state: StoredState | null, use: Use): boolean {
  if (state === null || state.roundId === 0 || use === "bundle") return false;
  return use === "personal" || state.evidence === undefined || helps(state.evidence);
}

/** Where the device stands in its round. */
export function stageOf(journal: Journal): RoundStage {
  if (journal.pending !== null) return "outbox";
  return journal.received === null ? "idle" : "received";
}

/** Payloads that are stored or used already and need not be fetched again. */
export function knownTransfers(journal: Journal): string[] {
  const states = [journal.state, journal.received, journal.pending?.state];
  return states.flatMap((one) => (one?.transferId ? [one.transferId] : []));
}

/** Names of every content that must be kept. */
export function keptBlobs(journal: Journal): Set<string> {
  const states = [journal.state, journal.pending?.state, journal.former?.state];
  const blobs = [journal.bundle, journal.former?.bundle, ...journal.payloads, journal.received?.blob, journal.pending?.update];
  blobs.push(journal.delivered?.update);
  for (const state of states) blobs.push(state?.blob, state?.residual);
  return new Set(blobs.map((blob) => blob?.sha256).filter((name) => name !== undefined));
}
