/** Columns of a table by what their names mean: channels, labels, times, as `edge/data/columns.py` has it. */

import type { Preprocessing } from "../bundle/manifest.ts";
import { CSV } from "../texts.ts";
import { type Form } from "./examples.ts";
import { factorOf, GRAVITY, gravityIn, unitSaid } from "./motion.ts";
import { median } from "./packets.ts";

export const LABEL = "label";
const LABELS: ReadonlySet<string> = new Set(["label", "labels", "activity", "class"]);
/** Seconds of a unit of the known columns of times; null: most often seconds. */
export const SECONDS: Readonly<Record<string, number | null>> = { time_s: 1, time: null, time_ms: 1e-3 };
const SHORT: Readonly<Record<string, string>> = {
  accel: "acc", acceleration: "acc", accelerations: "acc", accelerometer: "acc", gyr: "gyro", gyroscope: "gyro",
  magnetic: "mag", magnetometer: "mag", heartrate: "hr", temp: "temperature",
};
/** What a file may be named after. */
const SENSORS: ReadonlySet<string> = new Set([
  "acc", "gyro", "mag", "hr", "temperature", "gravity", "orientation", "rotation", "pressure", "barometer", "altitude", "microphone",
  "location", "gps", "pedometer", "proximity", "humidity", "eda", "bvp", "ibi", "ppg", "ecg", "emg", "eeg", "eog", "resp", "spo2",
]);
const TIMES: ReadonlySet<string> = new Set(["time", "timestamp", "datetime", "date", "elapsed", "t", "epoch", "unixtime"]);
const UNITS_S: Readonly<Record<string, number>> = {
  s: 1, sec: 1, secs: 1, second: 1, seconds: 1, ms: 1e-3, msec: 1e-3, millis: 1e-3, milliseconds: 1e-3,
  us: 1e-6, "µs": 1e-6, microseconds: 1e-6, ns: 1e-9, nanoseconds: 1e-9,
};
/** Letters of a name that means anything. */
const MOST_LETTERS = 200;
const UNIT = /[([]([^)\]]*)[)\]]\s*$/;
const WORD = /[A-ZÀ-ÖØ-Þ]?[a-zµß-öø-ÿ]+|[A-ZÀ-ÖØ-Þ]+(?![a-zß-öø-ÿ])|\d+/g;
const AXES = ["x", "y", "z"];

/** A column that tells when rows were sampled; `unitS`: seconds of its unit, null: its name does not say. */
export interface TimeColumn {
  readonly name: string;
  readonly unitS: number | null;
}

/** What the columns of a table are: their names, the bundle's own for channels and classes, and by what numbers are multiplied. */
export interface Columns {
  readonly names: readonly string[];
  readonly factors: ReadonlyMap<string, number>;
  readonly time: TimeColumn | null;
  /** Three channels of accelerations whose columns name no unit, and the bundle's own in m/s²; null: there are none. */
  readonly gravity: Gravity | null;
}

export interface Gravity {
  readonly channels: readonly string[];
  readonly unit: number;
}

/** `told` takes what a person should know; `named`: the file's name, which may be that of a sensor. */
export function columnsOf(header: readonly string[], { preprocessing, classes }: Form, told: (hint: string) => void, named = ""): Columns {
  const { channels } = preprocessing;
  let meant = new Map(meanings(header, channels.filter((name) => !header.includes(name)), named));
  const known = new Set([...header, ...meant.values()]);
  if (!channels.every((name) => known.has(name))) meant = new Map();
  const factors = factorsOf(meant, preprocessing, told);
  const labels = header.filter((name) => LABELS.has(name.trim().toLowerCase()));
  if (!header.includes(LABEL) && labels.length === 1 && classes.length > 0) meant.set(labels[0]!, LABEL);
  if (meant.size > 0) told(CSV.meant([...meant].map(([name, channel]) => `“${name}” is ${channel}`).join(", ")));
  const names = header.map((name) => meant.get(name) ?? name);
  return { names, factors, time: timeOf(names, channels), gravity: gravityOf(header, meant, preprocessing) };
}

/** Accelerations with gravity of which neither name nor bundle leaves open what they are. */
function gravityOf(header: readonly string[], meant: ReadonlyMap<string, string>, preprocessing: Preprocessing): Gravity | null {
  const found = gravityIn(preprocessing);
  if (found === null) return null;
  const said = new Set([...meant].filter(([name]) => UNIT.test(name)).map(([, channel]) => channel));
  const there = new Set([...header, ...meant.values()]);
  return found.channels.some((name) => said.has(name) || !there.has(name)) ? null : found;
}

/** The unit that readings seem to have by the length of their vectors, and by what they become the bundle's; null: alike. */
export function gravityFactor({ unit }: Gravity, lengths: readonly number[]): readonly [string, number] | null {
  const [name, own] = median(lengths) < Math.sqrt(GRAVITY) ? ["g", GRAVITY] as const : ["m/s²", 1] as const;
  return Math.abs(own - unit) < 1e-9 ? null : [name, own / unit];
}

/** The column of a known name, or the only one whose name says that it holds times. */
function timeOf(names: readonly string[], channels: readonly string[]): TimeColumn | null {
  const known = Object.keys(SECONDS).find((name) => names.includes(name));
  if (known !== undefined) return { name: known, unitS: SECONDS[known]! };
  const used = new Set([...channels, LABEL]);
  const found = names.filter((name) => name.length <= MOST_LETTERS && !used.has(name) && [...wordsOf(name)].some((word) => TIMES.has(word)));
  const [name, ...more] = found;
  if (name === undefined || more.length > 0) return null;
  return { name, unitS: secondsIn(name) };
}

/** Those channels that columns of a table have the name of, or mean. */
export function channelsIn(header: readonly string[], channels: readonly string[], named: string): string[] {
  const meant = new Set([...meanings(header, channels, named)].map(([, channel]) => channel));
  return channels.filter((name) => header.includes(name) || meant.has(name));
}

/** The sensors after which a file is named. */
export function sensorsIn(named: string): string[] {
  return [...wordsOf(named)].filter((word) => SENSORS.has(word));
}

/** Words of a column's name, without its unit. */
export function wordsIn(name: string): ReadonlySet<string> {
  return name.length <= MOST_LETTERS ? wordsOf(name.replace(UNIT, "")) : new Set();
}

/** Seconds of the unit that a column of times names; null: it names none. */
export function secondsIn(name: string): number | null {
  const unit = UNIT.exec(name)?.[1];
  const said = unit === undefined ? wordsOf(name) : new Set([unit.trim().toLowerCase()]);
  const units = new Set([...said].flatMap((word) => UNITS_S[word] ?? []));
  return units.size === 1 ? [...units][0]! : null;
}

/** Columns and the channels that they mean, where each is meant by one. */
function* meanings(header: readonly string[], channels: readonly string[], named: string): Generator<[string, string]> {
  const short = header.filter((name) => name.length <= MOST_LETTERS);
  const of = sensorsIn(named);
  const words = new Map(short.map((name) => {
    const said = wordsOf(name.replace(UNIT, ""));
    // The x of a gyroscope's file is no acceleration.
    const bare = said.size > 0 && [...said].every((word) => AXES.includes(word));
    return [name, bare ? new Set([...said, ...of]) : said];
  }));
  const wanted = channels.map(wordsOf);
  const sensors = new Set(wanted.map((one) => keyOf([...one].filter((word) => !AXES.includes(word)))));
  for (const [at, channel] of channels.entries()) {
    const own = [...wanted[at]!];
    const fitting = (key: string): string[] => [...words].filter(([, said]) => said.size > 0 && keyOf([...said]) === key).map(([name]) => name);
    let found = fitting(keyOf(own));
    // Of one sensor the axes alone may do, as in a file that is named after it.
    if (found.length === 0 && of.length === 0 && sensors.size === 1) found = fitting(keyOf(own.filter((word) => AXES.includes(word))));
    if (found.length === 1) yield [found[0]!, channel];
  }
}

/** By channel: from the unit that its column names to the bundle's. */
function factorsOf(meant: ReadonlyMap<string, string>, preprocessing: Preprocessing, told: (hint: string) => void): Map<string, number> {
  const factors = new Map<string, number>();
  const said = new Map<string, string[]>();
  for (const [name, channel] of meant) {
    const unit = UNIT.exec(name)?.[1];
    if (unit === undefined) continue;
    const own = unit.trim().toLowerCase();
    const declared = unitSaid(preprocessing, channel);
    const factor = factorOf(own, channel, preprocessing);
    factors.set(channel, factor ?? 1);
    if (own === declared || (factor !== null && Math.abs(factor - 1) < 1e-9)) continue;
    const what = factor !== null ? CSV.unitTimes(unit, Number(factor.toPrecision(5)))
      : declared !== null ? CSV.unitOther(unit, declared) : CSV.unitAsIs(unit);
    said.set(what, [...(said.get(what) ?? []), channel]);
  }
  for (const [what, channels] of said) told(`${channels.join(", ")}: ${what}`);
  return factors;
}

/** Its words in small letters, each as what it is short for. */
function wordsOf(name: string): ReadonlySet<string> {
  const said = (name.match(WORD) ?? []).join(" ").toLowerCase().replaceAll("heart rate", "hr");
  return new Set(said === "" ? [] : said.split(" ").map((word) => SHORT[word] ?? word));
}

function keyOf(words: readonly string[]): string {
  return [...words].sort().join(" ");
}
