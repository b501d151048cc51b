/** JSON from outside, read so that every reader in any language sees the same document. */

import { RefusedError } from "../errors.ts";

/** Whole numbers that a float64 does not hold exactly are bigint. */
export type Json = null | boolean | number | bigint | string | Json[] | JsonObject;

/** Without a prototype: a member is there only if the document has it. */
export interface JsonObject {
  [name: string]: Json;
}

const MAX_DEPTH = 500;
const MAX_DIGITS = 4300;
/** Characters of a document in a message. */
const SHOWN = 40;

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const PLAIN_TEXT = /[^"\\\u0000-\u001f]*/y;
const SPACE = /[ \t\n\r]*/y;
const HEX4 = /[0-9a-fA-F]{4}/y;
const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t",
};
const WORDS: readonly (readonly [string, Json])[] = [["null", null], ["true", true], ["false", false]];

/**
 * Parses UTF-8 JSON; repeated keys, NaN, infinities, lone surrogates, deep nesting are refused.
 *
 * @param rule that a refusal names
 * @param what thing that a refusal's message names
 * @throws RefusedError the document is not such JSON
 */
export function parseJson(data: Uint8Array, rule: string, what: string): Json {
  try {
    return new Parser(decodeUtf8(data)).document();
  } catch (error) {
    if (error instanceof JsonError) throw new RefusedError(rule, `${what}: not strict JSON: ${error.message}`);
    throw error;
  }
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

class JsonError extends Error {}

function decodeUtf8(data: Uint8Array): string {
  try {
    return UTF8.decode(data);
  } catch {
    throw new JsonError("not UTF-8");
  }
}

class Parser {
  readonly #text: string;
  #at = 0;
  #depth = 0;

  constructor(text: string) {
    this.#text = text;
  }

  document(): Json {
    const value = this.#value();
    if (this.#at !== this.#text.length) throw this.#unexpected();
    return value;
  }

  /** A value and the white space around it. */
  #value(): Json {
    this.#match(SPACE);
    const value = this.#bare();
    this.#match(SPACE);
    return value;
  }

  #bare(): Json {
    const first = this.#text[this.#at];
    if (first === "{") return this.#nested(() => this.#object());
    if (first === "[") return this.#nested(() => this.#array());
    if (first === '"') return this.#string();
    for (const [word, value] of WORDS) {
      if (this.#text.startsWith(word, this.#at)) {
        this.#at += word.length;
        return value;
      }
    }
    return this.#number();
  }

  #nested<T>(read: () => T): T {
    this.#depth += 1;
    if (this.#depth > MAX_DEPTH) throw new JsonError(`nested deeper than ${MAX_DEPTH}`);
    this.#at += 1;
    const value = read();
    this.#depth -= 1;
    return value;
  }

  #object(): JsonObject {
    const members: JsonObject = Object.create(null) as JsonObject;
    this.#match(SPACE);
    if (this.#skip("}")) return members;
    do {
      this.#match(SPACE);
      if (this.#text[this.#at] !== '"') throw this.#unexpected();
      const name = this.#string();
      if (name in members) throw new JsonError(`key '${name.slice(0, SHOWN)}' occurs twice`);
      this.#match(SPACE);
      this.#expect(":");
      members[name] = this.#value();
    } while (this.#skip(","));
    this.#expect("}");
    return members;
  }

  #array(): Json[] {
    const items: Json[] = [];
    this.#match(SPACE);
    if (this.#skip("]")) return items;
    do items.push(this.#value());
    while (this.#skip(","));
    this.#expect("]");
    return items;
  }

  #string(): string {
    this.#at += 1;
    let text = this.#match(PLAIN_TEXT);
    let escaped = false;
    while (this.#skip("\\")) {
      escaped = true;
      text += this.#escape() + this.#match(PLAIN_TEXT);
    }
    this.#expect('"');
    // An escaped half of a surrogate pair is no text in any other language.
    if (escaped && LONE_SURROGATE.test(text)) throw new JsonError("half of a surrogate pair");
    return text;
  }

  #escape(): string {
    const letter = this.#text[this.#at] ?? "";
    if (this.#skip("u")) {
      const digits = this.#match(HEX4);
      if (digits === "") throw this.#unexpected();
      return String.fromCharCode(Number.parseInt(digits, 16));
    }
    const character = Object.hasOwn(ESCAPES, letter) ? ESCAPES[letter] : undefined;
    if (character === undefined) throw this.#unexpected();
    this.#at += 1;
    return character;
  }

  #number(): number | bigint {
    NUMBER.lastIndex = this.#at;
    const found = NUMBER.exec(this.#text);
    if (found === null) throw this.#unexpected();
    const [digits, fraction, exponent] = found;
    this.#at += digits.length;
    const number = Number(digits);
    const whole = fraction === undefined && exponent === undefined;
    if (whole && digits.length > MAX_DIGITS) throw new JsonError(`a number of ${digits.length} digits`);
    if (whole && !Number.isSafeInteger(number)) return BigInt(digits);
    if (!Number.isFinite(number)) throw new JsonError(`${digits.slice(0, SHOWN)} is not a float64 number`);
    return number;
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0] ?? "";
    this.#at += found.length;
    return found;
  }

  #skip(character: string): boolean {
    if (this.#text[this.#at] !== character) return false;
    this.#at += 1;
    return true;
  }

  #expect(character: string): void {
    if (!this.#skip(character)) throw this.#unexpected();
  }

  #unexpected(): JsonError {
    const found = this.#text[this.#at];
    const shown = found === undefined ? "the end" : JSON.stringify(found);
    return new JsonError(`unexpected ${shown} at character ${this.#at}`);
  }
}
