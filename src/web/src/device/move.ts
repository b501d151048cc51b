/**
 * What of its state a device takes along to another bundle of its federation, as `edge/state/move.py`.
 *
 * What a strategy's clients carry (`Strategy.carried`) is kept by name and shape. A tensor whose shapes differ in the
 * number of classes alone keeps the rows of the classes that both bundles name. Everything else starts as in a new
 * device, and the round counts from 1: a federation with another bundle is another run.
 */

import type { Bundle } from "../bundle/bundle.ts";
import type { Preprocessing } from "../bundle/manifest.ts";
import { InputError, ProvisionError, RefusedError } from "../errors.ts";
import { tensorsOf } from "../federation/coding.ts";
import { BUFFERS, PARAMS, tensorOf } from "../strategies/common.ts";
import { build } from "../strategies/index.ts";
import type { Strategy } from "../strategies/types.ts";
import { sameShape, sizeOf, type Tensor, type Tensors } from "../tensors/tensors.ts";
import { MOVE } from "../texts.ts";
import { OwnExamples } from "./examples.ts";
import { openKept } from "./hub.ts";
import { of, otherInput } from "./inputs.ts";
import { inUse, type PersonalState } from "./journal.ts";
import type { MoveTold } from "./page_messages.ts";
import type { Store } from "./store.ts";

/** By how many standard deviations, and by what factor, the scale of a channel may change. */
const FAR_SHIFT = 0.5;
const FAR_SCALE = 2;

const FATES = ["kept", "kept in part", "new", "dropped"] as const;
export type Fate = (typeof FATES)[number];

/** What becomes of one tensor of a state; `why` is "" for what is kept. */
export interface TensorFate {
  readonly name: string;
  readonly fate: Fate;
  readonly why: string;
}

/** What a device takes along. */
export interface Move {
  /** Of the state and of the new bundle's model, by name. */
  readonly tensors: readonly TensorFate[];
  /** The state that training begins with; null: the strategy's own, nothing is kept. */
  readonly start: Tensors | null;
  /** What else a person should know. */
  readonly notes: readonly string[];
}

/** What is to be known of a bundle. */
export type MovedBundle = Pick<Bundle, "manifest" | "model">;

export function fateText({ name, fate, why }: TensorFate): string {
  return `${fate}: ${name}${why === "" ? "" : ` (${why})`}`;
}

/** How many tensors had which fate. */
export function moveText({ tensors }: Move): string {
  const counts = FATES.map((fate) => [tensors.filter((one) => one.fate === fate).length, fate] as const);
  const found = counts.filter(([count]) => count > 0).map(([count, fate]) => `${count} ${fate}`);
  return `tensors: ${found.join(", ") || "none is kept"}`;
}

/**
 * What becomes of each tensor if the state of a model moves from one bundle to another.
 *
 * @throws ProvisionError the state would mean something else with the new bundle
 */
export function plan(
  { strategy: name, settings }: Pick<PersonalState, "strategy" | "settings">,
  state: Tensors,
  old: MovedBundle,
  next: MovedBundle,
): Move {
  const [before, after] = [old, next].map((bundle) => strategyOf(name, settings, bundle)) as [Strategy, Strategy];
  if (after.carried.size === 0) {
    return { tensors: [], start: null, notes: [MOVE.takesNothing(name)] };
  }
  const [was, now] = [old.manifest, next.manifest];
  if (was.task !== now.task) throw new ProvisionError(`the task was ${was.task}, it is now ${now.task}`);
  const notes = checkInputs(was.preprocessing, now.preprocessing);
  const classes = new CommonOutputs(outputsOf(was), outputsOf(now));
  const fresh = after.clientInit().tensors;
  const carried = new Set([...after.carried].filter((one) => before.carried.has(one)));
  const fates = fatesOf(state, fresh, carried, classes);
  if (!fates.some(({ fate }) => fate === "kept" || fate === "kept in part")) {
    throw new ProvisionError(
      `no tensor of the personal state fits the new bundle '${now.name}', such as ${fateText(fates[0]!)}: it holds ` +
        "another model",
    );
  }
  const start = new Map(fresh);
  for (const { name: one, fate } of fates) {
    if (fate === "kept") start.set(one, tensorOf(state, one));
    if (fate === "kept in part") start.set(one, classes.joined(tensorOf(state, one), tensorOf(fresh, one)));
  }
  return { tensors: fates, start, notes };
}

/** A move to a bundle, and what the owner is told of it. */
export interface PlannedMove {
  readonly start: Tensors | null;
  readonly told: MoveTold;
}

/**
 * What the store takes along to a verified bundle of its federation; null: it has no bundle yet. `examples`: how many
 * the owner has for the present one.
 *
 * @throws ProvisionError its state cannot move
 */
export async function planned(store: Store, next: Bundle, examples: number): Promise<PlannedMove | null> {
  const { binding, former, pending } = store.journal;
  if (binding === null) return null;
  const from = shortDigest(binding.bundle);
  const to = shortDigest(next.digest);
  if (former?.binding.bundle === next.digest) {
    return { start: null, told: { text: MOVE.back(to), notes: [], tensors: [] } };
  }
  const move = await plannedFor(store, next);
  const notes = [...move.notes];
  if (pending !== null) notes.push(MOVE.pendingDropped(pending.roundId));
  const left = examples - (await OwnExamples.open(store.database, next.manifest)).count;
  if (left > 0) notes.push(MOVE.examplesLeft(left, examples));
  if (inUse(store.journal) !== null) notes.push(MOVE.predictions);
  const told = { text: MOVE.moved(from, to, moveText(move)), notes, tensors: move.tensors.map(fateText) };
  return { start: move.start, told };
}

async function plannedFor(store: Store, next: Bundle): Promise<Move> {
  const personal = inUse(store.journal);
  if (personal === null) return { tensors: [], start: null, notes: [MOVE.nothingYet] };
  try {
    const old = await openKept(await store.read(personal.bundle), personal.binding);
    return plan(personal, tensorsOf(await store.read(personal.state.blob)), old, next);
  } catch (error) {
    if (!(error instanceof ProvisionError || error instanceof RefusedError)) throw error;
    throw new ProvisionError(MOVE.refused(shortDigest(next.digest), error.message));
  }
}

function shortDigest(digest: string): string {
  return digest.slice(0, 16);
}

/** Names of the outputs, whatever the task. */
export function outputsOf({ classes, targets }: Pick<Bundle["manifest"], "classes" | "targets">): readonly string[] {
  return classes.length > 0 ? classes : targets;
}

function strategyOf(name: string, settings: PersonalState["settings"], bundle: MovedBundle): Strategy {
  try {
    return build(name, settings, bundle.model());
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    throw new ProvisionError(`the new bundle does not suit its strategy: ${error.message}`);
  }
}

/** Outputs that two bundles have, and how a tensor of the old model's shape fits the new model's. */
class CommonOutputs {
  readonly #counts: readonly [number, number];
  /** Rows of the same class: of the old model, of the new one. */
  readonly rows: readonly (readonly [number, number])[];

  /** Throws ProvisionError: as many classes under other names or in another order; shapes are silent. */
  constructor(old: readonly string[], next: readonly string[]) {
    if (!sameShape(old, next) && old.length === next.length) {
      throw new ProvisionError(
        `the classes were ${listText(old)}, the new bundle has ${listText(next)}: as many, so that shapes do not show ` +
          "which rows of the state belong to which class",
      );
    }
    this.#counts = [old.length, next.length];
    this.rows = next.map((name, row) => [old.indexOf(name), row] as const).filter(([row]) => row >= 0);
  }

  /** The only axis in which shapes differ, if that is as long as there are classes; null: none. */
  axis(old: readonly number[], next: readonly number[]): number | null {
    const differ = old.flatMap((length, axis) => (length === next[axis] ? [] : [axis]));
    if (old.length !== next.length || differ.length !== 1 || this.rows.length === 0) return null;
    const [axis] = differ as [number];
    return old[axis] === this.#counts[0] && next[axis] === this.#counts[1] ? axis : null;
  }

  /** A copy of `next` with the rows of `old` for the classes that both have. */
  joined(old: Tensor, next: Tensor): Tensor {
    const axis = this.axis(old.shape, next.shape)!;
    const inner = sizeOf(next.shape.slice(axis + 1));
    const [from, to] = [old.shape[axis]! * inner, next.shape[axis]! * inner];
    const data = next.data.slice();
    for (let block = 0; block < sizeOf(next.shape.slice(0, axis)); block += 1) {
      for (const [source, target] of this.rows) {
        const start = block * from + source * inner;
        data.set(old.data.subarray(start, start + inner) as never, block * to + target * inner);
      }
    }
    return { ...next, data };
  }
}

/** What becomes of every tensor of the old state and of a new device's, by name. */
function fatesOf(old: Tensors, next: Tensors, carried: ReadonlySet<string>, classes: CommonOutputs): TensorFate[] {
  const names = [...new Set([...old.keys(), ...next.keys()])].sort();
  const found = names.map((name) => fateOf(name, [old.get(name), next.get(name)], carried, classes));
  const lost = found.find(
    ({ name, fate }) => carried.has(name) && !name.startsWith(BUFFERS) && fate !== "kept" && fate !== "kept in part",
  );
  if (lost === undefined) return found;
  const why = `belongs to parameters of which '${lost.name}' is not kept`;
  return found.map((one) => (one.fate === "kept" && one.name.startsWith(BUFFERS) ? { ...one, fate: "new", why } : one));
}

function fateOf(
  name: string,
  [was, now]: readonly [Tensor | undefined, Tensor | undefined],
  carried: ReadonlySet<string>,
  classes: CommonOutputs,
): TensorFate {
  const ofModel = name.startsWith(PARAMS) || name.startsWith(BUFFERS);
  const over = "belongs to the run that is over";
  if (now === undefined) return { name, fate: "dropped", why: ofModel ? "the new model has no such tensor" : over };
  if (was === undefined) return { name, fate: "new", why: "the state has no such tensor" };
  if (!carried.has(name)) return { name, fate: "new", why: ofModel ? "comes with the federation's model" : over };
  if (was.dtype === now.dtype && sameShape(was.shape, now.shape)) return { name, fate: "kept", why: "" };
  const changed = `${shapeText(was.shape)} is now ${shapeText(now.shape)}`;
  if (classes.axis(was.shape, now.shape) === null) return { name, fate: "new", why: changed };
  return { name, fate: "kept in part", why: `${changed}: the rows of ${classes.rows.length} classes` };
}

/** Notes on how the model's input has changed; throws ProvisionError: it is something else. */
function checkInputs(was: Preprocessing, now: Preprocessing): string[] {
  const other = otherInput(was, now);
  if (other !== null) {
    const [before, after] = [was, now].map((one) => valueText(one[other]));
    throw new ProvisionError(`the model's input was ${other} ${before}, with the new bundle it is ${after}`);
  }
  const count = Math.max(was.mean.length, was.std.length, now.mean.length, now.std.length);
  const each = Array.from({ length: count }, (_, k) => k);
  const shift = Math.max(...each.map((k) => Math.abs(of(now.mean, k) - of(was.mean, k)) / of(was.std, k)));
  const ratios = each.map((k) => of(now.std, k) / of(was.std, k));
  const scale = Math.max(...ratios.map((ratio) => Math.max(ratio, 1 / ratio)));
  const [far, factor] = [shift, scale].map((value) => Number(value.toPrecision(2)));
  if (shift > FAR_SHIFT || scale > FAR_SCALE) {
    throw new ProvisionError(
      `the model's input is scaled otherwise with the new bundle: means differ by up to ${far} standard deviations, ` +
        `standard deviations by a factor of ${factor}`,
    );
  }
  if (shift === 0 && scale === 1) return [];
  return [
    `the input is scaled a little otherwise: means differ by up to ${far} standard deviations, these by a factor of ` +
      `${factor}`,
  ];
}

function shapeText(shape: readonly number[]): string {
  return shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
}

function listText(names: readonly string[]): string {
  return `[${names.map((name) => `'${name}'`).join(", ")}]`;
}

function valueText(value: Preprocessing[keyof Preprocessing]): string {
  if (!Array.isArray(value)) return String(value ?? "none");
  const texts = value.map((one) => (typeof one === "string" ? `'${one}'` : String(one)));
  return `(${texts.join(", ")}${texts.length === 1 ? "," : ""})`;
}
