/** What the Python readers refuse is refused here by the same rule and in the same words, in Node and in a browser. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { TestBrowser, findChromium, servePage } from "../browser.ts";
import { writtenByPython } from "../python.ts";
import { type Hostile, misjudged } from "./hostile.ts";

const FOLDER = writtenByPython("hostile_files.py");
const { signer, cases }: { signer: string; cases: readonly Hostile[] } = JSON.parse(
  readFileSync(join(FOLDER, "cases.json"), "utf8"),
);
type Judge = (some: readonly Hostile[], signer: string, address: string) => Promise<string[]>;
const KINDS = ["bundle", "blob", "chunk", "codec", "json"] as const;

async function bytesOf(file: string): Promise<Uint8Array> {
  return new Uint8Array(readFileSync(join(FOLDER, file)));
}

for (const kind of KINDS) {
  const some = cases.filter((one) => one.kind === kind);
  test(`${some.length} files for the reader of kind ${kind}: refused by the same rule, in the same words`, async () => {
    assert.ok(some.length > 2);
    assert.deepEqual(await misjudged(some, signer, bytesOf), []);
  });
}

test("a browser refuses them, too", { skip: findChromium() === null && "no Chromium" }, async () => {
  const { url, server } = await servePage(fileURLToPath(new URL("hostile_page.ts", import.meta.url)));
  const files = createServer((request, response) => {
    response.setHeader("Access-Control-Allow-Origin", "*");
    response.end(readFileSync(join(FOLDER, request.url!)));
  });
  const browser = new TestBrowser();
  try {
    await new Promise<void>((resolve) => files.listen(0, "127.0.0.1", resolve));
    await browser.start();
    const page = await browser.open(url);
    const wrong = await page.evaluate(
      ([some, key, address]) => (globalThis as unknown as { misjudged: Judge }).misjudged(some, key, address),
      [cases, signer, `http://127.0.0.1:${(files.address() as AddressInfo).port}/`] as const,
    );
    assert.deepEqual(wrong, []);
  } finally {
    await browser.close();
    server.close();
    files.close();
  }
});

test("every rule of docs/bundle.md that a single file can break is among them", () => {
  const text = readFileSync(new URL("../../../../docs/bundle.md", import.meta.url), "utf8");
  const table = text.slice(text.indexOf("## Order of checks"), text.indexOf("## Trust"));
  const rows = table.split("\n").filter((line) => /^\| \d+ \|/.test(line));
  const named = rows.flatMap((row) => [...row.split("|").at(-2)!.matchAll(/`([a-z0-9-]+)`/g)]);
  const rules = new Set(named.map(([, rule]) => rule!));
  assert.equal(rules.size, 26);
  // The first two are of folders, and a bundle's size comes before its blobs'.
  for (const rule of ["file-type", "surplus-file", "blob-size"]) rules.delete(rule);
  const broken = new Set(cases.filter(({ kind }) => kind === "bundle").map(({ rule }) => rule));
  assert.deepEqual([...rules].filter((rule) => !broken.has(rule)), []);
});
