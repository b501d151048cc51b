import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { utf8 } from "../../src/bytes.ts";
import { toHex } from "../../src/hash.ts";
import {
  ANSWER_S,
  checkEnrolment,
  enrol,
  type Enrolled,
  type EnrolmentAccess,
  type EnrolmentEvent,
  type EnrolmentLink,
  type EnrolmentStore,
} from "../../src/device/enrolment.ts";
import type { Enrolment } from "../../src/device/store.ts";
import { newKeys, publicBytes } from "../../src/wire/ciphers.ts";
import {
  type EnrolmentRequest,
  type Invitation,
  type InvitationKeys,
  invitationKeys,
} from "../../src/wire/enrolment.ts";
import { fingerprint } from "../../src/wire/identity.ts";
import { Topics } from "../../src/wire/topics.ts";
import { answerBytes, grantRecord, openRequest, sealedAnswer } from "../wire/invited.ts";

const BROKER = "wss://hub.example/mqtt";
const TOPICS = new Topics("lab");
const [ASKS, ANSWERS] = [TOPICS.enrolmentRequest("pi-7"), TOPICS.enrolmentAnswer("pi-7")];

/** As the phone's store, in memory; `full` makes the next commit fail. */
class MemoryStore implements EnrolmentStore {
  enrolment: Enrolment | null = null;
  asking: EnrolmentStore["asking"] = null;
  full = false;

  async keepAsking(invitation: string, keys: CryptoKeyPair): Promise<void> {
    this.asking = { invitation, keys };
  }

  async commitEnrolment(enrolment: Enrolment): Promise<void> {
    if (this.full) throw new Error("storage is full");
    this.enrolment = enrolment;
    this.asking = null;
  }
}

/** Time that passes only while somebody waits for an event. */
class Time {
  #now = 0;
  ahead = 0;
  now = (): number => this.#now;
  time = (): number => Date.now() / 1000 + this.#now + this.ahead;
  pass(seconds: number): void {
    this.#now += seconds;
  }
}

type Answering = (request: EnrolmentRequest, payload: Uint8Array) => Promise<readonly Uint8Array[]>;

/** A broker with one account, and whoever answers there. */
class ScriptedLink implements EnrolmentLink {
  connected = true;
  readonly sent: { readonly at: number; readonly payload: Uint8Array }[] = [];
  readonly events: EnrolmentEvent[] = [{ kind: "connected" }];
  closed = false;
  #work: Promise<void> = Promise.resolve();

  constructor(
    readonly time: Time,
    readonly proof: Uint8Array,
    readonly answering: Answering,
  ) {}

  publish(topic: string, payload: Uint8Array): boolean {
    assert.equal(topic, ASKS);
    this.sent.push({ at: this.time.now(), payload });
    this.#work = this.#work.then(async () => {
      const request = await openRequest(payload, this.proof, ASKS);
      for (const answer of await this.answering(request, payload)) {
        this.events.push({ kind: "delivery", payload: answer, retained: false });
      }
    });
    return true;
  }

  async get(timeoutS: number): Promise<EnrolmentEvent | null> {
    assert.ok(timeoutS > 0);
    await this.#work;
    const event = this.events.shift() ?? null;
    this.time.pass(event === null ? timeoutS : 0.01);
    return event;
  }

  async close(): Promise<void> {
    this.closed = true;
  }
}

let federation: CryptoKeyPair;
let invitation: Invitation;
let keys: InvitationKeys;
let store: MemoryStore;
let time: Time;
let told: string[];
let links: ScriptedLink[];
let accesses: EnrolmentAccess[];

beforeEach(async () => {
  federation = await newKeys("Ed25519");
  invitation = {
    federation: "lab", deviceId: "pi-7", broker: "mqtts://broker.example", token: crypto.getRandomValues(new Uint8Array(16)),
    fingerprint: await fingerprint(await publicBytes(federation.publicKey)), certificate: "", account: true,
    until: 1_800_000_000,
  };
  keys = await invitationKeys(invitation);
  [store, time, told, links, accesses] = [new MemoryStore(), new Time(), [], [], []];
});

/** As the federation answers: with the grant, and to `taken` without it. */
const honest: Answering = async (request, payload) => {
  const common = { answers: request.nonce, time: Math.floor(Date.now() / 1000) };
  if (request.step === "taken") return [answerBytes(common)];
  const record = await grantRecord(federation, request.key);
  const sealed = await sealedAnswer(record, { payload, share: request.share }, keys.answer, ANSWERS);
  return [answerBytes({ ...common, ...sealed })];
};
const silent: Answering = async () => [];
const refusal = (request: EnrolmentRequest, rule: string, reason: string): Uint8Array =>
  answerBytes({ answers: request.nonce, rule, reason });

function run(answering: Answering, prepare: (link: ScriptedLink) => void = () => {}): Promise<Enrolled> {
  return enrol({
    invitation,
    store,
    broker: BROKER,
    told: (line) => told.push(line),
    clock: time,
    connect: (access, filter) => {
      assert.equal(filter, ANSWERS);
      accesses.push(access);
      const link = new ScriptedLink(time, keys.proof, answering);
      prepare(link);
      links.push(link);
      return link;
    },
  });
}

test("a device asks, keeps what it gets, and says so", async () => {
  const { enrolment, isNew, confirmed } = await run(honest);
  assert.deepEqual([isNew, confirmed], [true, true]);
  assert.equal(store.enrolment, enrolment);
  assert.deepEqual(
    [enrolment.federation, enrolment.deviceId, enrolment.broker, enrolment.password, enrolment.invitation],
    ["lab", "pi-7", BROKER, "A".repeat(32), keys.name],
  );
  assert.equal(enrolment.federationKey, toHex(await publicBytes(federation.publicKey)));
  assert.equal(enrolment.keys?.privateKey.extractable, false);
  assert.deepEqual(accesses, [{ url: BROKER, user: "invite.pi-7", password: keys.password }]);
  assert.equal(store.asking, null);
  assert.ok(links[0]?.closed);
});

test("an invitation without an account connects as nobody", async () => {
  invitation = { ...invitation, account: false };
  await run(honest);
  assert.deepEqual(accesses, [{ url: BROKER, user: "", password: "" }]);
});

test("the same request is repeated after 1, 2, 4, 8, 16, 30, 30 … s and after a reconnect, until nobody answers", async () => {
  await assert.rejects(run(silent), {
    name: "UnavailableError", message: /'lab': no answer in 180 s; .*then the same invitation goes on/,
  });
  const sent = links[0]?.sent ?? [];
  const gaps = sent.slice(2).map(({ at }, index) => Math.round(at - (sent[index + 1]?.at ?? 0)));
  assert.deepEqual(gaps, [2, 4, 8, 16, 30, 30, 30, 30]);
  assert.equal(new Set(sent.map(({ payload }) => toHex(payload))).size, 1);
  assert.ok(time.now() >= ANSWER_S && time.now() < ANSWER_S + 1);
  assert.deepEqual(told, ["waiting for the federation's answer"]);
  assert.ok(store.asking !== null && store.enrolment === null);
});

test("a page that was closed while it asked goes on with its key", async () => {
  await assert.rejects(run(silent));
  const asked = store.asking?.keys;
  const { enrolment } = await run(honest);
  assert.equal(enrolment.keys, asked);
});

test("a page that was closed before the enrolment was kept asks again with its key", async () => {
  store.full = true;
  await assert.rejects(run(honest), /storage is full/);
  assert.ok(links[0]?.closed);
  const asked = store.asking?.keys;
  store.full = false;
  assert.equal((await run(honest)).enrolment.keys, asked);
});

test("the invitation used twice changes nothing", async () => {
  const first = await run(honest);
  const again = await run(honest);
  assert.deepEqual([again.isNew, again.confirmed], [false, true]);
  assert.equal(again.enrolment, first.enrolment);
  const steps = await Promise.all((links[1]?.sent ?? []).map(({ payload }) => openRequest(payload, keys.proof, ASKS)));
  assert.ok(steps.length > 0 && steps.every(({ step }) => step === "taken"));
  assert.equal(new Set(steps.map(({ key }) => key)).size, 1);
});

test("a device is enrolled whether the federation knows it or not", async () => {
  const onlyGrants: Answering = async (request, payload) =>
    request.step === "grant" ? honest(request, payload) : [refusal(request, "grant", "no")];
  assert.deepEqual(await run(onlyGrants).then(({ isNew, confirmed }) => [isNew, confirmed]), [true, false]);
  const closing = (link: ScriptedLink): void => {
    link.connected = false;
    link.events.splice(0, 1, { kind: "disconnected", reason: "hub: not authorised", final: true });
  };
  assert.deepEqual(await run(silent, closing).then(({ isNew, confirmed }) => [isNew, confirmed]), [false, false]);
});

test("a refusal ends it by its rule, after 2 s in which nothing better came", async () => {
  const reason = "another device has\u202e used \nthis invitation";
  await assert.rejects(run(async (request) => [refusal(request, "used", reason)]), {
    name: "RefusedError",
    rule: "used",
    message: "federation 'lab' refused: another device has used this invitation; ask for a new invitation",
  });
  assert.ok(time.now() >= 2 && time.now() < 3);
  assert.ok(store.asking !== null && store.enrolment === null);
});

test("who answers first learns nothing and stops nobody", async () => {
  const eve: Answering = async (request, payload) => [
    utf8("noise"),
    answerBytes({ answers: request.nonce, share: "ab".repeat(32), sealed: "A".repeat(80) }),
    answerBytes({ answers: request.nonce, share: "", sealed: "" }),
    refusal(request, "used", "go away"),
    refusal({ ...request, nonce: "ff".repeat(16) }, "used", "of another request"),
    ...(await honest(request, payload)),
  ];
  assert.ok((await run(eve)).isNew);
});

test("of a refusal and then a lost connection, the refusal is told", async () => {
  const once: Answering = async (request) => [refusal(request, "expired", "too late")];
  const closing = (link: ScriptedLink): void => {
    const get = link.get.bind(link);
    let deliveries = 0;
    link.get = async (timeoutS) => {
      if (deliveries > 0) return { kind: "disconnected", reason: "gone", final: true };
      const event = await get(timeoutS);
      if (event?.kind === "delivery") deliveries += 1;
      return event;
    };
  };
  await assert.rejects(run(once, closing), { rule: "expired" });
});

test("what the broker retained is no answer", async () => {
  const retaining = (link: ScriptedLink): void => {
    const push = link.events.push.bind(link.events);
    link.events.push = (...events) => push(...events.map((event) => ({ ...event, retained: true }) as EnrolmentEvent));
  };
  await assert.rejects(run(honest, retaining), { name: "UnavailableError" });
});

test("another federation's key, and a grant for another key, are refused", async () => {
  const other = await newKeys("Ed25519");
  const by = (signer: CryptoKeyPair, changed = {}): Answering => async (request, payload) => {
    const record = await grantRecord(signer, request.key, changed);
    const sealed = await sealedAnswer(record, { payload, share: request.share }, keys.answer, ANSWERS);
    return [answerBytes({ answers: request.nonce, ...sealed })];
  };
  await assert.rejects(run(by(other)), { rule: "federation-key", message: /expected fingerprint .*\(this phone's clock: 20/ });
  await assert.rejects(run(by(federation, { key: "ab".repeat(32) })), { rule: "statement" });
  await assert.rejects(run(by(federation, { until: 1 })), { rule: "statement", message: /is over \(this phone's clock/ });
  assert.equal(store.enrolment, null);
});

test("a broker that lets nobody in says that the invitation is over", async () => {
  const closing = (link: ScriptedLink): void => {
    link.connected = false;
    link.events.splice(0, 1, { kind: "disconnected", reason: "hub: not authorised", final: true });
  };
  await assert.rejects(run(silent, closing), {
    name: "UnavailableError",
    message: "hub: not authorised: this invitation (until 2027-01-15 08:00 UTC) was used, replaced or is over; ask for a new one",
  });
});

test("a broker whose access list forbids the question is told from an invitation that is over", async () => {
  const forbidding = (link: ScriptedLink): void => {
    link.connected = false;
    link.events.splice(0, 1, { kind: "disconnected", reason: "hub: publish refused", final: true, forbidden: true });
  };
  await assert.rejects(run(silent, forbidding), {
    name: "UnavailableError",
    message: /^hub: publish refused: .*access list serve federation .*the same invitation goes on$/,
  });
});

test("a connection that was lost is made again, and the question asked anew", async () => {
  const losing = (link: ScriptedLink): void => {
    link.events.unshift({ kind: "disconnected", reason: "hub: no network", final: false });
  };
  assert.ok((await run(honest, losing)).confirmed);
  assert.deepEqual(told, ["hub: no network; trying again"]);
});

test("nothing is sent while there is no connection", async () => {
  await assert.rejects(run(honest, (link) => {
    link.connected = false;
    link.events.length = 0;
  }), { name: "UnavailableError" });
  assert.deepEqual(links[0]?.sent, []);
});

test("clocks that differ are told once", async () => {
  time.ahead = 86_400;
  await run(honest);
  assert.equal(told.filter((line) => /this phone's clock is 8640\d s ahead of the federation's; set it/.test(line)).length, 1);
});

test("a store of another device or federation is not touched", async () => {
  await run(honest);
  const before = store.enrolment;
  invitation = { ...invitation, deviceId: "pi-8" };
  await assert.rejects(run(honest), { name: "ProvisionError", message: /belongs to device 'pi-7', the invitation is for 'pi-8'/ });
  invitation = { ...invitation, deviceId: "pi-7", federation: "other" };
  await assert.rejects(run(honest), { name: "ProvisionError", message: /belongs to federation 'lab'/ });
  assert.equal(store.enrolment, before);
  assert.equal(links.length, 1);
});

test("a new invitation for the same device brings a new key, which counts once it is kept", async () => {
  const before = (await run(honest)).enrolment;
  invitation = { ...invitation, token: crypto.getRandomValues(new Uint8Array(16)) };
  keys = await invitationKeys(invitation);
  await assert.rejects(run(silent));
  assert.equal(store.enrolment, before);
  const { enrolment, isNew } = await run(honest);
  assert.ok(isNew);
  assert.notEqual(enrolment.keys, before.keys);
  assert.notEqual(enrolment.invitation, before.invitation);
});

test("an enrolment holds as long as its grant does, for its own key", async () => {
  const { enrolment } = await run(honest);
  await checkEnrolment(enrolment);
  await checkEnrolment({ ...enrolment, keys: null, grant: "" });
  const other = await newKeys("Ed25519");
  const cases = [
    [() => checkEnrolment(enrolment, 4_000_000_001), /valid until 2096-10-02, which is over \(this phone's clock: 2096-10-02 07:06 UTC\); ask for/],
    [() => checkEnrolment({ ...enrolment, keys: other }), /another device or key; ask for a new invitation/],
    [() => checkEnrolment({ ...enrolment, deviceId: "pi-8" }), /another device or key/],
    [() => checkEnrolment({ ...enrolment, federationKey: "ab".repeat(32) }), /not signed by this federation's key/],
  ] as const;
  for (const [check, message] of cases) await assert.rejects(check, { name: "ProvisionError", message });
});
