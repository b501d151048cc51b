import assert from "node:assert/strict";
import { describe, test } from "node:test";

import type { Page, Route } from "playwright-core";

import { findChromium } from "../test/browser.ts";
import { type Command, forSuite } from "./federation.ts";

describe("what goes wrong, on the page", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite({ rounds: 1, devices: [], phones: ["phone"] });
  let page: Page;
  let coordinator: Command;

  async function says(words: RegExp, on = page): Promise<void> {
    await on.getByText(words).first().waitFor({ timeout: 60_000 });
  }

  async function join(on: Page, invitation: string, broker = ""): Promise<void> {
    await on.getByLabel("Or paste the invitation").fill(invitation);
    if (broker !== "") {
      await on.getByText("Another broker").click();
      await on.getByLabel("Address of the broker").fill(broker);
    }
    await on.getByRole("button", { name: "Join", exact: true }).click();
  }

  async function addExamples(on: Page): Promise<void> {
    const { x, y } = federation.examples("phone");
    const rows = x.map((row, k) => `${row.join(",")},${y[k]}`);
    await on.getByRole("button", { name: "Add examples" }).click();
    await on.locator("input[type=file]").setInputFiles({
      name: "mine.csv", mimeType: "text/csv", buffer: Buffer.from(["a,b,c,d,label", ...rows].join("\n")),
    });
    await on.getByText(/\d examples added\./).waitFor();
    await on.getByRole("link", { name: "Training" }).click();
  }

  test("a broker that the hub does not name", async () => {
    federation.write({ bundle: "large.pfb" });
    await federation.restartHub();
    page = await browser.open(federation.url);
    await join(page, federation.invitation("phone"), federation.brokerUrl);
    await says(/This page may not speak to ws:.*leave “Another broker” empty, or have the hub started with --websocket/);
  });

  test("a broker that speaks no WebSocket", async () => {
    await federation.restartHub("--websocket", federation.brokerUrl);
    await page.reload();
    await join(page, federation.invitation("phone"), federation.brokerUrl);
    await says(/The broker speaks no WebSocket at ws:.*, or nothing answers there; ask whoever runs the federation/);
    await federation.restartHub();
    await page.reload();
  });

  test("a WebAssembly that does not compile", async () => {
    const broken = (route: Route): Promise<void> => route.fulfill({ body: "no wasm", contentType: "application/wasm" });
    await page.context().route("**/*.wasm", broken);
    coordinator = federation.startCoordinator();
    await join(page, federation.invitation("phone"));
    await addExamples(page);
    await says(/ONNX Runtime does not start in this browser: .*; reload the page, close other tabs, or use a newer browser/);
    await page.getByRole("heading", { name: "This phone cannot go on" }).waitFor();
    await page.context().unroute("**/*.wasm", broken);
  });

  test("a model too large for the phone", async () => {
    // WebAssembly gets no more memory than it starts with.
    page.once("worker", (worker) => {
      void worker.evaluate(() => {
        WebAssembly.Memory.prototype.grow = () => {
          throw new RangeError("a test");
        };
      });
    });
    await page.getByRole("button", { name: "Try again" }).click();
    await says(/This device has too little memory for the model .*; close other tabs, or take part with a device that has more/i);
  });

  test("what was mended goes on where it stood", async () => {
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByRole("heading", { name: "The federation has finished" }).waitFor({ timeout: 90_000 });
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    await says(/The model that was learned stays on this phone/);
  });

  test("a federation that has ended", async () => {
    const other = await browser.newProfile();
    const late = await other.newPage();
    await late.goto(federation.url);
    await join(late, await federation.invite("late"));
    await says(/The federation has finished its rounds: examples are of use only if it begins again; ask whoever runs it/, late);
    await addExamples(late);
    await late.getByRole("heading", { name: "The federation has finished" }).waitFor();
    await says(/It had finished before this phone took part/, late);
    await other.close();
  });
});
