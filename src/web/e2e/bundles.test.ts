import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { findChromium } from "../test/browser.ts";
import { forSuite } from "./federation.ts";
import { Phone } from "./phone.ts";

describe("a phone whose federation changes its bundle", { skip: findChromium() === null && "no Chromium is installed" }, () => {
  const { federation, browser } = forSuite({ rounds: 1, devices: [], phones: ["phone"] });
  let phone: Phone;
  let first = "";

  test("waits for a hub that serves what the federation runs", async () => {
    federation.write({ bundle: "next.pfb", run: "elsewhere" });
    const coordinator = federation.startCoordinator();
    phone = await Phone.open(browser, federation);
    await phone.send({ kind: "enrol", invitation: federation.invitation("phone") });
    const { detail } = await phone.until(({ detail: told }) => told.includes("serves bundle"));
    assert.match(detail, /the federation runs [0-9a-f]{16}; ask whoever runs the hub to start it anew/);
    coordinator.stop();
    await coordinator.finish();
  });

  test("trains with the one that the announcement names", async () => {
    federation.write({ bundle: "personal.pfb" });
    await federation.restartHub();
    const coordinator = federation.startCoordinator();
    await phone.until(({ phase }) => phase === "needs-examples");
    await phone.addExamples(federation.examples("phone"));
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    const { bundle, history } = await phone.until(({ phase }) => phase === "finished");
    assert.equal(history.length, 1);
    first = bundle!.digest;
  });

  test("follows it to another bundle of the same signer, with what is personal, and says so", async () => {
    const rows = federation.examples("phone").x;
    const before = await phone.classes(rows);
    federation.write({ bundle: "personal-next.pfb", run: "next" });
    await federation.restartHub();
    await phone.send({ kind: "pause" });
    const coordinator = federation.startCoordinator();
    const { moved } = await phone.until((it) => it.moved !== null && it.phase === "paused");
    assert.match(moved!.text, /^moved from bundle [0-9a-f]{16} to [0-9a-f]{16}: tensors: 1 kept, 1 new$/);
    const notes = ["predictions stay those of the model before until a round has counted"];
    const tensors = ["kept: params/b", "new: params/w (comes with the federation's model)"];
    assert.deepEqual([moved!.tensors, moved!.notes], [tensors, notes]);
    assert.deepEqual(await phone.classes(rows), before);
    await phone.send({ kind: "resume" });
    assert.equal(await coordinator.finish(), 0, coordinator.log);
    const { bundle, history, exampleCounts } = await phone.until((it) => it.phase === "finished" && it.history.length === 2);
    assert.notEqual(bundle!.digest, first);
    const share = federation.examples("phone").y.length / 3;
    assert.deepEqual([history.length, exampleCounts], [2, [share, share, share]]);
    first = bundle!.digest;
  });

  test("takes none that somebody else has signed, and keeps what it has", async () => {
    federation.write({ bundle: "foreign.pfb", signer: "foreign.pem", run: "foreign" });
    await federation.restartHub();
    const coordinator = federation.startCoordinator();
    await coordinator.waitFor(({ event }) => event === "started");
    const { bundle, detail } = await phone.until(({ phase }) => phase === "failed");
    assert.match(detail, /signed by [0-9a-f]{16}, this phone trusts [0-9a-f]{16} since it joined; ask whoever/);
    assert.equal(bundle!.digest, first);
    await phone.page.goto(federation.url);
    await phone.page.getByRole("heading", { name: "This phone cannot go on" }).waitFor();
    await phone.page.getByText(/signed by [0-9a-f]{16}, this phone trusts .* ask whoever runs the federation/).first().waitFor();
  });
});
