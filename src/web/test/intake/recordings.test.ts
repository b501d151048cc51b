/** Files and zips of an owner; tests/web/golden_intake.py wrote what the Python device makes of them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Form } from "../../src/intake/examples.ts";
import { readFiles } from "../../src/intake/files.ts";
import { labelIn } from "../../src/intake/recording_files.ts";
import { BOTH, difference, floats, GOLDEN, type GoldenRecordings } from "./golden.ts";

const FORM: Form = { preprocessing: BOTH, classes: ["still", "walk"], targets: [] };
const HEAD = "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z";

function zipOf({ zip }: GoldenRecordings): File {
  return new File([new Uint8Array(Buffer.from(zip, "base64"))], "mine.zip");
}

function table(name: string, head = HEAD, seconds = 30): File {
  const columns = head.split(",").length;
  const rows = Array.from({ length: 10 * seconds }, (_, k) => [100 * k, ...Array.from({ length: columns - 1 }, (_, c) => (k * k + 7 * c) % 11)].join(","));
  return new File([[head, ...rows, ""].join("\n")], name);
}

for (const golden of GOLDEN.recordings) {
  test(`${golden.name}: as the Python device reads it`, async () => {
    if (golden.refused !== undefined) {
      const expected = golden.refused.replace(/^.*?: expected/, "expected").split(", got")[0]!;
      await assert.rejects(readFiles([zipOf(golden)], FORM), (error: Error) => error.message.includes(expected));
      return;
    }
    const { found } = await readFiles([zipOf(golden)], FORM);
    const parts = found.flatMap(({ examples }) => examples.parts);
    const labelled = golden.labels.flatMap((label, k) => (label < 0 ? [] : [k]));
    const size = 20 * 6;
    const x = floats(golden.x);
    assert.deepEqual(parts.flatMap(({ examples }) => Array.from(examples.y.data, Number)), labelled.map((k) => golden.labels[k]!));
    const expected = Float32Array.from(labelled.flatMap((k) => [...x.subarray(k * size, (k + 1) * size)]));
    const got = Float32Array.from(parts.flatMap(({ examples }) => [...(examples.x.data as Float32Array)]));
    assert.ok(difference(got, expected) <= 1e-5);
  });
}

test("a class is named by its words, as Python has it", () => {
  const classes = ["still", "walk", "walk up", "1", "größe"];
  for (const { parts, said } of GOLDEN.labels) {
    assert.equal(labelIn(parts, classes), said === null ? null : classes.indexOf(said), parts.join("/"));
  }
});

test("of several files those that are none of it are left out and told of", async () => {
  const { found, refused } = await readFiles([table("walk.csv"), table("still-2.csv"), new File(["a,b\n1,2\n"], "notes.csv")], FORM);
  assert.deepEqual(found.map(({ where }) => where), ["'walk.csv'", "'still-2.csv'"]);
  assert.match(refused.join(), /'notes.csv': expected/);
  assert.match(found[0]!.examples.hints.join(), /all of it is “walk”, by its name/);
});

test("sensors that were chosen one by one are one recording", async () => {
  const files = [table("Gyroscope.csv", "time_ms,x,y,z"), table("walk acc.csv", "time_ms,x,y,z")];
  await assert.rejects(readFiles(files, FORM), /expected examples with a label/);
  const marks = new File(["time_ms,label\n0,walk\n"], "marks.csv");
  const { found, refused } = await readFiles([...files, marks, new File(["what I did\n"], "notes.txt")], FORM);
  assert.match(found[0]!.examples.hints[0]!, /^Not used: 'notes.txt'.$/);
  assert.deepEqual([found.length, refused], [1, []]);
  assert.equal(new Set(Array.from(found[0]!.examples.parts[0]!.examples.y.data, Number)).size, 1);
});

test("what is no recording is refused by name", async () => {
  await assert.rejects(readFiles([new File(["x"], "mine.pdf")], FORM), /“mine.pdf”: expected files that end with/);
  await assert.rejects(readFiles([new File(["x"], "mine.zip")], FORM), /'mine.zip': not a plain ZIP archive/);
  await assert.rejects(readFiles([table("walk.csv"), table("Other.csv", "time_ms,a,b")].slice(1), FORM), /'Other.csv': expected/);
});
