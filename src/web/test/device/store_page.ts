/** Steps of a device's store, for a page that a test kills between or within them. */

import { NO_EXAMPLES, pooled } from "../../src/federation/gate.ts";
import type { StoreBinding } from "../../src/device/journal.ts";
import { keptBlobs } from "../../src/device/journal.ts";
import type { MoveTold } from "../../src/device/page_messages.ts";
import { Store } from "../../src/device/store.ts";
import type { TrainedRound } from "../../src/federation/client.ts";
import type { Tensors } from "../../src/tensors/tensors.ts";

const BINDING: StoreBinding = { federation: "f", bundle: "", layoutHash: "l", signer: "s" };
const FIGURES = { round: 1, before: 0.5, after: 0.75, loss: 0.1, stepMs: 2, seconds: 3 };

function bytes(seed: number, count = 200_000): Uint8Array {
  return Uint8Array.from({ length: count }, (_, i) => (i * (seed + 7)) & 255);
}

function keys(): Promise<CryptoKeyPair> {
  return crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]) as Promise<CryptoKeyPair>;
}

function tensors(seed: number): Tensors {
  return new Map([["params/w", { dtype: "uint8", shape: [200_000], data: bytes(seed) }]]);
}

function trained(roundId: number): TrainedRound {
  const evaluation = { own: null, ownLoss: NaN, more: new Map() };
  return {
    state: { roundId, tensors: tensors(roundId) },
    residual: tensors(roundId + 50),
    update: { clientId: "d", roundId, numExamples: 1, tensors: tensors(roundId + 100), evaluation, loss: 0.1 },
    blob: bytes(roundId + 100),
    coding: { codec: "raw", rawBytes: 0, reference: "" },
    evidence: pooled("classification", NO_EXAMPLES),
  };
}

function told(text: string): MoveTold {
  return { text, notes: [], tensors: [] };
}

type Step = (store: Store) => Promise<unknown>;

const STEPS: readonly Step[] = [
  async (store) => store.keepAsking("i", await keys()),
  async (store) =>
    store.commitEnrolment({
      federation: "f", deviceId: "d", broker: "ws://b", password: "", grant: "g", federationKey: "k",
      invitation: "i", keys: store.asking?.keys ?? null,
    }),
  (store) => store.start(),
  (store) => store.commitBundle({ ...BINDING, bundle: "one" }, bytes(1), 1),
  (store) => store.bindStrategy("fedavg", { epochs: 1 }),
  (store) => store.commitReceived({ roundId: 1, transferId: "t1", examples: 3 }, bytes(2), ""),
  (store) => store.commitTrained(trained(1), "t1", FIGURES),
  (store) => store.commitDelivered(),
  (store) => store.commitReceived({ roundId: 2, transferId: "t2", examples: 3 }, bytes(3), null),
  (store) => store.commitTrained(trained(2), "t2", { ...FIGURES, round: 2 }),
  (store) => store.commitDropped(),
  (store) => store.commitBundle({ ...BINDING, bundle: "two" }, bytes(9), 2, { start: tensors(60), told: told("two") }),
  (store) => store.commitBundle({ ...BINDING, bundle: "one" }, bytes(1), 2, { start: null, told: told("back") }),
  (store) => store.commitBundle({ ...BINDING, bundle: "four" }, bytes(11), 3, { start: tensors(61), told: told("four") }),
  (store) => store.commitTrained(trained(1), "t3", FIGURES),
  (store) => store.commitDelivered(),
];

const api = {
  count: STEPS.length,

  /** Makes the steps up to `last`, that not included, in the database `name`. */
  async upTo(name: string, last: number): Promise<void> {
    const store = await Store.open(() => {}, name);
    for (const step of STEPS.slice(0, last)) await step(store);
    store.close();
  },

  /** Begins one step, and does not wait. */
  async begin(name: string, step: number): Promise<void> {
    const store = await Store.open(() => {}, name);
    void STEPS[step]!(store);
  },

  /** What the store says, and that all that it names is there, and nothing else. */
  async look(name: string): Promise<string> {
    const store = await Store.open(() => {}, name);
    const { journal, enrolment, asking, memory, history, moved } = store;
    const blobs = (await store.database.keys("blobs")) as string[];
    for (const blob of blobs) await store.read({ sha256: blob, bytes: 0 });
    const whole = [...keptBlobs(journal)].sort().join() === blobs.sort().join();
    let signs = true;
    const pair = enrolment?.keys ?? asking?.keys ?? null;
    if (pair !== null) {
      const signature = await crypto.subtle.sign("Ed25519", pair.privateKey, new Uint8Array(3));
      signs = await crypto.subtle.verify("Ed25519", pair.publicKey, signature, new Uint8Array(3));
      signs &&= !pair.privateKey.extractable;
    }
    store.close();
    const known = { journal, memory, history, moved, enrolled: enrolment?.grant ?? "", asking: asking?.invitation ?? "" };
    return JSON.stringify({ ...known, whole, signs });
  },

  /** What reading says when the browser has deleted the store while it was open. */
  async watch(name: string): Promise<void> {
    const store = await Store.open(() => void (document.title = "lost"), name);
    Object.assign(globalThis, { watched: store });
  },

  async readWatched(): Promise<string> {
    try {
      await (globalThis as unknown as { watched: Store }).watched.commitDropped();
      await (globalThis as unknown as { watched: Store }).watched.keepWish("pause");
      return "no error";
    } catch (error) {
      return (error as Error).message;
    }
  },
};

export type StoreSteps = typeof api;

Object.assign(globalThis, { steps: api });
document.title = "ready";
