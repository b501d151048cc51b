/**
 * Opens every page of a dashboard in both themes at 360 and 1280 pixels, and runs axe-core on each.
 *
 *     node --import tsx e2e/dashboard.ts URL TOKEN FOLDER [BUNDLE]
 *
 * URL is of a run: http://localhost:8080/dashboard/RUN. Pictures go into FOLDER. With BUNDLE, every action that a page
 * offers is driven in place of that: the run is paused and resumed, a device invited and revoked, BUNDLE published, let
 * go on after its first stage, and taken back; at the end the run is stopped and the operator signs out. Ends with
 * status 1 if there is a violation, an error in a page, a page that is wider than the window, a table that has to be moved
 * sideways at 360 pixels, or an action of a page that was not driven.
 */

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium, type Page } from "playwright-core";

import { findChromium } from "../test/browser.ts";
import { violations } from "./axe.ts";
import { cutOff } from "./narrow.ts";

const [url = "", token = "", folder = "", bundle = ""] = process.argv.slice(2);
const WIDTHS = [360, 1280];
const SCHEMES = ["light", "dark"] as const;
const wrong: string[] = [];
const driven = new Set<string>();

function isWrong(text: string): void {
  wrong.push(text);
  console.error(text);
}

async function signIn(page: Page): Promise<void> {
  await page.goto(`${new URL(url).origin}/dashboard/sign-in#${token}`);
  await page.getByRole("button", { name: "Sign out" }).waitFor();
}

async function pagesOf(page: Page): Promise<Map<string, string>> {
  const found = await page.locator("nav[aria-label=Pages] a").evaluateAll((links) =>
    links.map((link) => [link.textContent!.trim().toLowerCase().replaceAll(" ", "-"), (link as HTMLAnchorElement).href]));
  const pages = new Map(found as [string, string][]);
  await page.goto(`${url}/fleet`);
  pages.set("device", await page.locator("tbody th a").first().evaluate((link) => (link as HTMLAnchorElement).href));
  return pages;
}

/** The last part of each address that a form of a page sends to. */
async function offered(page: Page): Promise<string[]> {
  const found: string[] = [];
  for (const address of (await pagesOf(page)).values()) {
    await page.goto(address);
    found.push(...await page.locator("form[method=post]").evaluateAll((forms) => forms.map((form) => (form as HTMLFormElement).action)));
  }
  return [...new Set(found.map((action) => new URL(action).pathname.split("/").at(-1)!))];
}

/** What a form of the page *Operate* answers. */
async function done(page: Page, section: string, fields: Record<string, string> = {}, button = section.split(" ")[0]!): Promise<void> {
  await page.goto(`${url}/operate`);
  const form = page.getByRole("region", { name: section, exact: true });
  for (const [name, value] of Object.entries(fields)) await form.locator(`input[name=${name}]`).fill(value);
  for (const box of await form.locator("input[type=checkbox]").all()) await box.check();
  const pressed = form.getByRole("button", { name: button, exact: true });
  driven.add(new URL((await pressed.evaluate((one) => (one as HTMLButtonElement).form!.action))).pathname.split("/").at(-1)!);
  await pressed.click();
  await page.locator("#outcome p strong").waitFor();
  const text = (await page.locator("#outcome").innerText()).trim();
  console.log(`${section}: ${text.split("\n")[0]}`);
  if (await page.locator("#outcome .trouble").count() > 0) isWrong(`${section}: ${text}`);
  for (const line of await violations(page)) isWrong(`${section}, answered: ${line}`);
}

/** Waits for what the page *Now* says by itself, without being loaded again. */
async function told(page: Page, text: string): Promise<void> {
  await page.locator("dl.facts dd").filter({ hasText: new RegExp(`^${text}$`) }).waitFor();
}

async function act(page: Page): Promise<void> {
  const watching = await page.context().newPage();
  await watching.goto(`${url}/now`);
  await done(page, "Pause");
  await told(watching, "paus(ing|ed)");
  await done(page, "Resume");
  await told(watching, "running");
  await done(page, "Invite a device", { device: "zoe" });
  if (!(await page.locator("#outcome img.code").isVisible())) isWrong("the invitation has no code");
  const members = page.getByRole("region", { name: "Members" });
  await members.getByRole("row", { name: /zoe.*invited/ }).waitFor();
  await done(page, "Revoke a device", { device: "zoe" });
  await page.getByRole("region", { name: "What was done" }).getByRole("row", { name: /revoke zoe done/ }).waitFor();
  await done(page, "Publish a bundle", { bundle });
  await watching.goto(`${url}/operate`);
  await told(watching, "waiting"); // a first device has the bundle, and a round with it
  await told(watching, "share");
  await done(page, "Roll-out that is under way", {}, "Go on");
  await told(watching, "rest");
  await done(page, "Roll-out that is under way", {}, "Take back");
  await told(watching, "taken back");
  await watching.close();
  const all = await offered(page);
  await done(page, "Stop");
  await page.getByRole("button", { name: "Sign out" }).click();
  driven.add("sign-out");
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  for (const action of all) if (!driven.has(action)) isWrong(`${action}: a page offers it, and nothing drives it`);
}

async function searchByKeyboard(page: Page): Promise<void> {
  await page.goto(`${url}/fleet`);
  const first = await page.locator("tbody th a").first().innerText();
  await page.getByRole("searchbox").focus();
  await page.keyboard.type(first);
  await page.getByText("1 devices, 1 to 1 shown").waitFor();
  await page.getByRole("searchbox").fill("nobody");
  await page.getByText("No device fits.").waitFor();
}

/** Sorting and searching change the table alone: the page, the focus and what was chosen before stay, the address follows. */
async function sortInPlace(page: Page): Promise<void> {
  await page.goto(`${url}/fleet`);
  await page.evaluate("document.title = 'the same page'");
  const heading = page.getByRole("columnheader", { name: "Device" });
  await heading.getByRole("link").focus();
  await page.keyboard.press("Enter");
  await page.locator("th[aria-sort=descending]", { hasText: "Device" }).waitFor();
  if (await page.evaluate("document.activeElement.id") !== "by-device") isWrong("sorting loses the focus");
  await page.waitForURL(/[?&]sort=device/);
  await page.getByRole("searchbox").focus();
  await page.keyboard.type("a");
  await page.waitForURL((address) => address.searchParams.get("search") === "a" && address.searchParams.get("order") === "descending");
  await page.locator("th[aria-sort=descending]", { hasText: "Device" }).waitFor();
  if (await page.evaluate("document.activeElement.name") !== "search") isWrong("searching loses the focus");
  if (await page.title() !== "the same page") isWrong("sorting or searching loads the page anew");
  await page.goBack();
  await page.locator("th[aria-sort=ascending]", { hasText: "Device" }).waitFor();
}

/** Without scripts the table is sorted and searched, too, by loading the page. */
async function sortWithoutScripts(): Promise<void> {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(`${url}/fleet`);
  const names = () => page.locator("tbody th a").allInnerTexts();
  const before = await names();
  await page.getByRole("columnheader", { name: "Device" }).getByRole("link").click();
  if ((await names()).join() !== before.reverse().join()) isWrong("without scripts nothing is sorted");
  await page.getByRole("searchbox").fill(before[0]!);
  await page.getByRole("button", { name: "Find" }).click();
  if ((await names()).join() !== before[0]) isWrong("without scripts nothing is searched");
  if (new URL(page.url()).searchParams.get("order") !== "descending") isWrong("without scripts a search forgets the order");
  await context.close();
}

async function switchTheme(page: Page): Promise<void> {
  await page.emulateMedia({ colorScheme: "light" });
  await page.goto(`${url}/now`);
  const background = () => page.evaluate("getComputedStyle(document.body).backgroundColor");
  const light = await background();
  await page.getByRole("button", { name: "Light or dark colours" }).click();
  if ((await background()) === light) isWrong("the colour switch switches nothing");
  await page.getByRole("button", { name: "Light or dark colours" }).click();
  await page.evaluate("localStorage.clear()");
}

async function look(page: Page): Promise<void> {
  await searchByKeyboard(page);
  await sortInPlace(page);
  await sortWithoutScripts();
  await switchTheme(page);
  for (const [name, address] of await pagesOf(page)) {
    await page.goto(address);
    for (const colorScheme of SCHEMES) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      for (const width of WIDTHS) await lookAt(page, `${name}-${colorScheme}-${width}`, width);
    }
    console.log(`seen: ${name}`);
  }
}

async function lookAt(page: Page, where: string, width: number): Promise<void> {
  await page.setViewportSize({ width, height: 900 });
  for (const line of await violations(page)) isWrong(`${where}: ${line}`);
  const wide = await page.evaluate("document.documentElement.scrollWidth");
  if ((wide as number) > width) isWrong(`${where}: ${wide} pixels wide`);
  if (width === 360) for (const name of await cutOff(page)) isWrong(`${where}: '${name}' is wider than the screen`);
  await page.screenshot({ path: join(folder, `dashboard-${where}.png`), fullPage: true });
}

const browser = await chromium.launch({ executablePath: findChromium()!, args: ["--no-sandbox"] });
try {
  mkdirSync(folder, { recursive: true });
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (error) => isWrong(`${page.url()}: ${error.message}`));
  page.on("console", (line) => { if (line.type() === "error") isWrong(`${page.url()}: ${line.text()}`); });
  await signIn(page);
  if (bundle) await act(page);
  else await look(page);
} finally {
  await browser.close();
}
process.exitCode = wrong.length > 0 ? 1 : 0;
