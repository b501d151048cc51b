import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { findChromium, TestBrowser } from "../test/browser.ts";
import { Federation } from "./federation.ts";
import { Phone } from "./phone.ts";

describe("a phone beside two Python devices", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const federation = new Federation({ rounds: 3, devices: ["anna", "berta"], phones: ["phone"] });
  const browser = new TestBrowser();

  before(async () => {
    await federation.start();
    await browser.start();
  });

  after(async () => {
    await browser.close();
    await federation.close();
  });

  test("enrols with its invitation, gets the bundle, and trains three rounds", async () => {
    const phone = await Phone.open(browser, federation);
    await phone.until(({ phase }) => phase === "needs-invitation");
    const coordinator = federation.startCoordinator();
    const others = ["anna", "berta"].map((name) => federation.startDevice(name));
    await phone.send({ kind: "enrol", invitation: `${federation.url}/#${federation.invitation("phone")}` });
    const enrolled = await phone.until(({ phase }) => phase === "needs-examples");
    assert.deepEqual([enrolled.federation, enrolled.deviceId], ["federation", "phone"]);
    assert.deepEqual(enrolled.bundle?.classes, ["class0", "class1", "class2"]);
    await phone.addExamples(federation.examples("phone"));
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    const status = await phone.until(({ phase }) => phase === "finished");
    assert.deepEqual(status.history.map(({ round }) => round), [1, 2, 3]);
    assert.ok(status.history.every(({ before: b, after: a }) => b !== null && a !== null && a >= 0 && b <= 1));
    assert.deepEqual(status.lastSent.map(({ name, bytes }) => `${name} ${bytes}`), ["params/w 48", "params/b 12"]);
    for (const other of others) assert.equal(await other.finish(), 0, other.log);
    assert.deepEqual(status.exampleCounts, [20, 20, 20]);
  });
});
