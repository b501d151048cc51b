/** What a person does on the page, in Chromium, before a worker that follows a script. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";

import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";

import type { Command, Status } from "../../src/device/page_messages.ts";
import { violationsInBothColours } from "../../e2e/axe.ts";
import { at, BEFORE, DIGITS, MOVED, script, TRAINING } from "../../e2e/scripted_worker.ts";
import { serveStatic, type StaticServer } from "../../e2e/static_server.ts";
import { DEVICE, PHASES } from "../../src/texts.ts";
import { findChromium } from "../browser.ts";

const PAGE = join(import.meta.dirname, "../../../protofleet/hub/page");
const path = findChromium();
const skip = path !== null && existsSync(join(PAGE, "index.html")) ? false : "needs Chromium and npm run build";

let [server, browser, context]: [StaticServer, Browser, BrowserContext | null] = [] as never;
let status: Status = BEFORE;

before(async () => {
  if (skip) return;
  server = await serveStatic(PAGE, (asked) => {
    if (asked === "/federation.json") return "{}";
    return /^\/assets\/worker-/.test(asked) ? script(status) : null;
  });
  browser = await chromium.launch({ executablePath: path!, args: ["--no-sandbox"] });
});

afterEach(async () => {
  try {
    for (const page of context?.pages() ?? []) assert.deepEqual(await violationsInBothColours(page), []);
  } finally {
    await context?.close();
    context = null;
  }
});

after(async () => {
  await browser?.close();
  await server?.close();
});

/** Opens the page in a new profile; what it sends to the worker is kept in `window.commands`. */
async function open(shown: Status, hash = ""): Promise<Page> {
  status = shown;
  context = await browser.newContext({ viewport: { width: 360, height: 740 } });
  await context.addInitScript("delete Navigator.prototype.serviceWorker"); // a script in the worker's place is not to be kept
  await context.addInitScript(() => {
    const { postMessage } = Worker.prototype;
    const commands: unknown[] = [];
    Object.assign(window, { commands });
    Worker.prototype.postMessage = function (this: Worker, message: unknown): void {
      commands.push(message);
      postMessage.call(this, message);
    };
  });
  const page = await context.newPage();
  await page.goto(`${server.url}/${hash}`);
  await page.locator("main h1").first().waitFor();
  return page;
}

/** Commands of a kind that the page has sent, with plain numbers. */
async function sent(page: Page, kind: Command["kind"]): Promise<unknown[]> {
  return page.evaluate((wanted) => {
    const all = (window as unknown as { commands: { kind: string }[] }).commands.filter((one) => one.kind === wanted);
    return JSON.parse(JSON.stringify(all, (_, value: unknown) =>
      ArrayBuffer.isView(value) ? Array.from(value as unknown as Iterable<number | bigint>, Number) : value)) as unknown[];
  }, kind);
}

interface Added {
  readonly examples: {
    readonly x: { readonly shape: number[]; readonly data: number[] };
    readonly y: { readonly dtype: string; readonly data: number[] };
    readonly follows: boolean[] | null;
    readonly part: string;
  };
}

test("an invitation in the address is taken out of it, and used by a tap alone", { skip }, async () => {
  const page = await open(BEFORE, "#protofleet:AQPK_x-1");
  assert.equal(new URL(page.url()).hash, "");
  assert.deepEqual(await sent(page, "enrol"), []);
  await page.getByRole("button", { name: "Join this federation" }).click();
  assert.deepEqual(await sent(page, "enrol"), [{ kind: "enrol", invitation: "protofleet:AQPK_x-1" }]);
  await page.getByRole("alert").getByText("ask for a new one").waitFor();
});

test("a pasted address is an invitation, other text is not", { skip }, async () => {
  const page = await open(BEFORE);
  await page.getByLabel("Or paste the invitation").fill("see you at eight");
  await page.getByRole("button", { name: "Join", exact: true }).click();
  await page.getByText("Paste an invitation first").waitFor();
  await page.getByLabel("Or paste the invitation").fill("https://hub.example:8443/#protofleet:AQPK");
  await page.getByText("Another broker").click();
  await page.getByLabel("Address of the broker").fill("wss://broker.example:9001");
  await page.getByRole("button", { name: "Join", exact: true }).click();
  assert.deepEqual(await sent(page, "enrol"), [
    { kind: "enrol", invitation: "protofleet:AQPK", broker: "wss://broker.example:9001" },
  ]);
});

test("motion is recorded between start and stop, without its ends", { skip }, async () => {
  const page = await open(TRAINING, "#/data");
  const line = await page.context().newCDPSession(page);
  for (const type of ["accelerometer", "linear-acceleration", "gyroscope"] as const) {
    await line.send("Emulation.setSensorOverrideEnabled", { enabled: true, type });
  }
  const start = page.getByRole("button", { name: "Start" });
  assert.ok(await start.isDisabled());
  await page.getByRole("radio", { name: "sitting" }).check({ force: true });
  await start.click();
  const begun = Date.now();
  for (let k = 0; Date.now() - begun < 9500; k++) {
    const still = { x: 0, y: 0, z: (k % 2) * 1e-3 };
    for (const [type, xyz] of [["linear-acceleration", still], ["gyroscope", still], ["accelerometer", { ...still, z: 9.80665 + still.z }]] as const) {
      await line.send("Emulation.setSensorOverrideReadings", { type, reading: { xyz } });
    }
    await page.waitForTimeout(15);
  }
  await page.getByRole("button", { name: "Stop" }).click();
  const [added] = (await sent(page, "addExamples")) as Added[];
  const { x, y, follows, part } = added!.examples;
  assert.ok(y.data.length >= 1 && y.data.length <= 4, `${y.data.length} windows`);
  assert.deepEqual(x.shape, [y.data.length, 128, 6]);
  assert.ok(y.data.every((label) => label === 3) && y.dtype === "int64" && part === "both");
  assert.deepEqual(follows?.slice(1) ?? [], y.data.slice(1).map(() => true));
  // One g along z, in the bundle's normalisation.
  const z = x.data.filter((_, k) => k % 6 === 2);
  assert.ok(z.every((value) => Math.abs(value - (1 - 0.08) / 0.36) < 0.02), `${z[0]}`);
  await page.getByText(/^\d examples? added\.$/).waitFor();
});

test("a drawing becomes an example of the class that was said", { skip }, async () => {
  const page = await open(at("waiting", { bundle: DIGITS, exampleCounts: DIGITS.classes.map(() => 0) }), "#/data");
  const keep = page.getByRole("button", { name: "Keep it" });
  await keep.click();
  await page.getByText("Draw something first.").waitFor();
  const pad = page.locator(".pad");
  await pad.scrollIntoViewIfNeeded();
  const box = (await pad.boundingBox())!;
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 0.2 * box.height);
  await page.mouse.down();
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 0.8 * box.height, { steps: 8 });
  await page.mouse.up();
  await page.getByText(/^\d, \d+ %$/).waitFor();
  await keep.click();
  await page.getByText("Say what it is first.").waitFor();
  await page.getByRole("radio", { name: "1" }).check({ force: true });
  await keep.click();
  const [added] = (await sent(page, "addExamples")) as Added[];
  assert.deepEqual([added!.examples.x.shape, added!.examples.y.data], [[1, 1, 8, 8], [1]]);
  assert.ok(added!.examples.x.data.filter((value) => value > 0.5).length >= 8);
  assert.equal(await page.locator(".counts li").nth(1).innerText().then((text) => text.replace(/\s+/g, " ")), "1 1");
});

test("a file is read, and what is wrong with one is said", { skip }, async () => {
  const page = await open(at("waiting", { bundle: DIGITS, exampleCounts: DIGITS.classes.map(() => 0) }), "#/data");
  await page.getByRole("tab", { name: "Draw" }).focus();
  await page.keyboard.press("ArrowRight");
  const give = async (text: string) =>
    page.locator("input[type=file]").setInputFiles({ name: "mine.csv", mimeType: "text/csv", buffer: Buffer.from(text) });
  const row = Array.from({ length: 64 }, () => "0.5").join(",");
  const names = Array.from({ length: 64 }, (_, k) => `p${k}`).join(",");
  await give(`${names},label\n${row},4\n${row},\n${row.replace("0.5", "half")},9\n`);
  await page.getByRole("alert").getByText("line 4, column 1").waitFor();
  assert.deepEqual(await sent(page, "addExamples"), []);
  await give(`${names},label\n${row},4\n${row},\n${row},9\n`);
  await page.getByText("2 examples added. 1 without a label were left out.").waitFor();
  const [added] = (await sent(page, "addExamples")) as Added[];
  assert.deepEqual(added!.examples.y.data, [4, 9]);
});

test("what cannot be undone is asked before, and refused by Escape", { skip }, async () => {
  const page = await open(TRAINING, "#/settings");
  await page.getByRole("button", { name: "Delete everything" }).click();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Leave the federation" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Leave" }).click();
  await page.waitForFunction(() => document.querySelector("dialog") === null);
  assert.deepEqual([await sent(page, "forget"), await sent(page, "leave")], [[], [{ kind: "leave" }]]);
});

test("a pause by the policy is told, and not offered to be ended", { skip }, async () => {
  const page = await open(at("paused", { pausedBy: "policy", detail: DEVICE.notCharging }));
  await page.getByText("Waits until this phone is charging.").waitFor();
  assert.equal(await page.getByRole("button", { name: "Go on" }).isVisible(), false);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByRole("switch", { name: "Only while charging" }).waitFor();
});

test("what was kept when the bundle changed is told", { skip }, async () => {
  const page = await open(at("waiting", { round: 0, moved: MOVED }));
  await page.getByText("2 kept, 2 kept in part, 3 new, 1 dropped.").waitFor();
  await page.getByText("12 of 175 examples are set aside").waitFor();
  await page.getByText("What became of each part").click();
  await page.getByText("kept: params/norm.bias").waitFor();
});

test("which model answers is told with the reason, and the owner may choose", { skip }, async () => {
  const evidence = TRAINING.inUse!.evidence!;
  const said: readonly [Partial<Status>, string][] = [
    [{}, "On this phone your own model answers: yours has 85 %, the one that you started with 52 %, on 33 of your examples that neither has seen."],
    [{ inUse: { personal: false, evidence: { ...evidence, now: 0.5 } } }, "That is too little to show that yours helps."],
    [{ inUse: { personal: false, evidence: { ...evidence, examples: 0 } } }, "too few examples are kept back"],
    [{ inUse: { personal: true, evidence: { ...evidence, task: "regression", before: -12.5, now: -3 } } }, "yours has an error of 3.000, the one that you started with an error of 12.50"],
    [{ use: "bundle", inUse: { personal: false, evidence } }, "On this phone the model that you started with answers: you chose so in the settings."],
  ];
  for (const [more, text] of said) {
    const page = await open({ ...TRAINING, ...more });
    await page.getByText(text).waitFor();
    await context?.close();
  }
  const page = await open(TRAINING, "#/settings");
  assert.ok(await page.getByLabel("The one that is shown to be better for you").isChecked());
  await page.getByLabel("Always your own").check();
  assert.deepEqual(await sent(page, "use"), [{ kind: "use", use: "personal" }]);
});

test("policy, pause and sections", { skip }, async () => {
  const page = await open(TRAINING);
  await page.getByRole("button", { name: "Pause" }).click();
  assert.deepEqual(await sent(page, "pause"), [{ kind: "pause" }]);
  await page.getByRole("link", { name: "Settings" }).click();
  await page.waitForFunction(() => document.activeElement?.id === "content");
  await page.getByRole("switch", { name: "Only while charging" }).click();
  assert.deepEqual(await sent(page, "setPolicy"), [
    { kind: "setPolicy", policy: { onlyCharging: true, onlyUnmetered: false } },
  ]);
  assert.ok(await page.getByRole("switch", { name: "Only while charging" }).isChecked());
  await page.goBack();
  await page.getByRole("heading", { name: "Training on your examples" }).waitFor();
});

for (const [phase, detail] of [
  ["failed", "The bundle is signed by another key than before."], ["paused", "paused by you"], ["left", ""], ["other-tab", ""],
] as const) {
  const { title } = PHASES[phase];
  test(`the screen says: ${title}`, { skip }, async () => {
    const page = await open(at(phase, { detail }));
    await page.getByRole("heading", { name: title }).waitFor();
    await page.getByText(detail).first().waitFor();
  });
}
