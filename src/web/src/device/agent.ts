/**
 * The device's agent: takes tasks, trains between messages, delivers, survives.
 *
 *     idle ── task ──► receive ── payload stored ──► train ── committed ──► send ── receipt ──► idle
 *                                                                            └── rejected: dropped
 *
 * What a task means at each place is decided in `decide.ts`; what is true after a crash stands in the
 * store. A round's new state counts only after the coordinator's receipt. If a newer task comes while
 * an update is still in the outbox, the update is offered once more and the device waits `SETTLE_MS`
 * for its fate: `done` keeps the state, `reject` or silence drops it.
 */

import { DivergedError, InputError, ProvisionError, RefusedError, UnavailableError } from "../errors.ts";
import { openPayload, orderOf, type ReceivedPayload, receivePayload, type TrainedRound } from "../federation/client.ts";
import { type ComparedExamples, following, type GateEvidence, nextFold, NO_EXAMPLES } from "../federation/gate.ts";
import type { Strategy } from "../strategies/types.ts";
import { DEVICE, HOLDS } from "../texts.ts";
import type { EndpointEvent } from "../wire/endpoint.ts";
import type { Announcement, Task, TransferOffer } from "../wire/messages.ts";
import { message, RECEIPT_DIGITS } from "../wire/messages.ts";
import { transferId as transferOf } from "../wire/transfer.ts";
import { AnnouncedRun, roundIsOver } from "./checks.ts";
import { CalibrationClient } from "./calibrating.ts";
import { type ActiveRound, decide, type DevicePhase, progressOf, type RoundProgress, sameBlob } from "./decide.ts";
import { knownTransfers, type SentUpdate } from "./journal.ts";
import type { Identity } from "./presence.ts";
import { Refusals } from "./refusals.ts";
import { type AgentLearner, type DeviceEnd, Reporter, type Standing } from "./reporter.ts";
import type { ByteTotals, Store } from "./store.ts";
import { Running } from "./training.ts";

/** Three repetitions of an offer: silence for longer means that nobody will answer this round. */
const SETTLE_MS = 10_000;
/** A coordinator that runs has announced itself and sent its task long before. */
const WAITING_MS = 10_000;
/** The broker is not asked for the announcement more often, however many tasks come without one. */
const ASK_AGAIN_MS = 1_000;
const LONGEST_WAITING_MS = 3_600_000;

/** What the agent tells; each call comes after the change that it speaks of. */
export interface AgentNews {
  /** Something that is shown has changed. */
  changed(): void;
  /** A line for whoever debugs the page. */
  log(line: string): void;
}

/** Why an agent's run ended: it was stopped, or its federation has announced another bundle. */
export type Ending = "stopped" | Announcement;

/** One device in one federation, with one bundle. */
export class Agent {
  readonly #end: DeviceEnd;
  readonly #store: Store;
  readonly #learner: AgentLearner;
  readonly #news: AgentNews;
  readonly #run: AnnouncedRun;
  readonly #refusals: Refusals;
  readonly #deviceId: string;
  readonly #reporter: Reporter;
  readonly #calibration: CalibrationClient;
  /** Bundles that the federation has announced, and that this device cannot get. */
  readonly #elsewhere: ReadonlySet<string>;
  #phase: DevicePhase = "idle";
  #round: ActiveRound | null = null;
  #next: Task | null = null;
  #running: Running<TrainedRound> | null = null;
  /** What the round in training is made of, for a fold that may be held out after it. */
  #trains: { readonly strategy: Strategy; readonly received: ReceivedPayload; readonly examples: number } | null = null;
  #folding: Running<ComparedExamples> | null = null;
  #sending = "";
  #settleBy = Infinity;
  #waitingDue = Infinity;
  #askFrom = 0;
  #waitingMs = WAITING_MS;
  #held: readonly string[] = [];
  /** Why the round in training is given up, once nobody waits for it. */
  #over = "";
  #recount = false;
  #ending: Ending | null = null;
  #finished = false;
  #mismatch = "";
  #trouble = "";

  constructor(
    end: DeviceEnd,
    store: Store,
    learner: AgentLearner,
    who: Identity,
    news: AgentNews,
    elsewhere: ReadonlySet<string> = new Set(),
  ) {
    this.#end = end;
    this.#store = store;
    this.#learner = learner;
    this.#news = news;
    this.#elsewhere = elsewhere;
    this.#deviceId = who.deviceId;
    this.#run = new AnnouncedRun(who.binding, (name, settings) => {
      store.checkStrategy(name);
      return learner.strategy(name, settings);
    });
    this.#refusals = new Refusals((line) => news.log(line));
    this.#reporter = new Reporter(end, store, learner, who);
    this.#calibration = new CalibrationClient(learner, who.deviceId, () => end.wake(), (line) => news.log(line));
  }

  get phase(): DevicePhase {
    return this.#phase;
  }

  /** Whether learning rates are being tried. */
  get calibrates(): boolean {
    return this.#calibration.trying;
  }

  get connected(): boolean {
    return this.#end.connected;
  }

  /** The federation's last announcement that fits this device. */
  get announcement(): Announcement | null {
    return this.#run.latest;
  }

  /** The round in progress, else the last one that counted. */
  get roundId(): number {
    return this.#progress().roundId || this.#progress().lastRoundId;
  }

  /** Whether the announced run is over. */
  get finished(): boolean {
    return this.#finished;
  }

  /** Why nothing happens, or what went wrong last; "" if there is nothing to say. */
  get trouble(): string {
    const hold = this.#phase === "idle" ? (this.announcement?.hold ?? "") : "";
    return this.#mismatch || this.#trouble || (HOLDS[hold] ?? "");
  }

  /** Bytes at the socket since the device joined. */
  get totals(): ByteTotals {
    return this.#reporter.totals;
  }

  /** Takes part until `stop`; throws what leaves no way on. */
  async run(): Promise<Ending> {
    try {
      this.#end.start();
      await this.#resume();
      while (this.#ending === null) {
        const event = await this.#end.poll(this.#waitS());
        if (event !== null) await this.#handle(event);
        await this.#advance();
      }
      return this.#ending;
    } finally {
      await this.#leave();
    }
  }

  /** Ends soon and keeps the state. */
  stop(): void {
    this.#ending ??= "stopped";
    this.#learner.control.cancel();
    this.#end.wake();
  }

  /**
   * Does not train, and is not invited, until `release`; a round in training waits between two steps.
   * `conditions`: of the owner, that are not met.
   */
  hold(conditions: readonly string[]): void {
    this.#held = conditions;
    this.#learner.control.hold();
    this.#end.wake();
  }

  release(): void {
    this.#held = [];
    this.#learner.control.release();
    this.#end.wake();
  }

  /** The owner's examples have changed. */
  examplesChanged(): void {
    this.#recount = true;
    this.#end.wake();
  }

  /** Continues where the store says that the process before this one stood. */
  async #resume(): Promise<void> {
    const { journal } = this.#store;
    for (const transferId of knownTransfers(journal)) this.#end.remember(transferId);
    if (journal.pending !== null) await this.#sendUpdate(journal.pending.roundId);
    else this.#wait();
  }

  async #handle(event: EndpointEvent): Promise<void> {
    const handlers: { [K in EndpointEvent["kind"]]: (event: Extract<EndpointEvent, { kind: K }>) => Promise<void> } = {
      connected: () => this.#onConnected(),
      disconnected: (it) => this.#onDisconnected(it.reason, it.final),
      message: ({ message: it, retained }) =>
        it.type === "task" ? this.#onTask(it) : this.#onAnnouncement(it, retained),
      received: ({ offer, blob }) => this.#onReceived(offer, blob),
      delivered: ({ offer }) => this.#onDelivered(offer),
      rejected: ({ offer, reason }) => this.#onRejected(offer, reason),
      ignored: async ({ rule, detail }) => this.#refusals.note("ignored a message", new RefusedError(rule, detail)),
    };
    await handlers[event.kind](event as never);
    this.#news.changed();
  }

  async #onConnected(): Promise<void> {
    this.#trouble = "";
    await this.#reporter.connected(this.#standing);
  }

  async #onDisconnected(reason: string, final: boolean): Promise<void> {
    if (final) throw new UnavailableError(DEVICE.broker(reason));
    this.#trouble = DEVICE.noConnection(reason);
    this.#news.log(this.#trouble);
  }

  async #onAnnouncement(announcement: Announcement, retained: boolean): Promise<void> {
    await this.#reporter.announced(announcement, retained, this.#standing);
    try {
      this.#run.announced(announcement);
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      this.#refusals.note("waiting for another coordinator", error);
      this.#onMismatch(announcement, error);
      return;
    }
    this.#mismatch = "";
    this.#calibration.announced(announcement);
    this.#end.spread(announcement.spread_s);
    await this.#takeReceipt(announcement);
    const { roundId } = this.#progress();
    if (announcement.round_id - announcement.staleness > roundId) await this.#endRound(`round ${roundId} is over`);
    this.#finished = announcement.phase === "finished";
    if (this.#finished) {
      const { journal } = this.#store;
      if (this.#phase !== "idle" || journal.pending !== null) {
        const { round_id: round, federation, epoch } = announcement;
        await this.#onTask(message("task", { task: "finish", round_id: round, federation, epoch }));
      }
    } else {
      // An update in the outbox belongs to the data of its own round.
      await this.#reporter.register(announcement.strategy, this.#standing);
    }
  }

  /** Nobody waits for the round in progress; what is in the outbox gets its answer. */
  async #endRound(why: string): Promise<void> {
    if (this.#phase === "receive") await this.#drop(why);
    else if (this.#phase === "train") {
      this.#over = why;
      this.#learner.control.cancel();
    }
  }

  /** Perhaps an older run's, or a stranger's: the device stays, unless another bundle is to be had. */
  #onMismatch(announcement: Announcement, error: RefusedError): void {
    const ours = ["bundle", "layout"].includes(error.rule);
    if (ours && !this.#elsewhere.has(announcement.bundle)) this.#ending ??= announcement;
    this.#mismatch = error.message;
  }

  async #onTask(task: Task): Promise<void> {
    try {
      this.#run.check(task);
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      await this.#refuse(task, error);
      return;
    }
    const decision = decide(this.#progress(), task);
    if (decision === "begin" && this.#calibration.endsFor(task)) return;
    const acts = {
      begin: () => this.#begin(task),
      repeat: () => this.#answerAgain(task),
      replace: () => this.#replace(task),
      settle: () => this.#settle(task),
      refuse: () => this.#refuse(task, roundIsOver(task, this.#progress().lastRoundId)),
    };
    await acts[decision]();
  }

  /** Fetches a checked task's payload, or finishes. */
  async #begin(task: Task): Promise<void> {
    this.#next = null;
    const { payload } = task;
    if (payload === null) {
      this.#finished = true;
      if (this.#phase !== "idle") await this.#becomeIdle();
      return;
    }
    this.#waitingDue = Infinity;
    this.#phase = "receive";
    this.#learner.meter.enter("receive");
    await this.#reporter.register(task.strategy, this.#standing);
    const strategy = this.#run.strategyOf(task);
    await this.#store.bindStrategy(task.strategy, task.settings);
    this.#round = { task, payload, strategy };
    if (payload.base !== "" && !this.#store.hasPayload(payload.base)) {
      await this.#giveUp("base", DEVICE.noPayload);
      return;
    }
    await this.#end.expect(payload);
    const { received } = this.#store.journal;
    if (received !== null && received.transferId === payload.transfer_id) await this.#trainStored(this.#round);
  }

  /** Goes on with a payload that the process before this one has received. */
  async #trainStored(current: ActiveRound): Promise<void> {
    const { received } = this.#store.journal;
    if (received === null) return;
    const raw = await this.#store.read(received.blob);
    try {
      this.#train(current, openPayload(raw, orderOf(current.task), current.strategy.payload));
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      await this.#store.commitDropped();
      await this.#giveUp(error.rule, error.message);
    }
  }

  /**
   * Answers a repeated offer. One of the last round comes of a coordinator that was restored from a backup: it is given
   * that round's update once more, as soon as nothing else is on its way.
   */
  async #answerAgain(task: Task): Promise<void> {
    const { pending, delivered } = this.#store.journal;
    if (this.#phase === "send" && pending !== null && task.round_id !== pending.roundId) return; // it is repeated
    if (task.payload !== null) {
      if (this.#round !== null && !sameBlob(this.#round.payload, task.payload)) {
        const wrong = new RefusedError("offer", `round ${task.round_id}: the offer has changed`);
        this.#refusals.note("refused a task", wrong);
        return;
      }
      await this.#end.expect(task.payload);
    }
    if (pending !== null && task.round_id === pending.roundId) await this.#sendUpdate(pending.roundId);
    else if (this.#phase === "idle" && delivered?.roundId === task.round_id) await this.#offer(delivered);
  }

  async #replace(task: Task): Promise<void> {
    if (this.#phase === "train") {
      this.#next = task;
      this.#learner.control.cancel();
      return;
    }
    if (this.#round !== null) await this.#end.cancel(this.#round.payload.transfer_id);
    await this.#begin(task);
  }

  async #settle(task: Task): Promise<void> {
    const { pending } = this.#store.journal;
    if (this.#next === null && pending !== null) {
      this.#settleBy = performance.now() + SETTLE_MS;
      await this.#sendUpdate(pending.roundId);
    }
    this.#next = task;
  }

  /** Says why, and stays; what is in progress goes on. */
  async #refuse(task: Task, error: RefusedError): Promise<void> {
    this.#refusals.note("refused a task", error);
    const { transferId, lastTransferId } = this.#progress();
    const ours = [transferId, lastTransferId, this.#next?.payload?.transfer_id];
    // Before an announcement nothing can be judged: the task will come again. What a coordinator that was
    // replaced offers may be, bit for bit, what its successor does.
    if (error.rule === "announcement" && performance.now() >= this.#askFrom) {
      this.#askFrom = performance.now() + ASK_AGAIN_MS;
      this.#end.listenAgain();
    }
    if (["announcement", "epoch"].includes(error.rule) || task.payload === null || ours.includes(task.payload.transfer_id)) return;
    this.#trouble = error.message;
    await this.#end.reject(task.payload.transfer_id, error.rule, error.message);
  }

  async #onReceived(offer: TransferOffer, blob: Uint8Array): Promise<void> {
    const current = this.#round;
    const { transfer_id: transferId } = offer;
    if (current === null || current.payload.transfer_id !== transferId || this.#phase !== "receive") {
      await this.#end.cancel(transferId);
      return;
    }
    let received: ReceivedPayload;
    try {
      const coding = { codec: offer.codec, rawBytes: offer.raw_bytes, reference: offer.base };
      const { payload: forms } = current.strategy;
      const earlier = (reference: string): Promise<Uint8Array> => this.#store.loadPayload(reference);
      received = await receivePayload(blob, coding, orderOf(current.task), { model: this.#learner.model, forms, earlier });
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      await this.#giveUp(error.rule, error.message);
      return;
    }
    const { round_id: roundId } = current.task;
    const reference = offer.codec === "raw" ? null : offer.base;
    const examples = this.#learner.lastExample;
    await this.#store.commitReceived({ roundId, transferId, examples }, received.raw, reference);
    await this.#end.accept(transferId);
    this.#train(current, received);
  }

  /** Says why the payload of the round in progress cannot be used. */
  async #giveUp(rule: string, reason: string): Promise<void> {
    if (this.#round === null) return;
    const { task, payload } = this.#round;
    this.#refusals.note(`round ${task.round_id}: payload refused`, new RefusedError(rule, reason));
    this.#trouble = reason;
    await this.#end.reject(payload.transfer_id, rule, reason);
    await this.#becomeIdle();
  }

  #train({ strategy }: ActiveRound, received: ReceivedPayload): void {
    this.#phase = "train";
    const examples = this.#store.journal.received?.examples ?? Infinity;
    const work = this.#learner.round(strategy, this.#store, received, examples);
    this.#running = new Running(work, () => this.#end.wake());
    this.#trains = { strategy, received, examples };
  }

  /** Does what no event of the wire brings: trained, settled, heartbeat, presence. */
  async #advance(): Promise<void> {
    if (this.#folding?.finished) await this.#onFoldEnded(this.#folding);
    if (this.#running?.finished) await this.#onTrainingEnded(this.#running);
    const now = performance.now();
    if (this.#phase === "send" && now >= this.#settleBy) {
      await this.#drop(`no receipt within ${SETTLE_MS / 1000} s of the next task`);
    }
    if (this.#recount && this.#run.latest !== null) {
      this.#recount = false;
      await this.#reporter.register(this.#run.latest.strategy, this.#standing);
    }
    if (this.#phase === "idle" && now >= this.#waitingDue) {
      this.#end.listenAgain();
      this.#waitingMs = Math.min(2 * this.#waitingMs, LONGEST_WAITING_MS);
      this.#waitingDue = now + this.#waitingMs;
    }
    await this.#calibrate();
    await this.#reporter.advance(now, this.#standing);
  }

  /** Tries learning rates where they are asked for, and begins the task that has waited for the end of it. */
  async #calibrate(): Promise<void> {
    const before = this.calibrates;
    const answered = this.#calibration.advance(this.#phase === "idle" && this.#held.length === 0);
    if (answered) await this.#reporter.calibrated(this.#calibration.answer, this.#standing);
    if (before !== this.calibrates) this.#news.changed();
    const task = this.#calibration.takeWaiting();
    if (task !== null) await this.#onTask(task);
  }

  async #onTrainingEnded(running: Running<TrainedRound>): Promise<void> {
    this.#running = null;
    try {
      await this.#onTrained(running.take());
    } catch (error) {
      if (error instanceof UnavailableError) throw error;
      const known = error instanceof InputError || error instanceof ProvisionError || error instanceof DivergedError;
      const reason = known ? error.message : DEVICE.trainingFailed(String(error));
      // Whatever a payload led to, the device stays.
      await this.#onFailed(error instanceof DivergedError ? "diverged" : "strategy", reason);
    }
    this.#news.changed();
  }

  /** Says why this round has no update; the state of the round before stays. */
  async #onFailed(rule: string, reason: string): Promise<void> {
    const failed = this.#next === null ? this.#round : null;
    await this.#drop(reason);
    this.#trouble = reason;
    if (failed !== null) await this.#end.reject(failed.payload.transfer_id, rule, reason);
  }

  async #onTrained(trained: TrainedRound | null): Promise<void> {
    if (trained === null && this.#ending !== null) return;
    if (trained === null || this.#next !== null || this.#round === null) {
      await this.#drop(this.#over || "a newer task came");
      return;
    }
    const { task, payload: { transfer_id: transferId } } = this.#round;
    const former = this.#store.journal.state?.evidence ?? null;
    const evidence = following({ ...trained.evidence, fleet: task.fleet }, former);
    const figures = this.#learner.figures(trained.update);
    await this.#learner.meter.within("encode", () => this.#store.commitTrained({ ...trained, evidence }, transferId, figures));
    await this.#sendUpdate(trained.update.roundId);
    this.#holdOut(evidence);
  }

  /** Begins to compare a model of the round, trained without a fold, while the update is on its way. */
  #holdOut(evidence: GateEvidence): void {
    const fold = nextFold(evidence);
    const trained = this.#trains;
    this.#trains = null;
    if (trained === null || fold === null || trained.received.order.final) return;
    const { strategy, received, examples } = trained;
    this.#folding = new Running(this.#learner.holdOut(strategy, received, examples, fold), () => this.#end.wake());
  }

  async #onFoldEnded(folding: Running<ComparedExamples>): Promise<void> {
    this.#folding = null;
    let fold: ComparedExamples | null;
    try {
      fold = folding.take();
    } catch (error) {
      this.#news.log(`a held-out fold could not be compared: ${String(error)}`);
      fold = NO_EXAMPLES; // the round has counted without it
    }
    if (fold !== null) await this.#store.commitFold(fold);
    this.#news.changed();
  }

  async #sendUpdate(roundId: number): Promise<void> {
    const { pending } = this.#store.journal;
    if (pending === null) return;
    this.#phase = "send";
    this.#learner.meter.enter("send");
    this.#sending = (await this.#offer({ roundId, update: pending.update, coding: pending.coding })).transfer_id;
  }

  async #offer({ roundId, update, coding }: SentUpdate): Promise<TransferOffer> {
    const blob = await this.#store.read(update);
    return this.#end.sendUpdate(blob, roundId, coding.codec === "raw" ? null : coding);
  }

  async #onRejected(offer: TransferOffer, reason: string): Promise<void> {
    const { pending } = this.#store.journal;
    if (pending === null || pending.update.sha256 !== offer.sha256) return;
    await this.#drop(reason);
    this.#trouble = DEVICE.notTaken(pending.roundId, reason);
  }

  async #onDelivered(offer: TransferOffer): Promise<void> {
    if (this.#store.journal.pending?.update.sha256 === offer.sha256) await this.#countRound();
  }

  /** The run may have ended before this device heard that its last update was taken. */
  async #takeReceipt({ receipts }: Announcement): Promise<void> {
    const { pending } = this.#store.journal;
    if (pending === null || receipts.length === 0) return;
    const sent = await transferOf(pending.update.sha256, this.#deviceId, pending.roundId);
    if (!receipts.includes(sent.slice(0, RECEIPT_DIGITS))) return;
    await this.#end.cancel(sent);
    await this.#countRound();
  }

  /** The coordinator has the round's update: its state is this device's from now on. */
  async #countRound(): Promise<void> {
    await this.#store.commitDelivered();
    this.#trouble = "";
    await this.#becomeIdle();
    await this.#reporter.heartbeat(this.#standing);
  }

  /** The round in progress does not count; its trained state goes with it. */
  async #drop(reason: string): Promise<void> {
    const { roundId, transferId } = this.#progress();
    this.#news.log(`round ${roundId} dropped: ${reason}`);
    for (const id of [transferId, this.#sending]) if (id !== "") await this.#end.cancel(id);
    await this.#store.commitDropped();
    await this.#becomeIdle();
  }

  async #becomeIdle(): Promise<void> {
    this.#learner.meter.enter("idle");
    this.#phase = "idle";
    this.#round = null;
    this.#sending = "";
    this.#settleBy = Infinity;
    this.#over = "";
    this.#wait();
    const task = this.#next;
    this.#next = null;
    // What has been delivered since may have answered it.
    if (task !== null) await this.#onTask(task);
  }

  /** Nothing is to be done from now on; an announcement may have been lost. */
  #wait(): void {
    this.#waitingMs = WAITING_MS;
    this.#waitingDue = performance.now() + WAITING_MS;
  }

  get #standing(): Standing {
    return { phase: this.#phase, roundId: this.roundId, held: this.#held };
  }

  #progress(): RoundProgress {
    return progressOf(this.#phase, this.#round, this.#store.journal);
  }

  #waitS(): number {
    return Math.max(0, Math.min(this.#reporter.due, this.#settleBy, this.#waitingDue) - performance.now()) / 1000;
  }

  async #leave(): Promise<void> {
    this.#learner.control.cancel();
    await this.#reporter.leave(this.#standing);
  }
}
