import assert from "node:assert/strict";
import { test } from "node:test";

import { crc32 } from "../src/crc32.ts";
import { byCodePoint, isLabel, isPrintable, shown } from "../src/text.ts";

test("what may be shown is what Python prints", () => {
  for (const text of ["", "a b", "é", "日本", "\u{1f600}", "~"]) assert.ok(isPrintable(text), text);
  for (const text of ["\x1b[2J", "a\n", "\x00", "\u00a0", "\u2028", "\u202e", "\ufeff", "\ue000", "\ud800"]) {
    assert.ok(!isPrintable(text), JSON.stringify(text));
  }
});

test("lengths count characters, not their halves", () => {
  assert.ok(isLabel("\u{1f600}".repeat(3), 3));
  assert.ok(!isLabel("\u{1f600}".repeat(4), 3));
  assert.ok(!isLabel("", 3));
  assert.ok(!isLabel("a".repeat(1_000_000), 3));
});

test("a text from outside is short and harmless in a message", () => {
  assert.equal(shown("\x1b[2J" + "x".repeat(100)), `\ufffd[2J${"x".repeat(36)}`);
});

test("names are ordered by code points", () => {
  const names = ["\u{1f600}", "\uff5e", "b", "a", "ab", "", "\u{10000}"];
  assert.deepEqual(names.sort(byCodePoint), ["", "a", "ab", "b", "\uff5e", "\u{10000}", "\u{1f600}"]);
});

test("a checksum is zlib's, whole or in parts", () => {
  const bytes = new TextEncoder().encode("123456789");
  assert.equal(crc32(bytes), 0xcbf43926);
  for (let at = 0; at < 10; at++) assert.equal(crc32(bytes.subarray(at), crc32(bytes.subarray(0, at))), 0xcbf43926);
});
