import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { HUB } from "../../src/texts.ts";
import { InputError } from "../../src/errors.ts";
import { HEADER_BYTES, MAX_DATA_BYTES } from "../../src/wire/chunks.ts";
import type { Broker, LinkOptions } from "../../src/wire/connection.ts";
import { Link, type LinkEvent } from "../../src/wire/link.ts";
import { Mosquitto, Proxy, ScriptedBroker, freePort, until, withoutMosquitto } from "./brokers.ts";

const CONNACK_5 = Uint8Array.of(0x20, 3, 0, 0, 0);
const CONNACK_4 = Uint8Array.of(0x20, 2, 0, 0);

type Event<K extends LinkEvent["kind"]> = Extract<LinkEvent, { kind: K }>;

function linkTo(t: TestContext, broker: string | Broker, options: Partial<LinkOptions> = {}): Link {
  const access = typeof broker === "string" ? { url: broker, user: "", password: "" } : broker;
  const link = new Link({ broker: access, filters: [], will: null, ...options }, () => 0);
  link.start();
  t.after(() => link.close());
  return link;
}

async function next<K extends LinkEvent["kind"]>(link: Link, kind: K, seconds = 10): Promise<Event<K>> {
  for (let event = await link.get(seconds); event !== null; event = await link.get(seconds)) {
    if (event.kind === kind) return event as Event<K>;
  }
  throw new Error(`no ${kind}`);
}

async function mosquitto(t: TestContext, ...lines: readonly string[]): Promise<Mosquitto> {
  const broker = await Mosquitto.start(...lines);
  t.after(() => broker.stop());
  return broker;
}

async function scripted(t: TestContext, ...args: Parameters<typeof ScriptedBroker.start>): Promise<ScriptedBroker> {
  const broker = await ScriptedBroker.start(...args);
  t.after(() => broker.stop());
  return broker;
}

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

test("messages arrive and tell whether they are retained", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const link = linkTo(t, broker.url, { filters: ["x/+"] });
  assert.deepEqual(await next(link, "connected"), { kind: "connected", protocol: "5" });
  assert.ok(link.publish("x/live", bytes("1"), true));
  const delivery = { kind: "delivery", topic: "x/live", payload: bytes("1"), retained: false };
  assert.deepEqual(await next(link, "delivery"), delivery);
  const late = linkTo(t, broker.url, { filters: ["x/+"] });
  assert.deepEqual(await next(late, "delivery"), { ...delivery, retained: true });
  late.subscribeAgain();
  assert.deepEqual(await next(late, "delivery"), { ...delivery, retained: true });
});

test("a killed device leaves its will and a closed link does not", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const observer = linkTo(t, broker.url, { filters: ["st/+"] });
  await next(observer, "connected");
  const proxy = await Proxy.start(broker.port);
  t.after(() => proxy.cut());
  for (const [name, url] of [["polite", broker.url], ["killed", proxy.url]] as const) {
    const will = { topic: `st/${name}`, payload: bytes("offline") };
    const link = linkTo(t, url, { will });
    await next(link, "connected");
    link.publish(will.topic, bytes("online"), true);
    assert.deepEqual((await next(observer, "delivery")).payload, bytes("online"));
    if (name === "polite") await link.close();
    else proxy.cut();
  }
  const { topic, payload } = await next(observer, "delivery");
  assert.deepEqual([topic, payload], ["st/killed", bytes("offline")]);
});

test("a restarted broker is found again and nothing old is sent", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const link = linkTo(t, broker.url, { filters: ["x"] });
  await next(link, "connected");
  await broker.kill();
  assert.equal((await next(link, "disconnected")).final, false);
  assert.equal(link.publish("x", bytes("lost")), false);
  await broker.run();
  await next(link, "connected", 30);
  link.publish("x", bytes("new"));
  assert.deepEqual((await next(link, "delivery")).payload, bytes("new"));
});

test("socket counters agree with a proxy", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const proxy = await Proxy.start(broker.port);
  t.after(() => proxy.cut());
  const link = linkTo(t, proxy.url, { filters: ["x"] });
  await next(link, "connected");
  for (let time = 0; time < 40; time += 1) {
    link.publish("x", new Uint8Array(3900));
    await next(link, "delivery");
  }
  await until(() => proxy.up >= link.traffic.socketUpBytes);
  const { socketUpBytes, socketDownBytes, payloadUpBytes, payloadDownBytes } = link.traffic;
  assert.deepEqual([payloadUpBytes, payloadDownBytes], [40 * 3900, 40 * 3900]);
  assert.ok(Math.abs(socketUpBytes - proxy.up) < 0.01 * proxy.up, `${socketUpBytes} and ${proxy.up}`);
  assert.ok(Math.abs(socketDownBytes - proxy.down) < 0.01 * proxy.down, `${socketDownBytes} and ${proxy.down}`);
});

test("a refused user stops with the reason", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, "allow_anonymous false");
  const link = linkTo(t, { url: broker.url, user: "anna", password: "wrong" });
  const { final, reason } = await next(link, "disconnected");
  assert.ok(final);
  assert.match(reason, /^broker refused: .*Not authorized/);
  assert.equal(await link.get(0.5), null);
});

test("a user connects with the password", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  await broker.kill();
  const users = join(broker.folder, "users");
  execFileSync("mosquitto_passwd", ["-b", "-c", users, "anna", "secret"]);
  await broker.run("allow_anonymous false", `password_file ${users}`);
  await next(linkTo(t, { url: broker.url, user: "anna", password: "secret" }), "connected");
});

test("a denied publish stops with the reason", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  await broker.kill();
  const rules = join(broker.folder, "acl");
  await writeFile(rules, "topic read #\ntopic write allowed\n");
  await broker.run(`acl_file ${rules}`);
  const link = linkTo(t, broker.url);
  await next(link, "connected");
  link.publish("denied", bytes("1"));
  const { final, forbidden, reason } = await next(link, "disconnected");
  assert.ok(final);
  assert.ok(forbidden);
  assert.match(reason, /^publish refused: .*Not authorized/);
});

test("a full link tells when it has room again", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const link = linkTo(t, broker.url);
  await next(link, "connected");
  for (let time = 0; time < 100; time += 1) link.publish("x", new Uint8Array(60_000));
  assert.equal(link.room, 0);
  await next(link, "drained");
  await until(() => link.room === 16);
});

test("no WebSocket frame is larger than a packet may be, however much is published at once", async (t) => {
  const frames: number[] = [];
  const broker = await scripted(t, (_connection, sent) => {
    frames.push(sent.length);
    return sent[0] === 0x10 ? CONNACK_5 : undefined;
  });
  const link = linkTo(t, broker.url);
  await next(link, "connected");
  for (let time = 0; time < 20; time += 1) link.publish("x", new Uint8Array(60_000));
  await until(() => frames.reduce((sum, size) => sum + size) > 20 * 60_000);
  assert.ok(Math.max(...frames) <= 65_536, `${frames}`);
  await link.close(0.1);
});

test("the broker's packet limit shrinks chunks", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, "max_packet_size 20000");
  const link = linkTo(t, broker.url, { filters: ["x"] });
  await next(link, "connected");
  assert.equal(link.chunkBytes, 20_000 - 512 - 32 - 16);
  assert.equal(link.publish("x", new Uint8Array(20_000)), false);
  const chunk = new Uint8Array(link.chunkBytes + HEADER_BYTES);
  assert.ok(link.publish("x", chunk));
  assert.deepEqual((await next(link, "delivery")).payload, chunk);
});

test("a broker that drops packets one by one halves the chunks until they pass", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t, "message_size_limit 20000");
  const link = linkTo(t, broker.url, { filters: ["x"] });
  for (let size = MAX_DATA_BYTES; size > 20_000; size = Math.floor(size / 2)) {
    await next(link, "connected");
    assert.equal(link.chunkBytes, size);
    link.publish("x", new Uint8Array(link.chunkBytes + HEADER_BYTES));
    const { reason, final } = await next(link, "disconnected");
    assert.match(reason, /^publish refused: packet too large/);
    assert.ok(!final);
  }
  await next(link, "connected");
  assert.ok(link.publish("x", new Uint8Array(link.chunkBytes + HEADER_BYTES)));
  await next(link, "delivery");
});

test("a packet that was too large halves the chunks", async (t) => {
  const tooLarge = Uint8Array.of(0xe0, 2, 0x95, 0);
  const broker = await scripted(t, (connection) =>
    connection === 0 ? Uint8Array.of(...CONNACK_5, ...tooLarge) : CONNACK_5,
  );
  const link = linkTo(t, broker.url);
  const { reason, final } = await next(link, "disconnected");
  assert.deepEqual([reason, final], ["broker closed: Packet too large", false]);
  await next(link, "connected");
  assert.equal(link.chunkBytes, Math.floor(MAX_DATA_BYTES / 2));
});

test("a broker of 3.1.1 only is spoken to in 3.1.1 at once", async (t) => {
  const broker = await scripted(t, (_connection, sent) => {
    if (sent[0] !== 0x10) return undefined;
    return sent[8] === 5 ? Uint8Array.of(0x20, 2, 0, 1) : CONNACK_4;
  });
  assert.equal((await next(linkTo(t, broker.url), "connected")).protocol, "3.1.1");
  assert.deepEqual(broker.connects.map((sent) => sent[8]), [5, 4]);
});

test("a broker that closes at MQTT 5 is tried with 3.1.1", async (t) => {
  const broker = await scripted(t, (_connection, sent) => (sent[8] === 5 ? null : CONNACK_4));
  assert.equal((await next(linkTo(t, broker.url), "connected")).protocol, "3.1.1");
});

test("a broker that is away behind its hub is waited for, in MQTT 5", async (t) => {
  const broker = await scripted(t, (connection) => (connection < 3 ? "the broker does not answer" : CONNACK_5));
  const link = linkTo(t, broker.url);
  const { reason, final } = await next(link, "disconnected");
  assert.deepEqual([reason, final], ["connection lost: the broker does not answer", false]);
  assert.equal((await next(link, "connected")).protocol, "5");
  assert.ok(broker.connects.every((sent) => sent[8] === 5));
});

test("a user whom a broker of 3.1.1 refuses stops with the reason", async (t) => {
  const broker = await scripted(t, (_connection, sent) => (sent[8] === 5 ? null : Uint8Array.of(0x20, 2, 0, 4)));
  const link = linkTo(t, broker.url);
  await next(link, "disconnected");
  const { reason, final } = await next(link, "disconnected");
  assert.deepEqual([reason, final], ["broker refused: Connection refused: Bad username or password", true]);
});

test("a broker that speaks no WebSocket has a sentence of its own", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const refused = await freePort();
  for (const port of [broker.tcpPort, refused]) {
    const url = `ws://127.0.0.1:${port}/mqtt`;
    const { reason, final } = await next(linkTo(t, url), "disconnected", 20);
    assert.deepEqual([reason, final], [HUB.noWebSocket(url), false]);
  }
});

test("an address that the browser forbids ends the link with its reason", async (t) => {
  const { WebSocket: before } = globalThis;
  t.after(() => (globalThis.WebSocket = before));
  globalThis.WebSocket = class {
    constructor() {
      throw new DOMException("An insecure WebSocket connection may not be initiated", "SecurityError");
    }
  } as unknown as typeof WebSocket;
  const { reason, final } = await next(linkTo(t, "ws://hub"), "disconnected");
  assert.ok(final);
  assert.equal(reason, "ws://hub: An insecure WebSocket connection may not be initiated");
});

test("a broker that never acknowledges does not keep a link from closing", async (t) => {
  const broker = await scripted(t, (_connection, sent) => (sent[0] === 0x10 ? CONNACK_5 : undefined));
  const link = linkTo(t, broker.url);
  await next(link, "connected");
  link.publish("x", bytes("1"));
  await link.close(0.2);
  assert.equal(link.connected, false);
  await until(() => broker.open === 0);
});

test("a link that is closed while it connects ends at once", async (t) => {
  const broker = await scripted(t, () => undefined);
  const link = linkTo(t, broker.url);
  await until(() => broker.connects.length === 1);
  await link.close(60);
  await until(() => broker.open === 0);
});

test("what was published before closing arrives", { skip: withoutMosquitto }, async (t) => {
  const broker = await mosquitto(t);
  const observer = linkTo(t, broker.url, { filters: ["x"] });
  await next(observer, "connected");
  const link = linkTo(t, broker.url);
  await next(link, "connected");
  for (let time = 0; time < 50; time += 1) link.publish("x", new Uint8Array([time]));
  await link.close();
  for (let time = 0; time < 50; time += 1) assert.equal((await next(observer, "delivery")).payload[0], time);
});

test("an address of another kind is refused with what to do", () => {
  const broker = { url: "mqtts://broker:8883", user: "", password: "" };
  assert.throws(() => new Link({ broker, filters: [], will: null }), InputError);
});

test("a session that is taken over is never given up", async (t) => {
  const broker = await scripted(t, (_connection, sent) =>
    sent[0] === 0x10 ? Uint8Array.of(...CONNACK_5, 0xe0, 2, 0x8e, 0) : undefined,
  );
  const link = linkTo(t, broker.url);
  for (let time = 0; time < 3; time += 1) {
    const { reason, final } = await next(link, "disconnected");
    assert.deepEqual([reason, final], ["broker closed: Session taken over", false]);
  }
});

test("each connection has a random client id that every broker takes", async (t) => {
  for (const level of [5, 4]) {
    const broker = await scripted(t, () => null);
    const link = linkTo(t, broker.url);
    await until(() => broker.connects.filter((sent) => sent[8] === level).length >= 2);
    await link.close();
    const ids = broker.connects
      .filter((sent) => sent[8] === level)
      .map((sent) => {
        const start = 12 + (level === 5 ? 1 + (sent[12] as number) : 0); // behind the properties
        return sent.subarray(start + 2, start + 2 + (sent[start + 1] as number)).toString();
      });
    assert.ok(ids.every((id) => /^[0-9a-zA-Z]{23}$/.test(id)), ids.join());
    assert.notEqual(ids[0], ids[1]);
  }
});

const NO_BROKERS: readonly (readonly number[])[] = [
  [0x30, 0x05, 0x00, 0x02, 0xff, 0xfe, 0x00],
  [0x30, 0x03, 0x00, 0x09, 0x61],
  [0x30, 0xff, 0xff, 0xff, 0xff, 0x7f],
  [0xf0, 0x00],
  [0x00, 0x00],
  [0x90, 0x02, 0x00, 0x01],
  [0x36, 0x03, 0x00, 0x01, 0x61],
  [0x20, 0x03, 0x00, 0x00, 0x00],
  [0xe0, 0x02, 0x77, 0x00],
  [0x40, 0x04, 0x00, 0x01, 0x77, 0x00],
  [0x30, 0x06, 0x00, 0x01, 0x61, 0x02, 0x7f, 0x00],
];

for (const packet of NO_BROKERS) {
  test(`a packet that no broker sends ends the connection and nothing else: ${packet.join(" ")}`, async (t) => {
    const broker = await scripted(t, (connection, sent) => {
      if (sent[0] === 0x10) return Uint8Array.of(...CONNACK_5, ...(connection === 0 ? packet : []));
      return sent[0] === 0x82 ? Uint8Array.of(0x90, 4, sent[2] as number, sent[3] as number, 0, 1) : undefined;
    });
    const link = linkTo(t, broker.url, { filters: ["x"], keepaliveS: 2 });
    const event = await link.get(10);
    assert.ok(event?.kind === "disconnected" || event?.kind === "connected", event?.kind);
    if (event.kind === "disconnected") {
      assert.equal(event.final, false);
      await next(link, "connected");
    }
  });
}

test("wake interrupts a waiting get", async (t) => {
  const link = linkTo(t, `ws://127.0.0.1:${await freePort()}`);
  link.wake();
  await next(link, "woken");
});

test("back-off is full jitter up to two minutes, and the network's return ends it", async (t) => {
  const broker = { url: `ws://127.0.0.1:${await freePort()}`, user: "", password: "" };
  const link = new Link({ broker, filters: [], will: null }, () => 1);
  t.after(() => link.close());
  link.start();
  const begun = performance.now();
  for (let attempt = 0; attempt < 12; attempt += 1) {
    await next(link, "disconnected");
    await new Promise((resolve) => setTimeout(resolve, 20));
    link.hurry();
  }
  assert.ok(performance.now() - begun < 30_000, "without hurry it would take some ten minutes");
});
