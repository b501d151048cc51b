import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { findChromium } from "../test/browser.ts";
import { forSuite } from "./federation.ts";
import { Phone } from "./phone.ts";

const SETTINGS = 'strategy = {name = "fedavg", settings = {epochs = 60, optimiser = {kind = "adam", lr = "auto"}}}\n';

describe("a learning rate that a phone has found", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite({ rounds: 2, devices: [], phones: ["phone"], settings: SETTINGS });

  test("it tries rates, again after a reload amidst them, and trains with the one that was chosen", async () => {
    const phone = await Phone.open(browser, federation);
    const coordinator = federation.startCoordinator();
    await phone.send({ kind: "enrol", invitation: federation.invitation("phone") });
    await phone.until(({ phase }) => phase === "needs-examples");
    await phone.addExamples(federation.examples("phone"));

    await phone.until(({ phase, progress }) => phase === "calibrate" && progress > 0);
    await phone.page.reload();
    await phone.begin();
    await phone.until(({ phase }) => phase === "calibrate");
    const { history } = await phone.until(({ phase }) => phase === "finished");
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual([history.map(({ round }) => round), federation.participants], [[1, 2], [1, 1]]);

    const { calibration } = federation.result;
    assert.equal(calibration.devices, 1);
    const { rates, ratios, lr } = calibration;
    const found = ratios[rates.indexOf(lr)]!;
    assert.ok(found < 1 && found > 0 && ratios.length === rates.length, JSON.stringify(calibration));
  });
});
