/** The page as built, in Chromium: what its starts transfer, and a start without a network. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";

import { serveStatic, type StaticServer } from "../../e2e/static_server.ts";
import { findChromium } from "../browser.ts";

const PAGE = join(import.meta.dirname, "../../../protofleet/hub/page");
const path = findChromium();
const skip = path !== null && existsSync(join(PAGE, "index.html")) ? false : "needs Chromium and npm run build";

let [server, browser, context]: [StaticServer, Browser, BrowserContext] = [] as never;
const problems: string[] = [];

before(async () => {
  if (skip) return;
  server = await serveStatic(PAGE, (path) => (path === "/federation.json" ? '{"federation": "f", "keys": true}' : null));
  const args = ["--no-sandbox", "--host-resolver-rules=MAP hub.example 127.0.0.1"];
  browser = await chromium.launch({ executablePath: path!, args });
  context = await browser.newContext();
});

after(async () => {
  await browser?.close();
  await server?.close();
});

async function open(): Promise<Page> {
  const page = await context.newPage();
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  await page.goto(server.url);
  await page.getByText("Or paste the invitation").waitFor();
  return page;
}

/** As the device's worker asks for it when a model comes. */
async function fetchRuntime(page: Page): Promise<number> {
  return page.evaluate(async () => {
    const scripts = await (await fetch("/service_worker.js")).text();
    const [path] = /\/assets\/ort-wasm[\w.-]+\.wasm/.exec(scripts)!;
    const module = await WebAssembly.compileStreaming(fetch(path));
    return WebAssembly.Module.exports(module).length;
  });
}

test("a first start, with the runtime, stays within 4.5 MB", { skip }, async () => {
  const page = await open();
  await page.evaluate(() => navigator.serviceWorker.ready);
  assert.ok(await page.evaluate(() => navigator.serviceWorker.controller !== null), "the service worker keeps what is fetched");
  assert.ok((await fetchRuntime(page)) > 10);
  const sent = server.takeSent();
  assert.ok(sent > 1e6 && sent <= 4.5e6, `sent ${sent} bytes`);
  await page.waitForFunction(async () => {
    const names = await caches.keys();
    const paths = (await Promise.all(names.map(async (name) => (await caches.open(name)).keys()))).flat();
    return paths.some(({ url }) => url.endsWith(".wasm"));
  });
  await page.close();
});

test("a second start stays within 50 kB, the runtime included", { skip }, async () => {
  server.takeSent();
  const page = await open();
  await fetchRuntime(page);
  const sent = server.takeSent();
  assert.ok(sent <= 50_000, `sent ${sent} bytes`);
  await page.close();
});

test("over plain http from another machine it says what to do, and starts nothing", { skip }, async () => {
  const page = await context.newPage();
  await page.goto(server.url.replace("localhost", "hub.example"));
  await page.getByRole("heading", { name: "This page needs a secure address" }).waitFor();
  assert.deepEqual(await page.getByRole("listitem").count(), 3);
  assert.equal(await page.getByRole("link", { name: "The federation's authority" }).getAttribute("href"), "/ca.pem");
  assert.deepEqual(page.workers(), []);
  await page.close();
});

test("it starts without a network, and its device answers", { skip }, async () => {
  await server.close();
  const page = await open();
  assert.equal(await page.locator(".state").textContent(), "Not joined");
  await page.close();
});

test("nothing broke the page's security policy, and nothing else went wrong", { skip }, () => {
  // The hub is gone in the last start.
  assert.deepEqual(problems.filter((text) => !text.includes("ERR_CONNECTION_REFUSED")), []);
});
