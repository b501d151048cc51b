import assert from "node:assert/strict";
import { test } from "node:test";

import { readCsv } from "../../src/intake/csv.ts";
import { labelled } from "../../src/intake/examples.ts";
import { BOTH, difference, floats, FORM, GOLDEN } from "./golden.ts";

async function* pieces(text: string, size: number): AsyncGenerator<Uint8Array> {
  const bytes = new TextEncoder().encode(text);
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

for (const golden of GOLDEN.csv) {
  for (const size of [7, 1 << 16]) {
    test(`${golden.name}, in pieces of ${size} bytes: as the Python device reads it`, async () => {
      const read = readCsv(pieces(golden.text, size), "'mine.csv'", FORM);
      if (golden.refused !== undefined) {
        // Which words Python's own reader of CSV says is not ours to repeat.
        const expected = golden.refused.replace(/ \(unexpected end of data\)|; --mapping FILE.*$/g, "");
        await assert.rejects(read, { name: "InputError", message: expected });
        return;
      }
      const { blocks } = await read;
      const x = blocks.flatMap((block) => [...block.x]);
      assert.ok(difference(x, floats(golden.x)) <= 1e-6);
      assert.deepEqual(blocks.flatMap((block) => block.labels), golden.labels);
      const starts = blocks.flatMap((block) => block.startS ?? []);
      assert.deepEqual(starts, golden.start_s ?? []);
    });
  }
}

async function* sized(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

test("text in another encoding is read, and told where it was guessed", async () => {
  const plain = samples("time_s", 0.05).replace("gx", "gx,größe").replaceAll(/(,\d)$/gm, "$1,ß");
  const expected = (await readCsv(pieces(plain, 99), "'mine.csv'", FORM)).blocks;
  const units = Uint16Array.from(`\ufeff${plain}`, (letter) => letter.charCodeAt(0));
  const little = new Uint8Array(units.buffer);
  const big = Uint8Array.from(little, (_, at) => little[at ^ 1]!);
  const latin = Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
  const utf8 = new TextEncoder().encode(`\ufeff${plain}`);
  for (const [bytes, guessed] of [[little, false], [big, false], [utf8, false], [latin, true]] as const) {
    for (const size of [7, 1 << 16]) {
      const found = await readCsv(sized(bytes, size), "'mine.csv'", FORM);
      assert.deepEqual(found.blocks, expected);
      assert.equal(found.hints.join().includes("not UTF-8"), guessed);
    }
  }
  const other = Uint8Array.of(0x50, 0x4b, 3, 4, 0xff, 0, 0, 0xd8, 0x2c, 0x31, 10);
  await assert.rejects(readCsv(sized(other, 99), "'mine.csv'", FORM), /expected text in UTF-8/);
});

test("windows that overlap say so, and those without a label are left out", async () => {
  const golden = GOLDEN.csv.find((one) => one.name === "samples with labels")!;
  const { blocks } = await readCsv(pieces(golden.text, 999), "'mine.csv'", FORM);
  const { examples, unlabelled } = labelled(blocks, FORM, "both");
  const count = golden.labels.filter((label) => label >= 0).length;
  assert.equal(unlabelled, golden.labels.length - count);
  assert.deepEqual(examples.x.shape, [count, 16, 3]);
  assert.deepEqual([...(examples.y.data as BigInt64Array)].map(Number), golden.labels.filter((label) => label >= 0));
  assert.equal(examples.follows![0], false);
  assert.ok(examples.follows!.slice(1).some((follows) => follows));
});

test("no label at all is refused", async () => {
  const golden = GOLDEN.csv.find((one) => one.name === "samples")!;
  const { blocks } = await readCsv(pieces(golden.text, 999), "'mine.csv'", FORM);
  assert.throws(() => labelled(blocks, FORM, "both"), /expected examples with a label \(column 'label'\)/);
});

async function hints(text: string): Promise<readonly string[]> {
  return (await readCsv(pieces(text, 1 << 16), "'mine.csv'", FORM)).hints;
}

function samples(time: string, step: number): string {
  return [`${time},ax,ay,gx`, ...Array.from({ length: 200 }, (_, k) => `${k * step},1,2,${k % 3}`)].join("\n");
}

test("a column of times that is lacking, unknown or doubtful is told with what to do", async () => {
  assert.deepEqual(await hints(samples("time_s", 0.05)), []);
  assert.match((await hints("ax,ay,gx\n" + "1,2,3\n".repeat(40))).join(), /no column time_s or time_ms, .* 20 readings a second.*add such a column/);
  assert.deepEqual(await hints(samples("Timestamp", 0.05)), []);
  assert.match((await hints(samples("Timestamp", 50))).join(), /times in “Timestamp” were taken as milliseconds/);
  const two = samples("Date", 0.05).replace("gx", "gx,Clock time").replaceAll(/(,\d)$/gm, "$1,5");
  assert.match((await hints(two)).join(), /its column 'Date' was passed over.*name it time_s for seconds/);
  await assert.rejects(hints(samples("time_ms", 0.05)), /got 200 in 0\.00995 s by 'time_ms'; if it holds seconds, rename it time_s$/);
  await assert.rejects(hints(samples("time_s", 0.5)), /expected about 20 samples a second, at least a quarter, got 2 by its column 'time_s'; a sensor as slow/);
});

test("readings that share a time are spread, which is told, and too few of them refused with what helps", async () => {
  const shared = (each: number) =>
    ["time_s,ax,ay,gx", ...Array.from({ length: 200 }, (_, k) => `${Math.floor(k / each)},1,2,${k % 3}`)].join("\n");
  assert.match((await hints(shared(20))).join(), /By its column 'time_s' about 20 readings share each time, 20 a second: they were spread/);
  await assert.rejects(hints(shared(8)), /expected about 20 readings .* about 8 readings share each time, 8 a second: give each row/);
});

test("a file that is named after a sensor has its axes and no other's", async () => {
  const preprocessing = { ...FORM.preprocessing, channels: ["acc_x", "acc_y", "acc_z"] };
  const form = { ...FORM, preprocessing };
  const text = samples("time_s", 0.05).replace("ax,ay,gx", "x,y,z");
  const read = (name: string) => readCsv(pieces(text, 1 << 16), "'mine.csv'", form, { fileName: name });
  for (const name of ["rec1", "Accelerometer", "acc-2026"]) {
    const { blocks, hints: told } = await read(name);
    assert.ok(blocks.length > 0, name);
    assert.match(told.join(), /“x” is acc_x/);
  }
  await assert.rejects(read("Gyroscope"), /got the columns time_s, x, y, z/);
});

test("accelerations that name no unit are taken by the length of gravity", async () => {
  const preprocessing = { ...FORM.preprocessing, channels: ["acc_x", "acc_y", "acc_z"], mean: [0, 0, 9.8], std: [2, 2, 2] };
  const rows = (unit: string, one: number) => [`time_s,acc_x${unit},acc_y${unit},acc_z${unit}`,
    ...Array.from({ length: 200 }, (_, k) => [k * 0.05, 0.1 * one * (k % 5), 0, one].join(","))].join("\n");
  const read = async (text: string, mean = [0, 0, 9.8]) =>
    readCsv(pieces(text, 999), "'mine.csv'", { ...FORM, preprocessing: { ...preprocessing, mean } });
  const [metres, g, said] = [await read(rows("", 9.80665)), await read(rows("", 1)), await read(rows(" [g]", 1))];
  assert.deepEqual(metres.hints, []);
  assert.match(g.hints.join(), /acc_x, acc_y, acc_z look like g by their length: taken times 9\.8066/);
  assert.doesNotMatch(said.hints.join(), /by their length/);
  for (const [at, { x }] of metres.blocks.entries()) {
    for (const other of [g, said]) x.forEach((value, k) => assert.ok(Math.abs(other.blocks[at]!.x[k]! - value) < 1e-5));
  }
  assert.deepEqual((await read(rows("", 1), [0, 0, 0.1])).hints, []); // without gravity nothing is told
});

test("readings are brought to the units that the bundle says, as Python has it", async () => {
  for (const { units, text, x } of GOLDEN.units) {
    const form = { ...FORM, preprocessing: { ...BOTH, mean: [0], std: [1], units } };
    const { blocks } = await readCsv(pieces(text, 1 << 16), "'mine.csv'", form);
    const found = Float32Array.from(blocks.flatMap((block) => [...block.x]));
    assert.ok(difference(found, floats(x)) <= 1e-4, `${units.join(" ")}: ${text.split("\n")[0]}`);
  }
});

test("a word with other letters than English ones is no column of times by its first", async () => {
  const rows = Array.from({ length: 200 }, (_, k) => `5,${k % 3},1,2`);
  assert.match((await hints(["Tätigkeit,ax,ay,gx", ...rows].join("\n"))).join(), /20/); // Hz, as without times
});
