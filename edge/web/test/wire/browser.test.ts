import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";
import { chromium } from "playwright-core";

import { Mosquitto, bridge } from "./brokers.ts";
import type { Order } from "./browser_device.ts";
import { CoordinatorEnd } from "./coordinator_end.ts";

const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const ROUNDS = 3;

/** A page that may start one worker and reach one WebSocket, as strictly as the hub says it. */
async function pageWith(t: TestContext, worker: Uint8Array, broker: string): Promise<string> {
  const server = createServer((request, response) => {
    response.setHeader("Content-Security-Policy", `default-src 'self'; connect-src ${broker}`);
    const script = request.url === "/worker.js";
    response.setHeader("Content-Type", script ? "text/javascript" : "text/html");
    response.end(script ? worker : "<!doctype html><title>test</title>");
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}

const skip = existsSync(CHROMIUM) ? false : "needs Chromium: apt install chromium, or CHROMIUM=/its/path";

test("rounds go down and up in a browser's worker, sealed", { skip, timeout: 60_000 }, async (t) => {
  const entry = fileURLToPath(new URL("browser_device.ts", import.meta.url));
  const made = await build({ entryPoints: [entry], bundle: true, format: "esm", write: false });
  const broker = await Mosquitto.start();
  t.after(() => broker.stop());
  const end = await CoordinatorEnd.start(`mqtt://127.0.0.1:${broker.tcpPort}`, true);
  t.after(() => end.stop());
  const url = await bridge(t, broker);
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
  t.after(() => browser.close());
  const page = await browser.newPage();
  const complaints: string[] = [];
  page.on("console", (line) => complaints.push(line.text()));
  await page.goto(await pageWith(t, made.outputFiles[0]!.contents, url));
  const order: Order = { url, rounds: ROUNDS, credentials: end.credentials! };
  const seen = page.evaluate(
    (given) =>
      new Promise<string[]>((resolve, reject) => {
        const worker = new Worker("/worker.js", { type: "module" });
        worker.onmessage = ({ data }: MessageEvent<string[]>) => resolve(data);
        worker.onerror = ({ message }) => reject(new Error(message));
        worker.postMessage(given);
      }),
    order,
  );
  await Promise.race([end.next("presence"), seen.then((kinds) => assert.fail(kinds.join()))]);
  for (let round = 1; round <= ROUNDS; round += 1) {
    const begun = performance.now();
    end.order({ task: round, bytes: 1_000_000 });
    const update = await end.next("update");
    t.diagnostic(`1 MB down and up: ${((performance.now() - begun) / 1000).toFixed(2)} s`);
    assert.deepEqual([update["round_id"], update["good"]], [round, true]);
  }
  const each = ["message", "received", "delivered"];
  assert.deepEqual(await seen, ["connected", "message", ...each, ...each, ...each]);
  assert.equal((await end.next("presence"))["status"], "left");
  assert.deepEqual(complaints, []);
});
