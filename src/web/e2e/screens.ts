/**
 * Takes a picture of every screen, light and dark, at 360 and 1280 pixels, and runs axe-core on each.
 *
 *     node --import tsx e2e/screens.ts FOLDER [PATTERN]
 *
 * The page must have been built. Ends with status 1 if there is a violation or an error in a page.
 */

import { mkdirSync } from "node:fs";
import { basename, join } from "node:path";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";

import type { Status } from "../src/device/page_messages.ts";
import { DEVICE } from "../src/texts.ts";
import { violations } from "./axe.ts";
import { at, BEFORE, DIGITS, JOINED, MOVED, script, TRAINING } from "./scripted_worker.ts";
import { serveStatic } from "./static_server.ts";

interface Picture {
  readonly name: string;
  readonly status: Status;
  /** Behind the address, such as a section or an invitation. */
  readonly hash?: string;
  readonly prepare?: (context: BrowserContext) => Promise<unknown>;
  readonly act?: (page: Page) => Promise<void>;
}

const INVITATION = "#protofleet:AQPKLcVVet8cY_FamExmFNbsCLE0NNhmlUaTOTSKTg4JvcW2ClbIi8X74cxF";
const DIGITS_STATUS: Status = { ...TRAINING, bundle: DIGITS, exampleCounts: [4, 6, 3, 0, 2, 5, 1, 4, 3, 2], federation: "Kitchen table" };

const press = (name: string | RegExp) => (page: Page) => page.getByRole("button", { name }).click();

const PICTURES: readonly Picture[] = [
  { name: "lacking-https", status: BEFORE, prepare: pretend("isSecureContext", "window", "false") },
  { name: "lacking-parts", status: BEFORE, prepare: (context) => context.addInitScript("WebAssembly.validate = () => false; delete Navigator.prototype.locks") },
  { name: "join", status: BEFORE },
  { name: "join-scan", status: BEFORE, prepare: (context) => context.addInitScript("globalThis.BarcodeDetector = class { static async getSupportedFormats() { return ['qr_code'] } async detect() { return [] } }") },
  { name: "join-open", status: BEFORE, act: (page) => page.getByText("Another broker").click() },
  { name: "join-carried", status: BEFORE, hash: INVITATION },
  { name: "join-refused", status: BEFORE, hash: INVITATION, act: press("Join this federation") },
  { name: "enrolling", status: { ...BEFORE, phase: "enrolling", detail: "Waiting for an answer, 12 s so far." } },
  { name: "fetching", status: { ...JOINED, phase: "fetching-bundle", bundle: null } },
  { name: "needs-examples", status: JOINED },
  { name: "connecting", status: at("connecting", { detail: "The hub does not answer. Next try in 8 s." }) },
  { name: "waiting", status: at("waiting", { round: 7 }) },
  { name: "trying-rates", status: at("calibrate", { round: 0, history: [], inUse: null, lastSent: [], progress: 0.4 }) },
  { name: "training", status: TRAINING },
  { name: "training-first", status: at("train", { round: 1, progress: 0.08, history: [], lastSent: [] }) },
  { name: "training-one", status: at("waiting", { round: 1, history: TRAINING.history.slice(0, 1) }) },
  { name: "training-table", status: TRAINING, act: (page) => page.getByText("As a table").click() },
  { name: "paused", status: at("paused", { pausedBy: "owner", detail: DEVICE.paused }) },
  { name: "paused-policy", status: at("paused", { pausedBy: "policy", detail: DEVICE.notCharging }) },
  { name: "finished", status: at("finished", { round: 20, detail: "" }) },
  { name: "finished-before", status: at("finished", { round: 20, history: [], lastSent: [] }) },
  { name: "moved", status: at("waiting", { round: 0, moved: MOVED }), act: (page) => page.getByText("What became of each part").click() },
  { name: "left", status: at("left") },
  { name: "failed", status: at("failed", { detail: "bundle 'activities-of-the-day': signed by 0f3c9a1be2d47788, this phone trusts 71ab04c2d9e65f30 since it joined; ask whoever runs the federation, and delete everything in the settings if the change is meant" }) },
  { name: "other-tab", status: { ...BEFORE, phase: "other-tab" } },
  { name: "data-empty", status: JOINED, hash: "#/data" },
  { name: "data-sensors", status: TRAINING, hash: "#/data", act: (page) => page.getByText("What is assumed").click() },
  { name: "data-recording", status: TRAINING, hash: "#/data", act: record },
  { name: "data-live", status: TRAINING, hash: "#/data", act: live },
  { name: "data-draw", status: DIGITS_STATUS, hash: "#/data" },
  { name: "data-drawn", status: DIGITS_STATUS, hash: "#/data", act: draw },
  { name: "data-file", status: TRAINING, hash: "#/data", act: (page) => page.getByRole("tab", { name: "File" }).click() },
  { name: "data-file-refused", status: TRAINING, hash: "#/data", act: wrongFile },
  { name: "data-file-hint", status: TRAINING, hash: "#/data", act: doubtfulFile },
  { name: "data-files", status: TRAINING, hash: "#/data", act: severalFiles },
  { name: "data-clear", status: TRAINING, hash: "#/data", act: press("Delete all examples") },
  { name: "sent-empty", status: JOINED, hash: "#/sent" },
  { name: "sent", status: TRAINING, hash: "#/sent" },
  { name: "settings", status: { ...TRAINING, policy: { onlyCharging: true, onlyUnmetered: false } }, hash: "#/settings" },
  { name: "settings-forget", status: TRAINING, hash: "#/settings", act: press("Delete everything") },
];

function pretend(property: string, of: string, value: string) {
  return (context: BrowserContext) => context.addInitScript(`Object.defineProperty(${of}, "${property}", { value: ${value} })`);
}

/** Presses the button, and gives readings of a phone that is carried about by the browser's own override. */
async function moveSensors(page: Page, button: string, readings: number): Promise<void> {
  const line = await page.context().newCDPSession(page);
  for (const type of ["accelerometer", "linear-acceleration", "gyroscope"] as const) {
    await line.send("Emulation.setSensorOverrideEnabled", { enabled: true, type });
  }
  await page.getByRole("button", { name: button }).click();
  for (let k = 0; k < readings; k++) {
    const swing = Math.sin(k / 3);
    await line.send("Emulation.setSensorOverrideReadings", { type: "accelerometer", reading: { xyz: { x: 2 * swing, y: 9 + swing, z: 1 } } });
    await line.send("Emulation.setSensorOverrideReadings", { type: "linear-acceleration", reading: { xyz: { x: swing, y: swing, z: 0 } } });
    await line.send("Emulation.setSensorOverrideReadings", { type: "gyroscope", reading: { xyz: { x: swing, y: 0.1, z: 0 } } });
    await page.waitForTimeout(40);
  }
}

async function record(page: Page): Promise<void> {
  await page.getByRole("radio", { name: "walking" }).check({ force: true });
  await moveSensors(page, "Start", 60);
}

async function live(page: Page): Promise<void> {
  await moveSensors(page, "What do I do now?", 120);
}

async function draw(page: Page): Promise<void> {
  const pad = page.locator(".pad");
  await pad.scrollIntoViewIfNeeded();
  const box = (await pad.boundingBox())!;
  const at = (x: number, y: number) => [box.x + x * box.width, box.y + y * box.height] as const;
  const points = [[0.3, 0.3], [0.45, 0.2], [0.62, 0.25], [0.64, 0.4], [0.5, 0.5], [0.65, 0.6], [0.64, 0.78], [0.45, 0.85], [0.3, 0.75]];
  await page.mouse.move(...at(points[0]![0]!, points[0]![1]!));
  await page.mouse.down();
  for (const [x, y] of points) await page.mouse.move(...at(x!, y!), { steps: 3 });
  await page.mouse.up();
  await page.getByRole("radio", { name: "3" }).check({ force: true });
}

async function wrongFile(page: Page): Promise<void> {
  await page.getByRole("tab", { name: "File" }).click();
  await page.locator("input[type=file]").setInputFiles({
    name: "walk.csv", mimeType: "text/csv", buffer: Buffer.from("time_s,Acc_X,Acc_Y,Acc_Z,Gyro_X,Gyro_Y,Gyro_Z,label\n0,1,2,3,4,5,6,walking\n"),
  });
}

async function doubtfulFile(page: Page): Promise<void> {
  await page.getByRole("tab", { name: "File" }).click();
  const rows = Array.from({ length: 400 }, (_, k) => `${k * 0.02},1,2,${k % 3},4,5,6,walking`);
  await page.locator("input[type=file]").setInputFiles({
    name: "walk.csv", mimeType: "text/csv",
    buffer: Buffer.from(["Timestamp,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z,label", ...rows].join("\n")),
  });
  await page.getByText("examples added").waitFor();
}

async function severalFiles(page: Page): Promise<void> {
  await page.getByRole("tab", { name: "File" }).click();
  const rows = Array.from({ length: 400 }, (_, k) => `${k * 20},0,${(k % 3) / 10},1`);
  const table = (axes: string): Buffer => Buffer.from([`time_ms,${axes}`, ...rows].join("\n"));
  await page.locator("input[type=file]").setInputFiles([
    { name: "Accelerometer.csv", mimeType: "text/csv", buffer: table("x,y,z") },
    { name: "Gyroscope.csv", mimeType: "text/csv", buffer: table("x,y,z") },
    { name: "Annotation.csv", mimeType: "text/csv", buffer: Buffer.from("time_ms,text\n0,walking\n") },
    { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("what I did\n") },
  ]);
  await page.getByText("examples added").first().waitFor();
}

/** As tall as its content, so that what is fixed to the screen's edges stands at them. */
async function showAll(page: Page, width: number): Promise<void> {
  await page.evaluate("scrollTo(0, 0)");
  const height = Number(await page.evaluate("document.documentElement.scrollHeight"));
  await page.setViewportSize({ width, height: Math.max(height, page.viewportSize()!.height) });
  await page.waitForTimeout(100);
}

async function take(browser: Browser, url: string, picture: Picture, file: string, dark: boolean, width: number): Promise<string[]> {
  const context = await browser.newContext({
    viewport: { width, height: width < 700 ? 740 : 860 },
    colorScheme: dark ? "dark" : "light",
    deviceScaleFactor: width < 700 ? 2 : 1,
    isMobile: width < 700, hasTouch: width < 700,
    reducedMotion: "reduce",
  });
  await context.addInitScript("delete Navigator.prototype.serviceWorker"); // a script in the worker's place is not to be kept
  const problems: string[] = [];
  const name = basename(file);
  await picture.prepare?.(context);
  const page = await context.newPage();
  page.on("pageerror", (error) => problems.push(`${name}: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && problems.push(`${name}: ${message.text()}`));
  await page.goto(`${url}/${picture.hash ?? ""}`);
  await page.locator("main h1, main h2").first().waitFor();
  await page.waitForTimeout(150);
  await picture.act?.(page);
  await page.waitForTimeout(150);
  problems.push(...(await violations(page)).map((line) => `${name}: ${line}`));
  const wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth");
  if (Number(wide) > 0) problems.push(`${name}: ${wide} pixels wider than the screen`);
  await showAll(page, width);
  await page.screenshot({ path: `${file}.png` });
  await context.close();
  return problems;
}

async function main(): Promise<void> {
  const [folder = "screens", pattern = ""] = process.argv.slice(2);
  const wanted = new RegExp(pattern);
  mkdirSync(folder, { recursive: true });
  let status = BEFORE;
  const root = join(import.meta.dirname, "../../protofleet/hub/page");
  const federation = JSON.stringify({ federation: "kitchen-table", keys: false });
  let open = false;
  const server = await serveStatic(root, (path) => {
    if (path === "/federation.json") return open ? federation : "{}";
    return /^\/assets\/worker-/.test(path) ? script(status) : null;
  });
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
  const problems: string[] = [];
  for (const picture of PICTURES) {
    [status, open] = [picture.status, picture.name === "join-open"];
    for (const width of [360, 1280]) {
      for (const dark of [false, true]) {
        const name = `${picture.name}-${dark ? "dark" : "light"}-${width}`;
        if (wanted.test(name)) problems.push(...(await take(browser, server.url, picture, join(folder, name), dark, width)));
      }
    }
  }
  await browser.close();
  await server.close();
  console.log(problems.length > 0 ? problems.join("\n") : `${folder}: no problems`);
  process.exitCode = problems.length > 0 ? 1 : 0;
}

await main();
