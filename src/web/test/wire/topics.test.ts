import assert from "node:assert/strict";
import { test } from "node:test";

import { InputError } from "../../src/errors.ts";
import { CHANNELS, type DeviceChannel, PREFIX, Topics, checkDeviceId, isRetained } from "../../src/wire/topics.ts";

const GOLDEN: Readonly<Record<DeviceChannel, string>> = {
  presence: "fl/v2/lab/st/pi-7",
  upOffer: "fl/v2/lab/up/pi-7/m",
  upChunk: "fl/v2/lab/up/pi-7/c",
  upRequest: "fl/v2/lab/up/pi-7/q",
  upStatus: "fl/v2/lab/up/pi-7/s",
  downAnswer: "fl/v2/lab/dn/pi-7/a",
  downChunk: "fl/v2/lab/dn/pi-7/c",
  downTask: "fl/v2/lab/dn/pi-7/t",
};
const LAB = new Topics("lab");
const OF_DEVICES = Object.keys(GOLDEN) as DeviceChannel[];

test("topics are those of the specification, and are parsed again", () => {
  assert.equal(OF_DEVICES.length + 1, Object.keys(CHANNELS).length);
  for (const channel of OF_DEVICES) {
    assert.equal(LAB.of(channel, "pi-7"), GOLDEN[channel]);
    assert.deepEqual(LAB.parse(GOLDEN[channel]), { channel, deviceId: "pi-7" });
  }
  assert.equal(LAB.announcement, "fl/v2/lab/all/ctl");
  assert.deepEqual(LAB.parse("fl/v2/lab/all/ctl"), { channel: "announcement", deviceId: "" });
});

test("ids that break topics are refused", () => {
  for (const bad of ["", "a/b", "a+b", "#", "ü", "a b", "x".repeat(65), "a\n", "a\0"]) {
    assert.throws(() => new Topics(bad), /expected 1 to 64 characters/);
    assert.throws(() => LAB.of("upChunk", bad), /expected 1 to 64 characters/);
  }
});

test("foreign topics are not parsed", () => {
  const foreign = [
    "", "fl/v2/lab", "fl/v2/other/up/a/m", "fl/v1/lab/up/a/m", "fl/v2/lab/up/a", "fl/v2/lab/up/a/m/x",
    "fl/v2/lab/up//m", "fl/v2/lab/up/a/z", "fl/v2/lab/all/other", "fl/v2/lab/all/ctl/x", "fl/v2/lab/st/a/b",
  ];
  for (const topic of foreign) assert.equal(LAB.parse(topic), null, topic);
});

test("a device subscribes to two filters", () => {
  assert.deepEqual(LAB.deviceFilters("a"), ["fl/v2/lab/all/ctl", "fl/v2/lab/dn/a/+"]);
});

test("accounts of other purposes are no devices", () => {
  for (const name of ["coordinator", "invite.a", "a b", ""]) {
    assert.throws(() => checkDeviceId(name), InputError);
    assert.throws(() => LAB.deviceFilters(name), InputError);
    assert.throws(() => LAB.of("presence", name), InputError);
    assert.equal(LAB.parse(`${PREFIX}/lab/up/${name}/m`), null);
  }
  assert.notEqual(LAB.parse(`${PREFIX}/lab/up/invited/m`), null);
});

test("announcements and presences alone are retained", () => {
  assert.deepEqual(OF_DEVICES.filter((channel) => isRetained(LAB.of(channel, "a"))), ["presence"]);
  assert.ok(isRetained(LAB.announcement));
  assert.ok(!isRetained(`${PREFIX}/lab/all/ctl/x`));
});

test("an invited device has topics of its own", () => {
  assert.equal(LAB.enrolmentRequest("pi-7"), "fl/v2/lab/en/invite.pi-7/q");
  assert.equal(LAB.enrolmentAnswer("pi-7"), "fl/v2/lab/en/invite.pi-7/a");
  for (const wrong of ["invite.pi-7", "coordinator", "x".repeat(58), "a/b"]) {
    assert.throws(() => LAB.enrolmentAnswer(wrong), /device/);
  }
});
