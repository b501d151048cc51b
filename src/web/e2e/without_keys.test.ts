import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { CDPSession } from "playwright-core";

import { findChromium, TestBrowser } from "../test/browser.ts";
import { type Command, type Federation, forSuite } from "./federation.ts";
import { Person } from "./person.ts";
import { Phone } from "./phone.ts";

const FULL = /^this phone's storage is full: .* nothing finished is lost; free some storage and open the page again$/;
/** Chromium relies for so long on what it has found free. */
const QUOTA_KNOWN_MS = 31_000;

describe("a federation without keys", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite({ rounds: 3, devices: [], phones: ["one", "other"], broker: "open" });
  const second = new TestBrowser();
  let [phone, coordinator, quota]: [Phone, Command, Quota] = [] as never;
  let person: Person;

  after(() => second.close());

  test("lets a phone in without an invitation", async () => {
    coordinator = federation.startCoordinator();
    phone = await Phone.openIdle(browser, federation);
    quota = await Quota.of(phone, federation);
    await quota.set(200_000);
    await phone.begin();
    await phone.send({ kind: "enrol", invitation: "" });
    const { deviceId } = await phone.until(({ phase }) => phase === "needs-examples");
    assert.match(deviceId, /^phone-[0-9a-f]{12}$/);
  });

  test("a phone without room for its examples says so, and takes as many as there is room for", async () => {
    const { x, y } = federation.examples("one");
    const times = Array.from({ length: 20 });
    await phone.addExamples({ x: times.flatMap(() => x), y: times.flatMap(() => y) });
    assert.match(await phone.refused(), FULL);
    assert.equal((await phone.status()).phase, "needs-examples");
    await phone.addExamples({ x, y });
    assert.deepEqual((await phone.until(({ phase }) => phase === "waiting")).exampleCounts, [500, 500, 500]);
    await quota.lift();
  });

  test("the page reaches the broker's own WebSocket listener", async () => {
    await second.start();
    person = await Person.open(second, federation);
    await person.page.getByText("Another broker").click();
    await person.page.getByLabel("Address of the broker").fill(federation.listener);
    await person.press("Join without keys");
    await person.reads("Your phone has nothing to learn from yet");
    await person.press("Add examples");
    await person.giveFile(federation.examples("other"));
    await person.go("Training");
    await person.reads("Training on your examples");
    assert.equal(await bridged(federation), 1, "only the other phone speaks through the hub");
  });

  test("a phone whose storage is full at the end of its training says so, and goes on when there is room", async () => {
    await phone.send({ kind: "setPolicy", policy: { onlyCharging: true, onlyUnmetered: false } });
    await phone.inTraining(1);
    await quota.set(1);
    // Its training waits without a write of its own.
    await phone.send({ kind: "phone", charging: false, unmetered: null, online: true });
    await sleep(QUOTA_KNOWN_MS);
    await phone.send({ kind: "phone", charging: true, unmetered: null, online: true });
    const { detail, history } = await phone.until(({ phase }) => phase === "failed");
    assert.match(detail, FULL);
    assert.equal(history.length, 1);
    await quota.lift();
    await phone.page.reload();
    await phone.begin();
    await phone.trainedAgain(1);
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual(federation.participants, [2, 2, 2]);
    await phone.until(({ phase, history: all }) => phase === "finished" && all.length === 3);
    await person.reads("The federation has finished");
    assert.deepEqual(person.problems, []);
  });
});

/** How much a page of the hub may store. */
class Quota {
  readonly #session: CDPSession;
  readonly #origin: string;

  private constructor(session: CDPSession, origin: string) {
    this.#session = session;
    this.#origin = origin;
  }

  static async of({ page }: Phone, { url }: Federation): Promise<Quota> {
    return new Quota(await page.context().newCDPSession(page), url);
  }

  async set(bytes: number): Promise<void> {
    await this.#session.send("Storage.overrideQuotaForOrigin", { origin: this.#origin, quotaSize: bytes });
  }

  async lift(): Promise<void> {
    await this.#session.send("Storage.overrideQuotaForOrigin", { origin: this.#origin });
  }
}

/** Phones that speak to the broker through the hub. */
async function bridged({ url }: Federation): Promise<number> {
  return ((await (await fetch(`${url}/healthz`)).json()) as { connections: number }).connections;
}
