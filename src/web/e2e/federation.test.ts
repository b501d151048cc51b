import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { findChromium, TestBrowser } from "../test/browser.ts";
import { type Command, forSuite } from "./federation.ts";
import { Person } from "./person.ts";
import { Phone } from "./phone.ts";

const OPTIONS = { rounds: 3, devices: ["anna", "berta"], phones: ["phone"] };
const skip = findChromium() === null && "no Chromium is installed";

/** What three rounds with nothing in their way have made. */
let undisturbed = "";

describe("a person's phone beside two Python devices, at the embedded broker", { skip }, () => {
  const { federation, browser } = forSuite({ ...OPTIONS, broker: "embedded" });
  let person: Person;

  test("joins by the address of its invitation, is given a file, and trains three rounds", async () => {
    const coordinator = federation.startCoordinator();
    const others = federation.startDevices();
    person = await Person.open(browser, federation, `#${federation.invitation("phone")}`);
    await person.page.getByRole("button", { name: "Join this federation" }).waitFor();
    await person.looksAround("invited");
    await person.press("Join this federation");
    await person.reads("Your phone has nothing to learn from yet");
    await person.looksAround("joined");
    await person.press("Add examples");
    await person.giveFile(federation.examples("phone"));
    await others;
    await person.go("Training");
    await person.reads("Training on your examples");
    await person.looksAround("in training");
    await person.reads("The federation has finished");
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual(federation.participants, [3, 3, 3]);
    undisturbed = federation.outcome;
  });

  test("shows what the rounds gave and what was sent", async () => {
    const { page } = person;
    await page.getByText("As a table").click();
    assert.equal(await page.locator(".chart tbody tr").count(), OPTIONS.rounds);
    assert.match(await page.locator(".big").first().innerText(), /^\d+ %$/);
    await person.looksAround("finished");
    await person.go("Sent");
    const parts = page.getByRole("region", { name: "Parts of the last update" }).locator("tbody tr");
    assert.deepEqual(await parts.locator("td, th").allInnerTexts(), ["params/w", "48 B", "params/b", "12 B"]);
    await person.looksAround("sent");
    await person.go("Your data");
    const share = federation.examples("phone").y.length / 3;
    await page.locator(".counts li").first().waitFor(); // the screen is there before its numbers
    const counts = (await page.locator(".counts li").allInnerTexts()).map((text) => Number(/\d+$/.exec(text.trim())));
    assert.deepEqual(counts, [share, share, share]);
    await person.looksAround("data");
  });

  test("knows all of it when it is opened again, and nothing when it was told to forget", async () => {
    await person.page.reload();
    await person.go("Training");
    await person.reads("The federation has finished");
    await person.go("Settings");
    await person.press("Delete everything");
    await person.looksAround("asked");
    await person.page.getByRole("dialog").getByRole("button", { name: "Delete everything" }).click();
    await person.page.getByText("Or paste the invitation").waitFor();
    assert.deepEqual(person.problems, []);
  });
});

describe("the same rounds under faults", { skip }, () => {
  const { federation, browser } = forSuite(OPTIONS);
  let coordinator: Command;

  test("a reload, 12 s offline and a killed browser, each in training, change no bit of the result", async () => {
    let phone = await Phone.open(browser, federation);
    await phone.until(({ phase }) => phase === "needs-invitation");
    coordinator = federation.startCoordinator();
    const others = federation.startDevices();
    await phone.send({ kind: "enrol", invitation: `${federation.url}/#${federation.invitation("phone")}` });
    const enrolled = await phone.until(({ phase }) => phase === "needs-examples");
    assert.deepEqual([enrolled.federation, enrolled.deviceId], ["federation", "phone"]);
    assert.deepEqual(enrolled.bundle?.classes, ["class0", "class1", "class2"]);
    await phone.addExamples(federation.examples("phone"));
    await others;

    await phone.inTraining(0);
    await phone.page.reload();
    await phone.begin();
    await phone.trainedAgain(0);

    const { progress } = await phone.inTraining(1);
    federation.network.cut();
    await phone.until((it) => it.phase === "train" && it.progress > progress);
    // What it has trained meanwhile waits for the network.
    const [waiting] = await Promise.all([phone.until(({ phase }) => phase === "connecting"), sleep(12_000)]);
    assert.equal(waiting.history.length, 1);
    assert.match((await phone.status()).detail, /no connection to the federation/);
    federation.network.mend();
    // As the page does when the browser says that the network is back.
    await phone.send({ kind: "phone", charging: null, unmetered: null, online: true });

    await phone.inTraining(2);
    await browser.kill();
    await browser.start();
    phone = await Phone.open(browser, federation);
    const status = await phone.trainedAgain(2);
    assert.deepEqual(status.history.map(({ round }) => round), [1, 2, 3]);
    assert.ok(status.history.every(({ before, after }) => before !== null && after !== null && after >= 0 && before <= 1));
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual(federation.participants, [3, 3, 3]);
    assert.equal(federation.outcome, undisturbed);
  });

  test("the invitation lets no other phone in", async (t) => {
    const other = new TestBrowser();
    t.after(() => other.close());
    await other.start();
    const phone = await Phone.open(other, federation);
    coordinator = federation.startCoordinator();
    await phone.until(({ phase }) => phase === "needs-invitation");
    await phone.send({ kind: "enrol", invitation: federation.invitation("phone") });
    assert.match(await phone.refused(), /invitation .* ask for a new one/);
    await phone.until(({ phase }) => phase === "needs-invitation");
    coordinator.stop();
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
