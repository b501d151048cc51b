/**
 * Messages: typed records that travel as JSON (`docs/protocol.md`, Records), with the wire's own names.
 *
 * Unknown fields are ignored; a missing field or a wrong type is an error that names it. Tensors
 * never travel here but as transferred blobs.
 */

import { RefusedError } from "../errors.ts";
import {
  BIG_WHOLE, BOOLEAN, BYTES, COUNT, EPOCH, type Given, NUMBER, NUMBER_FROM_0, OBJECT, type RecordOf, SHARE, STALENESS, TEXT,
  WHOLE,
  absent, between, group, list, make, nested, nullable, oneOf, optional, pair, readAny, schema, text, textLike, write,
} from "./schema.ts";

export const PROTOCOL_MINOR = 1;
/** One packet less what MQTT and a signature need. */
export const MAX_MESSAGE_BYTES = 64 * 1024 - 512 - 64;

/** Of a calibration. */
export const MOST_RATES = 16;
export const MOST_CALIBRATING = 64;
/** Checked before it is kept anywhere or becomes a key of a store. */
const TRANSFER_ID = textLike(/^[0-9a-f]{32}$/);
const WORD = text(64);
/** Of a device's owner, for taking part: `charging`, `network`, … */
const CONDITION = textLike(/^[a-z0-9-]{1,32}$/);
/** The first digits of a transfer id. */
export const RECEIPT_DIGITS = 12;
/** In an announcement. */
export const MOST_RECEIPTS = 2048;
const RECEIPT_NAME = textLike(/^[0-9a-f]{12}$/);
const MINOR = optional(WHOLE, PROTOCOL_MINOR);

/**
 * A device's part of a session, in its presence. `grant`: the federation key's statement about the
 * device's key. `nonce`, `share` (X25519): hex, of this process, which `start` counts. `answers`:
 * the coordinator's nonce. `sequence` counts the presences of a start.
 */
const DEVICE_HANDSHAKE = group({
  grant: TEXT, nonce: TEXT, share: TEXT, answers: TEXT, start: WHOLE, sequence: WHOLE,
});

/**
 * The coordinator's part of every session, in its announcement. `certificate`: the federation key's
 * statement about the key that signs it. `rotations`: statements by which earlier federation keys
 * handed over, oldest first. Its `refused` (grants no longer in force) is not read here.
 */
const COORDINATOR_HANDSHAKE = group({
  certificate: TEXT, nonce: TEXT, share: TEXT, sequence: WHOLE, rotations: optional(list(TEXT), []),
});

/** How far a device is with a bundle that it was offered over the wire; a browser takes none so. */
const BUNDLE_PROGRESS = group({
  bundle: WORD,
  state: oneOf("fetched", "verified", "tested", "failed"),
  rule: optional(WORD, ""),
  reason: optional(text(500), ""),
});

/**
 * Learning rates that some devices are to try before the first round. `key` names the order; `settings`: the announced
 * strategy's, with any rate; `rates` ascend; `devices`: who is asked.
 */
const CALIBRATION_ORDER = group({
  key: WORD,
  settings: OBJECT,
  seed: BIG_WHOLE,
  rates: list(NUMBER, { least: 1, most: MOST_RATES }),
  devices: list(WORD, { most: MOST_CALIBRATING }),
});

/** What came of the rates of the order `key`; no ratios: the device could try none, or has answered no order. */
const CALIBRATION_ANSWER = group({ key: WORD, ratios: optional(list(NUMBER, { most: MOST_RATES }), []) });

const PRESENCE = schema("presence", {
  device_id: WORD,
  boot_id: WORD,
  status: oneOf("online", "offline", "left"),
  minor: MINOR,
  bundle: optional(WORD, ""),
  layout_hash: optional(WORD, ""),
  num_examples: optional(WHOLE, 0),
  class_counts: optional(list(WHOLE), []),
  strategies: optional(list(WORD, { most: 256 }), []),
  chunk_bytes: optional(COUNT, 0),
  held: optional(list(CONDITION, { most: 16 }), []),
  sequence: optional(COUNT, 0),
  takes_bundles: optional(BOOLEAN, false),
  progress: optional(nullable(BUNDLE_PROGRESS), null),
  handshake: optional(nullable(DEVICE_HANDSHAKE), null),
  calibration: absent(CALIBRATION_ANSWER),
}, ["calibration"]);

const ANNOUNCEMENT = schema("announcement", {
  federation: WORD,
  boot_id: WORD,
  phase: oneOf("waiting", "training", "finished"),
  round_id: WHOLE,
  rounds: WHOLE,
  strategy: WORD,
  bundle: WORD,
  layout_hash: WORD,
  minor: MINOR,
  roll_call: optional(COUNT, 0),
  spread_s: optional(NUMBER_FROM_0, 0),
  hold: optional(WORD, ""),
  epoch: optional(EPOCH, 0),
  bundles: optional(list(WORD, { most: 8 }), []),
  withdrawal: optional(text(4096), ""),
  staleness: optional(STALENESS, 0),
  run_id: optional(WORD, ""),
  receipts: optional(list(RECEIPT_NAME, { most: MOST_RECEIPTS }), []),
  handshake: optional(nullable(COORDINATOR_HANDSHAKE), null),
  calibration: absent(CALIBRATION_ORDER),
}, ["calibration"]);

const TRANSFER_OFFER = schema("manifest", {
  transfer_id: TRANSFER_ID,
  kind: oneOf("payload", "update", "bundle"),
  round_id: WHOLE,
  total_bytes: WHOLE,
  sha256: WORD,
  chunk_bytes: WHOLE,
  codec: optional(WORD, "raw"),
  minor: MINOR,
  raw_bytes: optional(WHOLE, 0),
  base: optional(WORD, ""),
  key: optional(WORD, ""),
  signature: optional(text(128), ""),
});

/**
 * What personal models do for other owners: how many have told, their mean gain as a share of the examples or of the
 * error that there was, and how far that of another owner lies from it.
 */
const FLEET_GAIN = group({ owners: COUNT, mean: between(-1, 1), sd: between(0, 10) });

const TASK = schema("task", {
  task: oneOf("train", "finish"),
  round_id: WHOLE,
  federation: WORD,
  strategy: optional(WORD, ""),
  settings: optional(OBJECT, {}),
  seed: optional(BIG_WHOLE, 0n),
  deadline_s: optional(NUMBER, 0),
  payload: optional(nullable(nested(TRANSFER_OFFER)), null),
  final: optional(BOOLEAN, false),
  update_codec: optional(WORD, "raw"),
  update_keep: optional(NUMBER, 0.1),
  scores: optional(BOOLEAN, true),
  counts: optional(BOOLEAN, true),
  work: optional(SHARE, 1),
  epoch: optional(EPOCH, 0),
  shared: optional(WORD, ""),
  fleet: absent(FLEET_GAIN),
}, ["fleet"]);

const NEED = schema("need", { transfer_id: TRANSFER_ID, missing: list(pair(WHOLE)), credit: WHOLE });

const RECEIPT = schema(
  "receipt",
  {
    transfer_id: TRANSFER_ID,
    status: oneOf("done", "reject"),
    reason: optional(TEXT, ""),
    rule: optional(TEXT, ""),
  },
  ["rule"],
);

const HEARTBEAT = schema("heartbeat", {
  device_id: WORD,
  boot_id: WORD,
  round_id: COUNT,
  phase: oneOf("idle", "receive", "train", "send", "leave"),
  bytes_up: BYTES,
  bytes_down: BYTES,
  peak_rss_bytes: BYTES,
});

export const SCHEMAS = {
  presence: PRESENCE,
  announcement: ANNOUNCEMENT,
  manifest: TRANSFER_OFFER,
  task: TASK,
  need: NEED,
  receipt: RECEIPT,
  heartbeat: HEARTBEAT,
} as const;
type Schemas = typeof SCHEMAS;

/**
 * Device → all, retained (`st/<dev>`); the last will is the same with `offline`. `class_counts`:
 * training samples of each class, only where the strategy asks for them. `strategies`: what the
 * device can do; empty: all. `chunk_bytes`: the largest chunk data that it takes; 0: no limit. `held`:
 * the owner's conditions that are not met now; a device with any is not to be invited. `takes_bundles`:
 * whether it takes another bundle over the wire; a browser gets its own from the hub. `calibration`: left out by a
 * device that can try no learning rates.
 */
export interface Presence extends RecordOf<typeof PRESENCE> {}
/**
 * Coordinator → all, retained (`all/ctl`): where the federation stands. `bundles`: further ones whose
 * devices take part. `calibration`: left out but while devices are asked.
 */
export interface Announcement extends RecordOf<typeof ANNOUNCEMENT> {}
/** Announces a blob that a transfer will carry; `base`: SHA-256 of what a codec refers to. */
export interface TransferOffer extends RecordOf<typeof TRANSFER_OFFER> {}
/**
 * Coordinator → device: take part in a round, or finish. `seed` < 2^63; `deadline_s` from arrival. `work`:
 * the share of the local training that is asked for. `shared`: the version under which its payload's chunks also
 * travel to all; this end asks for its own. `fleet`: what personal models do for other owners, where that is told.
 */
export interface Task extends RecordOf<typeof TASK> {}
/** Receiver → sender: the half-open chunk ranges still missing, and how many may be sent. */
export interface Need extends RecordOf<typeof NEED> {}
/** Receiver → sender: the blob is complete and right (`done`), or why it never will be. */
export interface Receipt extends RecordOf<typeof RECEIPT> {}
/** Device → coordinator: liveness; bytes are totals at the socket since the device joined. */
export interface Heartbeat extends RecordOf<typeof HEARTBEAT> {}
export type DeviceHandshake = NonNullable<Presence["handshake"]>;
export type FleetGain = NonNullable<Task["fleet"]>;
export type CalibrationOrder = NonNullable<Announcement["calibration"]>;
export type CalibrationAnswer = NonNullable<Presence["calibration"]>;
export type CoordinatorHandshake = NonNullable<Announcement["handshake"]>;

/** Records by their `type`. */
export interface Messages {
  presence: Presence;
  announcement: Announcement;
  manifest: TransferOffer;
  task: Task;
  need: Need;
  receipt: Receipt;
  heartbeat: Heartbeat;
}
export type Kind = keyof Messages;
export type Message = Messages[Kind];

/** A record with its defaults filled in. */
export function message<K extends Kind>(kind: K, given: Given<Schemas[K]>): Messages[K] {
  return make(SCHEMAS[kind] as never, given as never) as Messages[K];
}

/**
 * JSON bytes, fields in the order of their declaration.
 *
 * @throws RefusedError rule `message-size`: larger than one packet may be
 */
export function encode(record: Message): Uint8Array {
  return checkedSize(new TextEncoder().encode(write(SCHEMAS[record.type] as never, record as never)));
}

/**
 * The record in `data`, of one of the `kinds`; without any, of whichever kind.
 *
 * @throws RefusedError rule `message-size`, or `message-schema`: not JSON, another record, or a field
 *   missing or of a wrong type
 */
export function decode<K extends Kind = Kind>(data: Uint8Array, ...kinds: readonly K[]): Messages[K] {
  const schemas = (kinds.length > 0 ? kinds : (Object.keys(SCHEMAS) as K[])).map((kind) => SCHEMAS[kind]);
  return readAny(schemas as never, checkedSize(data), "message-schema", "message") as Messages[K];
}

function checkedSize(data: Uint8Array): Uint8Array {
  if (data.length > MAX_MESSAGE_BYTES) {
    throw new RefusedError("message-size", `message: ${data.length} bytes > ${MAX_MESSAGE_BYTES}`);
  }
  return data;
}
