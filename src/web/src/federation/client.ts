/**
 * The client's half of a round: from a coded payload to a coded update; no sockets, no storage.
 */

import { DivergedError } from "../errors.ts";
import { workOf } from "../strategies/index.ts";
import { checkTensors } from "../strategies/types.ts";
import type { ClientState, Model, Payload, Strategy, TensorSchemas, Update } from "../strategies/types.ts";
import { checkFinite, decode } from "../tensors/safetensors.ts";
import type { Tensors } from "../tensors/tensors.ts";
import { DEVICE } from "../texts.ts";
import { type Codec, type Coding, codecOf, encode } from "../wire/codecs.ts";
import type { Task } from "../wire/messages.ts";
import type { GateEvidence, HeldOutGain } from "./gate.ts";
import { decodePayload, MOST_RECORD_CHARS, referenceOf, updateBaseline } from "./coding.ts";
import { type Costs, type Sends, updateRecord } from "./records.ts";

/** What the server asks of a client in a round. */
export interface RoundConfig {
  readonly roundId: number;
  readonly seed: bigint;
  readonly final: boolean;
  readonly codec: Codec;
  readonly sends: Sends;
  /** Share of the local training that is asked for. */
  readonly work: number;
}

/** What a client keeps from the last round that counted; no state before the first. */
export interface ClientMemory {
  readonly state: ClientState | null;
  readonly residual: Tensors;
  /** What examples that were held out have shown. */
  readonly heldOut: HeldOutGain | null;
}

/** A payload that has arrived; its tensors are views into `raw`. */
export interface ReceivedPayload {
  readonly order: RoundConfig;
  readonly payload: Payload;
  readonly raw: Uint8Array;
}

/** What a local round made; it counts when the server has the update. */
export interface TrainedRound {
  readonly state: ClientState;
  readonly residual: Tensors;
  readonly update: Update;
  readonly blob: Uint8Array;
  readonly coding: Coding;
  /** How the trained state's model compares with the bundle's. */
  readonly evidence: GateEvidence;
}

/** Trains a strategy on a client's own data; `device/learner.ts` does. */
export interface LocalLearner {
  readonly model: Model;
  /** One local round: the same arguments give the same bits. */
  train(
    strategy: Strategy,
    state: ClientState | null,
    payload: Payload,
    seed: bigint,
    work: number,
  ): Promise<readonly [ClientState, Update]>;
  /** The model of a state beside the bundle's, on the own test part. */
  compare(strategy: Strategy, state: ClientState): Promise<GateEvidence>;
  /** What the round has cost, once it is trained. */
  costs(strategy: Strategy, state: ClientState): Promise<Costs>;
}

/** What a task asks for. */
export function orderOf(task: Task): RoundConfig {
  return {
    roundId: task.round_id,
    seed: task.seed,
    final: task.final,
    codec: codecOf(task.update_codec, task.update_keep),
    sends: { scores: task.scores, counts: task.counts },
    work: task.work,
  };
}

/** What a payload is decoded with; `earlier` gives the raw blob of an earlier one by its reference. */
export interface PayloadContext {
  readonly model: Model;
  readonly forms: TensorSchemas;
  readonly earlier: (reference: string) => Promise<Uint8Array>;
}

/**
 * Decodes and checks a payload as it arrived.
 *
 * @throws RefusedError it is not what its codec writes, refers to what is not here, or holds other
 *   tensors, or numbers that are not finite
 */
export async function receivePayload(
  blob: Uint8Array,
  coding: Coding,
  order: RoundConfig,
  { model, forms, earlier }: PayloadContext,
): Promise<ReceivedPayload> {
  return openPayload(await decodePayload(blob, coding, model, forms, earlier), order, forms);
}

/** A payload from its raw blob; throws RefusedError: not a blob, other tensors, or not finite. */
export function openPayload(raw: Uint8Array, order: RoundConfig, forms: TensorSchemas): ReceivedPayload {
  const { tensors } = decode(raw, raw.length);
  checkTensors(forms, tensors);
  checkFinite(tensors);
  return { order, payload: { roundId: order.roundId, tensors, final: order.final }, raw };
}

/**
 * Trains, and encodes the update.
 *
 * @throws DivergedError a trained tensor, model buffers included, is not finite; the memory is as it
 *   was and is to be kept
 */
export async function trainRound(
  learner: LocalLearner,
  strategy: Strategy,
  memory: ClientMemory,
  { order, payload, raw }: ReceivedPayload,
): Promise<TrainedRound> {
  const work = workOf(strategy.name, order.work);
  const [state, update] = await learner.train(strategy, memory.state, payload, order.seed, work);
  checkTrained(state.tensors);
  checkTrained(update.tensors);
  const evidence = await learner.compare(strategy, state);
  const costs = await learner.costs(strategy, state);
  const { task } = learner.model;
  const record = updateRecord(update, costs, { ...order.sends, work, heldOut: memory.heldOut }, task, MOST_RECORD_CHARS);
  const encoded = await encode(update.tensors, updateBaseline(learner.model, payload.tensors), order.codec, {
    residual: memory.residual,
    metadata: { update: record },
  });
  checkTrained(encoded.residual);
  const { codec, rawBytes } = encoded;
  // Of a raw blob nothing needs to be said.
  const coding =
    codec === "raw" ? { codec, rawBytes: 0, reference: "" } : { codec, rawBytes, reference: await referenceOf(raw) };
  return { state, residual: encoded.residual, update, blob: encoded.blob, coding, evidence };
}

function checkTrained(tensors: Tensors): void {
  for (const [name, { dtype, data }] of tensors) {
    if (dtype !== "float32" && dtype !== "float64") continue;
    let bad = 0;
    for (const value of data as Float32Array | Float64Array) if (!Number.isFinite(value)) bad += 1;
    if (bad > 0) {
      throw new DivergedError(DEVICE.diverged(name, bad, data.length));
    }
  }
}
