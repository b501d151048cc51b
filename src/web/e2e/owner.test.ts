import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { findChromium } from "../test/browser.ts";
import { forSuite } from "./federation.ts";
import { Phone } from "./phone.ts";

describe("what a phone's owner asks for", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite({ rounds: 3, devices: ["anna"], phones: ["phone"] });
  let phone: Phone;

  test("pausing, a policy, leaving and coming back, each in training, lose no round", async () => {
    phone = await Phone.open(browser, federation);
    const coordinator = federation.startCoordinator();
    const others = federation.startDevices();
    await phone.send({ kind: "enrol", invitation: federation.invitation("phone") });
    await phone.until(({ phase }) => phase === "needs-examples");
    await phone.addExamples(federation.examples("phone"));
    await others;

    await phone.inTraining(0);
    await phone.send({ kind: "pause" });
    const { detail } = await phone.until(({ phase }) => phase === "paused");
    assert.equal(detail, "paused by you");
    await stands(phone);
    await phone.send({ kind: "resume" });

    await phone.inTraining(1);
    await phone.send({ kind: "phone", charging: false, unmetered: true, online: true });
    await phone.send({ kind: "setPolicy", policy: { onlyCharging: true, onlyUnmetered: true } });
    const waiting = await phone.until(({ phase }) => phase === "paused");
    assert.equal(waiting.detail, "waits until this phone is charging");
    await stands(phone);
    await phone.send({ kind: "phone", charging: true, unmetered: true, online: true });

    await phone.inTraining(2);
    await phone.send({ kind: "leave" });
    await phone.until(({ phase }) => phase === "left");
    await coordinator.waitFor(({ event, device_id: id }) => event === "device_offline" && id === "phone");
    await phone.page.reload();
    await phone.begin();
    await phone.until(({ phase }) => phase === "left");
    await phone.send({ kind: "resume" });

    const status = await phone.trainedAgain(2);
    assert.deepEqual(status.history.map(({ round }) => round), [1, 2, 3]);
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    assert.deepEqual(federation.participants, [2, 2, 2]);
  });

  test("its model predicts, also without a network", async () => {
    federation.network.cut();
    assert.deepEqual(await phone.classes([[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]]), [0, 1, 2]);
    federation.network.mend();
  });

  test("forgetting deletes all that the page has stored", async () => {
    await phone.send({ kind: "forget" });
    const status = await phone.until(({ phase }) => phase === "needs-invitation");
    assert.deepEqual([status.deviceId, status.history, status.bundle, status.bytesUp], ["", [], null, 0]);
  });
});

/** Its training has begun, is not over, and does not go on. */
async function stands(phone: Phone): Promise<void> {
  // The step that it was in may end; its progress is told twice a second.
  await sleep(700);
  const { progress } = await phone.status();
  await sleep(700);
  assert.equal((await phone.status()).progress, progress);
  assert.ok(progress > 0 && progress < 1);
}
