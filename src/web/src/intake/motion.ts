/**
 * The phone's motion sensors → windows, by `DeviceMotionEvent`.
 *
 * A bundle names its channels, and may name their units; where it does not these are inferred: from the names which
 * sensor and axis, from mean and std which unit. `MotionPlan.channels` says what was assumed, for the page.
 * Axes are the phone's: x to the right of the screen, y to its top, z out of it.
 */

import type { Preprocessing } from "../bundle/manifest.ts";
import { InputError } from "../errors.ts";
import { SENSORS } from "../texts.ts";
import { SensorIntake, type Window } from "./windows.ts";

export const GRAVITY = 9.80665;
/** Of gravity, at least, in the mean of accelerations that have it. */
const AT_REST = 0.3;
const SENSOR = "motion";
/** Events whose times tell the rate, before any of them is used. */
const RATE_EVENTS = 16;
/** Root mean square of three axes, above which a unit is too small to be meant. */
const MOST_G = 4;
const MOST_LINEAR_G = 1;
const MOST_RAD_S = 12;

/** In m/s² (with and without gravity) and rad/s; null where the phone does not tell. */
export interface MotionReading {
  readonly timeS: number;
  readonly gravity: readonly number[] | null;
  readonly linear: readonly number[] | null;
  readonly rotation: readonly number[] | null;
}

type Quantity = "gravity" | "linear" | "rotation";
export type Unit = "m/s²" | "g" | "rad/s" | "deg/s";

export interface ChannelMeaning {
  readonly name: string;
  readonly quantity: Quantity;
  readonly axis: 0 | 1 | 2;
  readonly unit: Unit;
}

export interface MotionPlan {
  readonly channels: readonly ChannelMeaning[];
  /** Whether mean and std told the units; else the browser's own are taken. */
  readonly unitsKnown: boolean;
  /** Whether the bundle says them. */
  readonly unitsSaid: boolean;
}

const PER_UNIT: Readonly<Record<Unit, number>> = {
  "m/s²": 1, g: 1 / GRAVITY, "rad/s": 1, "deg/s": 180 / Math.PI,
};

const QUANTITIES: readonly (readonly [RegExp, Quantity])[] = [
  [/gyr|rot|angular/i, "rotation"],
  [/(lin|body|user).*acc|acc.*(lin|body|user)/i, "linear"],
  [/acc/i, "gravity"],
  [/^g.?[xyz]$/i, "rotation"],
  [/^a.?[xyz]$/i, "gravity"],
];

/** What the bundle's channels are on a phone. Throws InputError where one is not understood. */
export function motionPlan(preprocessing: Preprocessing): MotionPlan {
  const { channels, window, rate_hz: rate } = preprocessing;
  if (!window || !rate || channels.length === 0) {
    throw new InputError(SENSORS.noSeries);
  }
  const found = channels.map((name) => quantityOf(name));
  const { mean, std } = preprocessing;
  const unitsKnown = !isPlain(preprocessing);
  const unitsSaid = (preprocessing.units ?? []).length > 0;
  const units = new Map<Quantity, Unit>();
  for (const quantity of new Set(found.map(([one]) => one))) {
    const mine = found.flatMap(([one], k) => (one === quantity ? [k] : []));
    const said = unitSaid(preprocessing, channels[mine[0]!]!);
    if (said === null) units.set(quantity, unitOf(quantity, unitsKnown ? size(mine, mean, std) : null));
    else units.set(quantity, ownUnit(quantity, said));
  }
  return {
    channels: channels.map((name, k) => {
      const [quantity, axis] = found[k]!;
      return { name, quantity, axis, unit: units.get(quantity)! };
    }),
    unitsKnown,
    unitsSaid,
  };
}

/** Whether examples are not normalised. */
function isPlain({ mean, std }: Preprocessing): boolean {
  return mean.every((value) => value === 0) && std.every((value) => value === 1);
}

/** The unit that a bundle says of a channel, in small letters; null: it says none. */
export function unitSaid({ channels, units = [] }: Preprocessing, channel: string): string | null {
  return units.length === 0 ? null : units[channels.indexOf(channel)]!.trim().toLowerCase();
}

/** A unit of the phone's by what a bundle calls it. Throws InputError for another. */
function ownUnit(quantity: Quantity, said: string): Unit {
  const sizes = quantity === "rotation" ? ROTATIONS : ACCELERATIONS;
  const found = (Object.keys(PER_UNIT) as Unit[]).find((unit) => unit in sizes && sizes[unit] === sizes[said]);
  if (found === undefined) throw new InputError(SENSORS.unknownUnit(said));
  return found;
}

/** Units of columns, in m/s² or rad/s. */
const ACCELERATIONS: Readonly<Record<string, number>> = {
  "m/s^2": 1, "m/s²": 1, "m/s2": 1, "ms^-2": 1, "ms-2": 1, "m s-2": 1, "m/s/s": 1, g: GRAVITY, mg: GRAVITY / 1000,
};
const ROTATIONS: Readonly<Record<string, number>> = {
  "rad/s": 1, "rad s-1": 1, "deg/s": Math.PI / 180, "°/s": Math.PI / 180, dps: Math.PI / 180, "deg s-1": Math.PI / 180,
};

/** From a unit to the one of a bundle's channel; null: one of them is not known. */
export function factorOf(unit: string, channel: string, preprocessing: Preprocessing): number | null {
  const { channels, mean, std } = preprocessing;
  const quantityNamed = (name: string): Quantity | undefined => QUANTITIES.find(([pattern]) => pattern.test(name))?.[1];
  const quantity = quantityNamed(channel);
  const sizes = quantity === "rotation" ? ROTATIONS : ACCELERATIONS;
  const own = quantity === undefined ? undefined : sizes[unit];
  const said = unitSaid(preprocessing, channel);
  if (own !== undefined && said !== null) return said in sizes ? own / sizes[said]! : null;
  if (quantity === undefined || own === undefined || isPlain(preprocessing)) return null;
  const mine = channels.flatMap((name, k) => (quantityNamed(name) === quantity ? [k] : []));
  return own * PER_UNIT[unitOf(quantity, size(mine, mean, std))];
}

/** The three channels of accelerations with gravity, and their unit in m/s²; null: there are none, or it is not known. */
export function gravityIn(preprocessing: Preprocessing): { channels: string[]; unit: number } | null {
  const { channels, mean, std } = preprocessing;
  const mine = channels.flatMap((name, k) => (QUANTITIES.find(([pattern]) => pattern.test(name))?.[1] === "gravity" ? [k] : []));
  if (mine.length !== 3) return null;
  const said = unitSaid(preprocessing, channels[mine[0]!]!);
  if (said === null && isPlain(preprocessing)) return null;
  const unit = said === null ? (unitOf("gravity", size(mine, mean, std)) === "g" ? GRAVITY : 1) : ACCELERATIONS[said];
  if (unit === undefined) return null;
  // Without gravity, as in linear accelerations, a length at rest tells nothing.
  const atRest = Math.sqrt(mine.reduce((sum, k) => sum + mean[k % mean.length]! ** 2, 0));
  return atRest > (AT_REST * GRAVITY) / unit || isPlain(preprocessing) ? { channels: mine.map((k) => channels[k]!), unit } : null;
}

function quantityOf(name: string): readonly [Quantity, 0 | 1 | 2] {
  const axis = "xyz".indexOf(name.trim().at(-1)?.toLowerCase() ?? "-");
  const quantity = QUANTITIES.find(([pattern]) => pattern.test(name))?.[1];
  if (quantity === undefined || axis < 0) {
    throw new InputError(SENSORS.unknownChannel(name));
  }
  return [quantity, axis as 0 | 1 | 2];
}

/** Root mean square of the length of the vector of three axes. */
function size(channels: readonly number[], mean: readonly number[], std: readonly number[]): number {
  const squares = channels.map((k) => mean[k % mean.length]! ** 2 + std[k % std.length]! ** 2);
  return Math.sqrt((squares.reduce((sum, one) => sum + one, 0) * 3) / channels.length);
}

function unitOf(quantity: Quantity, rms: number | null): Unit {
  if (quantity === "rotation") return rms !== null && rms > MOST_RAD_S ? "deg/s" : "rad/s";
  const most = quantity === "gravity" ? MOST_G : MOST_LINEAR_G;
  return rms !== null && rms < most ? "g" : "m/s²";
}

/** An event's values; null where it has none at all, as on computers without sensors. */
export function toReading(event: DeviceMotionEvent, turned: boolean): MotionReading | null {
  // WebKit on iPhones and iPads gives accelerations with the opposite sign.
  const sign = turned ? -1 : 1;
  const acceleration = (from: DeviceMotionEventAcceleration | null) =>
    from?.x == null || from.y == null || from.z == null
      ? null
      : [sign * from.x, sign * from.y, sign * from.z];
  const rate = event.rotationRate;
  const radians = Math.PI / 180;
  const rotation =
    rate?.alpha == null || rate.beta == null || rate.gamma == null
      ? null // the names say beta: about x, gamma: about y, alpha: about z
      : [rate.beta * radians, rate.gamma * radians, rate.alpha * radians];
  const gravity = acceleration(event.accelerationIncludingGravity);
  const linear = acceleration(event.acceleration);
  if (gravity === null && linear === null && rotation === null) return null;
  return { timeS: event.timeStamp / 1000, gravity, linear, rotation };
}

/** Readings → windows; its first readings tell the sensors' rate. */
export class MotionIntake {
  readonly #preprocessing: Preprocessing;
  readonly #plan: MotionPlan;
  #waiting: { timesS: number[]; rows: Float64Array[] } = { timesS: [], rows: [] };
  #marks: [number, number][] = [];
  #intake: SensorIntake | null = null;
  /** Of the phone's sensors, once it is known. */
  rateHz: number | null = null;

  constructor(preprocessing: Preprocessing) {
    this.#preprocessing = preprocessing;
    this.#plan = motionPlan(preprocessing);
  }

  /** From `timeS` on the owner does the class `label` (-1: unknown). */
  mark(timeS: number, label: number): void {
    if (this.#intake === null) this.#marks.push([timeS, label]);
    else this.#intake.mark(timeS, label);
  }

  push(reading: MotionReading): Window[] {
    const row = this.#row(reading);
    if (this.#intake !== null) return this.#intake.push(SENSOR, [reading.timeS], [row]);
    this.#waiting.timesS.push(reading.timeS);
    this.#waiting.rows.push(row);
    return this.#waiting.rows.length < RATE_EVENTS ? [] : this.#begin();
  }

  flush(): Window[] {
    return this.#intake?.flush() ?? [];
  }

  #begin(): Window[] {
    const { timesS, rows } = this.#waiting;
    const steps = timesS.slice(1).map((time, k) => time - timesS[k]!).filter((step) => step > 0);
    this.#waiting = { timesS: [], rows: [] };
    if (steps.length === 0) return [];
    this.rateHz = 1 / median(steps);
    this.#intake = new SensorIntake(this.#preprocessing, new Map([[SENSOR, this.rateHz]]));
    for (const [timeS, label] of this.#marks) this.#intake.mark(timeS, label);
    return this.#intake.push(SENSOR, timesS, rows);
  }

  #row(reading: MotionReading): Float64Array {
    return Float64Array.from(this.#plan.channels, ({ name, quantity, axis, unit }) => {
      const values = reading[quantity];
      if (values === null) {
        throw new InputError(SENSORS.notTold(name));
      }
      return values[axis]! * PER_UNIT[unit];
    });
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
