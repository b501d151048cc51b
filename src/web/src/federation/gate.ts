/**
 * The gate: an owner is served a personal model only where the evidence is that it helps, as `federation/outcomes/gate.py` has it.
 *
 * Evidence are the owner's own test examples, on which both models are compared one by one, and what personal models do
 * for other owners, which a task tells: the own gain is shrunk towards theirs (docs/gate.md).
 */

import type { LearningTask } from "../strategies/tasks.ts";
import type { TaskName } from "../strategies/types.ts";
import type { Tensor } from "../tensors/tensors.ts";
import type { FleetGain } from "../wire/messages.ts";

/** The z-scores of the least probabilities that the personal model is the better one: 0.75, and 0.8 without a fleet. */
const ENOUGH = 0.6744897501960817;
const ENOUGH_ALONE = 0.8416212335729143;
/** Without a fleet: what training changes is as likely to do harm as good, by twenty points. */
const ALONE: FleetGain = { owners: 0, mean: 0, sd: 0.2 };
/** Owners differ by that much in any fleet. */
const LEAST_SD = 0.02;
/** Of a gain: a share of the examples, or of the error that there was. */
const MOST = 1;

/**
 * How a personal model compares with the bundle's on the owner's own test examples; with none of them nothing can be
 * known. `before`, `now`: mean worth of the bundle's model and of the personal one; `gain`: the mean difference, of an
 * error as a share of what it was; `variance`: of that mean.
 */
export interface GateEvidence {
  readonly task: TaskName;
  readonly examples: number;
  readonly before: number;
  readonly now: number;
  readonly gain: number;
  readonly variance: number;
  readonly fleet: FleetGain | null;
}

/** The evidence of an owner's test part: outputs (n, outputs) of the bundle's model and of the personal one. */
export function compare(task: LearningTask, before: Tensor, now: Tensor, y: Tensor): GateEvidence {
  const examples = y.shape[0]!;
  if (examples === 0) return { task: task.name, examples, before: 0, now: 0, gain: 0, variance: 1, fleet: null };
  const [theirs, ours] = [task.worths(before, y), task.worths(now, y)];
  const had = mean(theirs);
  const scale = task.relative ? -had || 1 : 1;
  const differences = ours.map((worth, at) => Math.min(Math.max((worth - theirs[at]!) / scale, -MOST), MOST));
  const gain = mean(differences);
  // As of two examples more, one better and one worse: a few that are alike prove nothing.
  const squares = (differences.reduce((sum, one) => sum + one * one, 0) + 2) / (examples + 2);
  const smoothed = (gain * examples) / (examples + 2);
  const variance = (squares - smoothed * smoothed) / examples;
  return { task: task.name, examples, before: had, now: mean(ours), gain, variance, fleet: null };
}

/** Whether the personal model is served: it is the better one with a probability of at least 0.75, or 0.8. */
export function helps({ examples, gain, variance, fleet }: GateEvidence): boolean {
  if (examples === 0) return false;
  const prior = fleet ?? ALONE;
  const spread = Math.max(prior.sd, LEAST_SD) ** 2;
  const precision = 1 / spread + 1 / variance;
  const expected = (prior.mean / spread + gain / variance) / precision;
  return expected * Math.sqrt(precision) >= (fleet === null ? ENOUGH_ALONE : ENOUGH);
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
