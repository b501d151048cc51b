/**
 * The gate: an owner is served a personal model only where the evidence is that it helps, as `federation/outcomes/gate.py` has it.
 *
 * Evidence are examples of the owner's own, on which both models are compared one by one: the test part, and folds of
 * the training part, in turn over the rounds, each by a model that was trained without it. To that comes what personal
 * models do for other owners, which a task tells: the own gain is shrunk towards theirs (docs/gate.md).
 */

import type { LearningTask } from "../strategies/tasks.ts";
import type { TaskName } from "../strategies/types.ts";
import type { Tensor } from "../tensors/tensors.ts";
import type { FleetGain } from "../wire/messages.ts";

/** The z-score of the least probability that the personal model is the better one: 0.8. */
const ENOUGH = 0.8416212335729143;
/** Without a fleet: what training changes is as likely to do harm as good, by twenty points. */
const ALONE: FleetGain = { owners: 0, mean: 0, sd: 0.2 };
/** Owners differ by that much in any fleet. */
const LEAST_SD = 0.02;
/** Of a gain: a share of the examples, or of the error that there was. */
const MOST = 1;
/** Of an owner's training part, that are held out in turn. */
export const FOLDS = 4;
/** Rounds of a device; so the gate takes a quarter of the training time at most. */
export const FOLD_EVERY = 3;

/**
 * What two models do on the same examples, as sums over them: worth of the bundle's and of the other model, differences
 * (of an error as shares of what it was), and squares of those.
 */
export interface ComparedExamples {
  readonly examples: number;
  readonly before: number;
  readonly now: number;
  readonly gain: number;
  readonly squares: number;
}

export const NO_EXAMPLES: ComparedExamples = { examples: 0, before: 0, now: 0, gain: 0, squares: 0 };

/** What personal models do for their owner on training examples that they have not seen; for the other owners' gates. */
export interface HeldOutGain {
  readonly examples: number;
  readonly gain: number;
}

/**
 * How a personal model compares with the bundle's on examples of the owner's own; with none of them nothing can be
 * known. `before`, `now`: mean worth of the bundle's model and of the personal one; `gain`: the mean difference, of an
 * error as a share of what it was; `variance`: of that mean. `tests`: those of the test part among the examples;
 * `folds`: those of the training part, each from the newest round that has held it out; `heldOut`: how many rounds have;
 * `rounds`: how many have been trained since, this one among them. `oneClass`: all of the owner's examples are of the
 * same, so that nothing can be known.
 */
export interface GateEvidence {
  readonly task: TaskName;
  readonly examples: number;
  readonly before: number;
  readonly now: number;
  readonly gain: number;
  readonly variance: number;
  readonly fleet: FleetGain | null;
  readonly tests: ComparedExamples;
  readonly folds: readonly ComparedExamples[];
  readonly heldOut: number;
  readonly rounds: number;
  readonly oneClass: boolean;
}

/** Outputs (n, outputs) of the bundle's model and of the personal one on the same examples. */
export function compare(task: LearningTask, before: Tensor, now: Tensor, y: Tensor): ComparedExamples {
  const examples = y.shape[0]!;
  if (examples === 0) return NO_EXAMPLES;
  const [theirs, ours] = [task.worths(before, y), task.worths(now, y)];
  const had = sum(theirs);
  const scale = task.relative ? -had / examples || 1 : 1;
  const differences = ours.map((worth, at) => Math.min(Math.max((worth - theirs[at]!) / scale, -MOST), MOST));
  const squares = sum(differences.map((one) => one * one));
  return { examples, before: had, now: sum(ours), gain: sum(differences), squares };
}

/** The evidence of an owner's test part and of folds of the training part. */
export function pooled(task: TaskName, tests: ComparedExamples, folds: readonly ComparedExamples[] = []): GateEvidence {
  const every = added([tests, ...folds]);
  const { examples } = every;
  const kept = { task, examples, fleet: null, tests, folds, heldOut: 0, rounds: FOLD_EVERY, oneClass: false };
  if (examples === 0) return { ...kept, before: 0, now: 0, gain: 0, variance: 1 };
  // As of two examples more, one better and one worse: a few that are alike prove nothing.
  const squares = (every.squares + 2) / (examples + 2);
  const smoothed = every.gain / (examples + 2);
  const variance = (squares - smoothed * smoothed) / examples;
  const [before, now, gain] = [every.before, every.now, every.gain].map((one) => one / examples) as [number, number, number];
  return { ...kept, before, now, gain, variance };
}

/** Which fold is to be held out after a round; null: none. */
export function nextFold({ heldOut, rounds, oneClass }: GateEvidence): number | null {
  return rounds >= FOLD_EVERY && !oneClass ? heldOut % FOLDS : null;
}

/** A round's evidence with the folds of the device's round before; a store of an earlier version has none of them. */
export function following(now: GateEvidence, former: Partial<GateEvidence> | null): GateEvidence {
  if (former === null) return now;
  const { folds = [], heldOut = 0, rounds = FOLD_EVERY } = former;
  return { ...pooled(now.task, now.tests, folds), fleet: now.fleet, oneClass: now.oneClass, heldOut, rounds: rounds + 1 };
}

/** With the next fold, in the place of what an earlier round has made of it. */
export function withFold(evidence: GateEvidence, fold: ComparedExamples): GateEvidence {
  const { task, fleet, tests = NO_EXAMPLES, folds = [], heldOut = 0 } = evidence as Partial<GateEvidence> & GateEvidence;
  const place = heldOut % FOLDS;
  const gathered = pooled(task, tests, [...folds.slice(0, place), fold, ...folds.slice(place + 1)]);
  return { ...gathered, fleet, heldOut: heldOut + 1, rounds: 0 };
}

/** What the folds show, for the other owners' gates; null: none were held out. */
export function heldOutGain({ folds = [] }: Partial<GateEvidence>): HeldOutGain | null {
  const { examples, gain } = added(folds);
  return examples === 0 ? null : { examples, gain: gain / examples };
}

/** Whether an owner's examples are all of one class; targets have none. */
export function isOneClass(...labels: readonly Tensor[]): boolean {
  const known = labels.flatMap(({ dtype, data }) => (dtype === "int64" ? Array.from(data, Number) : []));
  return new Set(known).size === 1;
}

/**
 * A fold for each example, from 0 to below `count`, of which every one has of each class where there are enough.
 * Neighbours of a class share one, as neighbouring windows of a stream overlap.
 */
export function foldsOf({ dtype, shape, data }: Tensor, count: number): number[] {
  const groups = new Map<number, number[]>();
  for (let row = 0; row < shape[0]!; row += 1) {
    const label = dtype === "int64" ? Number(data[row]) : 0;
    groups.set(label, [...(groups.get(label) ?? []), row]);
  }
  const folds = new Array<number>(shape[0]!).fill(0);
  let before = 0;
  for (const label of [...groups.keys()].sort((one, other) => one - other)) {
    const rows = groups.get(label)!;
    const blocks = Math.min(count, rows.length);
    rows.forEach((row, at) => (folds[row] = (before + Math.floor((at * blocks) / rows.length)) % count));
    before += rows.length;
  }
  return folds;
}

/** Whether the personal model is served: it is the better one with a probability of at least 0.8. */
export function helps({ examples, gain, variance, fleet, oneClass }: GateEvidence): boolean {
  if (examples === 0 || oneClass) return false;
  const prior = fleet ?? ALONE;
  const spread = Math.max(prior.sd, LEAST_SD) ** 2;
  const precision = 1 / spread + 1 / variance;
  const expected = (prior.mean / spread + gain / variance) / precision;
  return expected * Math.sqrt(precision) >= ENOUGH;
}

function added(parts: readonly ComparedExamples[]): ComparedExamples {
  return parts.reduce((all, one) => ({
    examples: all.examples + one.examples,
    before: all.before + one.before,
    now: all.now + one.now,
    gain: all.gain + one.gain,
    squares: all.squares + one.squares,
  }), NO_EXAMPLES);
}

function sum(values: readonly number[]): number {
  return values.reduce((all, value) => all + value, 0);
}
