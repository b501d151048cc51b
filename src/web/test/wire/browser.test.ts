/** The wire's cryptography in a real browser is that of Node, whose golden bytes the other tests check. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { TestBrowser, findChromium, servePage } from "../browser.ts";
import { type Facts, facts } from "./browser_page.ts";

const skip = findChromium() === null ? "no Chromium is installed" : false;

test("a browser makes the same bytes and refuses the same as Node", { skip }, async () => {
  const { url, server } = await servePage(fileURLToPath(new URL("browser_page.ts", import.meta.url)));
  const browser = new TestBrowser();
  try {
    await browser.start();
    const page = await browser.open(url);
    await page.waitForFunction(() => document.title === "ready");
    const found = await page.evaluate(() => (globalThis as unknown as { facts: () => Promise<Facts> }).facts());
    assert.deepEqual(found, await facts());
    assert.ok((found["shares"] as readonly string[]).every((rule) => rule === "share"));
    assert.deepEqual(found["readers"], ["accepted", "statement", "statement", "statement"]);
    assert.deepEqual([found["ownSignature"], found["shortSignature"], found["extractable"], found["exported"]],
      [true, false, false, "no"]);
    assert.deepEqual([found["elsewhere"], found["short"], found["again"], found["foreignChunk"]],
      ["seal", "seal", "replay", "chunk-seal"]);
  } finally {
    await browser.close();
    server.close();
  }
});
