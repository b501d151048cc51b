/** JSON from outside, read so that every reader in any language sees the same document. */

import { RefusedError } from "../errors.ts";

/** Deeper nesting is refused; Python's reader stops near a thousand. */
const MAX_DEPTH = 900;
/** Digits of an integer; more takes time for nothing. */
const MAX_DIGITS = 4300;
const SHOWN = 40;

const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const LONE_SURROGATE = /\p{Surrogate}/u;

/** An object of a document; it has no prototype, so that no key means anything of its own. */
export type JsonObject = Record<string, unknown>;

/**
 * Parse UTF-8 JSON; repeated keys, NaN, infinities, lone surrogates, deep nesting are refused.
 *
 * Integers that float64 does not hold exactly are BigInts.
 */
export function parseStrict(bytes: Uint8Array, what: string, rule: string): unknown {
  return document(bytes, what, rule, (text) => {
    const number = Number(text) + 0;
    return Number.isSafeInteger(number) ? number : BigInt(text);
  });
}

/** As `parseStrict`, with each integer a BigInt: `4` and `4.0` are not the same. */
export function parseExact(bytes: Uint8Array, what: string, rule: string): unknown {
  return document(bytes, what, rule, BigInt);
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function document(
  bytes: Uint8Array,
  what: string,
  rule: string,
  integer: (text: string) => unknown,
): unknown {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return new Parser(text, integer).document();
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    const reason = error instanceof SyntaxError ? error.message : "not UTF-8";
    throw new RefusedError(rule, `${what}: not strict JSON: ${reason}`);
  }
}

class Parser {
  #at = 0;

  constructor(
    readonly text: string,
    readonly integer: (text: string) => unknown,
  ) {}

  document(): unknown {
    const value = this.#value(0);
    if (this.#at < this.text.length) throw this.#unexpected();
    return value;
  }

  /** A value and the white space on both its sides. */
  #value(depth: number): unknown {
    if (depth > MAX_DEPTH) throw new SyntaxError("nested too deeply");
    this.#space();
    const value = this.#bare(depth);
    this.#space();
    return value;
  }

  #bare(depth: number): unknown {
    switch (this.text[this.#at]) {
      case "{":
        return this.#object(depth);
      case "[":
        return this.#array(depth);
      case '"':
        return this.#string();
      case "t":
        return this.#word("true", true);
      case "f":
        return this.#word("false", false);
      case "n":
        return this.#word("null", null);
      default:
        return this.#number();
    }
  }

  #object(depth: number): JsonObject {
    const members: JsonObject = Object.create(null);
    this.#at += 1;
    this.#space();
    if (this.#takes("}")) return members;
    do {
      this.#space();
      if (this.text[this.#at] !== '"') throw this.#unexpected();
      const key = this.#string();
      if (key in members) throw new SyntaxError(`key '${key.slice(0, SHOWN)}' occurs twice`);
      this.#space();
      if (!this.#takes(":")) throw this.#unexpected();
      members[key] = this.#value(depth + 1);
    } while (this.#takes(","));
    if (!this.#takes("}")) throw this.#unexpected();
    return members;
  }

  #array(depth: number): unknown[] {
    const values: unknown[] = [];
    this.#at += 1;
    this.#space();
    if (this.#takes("]")) return values;
    do values.push(this.#value(depth + 1));
    while (this.#takes(","));
    if (!this.#takes("]")) throw this.#unexpected();
    return values;
  }

  #string(): string {
    const start = this.#at;
    let escaped = false;
    let code: number;
    while ((code = this.text.charCodeAt(++this.#at)) !== 0x22) {
      if (!(code >= 0x20)) throw this.#unexpected();
      if (code === 0x5c) {
        escaped = true;
        this.#at += 1;
      }
    }
    this.#at += 1;
    if (!escaped) return this.text.slice(start + 1, this.#at - 1);
    return unescaped(this.text.slice(start, this.#at));
  }

  #number(): unknown {
    NUMBER.lastIndex = this.#at;
    const found = NUMBER.exec(this.text);
    if (found === null) throw this.#unexpected();
    const [digits, fraction, exponent] = found;
    this.#at += digits.length;
    if (fraction === undefined && exponent === undefined) {
      if (digits.length > MAX_DIGITS) throw new SyntaxError(`a number of ${digits.length} digits`);
      return this.integer(digits);
    }
    const number = Number(digits);
    if (!Number.isFinite(number)) {
      throw new SyntaxError(`${digits.slice(0, SHOWN)} is not a float64 number`);
    }
    return number;
  }

  #word(word: string, value: unknown): unknown {
    if (!this.text.startsWith(word, this.#at)) throw this.#unexpected();
    this.#at += word.length;
    return value;
  }

  #takes(mark: string): boolean {
    if (this.text[this.#at] !== mark) return false;
    this.#at += 1;
    return true;
  }

  #space(): void {
    let code = this.text.charCodeAt(this.#at);
    while (code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09) {
      code = this.text.charCodeAt(++this.#at);
    }
  }

  #unexpected(): SyntaxError {
    return new SyntaxError(`unexpected character at ${this.#at} of ${this.text.length}`);
  }
}

function unescaped(literal: string): string {
  let value: string;
  try {
    value = JSON.parse(literal);
  } catch {
    // JSON.parse repeats the text in its message.
    throw new SyntaxError("a character or an escape that no string has");
  }
  if (LONE_SURROGATE.test(value)) throw new SyntaxError("half of a surrogate pair");
  return value;
}
