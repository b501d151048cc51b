import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import { sha256Hex } from "../../src/hash.ts";
import type { Broker } from "../../src/wire/connection.ts";
import { DeviceEndpoint, type EndpointEvent } from "../../src/wire/endpoint.ts";
import { Link } from "../../src/wire/link.ts";
import { type Heartbeat, type Presence, type Task, message } from "../../src/wire/messages.ts";
import { Plain, type Protection } from "../../src/wire/protection.ts";
import { Mosquitto, bridge, withoutMosquitto } from "./brokers.ts";
import { CoordinatorEnd } from "./coordinator_end.ts";
import { MemoryBlobs } from "./memory_blobs.ts";

const BLOB_BYTES = 700_000;
/** Chunks that Mosquitto's own WebSocket listener passes on without waiting. */
const SMALL_PACKETS = "max_packet_size 5000";

/** An agent of few words: takes each payload and sends it back, its bytes backwards. */
class Device {
  readonly seen: EndpointEvent[] = [];
  #stopped = false;

  constructor(readonly endpoint: DeviceEndpoint) {}

  static async start(
    t: TestContext, url: string, protection: Protection, blobs = new MemoryBlobs(),
  ): Promise<Device> {
    const endpoint = await DeviceEndpoint.create({
      broker: brokerAt(url),
      federation: "lab",
      deviceId: "pi-7",
      protection,
      blobs,
      will: presence("offline"),
    });
    t.after(() => endpoint.close());
    endpoint.start();
    return new Device(endpoint);
  }

  async run(until: (event: EndpointEvent | null) => boolean, seconds = 60): Promise<EndpointEvent | null> {
    for (const deadline = performance.now() + seconds * 1000; performance.now() < deadline; ) {
      const event = await this.endpoint.poll(0.05);
      if (event !== null) {
        this.seen.push(event);
        await this.#react(event);
      }
      if (until(event)) return event;
      if (this.#stopped) return null;
    }
    throw new Error(`saw only ${this.seen.map((event) => JSON.stringify(event).slice(0, 200)).join("\n")}`);
  }

  stop(): void {
    this.#stopped = true;
    this.endpoint.wake();
  }

  async #react(event: EndpointEvent): Promise<void> {
    const announced = event.kind === "message" && event.message.type === "announcement";
    if (event.kind === "connected" || announced) await this.endpoint.publish(presence("online"));
    if (event.kind === "message" && event.message.type === "task" && event.message.payload !== null) {
      await this.endpoint.expect(event.message.payload);
    }
    if (event.kind === "received") {
      await this.endpoint.accept(event.offer.transfer_id);
      await this.endpoint.sendUpdate(event.blob.slice().reverse(), event.offer.round_id, null);
    }
  }
}

function brokerAt(url: string): Broker {
  return { url, user: "", password: "" };
}

function presence(status: Presence["status"]): Presence {
  return message("presence", { device_id: "pi-7", boot_id: "b", status, num_examples: 120 });
}

function heartbeat(): Heartbeat {
  return message("heartbeat", {
    device_id: "pi-7", boot_id: "b", round_id: 0, phase: "idle", bytes_up: 1, bytes_down: 2, peak_rss_bytes: 3,
  });
}

const delivered = (event: EndpointEvent | null): boolean => event?.kind === "delivered";

async function mosquitto(t: TestContext, ...lines: readonly string[]): Promise<Mosquitto> {
  const broker = await Mosquitto.start(...lines);
  t.after(() => broker.stop());
  return broker;
}

async function coordinator(t: TestContext, broker: Mosquitto, keyed = false): Promise<CoordinatorEnd> {
  const end = await CoordinatorEnd.start(`mqtt://127.0.0.1:${broker.tcpPort}`, keyed);
  t.after(() => end.stop());
  return end;
}

for (const keyed of [false, true]) {
  test(`rounds go down and up, ${keyed ? "sealed" : "bare"}`, { skip: withoutMosquitto }, async (t) => {
    const broker = await mosquitto(t);
    const end = await coordinator(t, broker, keyed);
    const device = await Device.start(t, await bridge(t, broker), await end.protection());
    const running = device.run((event) => delivered(event) && device.seen.filter(delivered).length === 2);
    assert.deepEqual(await end.next("presence"), { event: "presence", status: "online", num_examples: 120 });
    for (const round of [1, 2]) {
      end.order({ task: round, bytes: BLOB_BYTES });
      const { sha256 } = await end.next("sent");
      const update = await end.next("update");
      assert.deepEqual([update["round_id"], update["good"], update["chunk_bytes"]], [round, true, 64_976]);
      const received = device.seen.filter((event) => event.kind === "received").at(-1);
      assert.ok(received?.kind === "received");
      assert.equal(await sha256Hex(received.blob), sha256);
    }
    await running;
    const task = device.seen.find((event) => event.kind === "message" && event.message.type === "task");
    assert.ok(task?.kind === "message");
    assert.equal((task.message as Task).seed, 2n ** 62n + 1n);
    const { socketUpBytes, socketDownBytes } = device.endpoint.traffic;
    assert.ok(socketUpBytes < 1.02 * 2 * BLOB_BYTES && socketDownBytes < 1.02 * 2 * BLOB_BYTES);
    assert.ok(await device.endpoint.publish(heartbeat()));
    await end.next("heartbeat");
    assert.deepEqual(device.seen.filter((event) => event.kind === "ignored"), []);
  });
}

test("a rejected update tells the device why", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, SMALL_PACKETS);
  const end = await coordinator(t, broker, true);
  const device = await Device.start(t, broker.url, await end.protection());
  const running = device.run((event) => event?.kind === "rejected");
  await end.next("presence");
  end.order({ refuse: "cohort", task: 1, bytes: 1000 });
  const rejected = await running;
  assert.ok(rejected?.kind === "rejected");
  assert.deepEqual([rejected.rule, rejected.reason], ["cohort", "refused by rule cohort"]);
});

test("a rejected payload tells the coordinator why", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, SMALL_PACKETS);
  const end = await coordinator(t, broker, true);
  const device = await Device.start(t, broker.url, await end.protection());
  const running = device.run((event) => event?.kind === "received");
  await end.next("presence");
  end.order({ task: 1, bytes: 1000 });
  const received = await running;
  assert.ok(received?.kind === "received");
  await device.endpoint.reject(received.offer.transfer_id, "diverged", "loss is NaN");
  const { rule, reason } = await end.next("rejected");
  assert.deepEqual([rule, reason], ["diverged", "loss is NaN"]);
});

test("a broker killed in the middle costs time only", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, SMALL_PACKETS);
  const end = await coordinator(t, broker, true);
  const device = await Device.start(t, broker.url, await end.protection());
  const { endpoint } = device;
  const some = device.run(() => endpoint.traffic.payloadDownBytes > BLOB_BYTES / 4);
  await end.next("presence");
  end.order({ task: 1, bytes: BLOB_BYTES });
  await some;
  assert.ok(endpoint.traffic.payloadDownBytes < BLOB_BYTES);
  await broker.kill();
  const rest = device.run(delivered);
  await broker.run(SMALL_PACKETS);
  await rest;
  assert.equal((await end.next("update"))["good"], true);
  assert.ok(endpoint.traffic.payloadDownBytes < 1.4 * BLOB_BYTES, `${endpoint.traffic.payloadDownBytes}`);
});

test("a device killed in the middle goes on with the chunks that it kept", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, SMALL_PACKETS);
  const end = await coordinator(t, broker, true);
  const blobs = new MemoryBlobs();
  const first = await Device.start(t, broker.url, await end.protection(), blobs);
  const some = first.run(() => first.endpoint.traffic.payloadDownBytes > BLOB_BYTES / 2);
  await end.next("presence");
  end.order({ task: 1, bytes: BLOB_BYTES });
  await some;
  const again = await Device.start(t, broker.url, await end.protection(), blobs);
  await again.run(delivered);
  assert.equal((await end.next("update"))["good"], true);
  assert.ok(again.endpoint.traffic.payloadDownBytes < 0.6 * BLOB_BYTES);
});

test("a smaller packet limit after a restart is obeyed", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const end = await coordinator(t, broker);
  const device = await Device.start(t, await bridge(t, broker), await end.protection());
  const received = device.run((event) => event?.kind === "received");
  await end.next("presence");
  end.order({ task: 1, bytes: BLOB_BYTES });
  await received;
  await broker.kill();
  const rest = device.run(delivered);
  await broker.run(SMALL_PACKETS);
  await rest;
  assert.deepEqual(await end.next("update"), { event: "update", round_id: 1, good: true, chunk_bytes: 5000 - 560 });
});

test("hostile packets are reported and change nothing", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, SMALL_PACKETS);
  const end = await coordinator(t, broker, true);
  const device = await Device.start(t, broker.url, await end.protection());
  const stranger = new Link({ broker: brokerAt(broker.url), filters: [], will: null });
  t.after(() => stranger.close());
  stranger.start();
  assert.equal((await stranger.get(10))?.kind, "connected");
  const joined = device.run((event) => event?.kind === "message");
  await end.next("presence");
  await joined;
  const noise = new TextEncoder().encode('{"type":"need","x":"\xff"}');
  for (const [topic, rule, retain] of [
    ["dn/pi-7/c", "chunk-size", false],
    ["dn/pi-7/a", "seal", false],
    ["dn/pi-7/t", "seal", false],
    ["all/ctl", "signature", true],
  ] as const) {
    const ignored = device.run((event) => event?.kind === "ignored");
    stranger.publish("fl/v2/lab/dn/pi-7/x", noise);
    stranger.publish(`fl/v2/lab/${topic}`, noise, retain);
    const event = await ignored;
    assert.ok(event?.kind === "ignored");
    assert.equal(event.rule, rule, topic);
  }
  end.order({ task: 1, bytes: 1000 });
  await device.run(delivered);
});

test("after a reconnect the presence goes out before the offers", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const device = await Device.start(t, broker.url, new Plain());
  await device.run((event) => event?.kind === "connected");
  await device.endpoint.sendUpdate(new Uint8Array(10), 1, null);
  await broker.kill();
  await device.run((event) => event?.kind === "disconnected");
  await broker.run();
  const observer = new Link({ broker: brokerAt(broker.url), filters: ["fl/v2/lab/#"], will: null });
  t.after(() => observer.close());
  observer.start();
  assert.equal((await observer.get(10))?.kind, "connected");
  const running = device.run(() => false);
  const topics = [];
  while (topics.length < 2) {
    const event = await observer.get(10);
    assert.ok(event?.kind === "delivery");
    topics.push(event.topic);
  }
  assert.deepEqual(topics, ["fl/v2/lab/st/pi-7", "fl/v2/lab/up/pi-7/m"]);
  device.stop();
  await running;
});
