import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { TestBrowser, findChromium, servePage } from "../browser.ts";
import { Mosquitto, bridge, withoutMosquitto } from "./brokers.ts";
import type { Order } from "./browser_device.ts";
import { CoordinatorEnd } from "./coordinator_end.ts";

const ROUNDS = 3;
const skip = findChromium() === null ? "no Chromium is installed" : withoutMosquitto;

test("rounds go down and up in a browser's worker, sealed", { skip, timeout: 60_000 }, async (t) => {
  const { url: pageUrl, server } = await servePage(fileURLToPath(new URL("browser_device.ts", import.meta.url)));
  t.after(() => server.close());
  const broker = await Mosquitto.start();
  t.after(() => broker.stop());
  const end = await CoordinatorEnd.start(`mqtt://127.0.0.1:${broker.tcpPort}`, true);
  t.after(() => end.stop());
  const url = await bridge(t, broker);
  const browser = new TestBrowser();
  t.after(() => browser.close());
  await browser.start();
  const page = await browser.open(pageUrl);
  const complaints: string[] = [];
  page.on("console", (line) => complaints.push(line.text()));
  const order: Order = { url, rounds: ROUNDS, credentials: end.credentials! };
  const seen = page.evaluate(
    (given) =>
      new Promise<string[]>((resolve, reject) => {
        const worker = new Worker("/page.js", { type: "module" });
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
