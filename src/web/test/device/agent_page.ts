/** The agent on a real store, with a wire and a learner that do what a test says; runs in a browser's page. */

import { Agent, type Ending } from "../../src/device/agent.ts";
import { Meter } from "../../src/device/meter.ts";
import { Store } from "../../src/device/store.ts";
import { TrainingCancelled, TrainingControl } from "../../src/device/training.ts";
import { DivergedError } from "../../src/errors.ts";
import type { RatesToTry } from "../../src/federation/calibration.ts";
import type { ReceivedPayload, TrainedRound } from "../../src/federation/client.ts";
import { type ComparedExamples, NO_EXAMPLES, pooled } from "../../src/federation/gate.ts";
import type { AgentLearner, DeviceEnd } from "../../src/device/reporter.ts";
import type { Model, Strategy } from "../../src/strategies/types.ts";
import { encode } from "../../src/tensors/safetensors.ts";
import { float32, Layout, type Tensor, TensorMap } from "../../src/tensors/tensors.ts";
import type { EndpointEvent } from "../../src/wire/endpoint.ts";
import { transferId } from "../../src/wire/transfer.ts";
import { type Announcement, type CalibrationOrder, type Heartbeat, message, type Presence, type Task, type TransferOffer } from "../../src/wire/messages.ts";

const BINDING = { federation: "home", bundle: "b", layoutHash: "l", signer: "s" };
const LAYOUT = new Layout([["w", [4]]]);
const MODEL: Model = {
  network: { params: TensorMap.zeros(LAYOUT), buffers: TensorMap.zeros(new Layout([])) },
  task: "classification", numClasses: 2, features: 0, head: [],
};
const STRATEGY = {
  name: "fedavg",
  payload: { required: new Map([["params/w", { shape: [4], dtype: "float32", most: 0 }]]), optional: new Map() },
} as unknown as Strategy;

/** A wire that carries nothing: it notes what it is told, and brings what a test says. */
class ScriptedEnd implements DeviceEnd {
  readonly connected = true;
  readonly traffic = { socketUpBytes: 0, socketDownBytes: 0, payloadUpBytes: 0, payloadDownBytes: 0 };
  /** What was done, such as "expect 1a" or "reject 1a layout". */
  readonly did: string[] = [];
  readonly published: (Presence | Heartbeat)[] = [];
  readonly sent: TransferOffer[] = [];
  readonly #events: EndpointEvent[] = [];
  #notify: () => void = () => {};
  #woken = false;

  bring(event: EndpointEvent): void {
    this.#events.push(event);
    this.#notify();
  }

  start(): void {}
  listenAgain(): void {}
  spread(_seconds: number): void {}

  async poll(timeoutS: number): Promise<EndpointEvent | null> {
    if (this.#events.length === 0 && !this.#woken) {
      await new Promise<void>((resolve) => {
        this.#notify = resolve;
        setTimeout(resolve, Math.min(1000 * timeoutS, 60_000));
      });
    }
    this.#woken = false;
    return this.#events.shift() ?? null;
  }

  wake(): void {
    this.#woken = true;
    this.#notify();
  }

  async publish(record: Presence | Heartbeat): Promise<boolean> {
    this.published.push(record);
    return true;
  }

  async expect(offer: TransferOffer): Promise<void> {
    this.did.push(`expect ${named(offer.transfer_id)}`);
  }

  async accept(id: string): Promise<void> {
    this.did.push(`accept ${named(id)}`);
  }

  async reject(id: string, rule: string): Promise<void> {
    this.did.push(`reject ${named(id)} ${rule}`);
  }

  remember(id: string): void {
    this.did.push(`remember ${named(id)}`);
  }

  async cancel(id: string): Promise<void> {
    this.did.push(`cancel ${named(id)}`);
  }

  async sendUpdate(blob: Uint8Array, roundId: number): Promise<TransferOffer> {
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", blob as Uint8Array<ArrayBuffer>));
    const sha256 = Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
    const id = transfer(`f${roundId}`);
    const offer = message("manifest", {
      transfer_id: id, kind: "update", round_id: roundId, total_bytes: blob.length, sha256, chunk_bytes: 1,
    });
    this.did.push(`send ${roundId}`);
    this.sent.push(offer);
    return offer;
  }

  async close(): Promise<void> {
    this.did.push("close");
  }
}

const EVIDENCE = pooled("classification", NO_EXAMPLES);
const FOLD: ComparedExamples = { examples: 4, before: 1, now: 3, gain: 2, squares: 2 };

/** Trains when a test lets it: each number becomes one more. */
class ScriptedLearner implements AgentLearner {
  readonly model = MODEL;
  readonly meter = new Meter();
  readonly control = new TrainingControl();
  readonly numExamples = 5;
  readonly classCounts = [2, 3];
  readonly lastExample = 7;
  /** Rounds whose training has begun, with the last example of each. */
  readonly began: string[] = [];
  free = true;
  failure: Error | null = null;

  asksClassCounts(strategy: string): boolean {
    return strategy === "fedproto";
  }

  strategy(): Strategy {
    return STRATEGY;
  }

  async round(_strategy: Strategy, _store: Store, { order, payload }: ReceivedPayload, last: number): Promise<TrainedRound> {
    this.control.begin();
    this.began.push(`${order.roundId} up to ${last}`);
    do {
      await new Promise((resolve) => setTimeout(resolve, 1));
      await this.control.between();
    } while (!this.free);
    if (this.failure !== null) throw this.failure;
    const values = payload.tensors.get("params/w")!.data as Float32Array;
    const tensors = new Map([["params/w", float32([4], values.map((value) => value + 1))]]);
    const { roundId } = order;
    const evaluation = { own: null, ownLoss: NaN, more: new Map() };
    const update = { clientId: "d", roundId, numExamples: 5, tensors, evaluation, loss: 0.5 };
    const coding = { codec: "raw", rawBytes: 0, reference: "" };
    return { state: { roundId, tensors }, residual: new Map(), update, blob: encode(tensors), coding, evidence: EVIDENCE };
  }

  async tryRates({ rates }: RatesToTry): Promise<readonly number[]> {
    this.control.begin();
    this.began.push(`rates ${rates.join(" ")}`);
    do {
      await new Promise((resolve) => setTimeout(resolve, 1));
      await this.control.between();
    } while (!this.free);
    if (this.failure !== null) throw this.failure;
    return rates.map((rate) => rate / 2);
  }

  /** Folds that were held out, and the last example of each. */
  readonly folds: string[] = [];
  brokenFolds = false;

  async holdOut(_strategy: Strategy, _received: ReceivedPayload, last: number, fold: number): Promise<ComparedExamples> {
    this.folds.push(`${fold} up to ${last}`);
    if (this.brokenFolds) throw new Error("no such fold");
    return FOLD;
  }

  figures({ roundId }: { readonly roundId: number }) {
    return { round: roundId, before: null, after: null, loss: 0.5, stepMs: 1, seconds: 1 };
  }
}

function transfer(name: string): string {
  return name.padEnd(32, "0");
}

function named(id: string): string {
  return id.replace(/0+$/, "");
}

function announcement(changes: Partial<Announcement> = {}): Announcement {
  const given = { federation: "home", boot_id: "1", phase: "training", round_id: 5, rounds: 5, strategy: "fedavg" } as const;
  return { ...message("announcement", { ...given, bundle: "b", layout_hash: "l" }), ...changes };
}

function calibration(key: string, { devices = ["d"], rates = [0.2, 0.4] } = {}): CalibrationOrder {
  return { key, settings: { optimiser: { kind: "sgd", lr: 1 } }, seed: 1n, rates, devices };
}

function offer(roundId: number, name: string): TransferOffer {
  const given = { transfer_id: transfer(name), kind: "payload", round_id: roundId, total_bytes: 1 } as const;
  return message("manifest", { ...given, sha256: name, chunk_bytes: 1 });
}

function task(roundId: number, name = `${roundId}a`): Task {
  return message("task", {
    task: "train", round_id: roundId, federation: "home", strategy: "fedavg", payload: offer(roundId, name),
  });
}

function blob(first: number): Uint8Array {
  return encode(new Map([["params/w", float32([4], Float32Array.of(first, 0, 0, 0))]]));
}

/** An agent in a run of five rounds. */
class Bench {
  readonly end = new ScriptedEnd();
  readonly learner = new ScriptedLearner();
  readonly agent: Agent;
  readonly ended: Promise<Ending>;

  private constructor(readonly store: Store) {
    const who = { deviceId: "d", bootId: "1", binding: BINDING, sequence: 0, strategies: ["fedavg"], chunkBytes: 0 };
    this.agent = new Agent(this.end, store, this.learner, who, { changed: () => {}, log: () => {} });
    this.ended = this.agent.run();
    this.bring({ kind: "connected", protocol: "5" });
    this.tell(announcement());
  }

  /** On the store `name`, made if there is none. */
  static async open(name: string): Promise<Bench> {
    const store = await Store.open(() => {}, name);
    if (store.journal.binding === null) await store.commitBundle(BINDING, new Uint8Array(3), 0);
    return new Bench(store);
  }

  bring(event: EndpointEvent): void {
    this.end.bring(event);
  }

  tell(record: Announcement | Task): void {
    this.bring({ kind: "message", message: record, retained: false });
  }

  /** The payload of a task has come. */
  give(roundId: number, data: Uint8Array = blob(roundId), name = `${roundId}a`): void {
    this.bring({ kind: "received", offer: offer(roundId, name), blob: data });
  }

  async until(holds: () => boolean): Promise<void> {
    for (const deadline = performance.now() + 5000; !holds(); await new Promise((resolve) => setTimeout(resolve, 2))) {
      if (performance.now() > deadline) throw new Error(`in vain: ${holds} ${this.end.did.join(", ")} ${this.agent.phase}`);
    }
  }

  async did(what: string): Promise<void> {
    await this.until(() => this.end.did.includes(what));
  }

  /** Trains a round and sends its update. */
  async train(roundId: number): Promise<void> {
    this.tell(task(roundId));
    await this.did(`expect ${roundId}a`);
    this.give(roundId);
    await this.did(`send ${roundId}`);
  }

  deliver(): void {
    this.bring({ kind: "delivered", offer: this.end.sent.at(-1)! });
  }

  async close(): Promise<void> {
    this.agent.stop();
    await this.ended;
    this.store.close();
  }
}

function equal(got: unknown, expected: unknown): void {
  const [one, other] = [JSON.stringify(got), JSON.stringify(expected)];
  if (one !== other) throw new Error(`expected ${other}, got ${one}`);
}

type Case = (bench: Bench, name: string) => Promise<void>;

const CASES: Readonly<Record<string, Case>> = {
  "a task is fetched, trained, sent, and counts when it is delivered": async (bench) => {
    await bench.train(1);
    equal([bench.store.journal.pending?.roundId, bench.store.journal.state], [1, null]);
    bench.deliver();
    await bench.until(() => bench.agent.phase === "idle");
    equal(bench.end.did, ["expect 1a", "accept 1a", "send 1"]);
    const { state, pending } = bench.store.journal;
    equal([state?.roundId, pending, bench.store.history.length, bench.learner.began], [1, null, 1, ["1 up to 7"]]);
    await bench.train(2);
  },

  "every third round holds out a fold": async (bench) => {
    for (const roundId of [1, 2, 3, 4]) {
      await bench.train(roundId);
      bench.deliver();
      await bench.until(() => bench.agent.phase === "idle");
    }
    await bench.until(() => bench.store.journal.state?.evidence?.heldOut === 2);
    equal(bench.learner.folds, ["0 up to 7", "1 up to 7"]);
    const { examples, gain, folds } = bench.store.journal.state!.evidence!;
    equal([examples, gain, folds], [8, 0.5, [FOLD, FOLD]]);
  },

  "a fold that cannot be held out costs no round": async (bench) => {
    bench.learner.brokenFolds = true;
    await bench.train(1);
    bench.deliver();
    await bench.until(() => bench.store.journal.state?.evidence?.heldOut === 1);
    equal([bench.store.journal.state?.roundId, bench.store.journal.state?.evidence?.examples], [1, 0]);
    await bench.train(2);
  },

  "a rejected update is dropped with its state": async (bench) => {
    await bench.train(1);
    bench.bring({ kind: "rejected", offer: bench.end.sent[0]!, rule: "late", reason: "too late" });
    await bench.until(() => bench.agent.phase === "idle");
    equal([bench.store.journal.state, bench.store.journal.pending, bench.store.history], [null, null, []]);
    equal(bench.agent.trouble.includes("too late"), true);
  },

  "a newer task waits for the fate of the update in the outbox": async (bench) => {
    await bench.train(1);
    bench.tell(task(2));
    bench.tell(task(3));
    await bench.until(() => bench.end.did.filter((what) => what === "send 1").length === 2);
    equal(bench.end.did.includes("expect 3a"), false);
    bench.deliver();
    await bench.did("expect 3a");
    equal([bench.store.journal.state?.roundId, bench.end.did.includes("expect 2a")], [1, false]);
  },

  "a newer task replaces the training in progress": async (bench) => {
    bench.learner.free = false;
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.until(() => bench.learner.began.length === 1);
    bench.tell(task(2));
    await bench.did("expect 2a");
    equal([bench.store.journal.received, bench.end.did.includes("cancel 1a")], [null, true]);
  },

  "a newer task replaces a payload that is still on its way": async (bench) => {
    bench.tell(task(1));
    bench.tell(task(2));
    await bench.did("expect 2a");
    equal(bench.end.did, ["expect 1a", "cancel 1a", "expect 2a"]);
  },

  "the task in progress and the delivered one are answered again": async (bench) => {
    await bench.train(1);
    bench.tell(task(1));
    const sent = (): number => bench.end.did.filter((what) => what === "send 1").length;
    await bench.until(() => sent() === 2);
    bench.deliver();
    await bench.until(() => bench.agent.phase === "idle");
    bench.tell(task(1));
    await bench.until(() => sent() === 3); // a coordinator that was restored lacks it
    equal(bench.learner.began.length, 1);
  },

  "a task of a round that is over is rejected": async (bench) => {
    await bench.train(2);
    bench.deliver();
    await bench.until(() => bench.agent.phase === "idle");
    bench.tell(task(1));
    await bench.did("reject 1a offer");
  },

  "a payload that breaks a rule is rejected by its name": async (bench) => {
    const other = (name: string, values: number[]): Uint8Array => encode(new Map<string, Tensor>([[name, float32([4], Float32Array.from(values))]]));
    const broken: [string, Uint8Array][] = [
      ["layout", other("params/v", [0, 0, 0, 0])],
      ["finite", other("params/w", [NaN, 0, 0, 0])],
      ["blob-header", new Uint8Array(3)],
    ];
    for (const [at, [rule, data]] of broken.entries()) {
      bench.tell(task(1, `1${"abc"[at]}`));
      await bench.did(`expect 1${"abc"[at]}`);
      bench.give(1, data, `1${"abc"[at]}`);
      await bench.did(`reject 1${"abc"[at]} ${rule}`);
    }
    equal([bench.agent.phase, bench.learner.began], ["idle", []]);
  },

  "a payload that was not asked for is forgotten": async (bench) => {
    bench.give(4);
    await bench.did("cancel 4a");
    equal(bench.agent.phase, "idle");
  },

  "a round that diverges is refused and the device goes on": async (bench) => {
    bench.learner.failure = new DivergedError("tensor 'w': NaN");
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.did("reject 1a diverged");
    bench.learner.failure = null;
    await bench.train(2);
  },

  "a finish while training gives the round up": async (bench) => {
    bench.learner.free = false;
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.until(() => bench.learner.began.length === 1);
    bench.tell(message("task", { task: "finish", round_id: 5, federation: "home" }));
    await bench.until(() => bench.agent.finished && bench.agent.phase === "idle");
    equal([bench.store.journal.received, bench.store.journal.pending], [null, null]);
  },

  "a restart with an update in the outbox offers it again": async (bench, name) => {
    await bench.train(1);
    await bench.close();
    const again = await Bench.open(name);
    await again.did("send 1");
    equal(again.end.did[0], "remember 1a");
    again.deliver();
    await again.until(() => again.store.journal.state?.roundId === 1);
    equal(again.learner.began, []);
    await again.close();
  },

  "a restart with a payload trains without fetching it again": async (bench, name) => {
    bench.learner.free = false;
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.until(() => bench.learner.began.length === 1);
    await bench.close();
    const again = await Bench.open(name);
    again.tell(task(1));
    await again.did("send 1");
    equal([again.end.did[0], again.end.did.includes("accept 1a"), again.learner.began], ["remember 1a", false, ["1 up to 7"]]);
    await again.close();
  },

  "a held round waits, and a device that is held says what holds it, in a round and idle": async (bench) => {
    bench.learner.free = false;
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.until(() => bench.learner.began.length === 1);
    bench.agent.hold(["charging", "network"]);
    bench.learner.free = true;
    await new Promise((resolve) => setTimeout(resolve, 100));
    const said = (): string[] =>
      bench.end.published.flatMap((one) => (one.type === "presence" ? [[one.status, ...one.held].join(" ")] : []));
    equal([bench.agent.phase, said().at(-1)], ["train", "online charging network"]);
    bench.agent.release();
    await bench.did("send 1");
    equal(said().at(-1), "online");
    bench.agent.hold(["owner"]);
    bench.deliver();
    await bench.until(() => bench.agent.phase === "idle" && said().at(-1) === "online owner");
    bench.agent.release();
    await bench.until(() => said().at(-1) === "online");
  },

  "learning rates are tried where they are asked for, and what came of them is told": async (bench) => {
    const told = (): unknown => bench.end.published.findLast((one) => one.type === "presence")?.calibration;
    await bench.until(() => told() !== undefined);
    equal(told(), { key: "", ratios: [] });
    bench.tell(announcement({ calibration: calibration("k", { devices: ["other"] }) }));
    bench.tell(announcement({ calibration: calibration("k") }));
    await bench.until(() => JSON.stringify(told()) === '{"key":"k","ratios":[0.1,0.2]}');
    bench.tell(announcement({ calibration: calibration("k") }));
    bench.tell(announcement({ calibration: calibration("falling", { rates: [0.4, 0.2] }) }));
    await bench.until(() => JSON.stringify(told()) === '{"key":"falling","ratios":[]}');
    bench.learner.failure = new Error("no memory");
    bench.tell(announcement({ calibration: calibration("failing") }));
    await bench.until(() => JSON.stringify(told()) === '{"key":"failing","ratios":[]}');
    equal(bench.learner.began, ["rates 0.2 0.4", "rates 0.2 0.4"]);
  },

  "a task goes before learning rates, which are tried again behind it": async (bench) => {
    bench.learner.free = false;
    bench.tell(announcement({ calibration: calibration("k") }));
    await bench.until(() => bench.agent.calibrates);
    bench.tell(task(1));
    await bench.did("expect 1a");
    equal([bench.agent.calibrates, bench.learner.began], [false, ["rates 0.2 0.4"]]);
    bench.learner.free = true;
    bench.give(1);
    await bench.did("send 1");
    bench.deliver();
    await bench.until(() => bench.learner.began.length === 3);
    equal(bench.learner.began, ["rates 0.2 0.4", "1 up to 7", "rates 0.2 0.4"]);
  },

  "learning rates wait for the owner, and end when nobody asks any more": async (bench) => {
    bench.agent.hold(["owner"]);
    bench.learner.free = false;
    bench.tell(announcement({ calibration: calibration("k") }));
    await new Promise((resolve) => setTimeout(resolve, 50));
    equal([bench.agent.calibrates, bench.learner.began], [false, []]);
    bench.agent.release();
    await bench.until(() => bench.agent.calibrates);
    bench.tell(announcement());
    await bench.until(() => !bench.agent.calibrates);
  },

  "a round whose receipt only the announced end tells counts": async (bench) => {
    await bench.train(5);
    const { sha256 } = bench.end.sent.at(-1)!;
    const receipts = [(await transferId(sha256, "d", 5)).slice(0, 12)];
    bench.tell(announcement({ phase: "finished", round_id: 6, receipts: ["0123456789ab"] }));
    await bench.until(() => bench.agent.finished);
    equal([bench.agent.phase, bench.store.journal.state], ["send", null]);
    bench.tell(announcement({ phase: "finished", round_id: 6, receipts }));
    await bench.until(() => bench.agent.phase === "idle");
    equal([bench.store.journal.state?.roundId, bench.store.journal.pending], [5, null]);
  },

  "a round that the announcement says is over is given up": async (bench) => {
    bench.learner.free = false;
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.until(() => bench.learner.began.length === 1);
    bench.tell(announcement({ round_id: 2 }));
    bench.learner.free = true;
    await bench.until(() => bench.agent.phase === "idle");
    equal(bench.end.did.includes("send 1"), false);
    bench.tell(task(2));
    await bench.did("expect 2a");
    bench.tell(announcement({ round_id: 3 }));
    await bench.until(() => bench.agent.phase === "idle");
  },

  "a task that may be answered late is gone on with": async (bench) => {
    bench.learner.free = false;
    bench.tell(task(1));
    await bench.did("expect 1a");
    bench.give(1);
    await bench.until(() => bench.learner.began.length === 1);
    bench.tell(announcement({ round_id: 3, staleness: 2 }));
    bench.learner.free = true;
    await bench.did("send 1");
  },

  "class counts are told to a strategy that asks for them, and to no other": async (bench) => {
    const counts = (): unknown => bench.end.published.findLast((one) => one.type === "presence")?.class_counts;
    await bench.until(() => bench.end.published.length > 0);
    equal(counts(), []);
    bench.tell(announcement({ strategy: "fedproto" }));
    await bench.until(() => JSON.stringify(counts()) === "[2,3]");
  },

  "another bundle that takes its place by and by ends nothing as long as its own may stay": async (bench) => {
    bench.tell(announcement({ bundle: "c", bundles: [BINDING.bundle], strategy: "fedproto" }));
    await bench.until(() => bench.end.published.length > 0);
    bench.tell(announcement({ bundle: "c" }));
    const ending = await bench.ended;
    equal(ending !== "stopped" && ending.bundle, "c");
  },

  "another bundle ends the run, and another federation does not": async (bench) => {
    bench.tell(announcement({ federation: "away", bundle: "c" }));
    bench.tell(announcement({ bundle: "c" }));
    const ending = await bench.ended;
    equal(ending !== "stopped" && [ending.federation, ending.bundle], ["home", "c"]);
  },
};

Object.assign(globalThis, {
  cases: Object.keys(CASES),
  async play(name: string): Promise<void> {
    const bench = await Bench.open(name);
    try {
      await CASES[name]!(bench, name);
    } finally {
      await bench.close().catch((error: unknown) => {
        if (!(error instanceof TrainingCancelled)) throw error;
      });
    }
  },
});
document.title = "ready";
