/** Typed JSON objects: one declaration reads, checks, fills in and writes a record. */

import { RefusedError } from "../errors.ts";
import { type JsonObject, isObject, parseExact } from "./strict_json.ts";

/** How a value of one field is checked and written. */
export interface Field<T> {
  /** Throws SchemaError for another type or range. */
  readonly read: (value: unknown, where: string) => T;
  /** JSON text. */
  readonly write: (value: T) => string;
}

/** A field that may be left out. */
export interface OptionalField<T> extends Field<T> {
  readonly fallback: T;
}

/** A value is not what its field holds; the message names the field. */
export class SchemaError extends Error {}

/** A field of any type: methods, so that a field of each type fits. */
interface AnyField {
  read(value: unknown, where: string): unknown;
  write(value: unknown): string;
}

export type Fields = Readonly<Record<string, AnyField>>;
type ValueOf<F> = F extends { readonly write: (value: infer T) => string } ? T : never;
type OptionalNames<F> = { [K in keyof F]: F[K] extends { readonly fallback: unknown } ? K : never }[keyof F];

/** The record that a schema reads; `type` tells it from others. */
export type RecordOf<S> = S extends Schema<infer Name, infer F>
  ? { readonly type: Name } & { readonly [K in keyof F]: ValueOf<F[K]> }
  : never;

/** What a record is made of: fields with a default may be left out. */
export type Given<S> = S extends Schema<string, infer F>
  ? { readonly [K in Exclude<keyof F, OptionalNames<F>>]: ValueOf<F[K]> } & {
      readonly [K in OptionalNames<F>]?: ValueOf<F[K]>;
    }
  : never;

export interface Schema<Name extends string, F extends Fields> {
  readonly name: Name;
  readonly fields: F;
  /** Names of fields that are not written where they have their default. */
  readonly omitted: ReadonlySet<string>;
}

type AnyRecord = Readonly<Record<string, unknown>>;
type AnySchema = Schema<string, Fields>;

export function schema<Name extends string, F extends Fields>(
  name: Name,
  fields: F,
  omitted: readonly (keyof F & string)[] = [],
): Schema<Name, F> {
  return { name, fields, omitted: new Set(omitted) };
}

/** A record with defaults filled in. */
export function make<S extends AnySchema>(of: S, given: Given<S>): RecordOf<S> {
  const values = given as AnyRecord;
  const entries = Object.entries(of.fields).map(([name, field]) => [name, values[name] ?? fallbackOf(field)]);
  return { type: of.name, ...Object.fromEntries(entries) } as RecordOf<S>;
}

/** JSON text, fields in the order of their declaration. */
export function write<S extends AnySchema>(of: S, record: RecordOf<S>): string {
  return objectText(of, record as AnyRecord, [`"type":${JSON.stringify(of.name)}`]);
}

/** Checks a parsed object; unknown fields are ignored. */
export function read<S extends AnySchema>(of: S, value: JsonObject, where = ""): RecordOf<S> {
  return { type: of.name, ...members(of.fields, value, where) } as RecordOf<S>;
}

/**
 * The record of one of the schemas in UTF-8 JSON.
 *
 * @throws RefusedError rule `rule`: not JSON, another record, a field missing or of a wrong type
 */
export function readAny<S extends AnySchema>(
  schemas: readonly S[], data: Uint8Array, rule: string, what: string,
): RecordOf<S> {
  const value = parseExact(data, what, rule);
  try {
    if (!isObject(value)) throw wrong("", "an object", value);
    const type = TEXT.read(value["type"] ?? missing("type"), "type");
    const found = schemas.find(({ name }) => name === type);
    if (found !== undefined) return read(found, value);
    throw wrong("type", schemas.map(({ name }) => `'${name}'`).join(" or "), type);
  } catch (error) {
    if (error instanceof SchemaError) throw new RefusedError(rule, `${what}: ${error.message}`);
    throw error;
  }
}

export function optional<T>(field: Field<T>, fallback: T): OptionalField<T> {
  return { ...field, fallback };
}

/** A field that is left out where there is nothing to say; here it is null then. */
export function absent<T>(field: Field<T>): OptionalField<T | null> {
  return { read: field.read, write: (value) => (value === null ? "null" : field.write(value)), fallback: null };
}

export const TEXT: Field<string> = {
  read: (value, where) => (typeof value === "string" ? value : fail(where, "text", value)),
  write: JSON.stringify,
};

/** Text of at most so many characters. */
export function text(most: number): Field<string> {
  const holds = (value: string): boolean => value.length <= most || [...value].length <= most;
  return checked(TEXT, holds, `at most ${most} characters`);
}

export function textLike(pattern: RegExp): Field<string> {
  return checked(TEXT, (value) => pattern.test(value), `text like ${pattern.source}`);
}

export function oneOf<const T extends string>(...values: readonly T[]): Field<T> {
  const expected = values.map((value) => `'${value}'`).join(" or ");
  return {
    read: (value, where) => values.find((known) => known === value) ?? fail(where, expected, value),
    write: JSON.stringify,
  };
}

/** A whole number that a float64 holds exactly. */
export const WHOLE: Field<number> = {
  read: (value, where) => {
    const number = typeof value === "bigint" ? Number(value) : Number.NaN;
    return Number.isSafeInteger(number) ? number : fail(where, "a whole number below 2^53", value);
  },
  write: String,
};

export const COUNT: Field<number> = checked(WHOLE, (value) => value >= 0, "a number from 0");

/** Of a coordinator's lease. */
export const EPOCH: Field<number> = checked(COUNT, (value) => value <= 2 ** 48, "at most 2^48");

/** By how many rounds an update may be late. */
export const STALENESS: Field<number> = checked(COUNT, (value) => value <= 10_000, "at most 10000");

/** What a device has exchanged, or has as memory. */
export const BYTES: Field<number> = checked(COUNT, (value) => value <= 2 ** 44, "at most 2^44");

/** A whole number of any size. */
export const BIG_WHOLE: Field<bigint> = {
  read: (value, where) => (typeof value === "bigint" ? value : fail(where, "a whole number", value)),
  write: String,
};

/** Written with a decimal point, as a float is in Python. */
export const NUMBER: Field<number> = {
  read: (value, where) => {
    const number = typeof value === "bigint" || typeof value === "number" ? Number(value) : Number.NaN;
    return Number.isFinite(number) ? number : fail(where, "a number", value);
  },
  write: (value) => (Number.isInteger(value) && Math.abs(value) < 1e16 ? value.toFixed(1) : String(value)),
};

export const NUMBER_FROM_0: Field<number> = checked(NUMBER, (value) => value >= 0, "a number from 0");

/** A number of which both ends belong to the range. */
export function between(least: number, most: number): Field<number> {
  return checked(NUMBER, (value) => value >= least && value <= most, `${least} to ${most}`);
}

/** A part of a whole, and not none of it. */
export const SHARE: Field<number> = checked(NUMBER, (value) => value > 0 && value <= 1, "a share above 0 up to 1");

export const BOOLEAN: Field<boolean> = {
  read: (value, where) => (typeof value === "boolean" ? value : fail(where, "true or false", value)),
  write: String,
};

/** Any JSON object; whole numbers that a float64 does not hold are BigInts. Its keys are written in order. */
export const OBJECT: Field<Readonly<Record<string, unknown>>> = {
  read: (value, where) => (isObject(value) ? withNumbers(value) : fail(where, "an object", value)),
  write: anyText,
};

/** At most `most` of them, and no fewer than `least`. */
export function list<T>(item: Field<T>, { least = 0, most = Infinity } = {}): Field<readonly T[]> {
  const any: Field<readonly T[]> = {
    read: (value, where) =>
      Array.isArray(value)
        ? value.map((each, index) => item.read(each, `${where}[${index}]`))
        : fail(where, "a list", value),
    write: (values) => `[${values.map(item.write).join(",")}]`,
  };
  return most === Infinity ? any : checked(any, ({ length }) => length >= least && length <= most, `${least} to ${most} of them`);
}

export function pair<T>(item: Field<T>): Field<readonly [T, T]> {
  return {
    read: (value, where) => {
      if (!Array.isArray(value) || value.length !== 2) return fail(where, "a list of two", value);
      const [first, second] = value as [unknown, unknown];
      return [item.read(first, `${where}[0]`), item.read(second, `${where}[1]`)];
    },
    write: (values) => `[${values.map(item.write).join(",")}]`,
  };
}

export function nullable<T>(field: Field<T>): Field<T | null> {
  return {
    read: (value, where) => (value === null ? null : field.read(value, where)),
    write: (value) => (value === null ? "null" : field.write(value)),
  };
}

/** Another record inside, with its own `type`. */
export function nested<S extends AnySchema>(of: S): Field<RecordOf<S>> {
  return {
    read: (value, where) => {
      if (!isObject(value)) return fail(where, "an object", value);
      if (value["type"] !== of.name) return fail(`${where}.type`, `'${of.name}'`, value["type"]);
      return read(of, value, `${where}.`);
    },
    write: (record) => write(of, record),
  };
}

/** Fields inside that have no `type`. */
export function group<F extends Fields>(fields: F): Field<{ readonly [K in keyof F]: ValueOf<F[K]> }> {
  const of = schema("", fields);
  return {
    read: (value, where) =>
      isObject(value)
        ? (members(fields, value, `${where}.`) as { [K in keyof F]: ValueOf<F[K]> })
        : fail(where, "an object", value),
    write: (record) => objectText(of, record, []),
  };
}

function checked<T>(field: Field<T>, holds: (value: T) => boolean, expected: string): Field<T> {
  return {
    read: (value, where) => {
      const found = field.read(value, where);
      return holds(found) ? found : fail(where, expected, value);
    },
    write: field.write,
  };
}

function members(fields: Fields, value: JsonObject, where: string): AnyRecord {
  return Object.fromEntries(
    Object.entries(fields).map(([name, field]) => {
      const place = where + name;
      const found = value[name];
      if (found !== undefined) return [name, field.read(found, place)];
      return [name, "fallback" in field ? field.fallback : missing(place)];
    }),
  );
}

function fallbackOf(field: object): unknown {
  return "fallback" in field ? field.fallback : undefined;
}

function objectText(of: AnySchema, record: AnyRecord, before: readonly string[]): string {
  const texts = Object.entries(of.fields)
    .filter(([name, field]) => !(of.omitted.has(name) && record[name] === fallbackOf(field)))
    .map(([name, field]) => `${JSON.stringify(name)}:${field.write(record[name])}`);
  return `{${[...before, ...texts].join(",")}}`;
}

function withNumbers(value: JsonObject): JsonObject {
  const found = Object.entries(value).map(([name, member]) => [name, withNumber(member)] as const);
  return Object.assign(Object.create(null), Object.fromEntries(found)) as JsonObject;
}

function withNumber(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withNumber);
  if (isObject(value)) return withNumbers(value);
  if (typeof value !== "bigint") return value;
  return Number.isSafeInteger(Number(value)) ? Number(value) : value;
}

function anyText(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(anyText).join(",")}]`;
  if (typeof value === "bigint") return String(value);
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const sorted = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${sorted.map(([name, member]) => `${JSON.stringify(name)}:${anyText(member)}`).join(",")}}`;
}

function missing(where: string): never {
  throw new SchemaError(`${where}: missing`);
}

function fail(where: string, expected: string, got: unknown): never {
  throw wrong(where, expected, got);
}

function wrong(where: string, expected: string, got: unknown): SchemaError {
  const place = where === "" ? "" : `${where}: `;
  return new SchemaError(`${place}expected ${expected}, got ${shown(got)}`);
}

function shown(value: unknown): string {
  if (value === undefined) return "nothing";
  if (Array.isArray(value)) return "a list";
  if (isObject(value)) return "an object";
  return typeof value === "string" ? JSON.stringify(value.slice(0, 40)) : String(value).slice(0, 40);
}
