/** What a person does on the page, and what the page says. */

import type { Page } from "playwright-core";

import type { TestBrowser } from "../test/browser.ts";
import { violationsInBothColours } from "./axe.ts";
import type { Federation } from "./federation.ts";

const PATIENCE_MS = 60_000;

export class Person {
  /** Errors of the page, and rules of accessibility that it broke. */
  readonly problems: string[] = [];
  readonly page: Page;

  private constructor(page: Page) {
    this.page = page;
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("pageerror", (error) => this.problems.push(error.message));
    page.on("console", (line) => line.type() === "error" && this.problems.push(line.text()));
  }

  /** Opens the hub's page on a small screen; `hash`: what stands behind its address. */
  static async open(browser: TestBrowser, federation: Federation, hash = ""): Promise<Person> {
    const page = await browser.open("about:blank");
    await page.setViewportSize({ width: 360, height: 740 });
    const person = new Person(page);
    await page.goto(`${federation.url}/${hash}`);
    return person;
  }

  async press(name: string): Promise<void> {
    await this.page.getByRole("button", { name }).click();
  }

  /** Goes to a section. */
  async go(name: string): Promise<void> {
    await this.page.getByRole("link", { name }).click();
  }

  async reads(heading: string): Promise<void> {
    await this.page.getByRole("heading", { name: heading }).waitFor();
  }

  /** Notes what of the page as it is now is not accessible; `where` names it. */
  async looksAround(where: string): Promise<void> {
    this.problems.push(...(await violationsInBothColours(this.page)).map((line) => `${where}: ${line}`));
  }

  /** On the section of data. */
  async giveFile(examples: { x: number[][]; y: number[] }): Promise<void> {
    const buffer = Buffer.from(csv(examples));
    await this.page.locator("input[type=file]").setInputFiles({ name: "mine.csv", mimeType: "text/csv", buffer });
    await this.page.getByText(`${examples.y.length} examples added.`).waitFor();
  }
}

function csv({ x, y }: { x: number[][]; y: number[] }): string {
  const names = x[0]!.map((_, k) => `value${k}`).join(",");
  return [`${names},label`, ...x.map((row, k) => `${row.join(",")},${y[k]}`)].join("\n");
}
