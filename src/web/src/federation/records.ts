/** What an update says beside its tensors (docs/protocol.md, Update record). */

import { InputError } from "../errors.ts";
import type { HeldOutGain } from "./gate.ts";
import type { Evaluation, Statistics, TaskName, Update } from "../strategies/types.ts";

/** Of the latencies that travel with an update. */
export const MAX_SAMPLES = 200;
/** Who runs the bundle's programs: ONNX Runtime Web. */
const BACKEND = "onnx-web";

/** What a round cost; milliseconds and seconds. */
export interface Costs {
  readonly trainStepMs: readonly number[];
  readonly inferMs: readonly number[];
  /** Wall time by phase: receive, train, evaluate, infer, encode, send. */
  readonly phasesS: Readonly<Record<string, number>>;
}

/** What a device tells beside its tensors: scores, losses and costs; numbers of examples. */
export interface Sends {
  readonly scores: boolean;
  readonly counts: boolean;
}

/** What an update tells: also the share of the training that was done, where that is not all, and what was held out. */
export interface Told extends Sends {
  readonly work?: number;
  readonly heldOut?: HeldOutGain | null;
}

/** The record as JSON, without statistics that do not fit into `mostChars`. */
export function updateRecord(
  update: Update,
  costs: Costs,
  sends: Told,
  task: TaskName,
  mostChars: number,
): string {
  const { clientId, roundId, numExamples, loss } = update;
  const head = {
    client_id: clientId,
    round_id: roundId,
    num_examples: sends.counts ? numExamples : Math.min(numExamples, 1),
    ...(sends.work === undefined || sends.work >= 1 ? {} : { work: sends.work }),
  };
  if (!sends.scores) return JSON.stringify(head);
  const heldOut = sends.counts && sends.heldOut ? { held_out: sends.heldOut } : {};
  const told = { loss: finite(loss), costs: costsRecord(costs), ...heldOut };
  const begin = JSON.stringify({ ...head, ...told }).slice(0, -1);
  const full = update.evaluation;
  const more = new Map();
  const fewer = [full, { ...full, more }, { ...full, start: null, more }, { ...full, own: null, start: null, more }];
  for (const evaluation of fewer) {
    const text = `${begin},"evaluation":${evaluationRecord(evaluation, task)}}`;
    if (text.length <= mostChars) return text;
  }
  throw new InputError(`update: its record does not fit into ${mostChars} characters`);
}

function costsRecord({ trainStepMs, inferMs, phasesS }: Costs): object {
  return { train_step_ms: thinned(trainStepMs), infer_ms: thinned(inferMs), phases_s: phasesS, backend: BACKEND };
}

function evaluationRecord({ own, ownLoss, start = null, more }: Evaluation, task: TaskName): string {
  const fields = [`"own":${own === null ? "null" : rows(own, task)}`, `"own_loss":${finite(ownLoss)}`];
  if (start !== null) fields.push(`"start":${rows(start, task)}`);
  const named = [...more].map(([name, table]) => `${JSON.stringify(name)}:${rows(table, task)}`);
  return `{${fields.join(",")},"more":{${named.join(",")}}}`;
}

/** Sums of a regression are no counts, whole or not, and are written with a point. */
function rows(table: Statistics, task: TaskName): string {
  const written = task === "regression" ? real : String;
  return `[${table.map((row) => `[${row.map(written).join(",")}]`).join(",")}]`;
}

function real(value: number): string {
  const text = JSON.stringify(value);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

/** At most 200 of the samples, evenly spaced in time, to the microsecond. */
function thinned(samples: readonly number[]): number[] {
  const count = Math.min(samples.length, MAX_SAMPLES);
  const step = count > 1 ? (samples.length - 1) / (count - 1) : 0;
  return Array.from({ length: count }, (_, i) => Math.round(1e3 * samples[Math.floor(i * step)]!) / 1e3);
}

function finite(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}
