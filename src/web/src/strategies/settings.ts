/** Settings of strategies, read from what a task's JSON says: as in `strategies/settings.py`. */

import { InputError } from "../errors.ts";

/** Of a setting without a bound of its own: beyond, it is a slip or an attack. */
export const MOST = 1e9;
/** Of passes over a client's examples. */
export const MOST_PASSES = 100_000;
export const MOST_LR = 1e6;
/** Examples per step. */
export const MOST_BATCH = 1 << 20;

/** One setting: what it is where nothing is said, and how a value is read. */
export interface Field<T> {
  readonly initial: T;
  /** Throws InputError; `path` is where the value stands. */
  readonly read: (path: string, value: unknown) => T;
}

/** Settings by the names that they have in files and messages. */
export type Fields = Readonly<Record<string, Field<unknown>>>;

type Camel<Name> = Name extends `${infer First}_${infer Rest}` ? `${First}${Capitalize<Camel<Rest>>}` : Name;

/** What was read, under names without underscores. */
export type Settings<F extends Fields> = {
  readonly [Name in keyof F as Camel<Name>]: F[Name] extends Field<infer T> ? T : never;
};

/** Settings of a strategy; throws InputError for an unknown key, another type, or a value outside its range. */
export function parseSettings<F extends Fields>(
  strategy: string,
  settings: Readonly<Record<string, unknown>>,
  fields: F,
): Settings<F> {
  try {
    return readRecord("", settings, fields);
  } catch (error) {
    throw error instanceof InputError ? new InputError(`strategy '${strategy}': ${error.message}`) : error;
  }
}

/** A whole number. */
export function whole(initial: number, low: number, high: number): Field<number> {
  return { initial, read: (path, value) => number(path, value, low, high, true) };
}

export function real(initial: number, low: number, high = MOST): Field<number> {
  return { initial, read: (path, value) => number(path, value, low, high, false) };
}

export function flag(initial: boolean): Field<boolean> {
  return {
    initial,
    read: (path, value) => (typeof value === "boolean" ? value : refuse(path, "true or false", value)),
  };
}

export function text(initial: string | null): Field<string | null> {
  return {
    initial,
    read: (path, value) => (value === null || typeof value === "string" ? value : refuse(path, "text or nothing", value)),
  };
}

/** One of some words. */
export function choice<const T extends string>(initial: T, values: readonly T[]): Field<T> {
  return {
    initial,
    read: (path, value) => {
      const found = values.find((one) => one === value);
      if (found !== undefined) return found;
      if (typeof value !== "string") return refuse(path, "text", value);
      throw new InputError(`\`${path}\`: expected one of ${[...values].sort().join(", ")}, got '${value}'`);
    },
  };
}

/** A setting that may be absent. */
export function optional<T>(initial: T | null, field: Field<T>): Field<T | null> {
  return { initial, read: (path, value) => (value === null ? null : field.read(path, value)) };
}

/** A table whose key `kind` says which of some records it is; of one it need not. */
export function kinds<T>(initial: T, records: Readonly<Record<string, (path: string, table: Table) => T>>): Field<T> {
  const names = Object.keys(records).sort();
  const known = names.join(", ");
  return {
    initial,
    read: (path, value) => {
      if (!isTable(value)) return refuse(path, "a table", value);
      const { kind = names.length === 1 ? names[0] : undefined, ...rest } = value;
      if (kind === undefined) {
        throw new InputError(`\`${path}\`: expected a key \`kind\`, one of ${known}, got none`);
      }
      const record = typeof kind === "string" && Object.hasOwn(records, kind) ? records[kind] : undefined;
      if (record === undefined) {
        throw new InputError(`\`${path}.kind\`: expected one of ${known}, got ${shown(kind)}`);
      }
      return record(path, rest);
    },
  };
}

export type Table = Readonly<Record<string, unknown>>;

/** A table with these settings. */
export function table<F extends Fields>(fields: F, initial: Settings<F> = initials(fields)): Field<Settings<F>> {
  return {
    initial,
    read: (path, value) => (isTable(value) ? readRecord(path, value, fields) : refuse(path, "a table", value)),
  };
}

/**
 * The record of `fields` that a table holds; `path` is "" or where the table stands, `others` are names of keys that
 * have been read already.
 */
export function readRecord<F extends Fields>(
  path: string,
  table: Table,
  fields: F,
  others: readonly string[] = [],
): Settings<F> {
  for (const name of Object.keys(table)) {
    if (!Object.hasOwn(fields, name)) {
      const where = path && `\`${path}\`: `;
      const known = [...others, ...Object.keys(fields)].join(", ");
      throw new InputError(`${where}unknown key \`${name}\`; known are ${known}`);
    }
  }
  const entries = Object.entries(fields).map(([name, field]) => {
    const value = Object.hasOwn(table, name) ? table[name] : undefined;
    const read = value === undefined ? field.initial : field.read(path ? `${path}.${name}` : name, value);
    return [camel(name), read];
  });
  return Object.fromEntries(entries) as Settings<F>;
}

/** A record's settings where nothing is said. */
export function initials<F extends Fields>(fields: F): Settings<F> {
  return readRecord("", {}, fields);
}

function number(path: string, value: unknown, low: number, high: number, isWhole: boolean): number {
  const wanted = isWhole ? "a whole number" : "a number";
  if (typeof value === "bigint") return number(path, Number(value), low, high, isWhole);
  if (typeof value !== "number") return refuse(path, wanted, value);
  if (isWhole && !Number.isInteger(value)) {
    throw new InputError(`\`${path}\`: expected a whole number, got ${value}`);
  }
  if (!(low <= value && value <= high)) {
    throw new InputError(`setting '${path}': expected a number between ${low} and ${high}, got ${value}`);
  }
  return value;
}

function refuse(path: string, expected: string, value: unknown): never {
  throw new InputError(`\`${path}\`: expected ${expected}, got ${kindOf(value)}`);
}

function isTable(value: unknown): value is Table {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function kindOf(value: unknown): string {
  if (value === null) return "nothing";
  if (Array.isArray(value)) return "a list";
  const words: Record<string, string> = {
    boolean: "true or false", number: "a number", bigint: "a number", string: "text", object: "a table",
  };
  return words[typeof value] ?? typeof value;
}

function shown(value: unknown): string {
  return typeof value === "string" ? `'${value}'` : kindOf(value);
}

function camel(name: string): string {
  return name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
}
