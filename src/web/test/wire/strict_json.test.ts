import assert from "node:assert/strict";
import { test } from "node:test";

import { RefusedError } from "../../src/errors.ts";
import { parseExact, parseStrict } from "../../src/wire/strict_json.ts";

const utf8 = (text: string) => new TextEncoder().encode(text);

function plain(value: unknown): unknown {
  return structuredClone(value);
}

test("a document is read as JSON.parse reads it", () => {
  const text =
    ' {"a": [1, -0, 2.5e3, "x\\u00e9\\n\\ud83d\\ude00", true, false, null, {}, []], "é": {"": "\\\\\\""}}\r\n\t';
  assert.deepEqual(plain(parseStrict(utf8(text), "it", "r")), JSON.parse(text.replace("-0", "0")));
});

test("whole numbers keep all their digits, and 4 is not 4.0 where it matters", () => {
  assert.equal(parseStrict(utf8("9007199254740993"), "it", "r"), 9007199254740993n);
  assert.equal(parseStrict(utf8("4"), "it", "r"), 4);
  assert.equal(parseExact(utf8("4"), "it", "r"), 4n);
  assert.equal(parseExact(utf8("4.0"), "it", "r"), 4);
  assert.equal(parseExact(utf8("-0"), "it", "r"), 0n);
});

test("names that JavaScript's objects know are keys like any other", () => {
  const value = parseStrict(utf8('{"__proto__": {"x": 1}}'), "it", "r") as Record<string, unknown>;
  assert.deepEqual(Object.keys(value), ["__proto__"]);
  assert.equal("x" in value, false);
  assert.equal("constructor" in value, false);
});

const REFUSED: Record<string, string> = {
  empty: "",
  "two documents": "{} {}",
  "repeated key": '{"a": 1, "b": {"c": 1, "\\u0063": 2}}',
  "repeated prototype": '{"__proto__": 1, "__proto__": 2}',
  NaN: "NaN",
  infinity: "-Infinity",
  "number without end": "1e999",
  "leading zero": "01",
  "plus sign": "+1",
  "bare point": "1.",
  "lone surrogate": '["\\ud800"]',
  "lone surrogate in a key": '{"\\udc00": 1}',
  "surrogates in the wrong order": '"\\udc00\\ud800"',
  "control character": '"a\nb"',
  "unknown escape": '"\\x41"',
  "string without end": '"abc\\',
  "trailing comma": "[1,]",
  "comma before the end": '{"a": 1,}',
  "single quotes": "{'a': 1}",
  "byte order mark": "\ufeff{}",
  "deep list": "[".repeat(100_000),
  "deep object": '{"a":'.repeat(100_000),
  "deep and closed": "[".repeat(902) + "]".repeat(902),
  "endless integer": "9".repeat(2_000_000),
  "endless exponent": `1e${"9".repeat(1_000_000)}`,
};

for (const [name, text] of Object.entries(REFUSED)) {
  test(`refused: ${name}`, () => {
    assert.throws(
      () => parseStrict(utf8(text), "it", "some-rule"),
      (error) =>
        error instanceof RefusedError &&
        error.rule === "some-rule" &&
        error.message.startsWith("it: not strict JSON: ") &&
        error.message.length < 200,
    );
  });
}

test("bytes that are no UTF-8 are refused", () => {
  for (const bytes of [[0xff, 0xfe], [0x22, 0xed, 0xa0, 0x80, 0x22], [0x22, 0xc0, 0xaf, 0x22]]) {
    assert.throws(() => parseStrict(new Uint8Array(bytes), "it", "r"), /not UTF-8/);
  }
});

test("a repeated key among 140,000, or one of a million characters, is found in one pass", () => {
  const many = Array.from({ length: 140_000 }, (_, index) => `"k${String(index).padStart(6, "0")}":0`);
  for (const last of ["k139999", "k000000"]) {
    const text = utf8(`{${many.join(",")},"${last}":0}`);
    assert.throws(() => parseStrict(text, "it", "r"), new RegExp(`key '${last}' occurs twice`));
  }
  const key = "a".repeat(1_000_000);
  assert.throws(
    () => parseStrict(utf8(`{"${key}":0,"${key}":0}`), "it", "r"),
    (error) => (error as Error).message.length < 200,
  );
});
