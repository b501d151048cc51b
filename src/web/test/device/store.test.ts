import assert from "node:assert/strict";
import type { Server } from "node:http";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";

import type { Page } from "playwright-core";

import { findChromium, servePage, TestBrowser } from "../browser.ts";
import type { StoreSteps } from "./store_page.ts";

declare const steps: StoreSteps;

describe("store", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  let browser: TestBrowser;
  let server: Server;
  let url: string;
  /** What the store says before each step and behind the last one. */
  let states: string[];

  async function page(): Promise<Page> {
    const opened = await browser.open(url);
    await opened.waitForFunction(() => document.title === "ready");
    return opened;
  }

  async function look(name: string): Promise<string> {
    const opened = await page();
    const found = await opened.evaluate((it) => steps.look(it), name);
    await opened.close();
    return found;
  }

  before(async () => {
    ({ url, server } = await servePage(fileURLToPath(new URL("store_page.ts", import.meta.url))));
    browser = new TestBrowser();
    await browser.start();
    const opened = await page();
    states = await opened.evaluate(async () => {
      const found = [];
      for (let last = 0; last <= steps.count; last += 1) {
        await steps.upTo(`plain-${last}`, last);
        found.push(await steps.look(`plain-${last}`));
      }
      return found;
    });
    await opened.close();
  });

  after(async () => {
    await browser.close();
    server.close();
  });

  test("every step leaves contents that are whole, and a key that signs and cannot be read", () => {
    for (const state of states) {
      const { whole, signs } = JSON.parse(state) as { whole: boolean; signs: boolean };
      assert.deepEqual([whole, signs], [true, true], state);
    }
    assert.equal(new Set(states).size, states.length);
  });

  test("a page killed within any step leaves the store before or after it", async () => {
    /** Whether the step is in the store of a page that was killed so long after it began. */
    async function killed(step: number, wait: number) {
      const name = `killed-${step}-${wait}`;
      const opened = await page();
      await opened.evaluate(([it, last]) => steps.upTo(it, last), [name, step] as const);
      const session = await browser.context.newCDPSession(opened);
      const begun = opened.evaluate(([it, at]) => steps.begin(it, at), [name, step] as const).catch(() => {});
      // On a fast machine the step is over before its beginning is told.
      if (wait >= 0) await begun;
      await sleep(wait);
      session.send("Page.crash").catch(() => {});
      await opened.waitForEvent("crash");
      await opened.close();
      const behind = states.indexOf(await look(name)) - step;
      assert.ok(behind === 0 || behind === 1, `step ${step}, ${wait} ms`);
      return behind;
    }

    const found = new Set<number>();
    for (let step = 0; step < states.length - 1; step += 1) {
      for (const wait of [0, 20]) found.add(await killed(step, wait));
    }
    // On a busy machine 20 ms are too few for any step, on a fast one 0 ms too many.
    for (let wait = 80; !found.has(1) && wait < 20_000; wait *= 4) found.add(await killed(states.length - 2, wait));
    for (let step = 0; !found.has(0) && step < states.length - 1; step += 1) found.add(await killed(step, -1));
    assert.equal(found.size, 2, "killed too early or too late each time");
  });

  test("what was committed is there when the browser is killed", async () => {
    for (const step of [4, 7]) {
      const name = `browser-${step}`;
      const opened = await page();
      await opened.evaluate(([it, last]) => steps.upTo(it, last), [name, step] as const);
      await opened.evaluate(([it, at]) => steps.begin(it, at), [name, step] as const);
      await browser.kill();
      await browser.start();
      assert.ok(states.slice(step, step + 2).includes(await look(name)), `step ${step}`);
    }
  });

  test("a store that the browser deletes is told of", async () => {
    const opened = await page();
    await opened.evaluate(async () => {
      await steps.upTo("cleared", 8);
      await steps.watch("cleared");
    });
    const session = await browser.context.newCDPSession(opened);
    await session.send("Storage.clearDataForOrigin", { origin: new URL(url).origin, storageTypes: "indexeddb" });
    await opened.waitForFunction(() => document.title === "lost");
    assert.match(await opened.evaluate(() => steps.readWatched()), /the browser has deleted .* ask for a new invitation/);
    assert.equal(await opened.evaluate(() => steps.look("cleared")), states[0]);
  });
});
