/**
 * A federation of ONNX Runtime, LiteRT and browsers against the same one of ONNX Runtime alone.
 *
 * The model is that of `protofleet demo`, a transformer, for FedAli with prototype layers.
 */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { cp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { findChromium, TestBrowser } from "../test/browser.ts";
import { Federation, type PhoneExamples, runScript } from "./federation.ts";
import { Phone } from "./phone.ts";

const BACKENDS = ["onnx", "onnx", "litert", "browser", "browser"];
const NAMES = BACKENDS.map((_, k) => `device-0${k + 1}`);
const ROUNDS = 3;
const ROUNDS_MS = 600_000;
/**
 * Of the servers' change. Rounding makes some 1e-5. Where two tokens pull a prototype almost alike, rounding
 * decides which one does, and moves the prototype by a thousandth of their distance.
 */
const LIMITS: Readonly<Record<string, number>> = { parameters: 1e-4, prototypes: 1e-2 };
/**
 * Not Adam: a gradient that is zero but for rounding, such as that of the keys' biases in attention, makes
 * whole steps there, in a direction that each runtime's rounding errors choose. Not 0.05: such steps jump
 * over this pretrained model's minimum, which multiplies every difference by up to ten at each.
 */
const [EPOCHS, LR] = [2, 0.001];
const SETTINGS = `{epochs = ${EPOCHS}, optimiser = {kind = "sgd", lr = ${LR}}}`;

/** What `tests/web/mixed_rounds.py` says of a round: of each kind of tensors how far it is apart. */
type Compared = Readonly<{ round: number } & Record<string, number>>;

/** Runs the mixed federation, and compares it with ONNX Runtime alone. */
async function compare(prepared: string, strategy: string): Promise<Compared[]> {
  const phones = NAMES.filter((_, k) => BACKENDS[k] === "browser");
  const devices = NAMES.filter((name) => !phones.includes(name));
  const federation = new Federation({
    rounds: ROUNDS, devices, phones, bundle: "bundle.pfb",
    prepare: (folder) => cp(prepared, folder, { recursive: true }),
    settings: `limits = {keep_states = ${ROUNDS + 1}}\nstrategy = {name = "${strategy}", settings = ${SETTINGS}}\n`,
  });
  const browsers = phones.map(() => new TestBrowser());
  try {
    await federation.start();
    const coordinator = federation.startCoordinator();
    await federation.startDevices((name) => ["--backend", BACKENDS[NAMES.indexOf(name)]!]);
    await Promise.all(phones.map((name, k) => takePart(federation, browsers[k]!, name)));
    assert.equal(await coordinator.finish(ROUNDS_MS), 0, coordinator.log);
    assert.deepEqual(federation.participants, Array(ROUNDS).fill(NAMES.length));
    const told = await runScript("mixed_rounds.py", federation.folder, strategy, JSON.stringify({ epochs: EPOCHS, optimiser: { kind: "sgd", lr: LR } }), ...NAMES);
    return told.trim().split("\n").map((line) => JSON.parse(line) as Compared);
  } finally {
    for (const browser of browsers) await browser.close();
    await federation.close();
  }
}

async function takePart(federation: Federation, browser: TestBrowser, name: string): Promise<void> {
  await browser.start();
  const phone = await Phone.open(browser, federation);
  await phone.until(({ phase }) => phase === "needs-invitation");
  await phone.send({ kind: "enrol", invitation: federation.invitation(name) });
  await phone.until(({ phase }) => phase === "needs-examples");
  const parts = JSON.parse(readFileSync(join(federation.folder, `${name}.json`), "utf-8")) as PhoneExamples[];
  for (const part of parts) await phone.addExamples(part);
}

describe("ONNX Runtime, LiteRT and browsers in one federation", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  for (const name of ["fedavg", "fedali"]) {
    describe(name, () => {
      const prepared = mkdtempSync(join(tmpdir(), "protofleet-mixed-"));
      before(() => runScript("mixed_files.py", prepared, name, ...NAMES));
      after(() => rmSync(prepared, { recursive: true }));

      test("the server learns what it learns of ONNX Runtime alone", async (context) => {
        const rounds = await compare(prepared, name);
        assert.deepEqual(rounds.map(({ round }) => round), [1, 2, 3]);
        for (const { round, ...kinds } of rounds) {
          for (const [kind, apart] of Object.entries(kinds)) {
            context.diagnostic(`${name}, round ${round}, ${kind}: apart by ${apart.toExponential(1)} of their change`);
            assert.ok(apart < LIMITS[kind]!, `round ${round}: ${kind} are ${apart} of their change apart`);
          }
        }
        assert.ok(rounds[0]!["parameters"]! > 0, "no other runtime has taken part");
      });
    });
  }
});
