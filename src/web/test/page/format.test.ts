import assert from "node:assert/strict";
import { test } from "node:test";

import { amount, bytes, duration, fingerprint, milliseconds, sentence } from "../../src/page/format.ts";
import { invitationIn } from "../../src/page/scanner.ts";

test("bytes stand in the largest unit of which there is one", () => {
  const shown = [0, 999, 1000, 9949, 9951, 999_499, 999_500, 5_783_680, 1_230_000_000].map(bytes);
  assert.deepEqual(shown, ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "5.8 MB", "1.2 GB"]);
});

test("amounts, times and keys", () => {
  assert.deepEqual([51_210, 1_445_126].map(amount), ["51,210", "1.4 million"]);
  assert.deepEqual([0.68, 57.4].map(milliseconds), ["0.7 ms", "57 ms"]);
  assert.deepEqual([4.26, 41.2, 99.6, 119.7, 135.2].map(duration), ["4.3 s", "41 s", "1 min 40 s", "2 min 0 s", "2 min 15 s"]);
  assert.equal(fingerprint("08b13434d86695469339348a4e0e09bd"), "08b1 3434 d866 9546");
});

test("messages of the device become sentences", () => {
  assert.deepEqual(["", "the hub does not answer", "Wait 3 s."].map(sentence), ["", "The hub does not answer.", "Wait 3 s."]);
});

test("an invitation is found in an address and in a text around it", () => {
  assert.equal(invitationIn("https://192.168.1.5:8443/#protofleet:AQ_-9"), "protofleet:AQ_-9");
  assert.equal(invitationIn(" anna:\n protofleet:AQ  \n"), "protofleet:AQ");
  assert.equal(invitationIn("https://example.org/#else"), null);
});
