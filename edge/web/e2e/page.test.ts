import assert from "node:assert/strict";
import { describe, test } from "node:test";

import type { Page } from "playwright-core";

import { findChromium } from "../test/browser.ts";
import { forSuite } from "./federation.ts";

describe("the page, in a federation of real processes", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite({ rounds: 3, devices: ["anna"], phones: ["phone"] });
  const problems: string[] = [];
  let page: Page;

  test("a person joins by the invitation's address, gives a file, and sees three rounds", async () => {
    const coordinator = federation.startCoordinator();
    federation.startDevice("anna");
    page = await browser.open(`${federation.url}/#${federation.invitation("phone")}`);
    page.on("pageerror", (error) => problems.push(error.message));
    page.on("console", (line) => line.type() === "error" && problems.push(line.text()));
    await page.getByRole("button", { name: "Join this federation" }).click();
    await page.getByRole("heading", { name: "Your phone has nothing to learn from yet" }).waitFor();
    await page.getByRole("button", { name: "Add examples" }).click();
    await page.locator("input[type=file]").setInputFiles({
      name: "mine.csv", mimeType: "text/csv", buffer: Buffer.from(csv(federation.examples("phone"))),
    });
    await page.getByText("60 examples added.").waitFor();
    await page.getByRole("link", { name: "Training" }).click();
    await page.getByRole("heading", { name: "Training on your examples" }).waitFor({ timeout: 60_000 });
    await page.getByRole("heading", { name: "The federation has finished" }).waitFor({ timeout: 90_000 });
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual(federation.participants, [2, 2, 2]);
  });

  test("it shows what the rounds gave and what was sent", async () => {
    await page.getByText("As a table").click();
    assert.equal(await page.locator(".chart tbody tr").count(), 3);
    assert.match(await page.locator(".big").first().innerText(), /^\d+ %$/);
    await page.getByRole("link", { name: "Sent" }).click();
    assert.ok((await page.getByRole("region", { name: "Parts of the last update" }).locator("tbody tr").count()) >= 1);
    await page.getByRole("link", { name: "Your data" }).click();
    assert.equal(await page.locator(".counts li").count(), 3);
  });

  test("loaded again, it knows all of it; deleted, it knows nothing", async () => {
    await page.reload();
    await page.getByRole("link", { name: "Training" }).click();
    await page.getByRole("heading", { name: "The federation has finished" }).waitFor();
    await page.getByRole("link", { name: "Settings" }).click();
    await page.getByRole("button", { name: "Delete everything" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete everything" }).click();
    await page.getByText("Or paste the invitation").waitFor();
    assert.deepEqual(problems, []);
  });
});

function csv({ x, y }: { x: number[][]; y: number[] }): string {
  const names = x[0]!.map((_, k) => `value${k}`).join(",");
  return [`${names},label`, ...x.map((row, k) => `${row.join(",")},${y[k]}`)].join("\n");
}
