/**
 * Headless browsers that take part in a federation without keys, as a person would through the page.
 *
 *     node --import tsx demo/browsers.ts CHROMIUM HUB_URL FOLDER DATA.npz...
 *
 * A browser for each file, with its profile in `FOLDER/NAME`; started again, they go on. SIGTERM ends it; it
 * ends itself, with status 1 and a line on stderr, if a browser cannot go on.
 */

import { mkdirSync } from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { type BrowserContext, chromium, type Page } from "playwright-core";

import { JOIN, PHASES, TRAIN } from "../src/texts.ts";

const LOOK_MS = 300;

const [executablePath, hub, folder, ...files] = process.argv.slice(2);
if (executablePath === undefined || hub === undefined || folder === undefined || files.length === 0) {
  throw new Error("usage: browsers.ts CHROMIUM HUB_URL FOLDER DATA.npz...");
}

const contexts: BrowserContext[] = [];
let ending = false;

process.on("SIGTERM", () => {
  ending = true;
  void Promise.allSettled(contexts.map((context) => context.close())).then(() => process.exit(0));
});

try {
  await Promise.all(files.map((file) => takePart({ executablePath, hub, folder, file })));
} catch (error) {
  if (ending) await new Promise(() => undefined);
  const [line] = (error instanceof Error ? error.message : String(error)).split("\n");
  process.stderr.write(`${line}\n`);
  process.exit(1);
}

async function takePart(where: { executablePath: string; hub: string; folder: string; file: string }): Promise<never> {
  const name = basename(where.file, ".npz");
  const profile = join(where.folder, name);
  mkdirSync(profile, { recursive: true, mode: 0o700 });
  // The page is the federation's own; a sandbox is not to be had in most containers and by root.
  const args = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"];
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: where.executablePath, headless: true, args, handleSIGTERM: false,
  });
  contexts.push(context);
  const page = context.pages()[0] ?? (await context.newPage());
  await page.goto(where.hub);
  for (;;) {
    await act(page, where.file, name);
    await sleep(LOOK_MS);
  }
}

/** Does what the page asks its owner for. */
async function act(page: Page, file: string, name: string): Promise<void> {
  const shown = (role: "button" | "heading", text: string): Promise<boolean> => page.getByRole(role, { name: text }).isVisible();
  if (await shown("heading", PHASES.failed.title)) {
    throw new Error(`browser of ${name}: ${(await page.getByRole("status").allInnerTexts()).join(" ").trim()}`);
  }
  if (await shown("button", JOIN.openJoin)) {
    await page.getByLabel(JOIN.openName).fill(name);
    await page.getByRole("button", { name: JOIN.openJoin }).click();
    await page.getByRole("button", { name: JOIN.openJoin }).waitFor({ state: "hidden" });
  } else if (await shown("heading", PHASES["needs-examples"].title)) {
    await page.getByRole("button", { name: TRAIN.addExamples }).click();
    const field = page.locator("input[type=file]");
    if (!(await field.count())) await page.getByRole("tab", { name: "File" }).click();
    await field.setInputFiles(file);
    await page.getByText(/\d+ examples? added\./).waitFor();
    await page.goBack();
  }
}
