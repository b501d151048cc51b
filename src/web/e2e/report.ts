/**
 * Opens pages of `protofleet report` from their files in both themes at 400 and 1280 pixels, and uses all that they offer.
 *
 *     node --import tsx e2e/report.ts FOLDER PAGE...
 *
 * Presses every heading of every table that sorts, twice, and chooses every device's confusion matrix. Pictures go into
 * FOLDER. Ends with status 1 if something is not sorted or shows other counts than the file has, if axe-core finds a
 * violation, or if a page has an error, is wider than the window, or has a table that must be moved sideways at 400 pixels.
 */

import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium, type Locator, type Page } from "playwright-core";

import { findChromium } from "../test/browser.ts";
import { violations } from "./axe.ts";
import { cutOff } from "./narrow.ts";

const [folder = "", ...files] = process.argv.slice(2);
const WIDTHS = [400, 1280];
const wrong: string[] = [];
let pressed = 0;
let chosen = 0;

function isWrong(text: string): void {
  wrong.push(text);
  console.error(text);
}

/** What the column of a heading is sorted by, in the order of the rows. */
async function keys(table: Locator, column: number): Promise<string[]> {
  return table.locator("tbody tr").evaluateAll(
    (rows, at) => rows.map((row) => {
      const cell = (row as HTMLTableRowElement).cells[at]!;
      return cell.dataset.value ?? cell.textContent!.trim();
    }),
    column,
  );
}

function ascending(found: string[]): boolean {
  const told = found.filter((one) => one !== "-");
  const numbers = told.map(Number);
  if (numbers.every((one) => !Number.isNaN(one))) return numbers.every((one, k) => k === 0 || numbers[k - 1]! <= one);
  return told.every((one, k) => k === 0 || told[k - 1]!.localeCompare(one, undefined, { numeric: true }) <= 0);
}

async function sortTables(page: Page): Promise<void> {
  for (const table of await page.locator("table.sorts").all()) {
    const before = (await table.locator("tbody tr").allInnerTexts()).sort().join();
    const heads = await table.locator("thead th").all();
    for (const [column, head] of heads.entries()) {
      if (await head.getByRole("button").count() === 0) continue;
      const name = await head.innerText();
      await head.getByRole("button").click();
      if (!ascending(await keys(table, column))) isWrong(`'${name}': not sorted`);
      await head.getByRole("button").click();
      if (!ascending((await keys(table, column)).reverse())) isWrong(`'${name}': not sorted the other way`);
      if (await head.getAttribute("aria-sort") !== "descending") isWrong(`'${name}': its order is not told`);
      pressed += 1;
    }
    if ((await table.locator("tbody tr").allInnerTexts()).sort().join() !== before) isWrong("sorting changes rows");
  }
}

async function chooseDevices(page: Page): Promise<void> {
  const select = page.getByRole("combobox");
  if (await select.count() === 0) return;
  const counts = JSON.parse((await page.locator("#confusions").textContent())!) as number[][][];
  for (const [index, expected] of counts.entries()) {
    await select.selectOption({ index });
    const shown = await page.locator("table.confusion tbody tr").evaluateAll((rows) =>
      rows.map((row) => [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent!.trim()))));
    if (JSON.stringify(shown) !== JSON.stringify(expected)) isWrong(`device ${index}: shows other counts than it has`);
    chosen += 1;
  }
}

async function lookAt(page: Page, name: string): Promise<void> {
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    for (const width of WIDTHS) {
      const where = `${name}-${colorScheme}-${width}`;
      await page.setViewportSize({ width, height: 900 });
      for (const line of await violations(page)) isWrong(`${where}: ${line}`);
      const wide = (await page.evaluate("document.documentElement.scrollWidth")) as number;
      if (wide > width) isWrong(`${where}: ${wide} pixels wide`);
      if (width === 400) for (const table of await cutOff(page)) isWrong(`${where}: '${table}' is wider than the screen`);
      await page.screenshot({ path: join(folder, `${where}.png`), fullPage: true });
    }
  }
}

const browser = await chromium.launch({ executablePath: findChromium()!, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(10_000);
  page.on("pageerror", (error) => isWrong(`${page.url()}: ${error.message}`));
  page.on("console", (line) => { if (line.type() === "error") isWrong(`${page.url()}: ${line.text()}`); });
  for (const file of files) {
    await page.goto(pathToFileURL(resolve(file)).href);
    await sortTables(page);
    await chooseDevices(page);
    await lookAt(page, basename(file, ".html"));
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify({ pressed, chosen }));
process.exitCode = wrong.length > 0 ? 1 : 0;
