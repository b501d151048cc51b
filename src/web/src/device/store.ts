/**
 * The phone's durable store: identity, bundle, personal state, the round it is in, what it has paid.
 *
 * The journal is the single commit point: one IndexedDB transaction holds it with every content that
 * it names from then on, and takes away those that it names no more. A page killed at any instant
 * leaves the store before or after that transaction.
 *
 * A trained state stays *pending* beside the committed one until the coordinator has acknowledged
 * its update: a round that never counted leaves no trace in the personal state.
 */

import { sha256Hex } from "../hash.ts";
import { ProvisionError, RefusedError } from "../errors.ts";
import type { TrainedRound } from "../federation/client.ts";
import { type ComparedExamples, withFold } from "../federation/gate.ts";
import { encode } from "../tensors/safetensors.ts";
import { STORE } from "../texts.ts";
import { Database, deleteDatabase, type Write } from "./database.ts";
import {
  type StoreBinding,
  EMPTY_JOURNAL,
  inUse,
  type Journal,
  keptBlobs,
  type PendingUpdate,
  type StoredBlob,
  type StoredPayload,
  type StoredState,
} from "./journal.ts";
import type { PlannedMove } from "./move.ts";
import type { MoveTold, Policy, RoundFigures, Use } from "./page_messages.ts";

const NAME = "protofleet";
const MOST_HISTORY = 1000;

/** How the device is known in its federation; without keys `grant` is empty and `keys` null. */
export interface Enrolment {
  readonly federation: string;
  readonly deviceId: string;
  /** WebSocket address of the broker, and the device's account there; "" where there is none. */
  readonly broker: string;
  readonly password: string;
  readonly grant: string;
  /** The federation's public key when the device enrolled, hex. */
  readonly federationKey: string;
  /** Which invitation it was made with. */
  readonly invitation: string;
  readonly keys: CryptoKeyPair | null;
}

/** What must not go back over restarts; `start` counts the processes that used the credentials. */
export interface Memory {
  readonly start: number;
  readonly announced: number;
  readonly federationKey: string;
}

export interface ByteTotals {
  readonly up: number;
  readonly down: number;
}

/** What the device keeps beside its journal. */
interface Facts {
  journal: Journal;
  /** What the owner is told of the last move to another bundle. */
  moved: MoveTold | null;
  enrolment: Enrolment | null;
  /** The key that a grant is being asked for, by its invitation. */
  asking: { readonly invitation: string; readonly keys: CryptoKeyPair } | null;
  memory: Memory;
  totals: ByteTotals;
  history: readonly RoundFigures[];
  /** Names and bytes of what the last update held. */
  sent: PendingUpdate["sent"];
  policy: Policy;
  /** What the owner wants: to take part, to pause, or to have left. */
  wish: "take-part" | "pause" | "left";
  /** Which model predicts. */
  use: Use;
}

const NEW: Facts = {
  journal: EMPTY_JOURNAL,
  moved: null,
  enrolment: null,
  asking: null,
  memory: { start: 0, announced: 0, federationKey: "" },
  totals: { up: 0, down: 0 },
  history: [],
  sent: [],
  policy: { onlyCharging: false, onlyUnmetered: false },
  wish: "take-part",
  use: "auto",
};

export class Store {
  readonly database: Database;
  #facts: Facts;

  private constructor(database: Database, facts: Facts) {
    this.database = database;
    this.#facts = facts;
  }

  /** `lost` is called when the browser deletes the store while it is open. */
  static async open(lost: () => void = () => {}, name = NAME): Promise<Store> {
    const database = await Database.open(name, lost);
    const facts: Record<string, unknown> = { ...NEW };
    for (const key of Object.keys(NEW)) facts[key] = (await database.get("facts", key)) ?? facts[key];
    const store = new Store(database, facts as unknown as Facts);
    const { format } = store.journal;
    if (format !== EMPTY_JOURNAL.format) {
      throw new ProvisionError(STORE.format(EMPTY_JOURNAL.format, String(format)));
    }
    return store;
  }

  /** Deletes all that this page has stored. */
  static async forget(name = NAME): Promise<void> {
    await deleteDatabase(name);
  }

  get journal(): Journal {
    return this.#facts.journal;
  }

  get moved(): MoveTold | null {
    return this.#facts.moved;
  }

  get enrolment(): Enrolment | null {
    return this.#facts.enrolment;
  }

  get asking(): Facts["asking"] {
    return this.#facts.asking;
  }

  get memory(): Memory {
    return this.#facts.memory;
  }

  get totals(): ByteTotals {
    return this.#facts.totals;
  }

  get history(): readonly RoundFigures[] {
    return this.#facts.history;
  }

  get sent(): PendingUpdate["sent"] {
    return this.#facts.sent;
  }

  get policy(): Policy {
    return this.#facts.policy;
  }

  get wish(): Facts["wish"] {
    return this.#facts.wish;
  }

  get use(): Use {
    return this.#facts.use;
  }

  close(): void {
    this.database.close();
  }

  /** Keeps the key with which a grant is asked for, before anybody is asked. */
  async keepAsking(invitation: string, keys: CryptoKeyPair): Promise<void> {
    await this.#keep({ asking: { invitation, keys } });
  }

  /** The device is enrolled from here on; what an earlier enrolment noted goes. */
  async commitEnrolment(enrolment: Enrolment): Promise<void> {
    const { federation } = this.journal.binding ?? this.enrolment ?? enrolment;
    if (federation !== enrolment.federation) {
      throw new ProvisionError(STORE.otherFederation(federation, enrolment.federation));
    }
    const memory = { start: 0, announced: 0, federationKey: enrolment.federationKey };
    await this.#keep({ enrolment, memory, asking: null, wish: "take-part" });
  }

  /** Counts a use of the credentials; no two have the same number. */
  async start(): Promise<Memory> {
    await this.#keep({ memory: { ...this.memory, start: this.memory.start + 1 } });
    return this.memory;
  }

  /** Not against power loss: what then may be repeated is an announcement of the last minutes. */
  async note(announced: number, federationKey: string): Promise<void> {
    await this.#keep({ memory: { ...this.memory, announced, federationKey } }, "relaxed");
  }

  async keepTotals(totals: ByteTotals): Promise<void> {
    await this.#keep({ totals }, "relaxed");
  }

  async keepPolicy(policy: Policy): Promise<void> {
    await this.#keep({ policy });
  }

  async keepUse(use: Use): Promise<void> {
    await this.#keep({ use });
  }

  async keepWish(wish: Facts["wish"]): Promise<void> {
    await this.#keep({ wish });
  }

  /** The bundle that the store belongs to; null before there is one. */
  async bundle(): Promise<Uint8Array | null> {
    const { bundle } = this.journal;
    return bundle === null ? null : this.read(bundle);
  }

  /** Refuses, rule `untrusted`, another signer's bundle; raises ProvisionError for an older one. */
  checkBundle(binding: StoreBinding, manifest: { readonly name: string; readonly sequence: number; readonly replaces_up_to: number }): void {
    const bound = this.journal.binding;
    if (bound === null) return;
    if (bound.signer !== binding.signer) {
      throw new RefusedError(
        "untrusted",
        STORE.otherSigner(manifest.name, binding.signer.slice(0, 16), bound.signer.slice(0, 16)),
      );
    }
    const newest = this.journal.sequence;
    if (Math.max(manifest.sequence, manifest.replaces_up_to) < newest) {
      throw new ProvisionError(STORE.older(manifest.name, manifest.sequence, newest));
    }
  }

  /**
   * Belongs to a bundle from now on; `move`: what is taken along to it, null for the first one.
   *
   * What is on its way in either direction, residuals and baselines belong to the bundle before and go. The model in
   * use stays in use until a round counts with the new bundle; back at that one's bundle before, all is as it was.
   */
  async commitBundle(binding: StoreBinding, file: Uint8Array, sequence: number, move: PlannedMove | null = null): Promise<void> {
    const { strategy, settings, former, sequence: newest } = this.journal;
    const also = { facts: { moved: move?.told ?? null }, more: [{ table: "parts", clear: true }] as const };
    const empty = { ...EMPTY_JOURNAL, sequence: Math.max(newest, sequence) };
    if (former?.binding.bundle === binding.bundle) return this.#commit({ ...empty, ...former }, also);
    const [bundle, blobs] = await hashed(file);
    const moved = { ...empty, binding, bundle, former: inUse(this.journal) };
    if (move === null || move.start === null) return this.#commit(moved, { ...also, blobs });
    const [blob, tensors] = await hashed(encode(move.start));
    const state: StoredState = { roundId: 0, transferId: "", blob, residual: null };
    await this.#commit({ ...moved, strategy, settings, state }, { ...also, blobs: new Map([...blobs, ...tensors]) });
  }

  /** Records the strategy that reads and writes the state. */
  async bindStrategy(strategy: string, settings: Readonly<Record<string, unknown>>): Promise<void> {
    this.checkStrategy(strategy);
    const { journal } = this;
    if (journal.strategy === strategy && JSON.stringify(journal.settings) === JSON.stringify(settings)) return;
    await this.#commit({ ...journal, strategy, settings });
  }

  /** Raises ProvisionError if the state in the store was made by another strategy. */
  checkStrategy(name: string): void {
    if (this.journal.state !== null && this.journal.strategy !== name) {
      throw new ProvisionError(STORE.otherStrategy(this.journal.strategy, name));
    }
  }

  /** The bytes of a content that the journal names. */
  async read(blob: StoredBlob): Promise<Uint8Array> {
    return this.#blob(blob.sha256);
  }

  hasPayload(reference: string): boolean {
    return this.journal.payloads.some(({ sha256 }) => sha256 === reference);
  }

  /** The raw blob of an earlier payload; raises RefusedError, rule `base`, if it is not here. */
  async loadPayload(reference: string): Promise<Uint8Array> {
    if (this.hasPayload(reference)) return this.#blob(reference);
    throw new RefusedError("base", STORE.noPayload(reference.slice(0, 64)));
  }

  /**
   * Keeps a complete payload until its training is committed. `reference`: what it referred to, ""
   * for the bundle; later payloads may refer to either. null: it was raw, and so will the others be.
   */
  async commitReceived(received: Omit<StoredPayload, "blob">, raw: Uint8Array, reference: string | null): Promise<void> {
    const [blob, blobs] = await hashed(raw);
    const named = this.journal.payloads.filter(({ sha256 }) => sha256 === reference && sha256 !== blob.sha256);
    const payloads = reference === null ? [] : [...named, blob];
    await this.#commit({ ...this.journal, received: { ...received, blob }, payloads }, { blobs });
  }

  /** Makes the trained state (pending), its update (outbox) and its residual valid together. */
  async commitTrained(trained: TrainedRound, transferId: string, figures: RoundFigures): Promise<void> {
    const { roundId, tensors } = trained.state;
    const [update, blobs] = await hashed(trained.blob);
    const [blob, more] = await hashed(encode(tensors));
    const [residual, rest] = trained.residual.size > 0 ? await hashed(encode(trained.residual)) : [null, []];
    const state: StoredState = { roundId, transferId, blob, residual, evidence: trained.evidence };
    const sent = [...trained.update.tensors].map(([name, { data }]) => ({ name, bytes: data.byteLength }));
    const pending: PendingUpdate = { roundId, update, state, coding: trained.coding, figures, sent };
    await this.#commit({ ...this.journal, received: null, pending }, { blobs: new Map([...blobs, ...more, ...rest]) });
  }

  /** Adds what was held out to the evidence for the newest model. */
  async commitFold(fold: ComparedExamples): Promise<void> {
    const { pending, state } = this.journal;
    const newest = pending?.state ?? state;
    if (newest?.evidence === undefined) return;
    const judged = { ...newest, evidence: withFold(newest.evidence, fold) };
    await this.#commit({ ...this.journal, ...(pending === null ? { state: judged } : { pending: { ...pending, state: judged } }) });
  }

  /** The coordinator has the update: its state becomes the device's own. */
  async commitDelivered(): Promise<void> {
    const { pending } = this.journal;
    if (pending === null) return;
    const history = [...this.history, pending.figures].slice(-MOST_HISTORY);
    const { roundId, update, coding, state } = pending;
    const journal = { ...this.journal, state, pending: null, delivered: { roundId, update, coding }, former: null };
    await this.#commit(journal, { facts: { history, sent: pending.sent } });
  }

  /** The round never counted: forgets its payload, its update and its trained state. */
  async commitDropped(): Promise<void> {
    if (this.journal.received === null && this.journal.pending === null) return;
    await this.#commit({ ...this.journal, received: null, pending: null });
  }

  async #blob(name: string): Promise<Uint8Array> {
    const found = await this.database.get("blobs", name);
    if (found instanceof Uint8Array && (await sha256Hex(found)) === name) return found;
    throw new ProvisionError(STORE.lost(name.slice(0, 16), found === undefined ? "gone" : "damaged"));
  }

  async #keep(facts: Partial<Facts>, durability: "strict" | "relaxed" = "strict"): Promise<void> {
    await this.database.write(puts(facts), durability);
    Object.assign(this.#facts, facts);
  }

  async #commit(
    journal: Journal,
    also: { blobs?: ReadonlyMap<string, Uint8Array>; facts?: Partial<Facts>; more?: readonly Write[] } = {},
  ): Promise<void> {
    const before = keptBlobs(this.journal);
    const after = keptBlobs(journal);
    const facts = { ...also.facts, journal };
    const writes: Write[] = [...puts(facts), ...(also.more ?? [])];
    for (const [key, put] of also.blobs ?? []) writes.push({ table: "blobs", put, key });
    for (const name of before) if (!after.has(name)) writes.push({ table: "blobs", delete: name });
    await this.database.write(writes);
    Object.assign(this.#facts, facts);
  }
}

function puts(facts: Partial<Facts>): Write[] {
  return Object.entries(facts).map(([key, put]) => ({ table: "facts", put, key }));
}

async function hashed(data: Uint8Array): Promise<[StoredBlob, Map<string, Uint8Array>]> {
  const name = await sha256Hex(data);
  // A view would take all of its buffer along.
  const whole = data.byteLength === data.buffer.byteLength ? data : data.slice();
  return [{ sha256: name, bytes: data.length }, new Map([[name, whole]])];
}
