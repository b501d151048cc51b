import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { findChromium, TestBrowser } from "../test/browser.ts";
import { type Command, type Federation, forSuite } from "./federation.ts";
import { Phone } from "./phone.ts";

const OPTIONS = { rounds: 3, devices: ["anna", "berta"], phones: ["phone"] };

/** What three rounds with nothing in their way have made. */
let undisturbed = "";

/** Enrols a phone and gives it its examples, with a coordinator and two other devices. */
async function begin(federation: Federation, browser: TestBrowser): Promise<{ phone: Phone; coordinator: Command }> {
  const phone = await Phone.open(browser, federation);
  await phone.until(({ phase }) => phase === "needs-invitation");
  const coordinator = federation.startCoordinator();
  for (const name of OPTIONS.devices) federation.startDevice(name);
  await phone.send({ kind: "enrol", invitation: `${federation.url}/#${federation.invitation("phone")}` });
  await phone.until(({ phase }) => phase === "needs-examples");
  await phone.addExamples(federation.examples("phone"));
  return { phone, coordinator };
}

describe("a phone beside two Python devices", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite(OPTIONS);

  test("enrols with its invitation, gets the bundle, and trains three rounds", async () => {
    const { phone, coordinator } = await begin(federation, browser);
    const enrolled = await phone.status();
    assert.deepEqual([enrolled.federation, enrolled.deviceId], ["federation", "phone"]);
    assert.deepEqual(enrolled.bundle?.classes, ["class0", "class1", "class2"]);
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    const status = await phone.until(({ phase }) => phase === "finished");
    assert.deepEqual(status.history.map(({ round }) => round), [1, 2, 3]);
    assert.ok(status.history.every(({ before: b, after: a }) => b !== null && a !== null && a >= 0 && b <= 1));
    assert.deepEqual(status.lastSent.map(({ name, bytes }) => `${name} ${bytes}`), ["params/w 48", "params/b 12"]);
    assert.deepEqual(status.exampleCounts, [20, 20, 20]);
    assert.deepEqual(federation.participants, [3, 3, 3]);
    undisturbed = federation.outcome;
  });

  test("the invitation lets no other phone in", async () => {
    const other = new TestBrowser();
    await other.start();
    const phone = await Phone.open(other, federation);
    const coordinator = federation.startCoordinator();
    await phone.until(({ phase }) => phase === "needs-invitation");
    await phone.send({ kind: "enrol", invitation: federation.invitation("phone") });
    assert.match(await phone.refused(), /invitation .* ask for a new one/);
    await phone.until(({ phase }) => phase === "needs-invitation");
    coordinator.stop();
    await other.close();
  });
});

describe("the same rounds under faults", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite(OPTIONS);

  test("a reload in training, 12 s offline and a killed browser change no bit of the result", async () => {
    const { phone, coordinator } = await begin(federation, browser);
    await phone.until(({ phase, progress, history }) => phase === "train" && progress > 0.2 && history.length === 0);
    await phone.page.reload();
    await phone.begin();
    await phone.until(({ phase, progress, history }) => phase === "train" && progress > 0.1 && history.length === 1);
    federation.network.cut();
    await sleep(12_000);
    assert.match((await phone.status()).detail, /no connection to the federation/);
    federation.network.mend();
    // As the page does when the browser says that the network is back.
    await phone.send({ kind: "phone", charging: null, unmetered: null, online: true });
    await phone.until(({ phase, progress, history }) => phase === "train" && progress > 0.2 && history.length === 2);
    await browser.kill();
    await browser.start();
    const again = await Phone.open(browser, federation);
    const status = await again.until(({ phase }) => phase === "finished");
    assert.deepEqual(status.history.map(({ round }) => round), [1, 2, 3]);
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual(federation.participants, [3, 3, 3]);
    assert.equal(federation.outcome, undisturbed);
  });

  test("of two tabs one has the device, and the other takes over", async () => {
    const first = await Phone.open(browser, federation);
    const second = await Phone.open(browser, federation);
    const { detail } = await second.until(({ phase }) => phase === "other-tab");
    assert.match(detail, /close it to go on here/);
    for (const page of browser.context.pages()) if (page !== second.page) await page.close();
    assert.ok(first.page.isClosed());
    assert.equal((await second.until(({ phase }) => phase === "finished")).history.length, 3);
  });

  test("a store that the browser deletes is told of, at once and at the next opening", async () => {
    const before = browser.context.pages();
    const phone = await Phone.open(browser, federation);
    for (const page of before) await page.close();
    await phone.until(({ phase }) => phase === "finished");
    const session = await browser.context.newCDPSession(phone.page);
    await session.send("Storage.clearDataForOrigin", { origin: federation.url, storageTypes: "indexeddb" });
    const { detail } = await phone.until(({ phase }) => phase === "needs-invitation");
    assert.match(detail, /this phone was device phone of federation, but the browser has deleted .* new invitation/);
    await phone.page.reload();
    await phone.begin("phone of federation");
    assert.equal((await phone.until(({ phase }) => phase === "needs-invitation")).detail, detail);
  });
});
