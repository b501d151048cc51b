/**
 * The phone's device as a whole: enrols, gets its bundle, trains, and says where it stands.
 *
 * One loop does the next thing that is lacking: an invitation, the federation's bundle, examples,
 * rounds. What a command changes below the loop's feet is done between two of its turns.
 */

import { type Bundle } from "../bundle/bundle.ts";
import { InputError, ProvisionError, RefusedError, UnavailableError } from "../errors.ts";
import { STRATEGIES } from "../strategies/index.ts";
import type { Tensor } from "../tensors/tensors.ts";
import { DEVICE, STORE } from "../texts.ts";
import { DeviceEndpoint } from "../wire/endpoint.ts";
import { parseInvitation } from "../wire/enrolment.ts";
import { Link } from "../wire/link.ts";
import type { Announcement, Presence } from "../wire/messages.ts";
import { DeviceProtection, Plain, type Protection } from "../wire/protection.ts";
import { checkDeviceId } from "../wire/topics.ts";
import { Agent } from "./agent.ts";
import { checkEnrolment, enrol } from "./enrolment.ts";
import { OwnExamples } from "./examples.ts";
import { FormerModels } from "./former.ts";
import { adoptBundle, fetchFederation, openKept } from "./hub.ts";
import { inUse, isServed } from "./journal.ts";
import { Learner } from "./learner.ts";
import type { Examples, InUse, Phase, Policy, Status, Use } from "./page_messages.ts";
import { planned } from "./move.ts";
import { StoredParts } from "./parts.ts";
import { type Identity, presenceOf } from "./presence.ts";
import { type Enrolment, Store } from "./store.ts";

/** How long a device that lacks something from others waits before it asks again. */
const AGAIN_MS = 15_000;
/** What a broker's own WebSocket listener forwards without long waits. */
const LISTENER_CHUNK_BYTES = 3_900;

/** Where the page comes from, and the way to the broker there. */
export interface Place {
  readonly origin: string;
  readonly broker: string;
}

/** What the page has told of the phone; null where the browser does not tell. */
export interface Phone {
  readonly charging: boolean | null;
  readonly unmetered: boolean | null;
}

/** The bundle in use, and what is made of it. */
interface Opened {
  readonly bundle: Bundle;
  readonly bytes: number;
  readonly examples: OwnExamples;
  readonly learner: Learner;
}

export class PhoneDevice {
  readonly #place: Place;
  readonly #changed: () => void;
  readonly #log: (line: string) => void;
  #store: Store;
  #opened: Opened | null = null;
  readonly #former = new FormerModels();
  /** Whether the federation had finished when it was heard of last. */
  #over = false;
  #agent: Agent | null = null;
  #endpoint: DeviceEndpoint | null = null;
  #phone: Phone = { charging: null, unmetered: null };
  #phase: Phase = "opening";
  #detail = "";
  #persisted: boolean | null = null;
  #wake: () => void = () => {};
  #turns: Promise<unknown> = Promise.resolve();
  /** Commands that wait for the end of the loop's turn. */
  #interrupting = 0;
  /** Bundles that the federation has announced, and that are not to be had. */
  readonly #elsewhere = new Set<string>();

  private constructor(store: Store, place: Place, changed: () => void, log: (line: string) => void) {
    this.#store = store;
    this.#place = place;
    this.#changed = changed;
    this.#log = log;
  }

  /**
   * Opens the phone's store and begins. `changed`: the status is another one now; `remembered`: what
   * the page remembers of the device outside the store.
   */
  static async open(
    place: Place,
    changed: () => void,
    log: (line: string) => void,
    remembered = "",
  ): Promise<PhoneDevice> {
    let device: PhoneDevice | null = null;
    const store = await Store.open(() => void device?.storeLost());
    device = new PhoneDevice(store, place, changed, log);
    device.#persisted = await isPersisted();
    if (store.enrolment === null && remembered !== "") device.#detail = STORE.goneOf(remembered);
    void device.#live();
    return device;
  }

  // --- what the page asks for

  async enrol(text: string, { broker = this.#place.broker, deviceId = "" } = {}): Promise<void> {
    await this.#apart(async () => {
      this.#show("enrolling");
      try {
        if (text === "") await this.#joinWithoutKeys(broker, deviceId);
        else await this.#enrolWith(text, broker);
        this.#opened = null;
        this.#show("connecting");
      } catch (error) {
        this.#show(this.#store.enrolment === null ? "needs-invitation" : "connecting");
        throw error;
      }
    });
  }

  async addExamples(examples: Examples, source: string): Promise<void> {
    if (this.#opened === null) throw new InputError(DEVICE.noBundle("examples"));
    await this.#opened.examples.add(examples, source);
    this.#agent?.examplesChanged();
    this.#wake();
    this.#changed();
  }

  async clearExamples(): Promise<void> {
    await this.#apart(async () => {
      await this.#opened?.examples.clear();
      // What was to be trained on is gone; an update that waits for its receipt is not.
      if (this.#store.journal.received !== null) await this.#store.commitDropped();
    });
  }

  async predict(x: Tensor): Promise<Tensor> {
    const [opened, store] = [this.#opened, this.#store];
    if (opened === null) throw new InputError(DEVICE.noBundle("prediction"));
    const former = await this.#former.of(store);
    return (await former?.predict(x, opened.bundle.manifest)) ?? opened.learner.predict(store, x);
  }

  async pause(): Promise<void> {
    await this.#store.keepWish("pause");
    this.#obeyPolicy();
  }

  async resume(): Promise<void> {
    await this.#store.keepWish("take-part");
    this.#obeyPolicy();
    this.#wake();
  }

  /** Says goodbye to the federation; the model stays. */
  async leave(): Promise<void> {
    await this.#apart(() => this.#store.keepWish("left"));
  }

  /** Deletes all that is stored. */
  async forget(): Promise<void> {
    await this.#apart(async () => {
      this.#store.close();
      await Store.forget();
      await this.#startAnew("");
    });
  }

  async use(use: Use): Promise<void> {
    await this.#store.keepUse(use);
    this.#changed();
  }

  async setPolicy(policy: Policy): Promise<void> {
    await this.#store.keepPolicy(policy);
    this.#obeyPolicy();
  }

  /** What the page knows of the phone; it asks the browser to keep the data, which a worker cannot. */
  async phone(phone: Phone, online: boolean): Promise<void> {
    this.#phone = phone;
    if (online) this.#endpoint?.hurry();
    this.#persisted = await isPersisted();
    this.#obeyPolicy();
  }

  /** The browser has deleted the store while it was open. */
  async storeLost(): Promise<void> {
    const { enrolment } = this.#store;
    const who = enrolment === null ? "" : `${enrolment.deviceId} of ${enrolment.federation}`;
    await this.#apart(() => this.#startAnew(who === "" ? "" : STORE.goneOf(who)));
  }

  get status(): Status {
    const { enrolment, policy, totals, history, sent, moved } = this.#store;
    const agent = this.#agent;
    const announced = agent?.announcement ?? null;
    const { up, down } = agent?.totals ?? totals;
    return {
      phase: this.#phaseNow(),
      pausedBy: this.#phaseNow() === "paused" ? (this.#store.wish === "pause" ? "owner" : "policy") : null,
      detail: this.#detailNow(),
      federation: enrolment?.federation ?? "",
      deviceId: enrolment?.deviceId ?? "",
      strategy: announced?.strategy ?? this.#store.journal.strategy,
      round: agent?.roundId || (announced?.round_id ?? history.at(-1)?.round ?? 0),
      rounds: announced?.rounds ?? 0,
      progress: agent?.phase === "train" || agent?.calibrates ? (this.#opened?.learner.progress ?? 0) : 0,
      history,
      bytesUp: up,
      bytesDown: down,
      lastSent: sent,
      exampleCounts: this.#opened?.examples.counts ?? [],
      bundle: this.#opened === null ? null : factsOf(this.#opened),
      moved,
      use: this.#store.use,
      inUse: inUseOf(this.#store),
      policy,
      persisted: this.#persisted,
    };
  }

  // --- the loop

  async #live(): Promise<void> {
    for (;;) await this.#exclusively(() => this.#turn());
  }

  /** Does the next thing that is lacking, or waits for it. */
  async #turn(): Promise<void> {
    try {
      const { enrolment, wish } = this.#store;
      if (this.#interrupting > 0) return;
      if (enrolment === null) await this.#rest("needs-invitation", this.#detail);
      else if (wish === "left") await this.#rest("left");
      else if (this.#opened === null) await this.#openBundle(enrolment);
      else if (this.#opened.examples.count === 0) await this.#rest("needs-examples", this.#over ? DEVICE.over : "");
      else await this.#takePart(enrolment, this.#opened);
    } catch (error) {
      this.#log(String(error));
      if (this.#interrupting === 0) await this.#rest("failed", textOf(error));
    }
  }

  /** Waits until something is asked for. */
  async #rest(phase: Phase, detail = "", ms = Infinity): Promise<void> {
    this.#show(phase, detail);
    if (this.#interrupting > 0) return;
    await new Promise<void>((resolve) => {
      const timer = ms === Infinity ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Work between two turns of the loop; the turn in progress ends as soon as it can. */
  async #apart<T>(work: () => Promise<T>): Promise<T> {
    this.#interrupting += 1;
    const done = this.#exclusively(() => {
      this.#interrupting -= 1;
      return work();
    });
    this.#agent?.stop();
    this.#endpoint?.wake();
    this.#wake();
    return done;
  }

  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#turns.then(work);
    this.#turns = done.catch(() => {});
    return done;
  }

  async #startAnew(detail: string): Promise<void> {
    this.#opened = null;
    this.#elsewhere.clear();
    this.#store = await Store.open(() => void this.storeLost());
    this.#show("needs-invitation", detail);
  }

  // --- enrolment

  async #enrolWith(text: string, broker: string): Promise<void> {
    const invitation = await parseInvitation(text);
    await enrol({
      invitation,
      store: this.#store,
      broker,
      connect: (access, filter) => {
        const link = new Link({ broker: access, filters: [filter], will: null });
        link.start();
        return link;
      },
      told: (line) => this.#show("enrolling", line),
    });
  }

  /** Into a federation whose hub says that it has no keys; a name is drawn at random where `chosen` is "". */
  async #joinWithoutKeys(broker: string, chosen: string): Promise<void> {
    const { federation, keys } = await fetchFederation(this.#place.origin);
    if (keys) throw new InputError(DEVICE.withKeys(federation));
    const draw = crypto.getRandomValues(new Uint8Array(6));
    const drawn = `phone-${Array.from(draw, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    const deviceId = checkDeviceId(chosen === "" ? drawn : chosen);
    const without = { password: "", grant: "", federationKey: "", invitation: "", keys: null };
    await this.#store.commitEnrolment({ federation, deviceId, broker, ...without });
  }

  // --- the bundle

  /** Opens the kept bundle, or gets the one that the federation has announced. */
  async #openBundle(enrolment: Enrolment): Promise<void> {
    const { binding } = this.#store.journal;
    const kept = await this.#store.bundle();
    if (binding !== null && kept !== null) {
      this.#opened = await this.#openedWith(await openKept(kept, binding), kept.length, enrolment);
      return;
    }
    this.#show("connecting");
    const announced = await this.#awaitAnnouncement(enrolment);
    if (announced === null) return;
    this.#show("fetching-bundle");
    await this.#adopt(announced);
  }

  /** Belongs to the announced bundle from now on; a device that has one keeps it where this is not to be had. */
  async #adopt(announced: Announcement): Promise<void> {
    const kept = this.#opened;
    this.#over = announced.phase === "finished";
    try {
      const { bundle, bytes, binding } = await adoptBundle(this.#place.origin, announced);
      this.#store.checkBundle(binding, bundle.manifest);
      const move = await planned(this.#store, bundle, kept?.examples.count ?? 0);
      await this.#store.commitBundle(binding, bytes, bundle.manifest.sequence, move);
      await kept?.learner.close();
      this.#opened = null;
    } catch (error) {
      if (kept !== null) this.#elsewhere.add(announced.bundle);
      if (!(error instanceof UnavailableError)) throw error;
      this.#log(error.message);
      if (kept === null) await this.#rest("fetching-bundle", error.message, AGAIN_MS);
    }
  }

  /** The federation's announcement, believed only if it is certified; null: something else is to be done. */
  async #awaitAnnouncement(enrolment: Enrolment): Promise<Announcement | null> {
    const end = await this.#connect(enrolment, null);
    try {
      end.start();
      while (this.#interrupting === 0) {
        const event = await end.poll(AGAIN_MS / 1000);
        if (event === null) end.listenAgain();
        else if (event.kind === "message" && event.message.type === "announcement") {
          if (event.message.federation === enrolment.federation) return event.message;
        } else if (event.kind === "disconnected") {
          if (event.final) throw new UnavailableError(DEVICE.broker(event.reason));
          this.#show("connecting", event.reason);
        } else if (event.kind === "connected") {
          this.#show("fetching-bundle", DEVICE.awaitsCoordinator);
        } else if (event.kind === "ignored") this.#log(`ignored a message: ${event.rule}: ${event.detail}`);
      }
      return null;
    } finally {
      this.#endpoint = null;
      await end.close();
    }
  }

  async #openedWith(bundle: Bundle, bytes: number, { deviceId }: Enrolment): Promise<Opened> {
    const examples = await OwnExamples.open(this.#store.database, bundle.manifest);
    return { bundle, bytes, examples, learner: new Learner(bundle, examples, deviceId) };
  }

  // --- rounds

  async #takePart(enrolment: Enrolment, { bundle, learner }: Opened): Promise<void> {
    const { binding } = this.#store.journal;
    if (binding === null) throw new ProvisionError(STORE.noBundle);
    const who: Identity = {
      deviceId: enrolment.deviceId,
      bootId: bootId(),
      binding,
      sequence: bundle.manifest.sequence,
      strategies: [...STRATEGIES.keys()],
      chunkBytes: enrolment.broker === this.#place.broker ? 0 : LISTENER_CHUNK_BYTES,
    };
    const will = presenceOf(who, "offline", { numExamples: learner.numExamples, classCounts: [] });
    const end = await this.#connect(enrolment, will);
    const news = { changed: this.#changed, log: this.#log };
    const agent = new Agent(end, this.#store, learner, who, news, this.#elsewhere);
    this.#agent = agent;
    this.#obeyPolicy();
    if (this.#interrupting > 0) agent.stop();
    let ending: Awaited<ReturnType<Agent["run"]>>;
    try {
      ending = await agent.run();
    } finally {
      this.#agent = null;
      this.#endpoint = null;
    }
    if (ending === "stopped") return;
    this.#show("fetching-bundle");
    await this.#adopt(ending);
  }

  async #connect(enrolment: Enrolment, will: Presence | null): Promise<DeviceEndpoint> {
    const { federation, deviceId, broker, password } = enrolment;
    const end = await DeviceEndpoint.create({
      broker: { url: broker, user: password === "" ? "" : deviceId, password },
      federation,
      deviceId,
      protection: await this.#protection(enrolment),
      blobs: new StoredParts(this.#store.database),
      will,
    });
    this.#endpoint = end;
    return end;
  }

  async #protection(enrolment: Enrolment): Promise<Protection> {
    const { federation, deviceId, keys, grant } = enrolment;
    if (keys === null) return new Plain();
    await checkEnrolment(enrolment);
    const store = this.#store;
    const { start, announced, federationKey } = await store.start();
    const note = (sequence: number, key: string): Promise<void> => store.note(sequence, key);
    const credentials = { federation, deviceId, key: keys.privateKey, grant, federationKey, start, announced, note };
    return DeviceProtection.create(credentials);
  }

  #obeyPolicy(): void {
    const conditions = this.#unmet().map(([condition]) => condition);
    if (conditions.length === 0) this.#agent?.release();
    else this.#agent?.hold(conditions);
    this.#changed();
  }

  /** The owner's conditions that are not met, as the coordinator and as the owner reads them. */
  #unmet(): readonly (readonly [condition: string, text: string])[] {
    const { wish, policy } = this.#store;
    const all = [
      [wish === "pause", "owner", DEVICE.paused],
      [policy.onlyCharging && this.#phone.charging === false, "charging", DEVICE.notCharging],
      [policy.onlyUnmetered && this.#phone.unmetered === false, "network", DEVICE.metered],
    ] as const;
    return all.flatMap(([unmet, condition, text]) => (unmet ? [[condition, text] as const] : []));
  }

  /** Why nothing is trained now; "": it may be. */
  #holdReason(): string {
    return this.#unmet()[0]?.[1] ?? "";
  }

  // --- what is shown

  #show(phase: Phase, detail = ""): void {
    this.#phase = phase;
    this.#detail = detail;
    this.#changed();
  }

  #phaseNow(): Phase {
    const agent = this.#agent;
    if (agent === null) return this.#phase;
    const held = this.#holdReason() !== "" && (agent.phase === "idle" || agent.phase === "train");
    if (held) return "paused";
    if (agent.phase === "train") return "train";
    if (agent.calibrates) return "calibrate";
    if (!agent.connected) return "connecting";
    if (agent.phase === "receive" || agent.phase === "send") return agent.phase;
    return agent.finished ? "finished" : "waiting";
  }

  #detailNow(): string {
    if (this.#agent === null) return this.#detail;
    return this.#holdReason() || this.#agent.trouble;
  }
}

/** Whether the browser has promised to keep the store; null where it does not tell. */
async function isPersisted(): Promise<boolean | null> {
  return (await navigator.storage?.persisted?.()) ?? null;
}

function inUseOf({ journal, use }: Store): InUse | null {
  const state = inUse(journal)?.state ?? null;
  return state === null ? null : { personal: isServed(state, use), evidence: state.evidence ?? null };
}

function factsOf({ bundle, bytes }: Opened): Status["bundle"] {
  const { manifest, digest, signer } = bundle;
  const { name, classes, targets, preprocessing, params } = manifest;
  const parameters = params.reduce((sum, { shape }) => sum + shape.reduce((size, axis) => size * axis, 1), 0);
  return { name, digest, signer, classes, targets, preprocessing, bytes, parameters };
}

function bootId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The sentence that a person reads. */
export function textOf(error: unknown): string {
  const kinds = [InputError, ProvisionError, RefusedError, UnavailableError];
  if (kinds.some((kind) => error instanceof kind)) return (error as Error).message;
  return DEVICE.unexpected(String(error));
}
