import assert from "node:assert/strict";
import { test } from "node:test";

import { readNpz } from "../../src/intake/npz.ts";
import { GOLDEN } from "./golden.ts";

function fileOf(name: string): Uint8Array {
  return new Uint8Array(Buffer.from(GOLDEN.npz.find((one) => one.name === name)!.file, "base64"));
}

for (const golden of GOLDEN.npz) {
  test(`${golden.name}: as NumPy reads it`, async () => {
    const arrays = await readNpz(fileOf(golden.name), "'mine.npz'", ["x", "absent"]);
    assert.deepEqual([...arrays.keys()], ["x"]);
    const { shape, values } = arrays.get("x")!;
    assert.deepEqual(shape, golden.shape);
    const expected = golden.text ? golden.values : golden.values.map((text) => Number(text.replace("inf", "Infinity")));
    assert.deepEqual([...values], expected);
  });
}

for (const name of ["float32, stored", "float32, deflated"]) {
  test(`${name}: no altered byte of the array goes through, and none is read beyond the file`, async () => {
    const file = fileOf(name);
    const plain = (await readNpz(file, "'mine.npz'", ["x"])).get("x");
    for (let at = 0; at < file.length; at += 1) {
      const altered = file.slice();
      altered[at]! ^= 0x41;
      try {
        const found = (await readNpz(altered, "'mine.npz'", ["x"])).get("x");
        if (found !== undefined) assert.deepEqual(found, plain);
      } catch (error) {
        assert.equal((error as Error).name, "InputError", `byte ${at}: ${(error as Error).message}`);
      }
    }
  });
}

test("files that are no archives, or cut short, are refused by a sentence", async () => {
  const file = fileOf("float32, deflated");
  for (const size of [0, 10, 21, 22, file.length - 30, file.length - 1]) {
    await assert.rejects(readNpz(file.subarray(0, size), "'mine.npz'", ["x"]), { name: "InputError" });
  }
});
