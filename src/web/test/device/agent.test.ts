import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { findChromium, servePage, TestBrowser } from "../browser.ts";

declare const cases: string[];
declare const play: (name: string) => Promise<void>;

test("agent", { skip: findChromium() === null && "no Chromium is installed" }, async (context) => {
  const { url, server } = await servePage(fileURLToPath(new URL("agent_page.ts", import.meta.url)));
  const browser = new TestBrowser();
  context.after(async () => {
    await browser.close();
    server.close();
  });
  await browser.start();
  const page = await browser.open(url);
  await page.waitForFunction(() => document.title === "ready");
  const names = await page.evaluate(() => cases);
  assert.ok(names.length > 10);
  for (const name of names) await context.test(name, () => page.evaluate((it) => play(it), name));
});
