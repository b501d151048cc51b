import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { type Bundle, openBundle } from "../../src/bundle/bundle.ts";
import { fateText, type Move, moveText, plan } from "../../src/device/move.ts";
import { ProvisionError } from "../../src/errors.ts";
import { STRATEGIES } from "../../src/strategies/index.ts";
import { decode } from "../../src/tensors/safetensors.ts";
import type { Tensors } from "../../src/tensors/tensors.ts";
import { writtenByPython } from "../python.ts";

interface Case {
  readonly strategy: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly change: string;
  /** Files of the bundles. */
  readonly old: string;
  readonly new: string;
  /** Why the state cannot move; null: it can. */
  readonly refused: string | null;
  readonly text: string;
  readonly tensors: readonly string[];
  readonly notes: readonly string[];
  /** File of what training starts from; null: nothing is kept. */
  readonly start: string | null;
}

const FOLDER = writtenByPython("golden_moves.py");
const { signer, cases }: { signer: string; cases: readonly Case[] } = JSON.parse(
  readFileSync(join(FOLDER, "cases.json"), "utf8"),
);

function bytesOf(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

function tensors(file: string): Tensors {
  const bytes = bytesOf(file);
  return decode(bytes, bytes.length).tensors;
}

const opened = new Map<string, Promise<Bundle>>();

function bundle(file: string): Promise<Bundle> {
  const found = opened.get(file) ?? openBundle(bytesOf(file), { trusted: [signer] });
  opened.set(file, found);
  return found;
}

function attempt(work: () => Move): Move | string {
  try {
    return work();
  } catch (error) {
    assert.ok(error instanceof ProvisionError, String(error));
    return error.message;
  }
}

test("every strategy of this device is among the Python devices' moves", () => {
  assert.deepEqual([...new Set(cases.map(({ strategy }) => strategy))].sort(), [...STRATEGIES.keys()].sort());
});

for (const change of new Set(cases.map((one) => one.change))) {
  test(`to a bundle with ${change}: a phone takes along what a Python device does, and says so`, async () => {
    for (const one of cases.filter((it) => it.change === change)) {
      const { strategy, settings, refused } = one;
      const [old, next] = [await bundle(one.old), await bundle(one.new)];
      const state = tensors(`${strategy}.safetensors`);
      const copy = structuredClone(state);
      const found = attempt(() => plan({ strategy, settings }, state, old, next));
      if (refused !== null || typeof found === "string") {
        // Which other strategies there are, each says of its own.
        const [said, expected] = [found, refused].map((it) => String(it).replace(/; use one of .*$/, ""));
        assert.equal(said, expected, strategy);
        continue;
      }
      assert.deepEqual(
        { text: moveText(found), tensors: found.tensors.map(fateText), notes: found.notes },
        { text: one.text, tensors: one.tensors, notes: one.notes },
        strategy,
      );
      assert.deepEqual(state, copy, "the state was written");
      // Maps are equal in any order.
      assert.deepEqual(found.start, one.start === null ? null : tensors(one.start), strategy);
    }
  });
}
