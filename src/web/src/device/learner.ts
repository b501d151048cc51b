/** Local training and evaluation: a strategy's client half run on the owner's examples. */

import type { Bundle } from "../bundle/bundle.ts";
import type { Manifest } from "../bundle/manifest.ts";
import { DivergedError, InputError } from "../errors.ts";
import { heldOut, type RatesToTry, type RateTester, tryRates } from "../federation/calibration.ts";
import {
  compare, type ComparedExamples, FOLDS, foldsOf, type GateEvidence, heldOutGain, isOneClass, NO_EXAMPLES, pooled,
} from "../federation/gate.ts";
import { type ClientMemory, type LocalLearner, type ReceivedPayload, trainRound, type TrainedRound } from "../federation/client.ts";
import { tensorsOf } from "../federation/coding.ts";
import type { Costs } from "../federation/records.ts";
import { Evaluator } from "../runtime/evaluation.ts";
import { Programs } from "../runtime/programs.ts";
import { clientRng } from "../runtime/random.ts";
import { build } from "../strategies/index.ts";
import { TASKS } from "../strategies/tasks.ts";
import { initials } from "../strategies/settings.ts";
import { checkBatchSizes } from "../strategies/training.ts";
import { TRAINING } from "../strategies/training_settings.ts";
import type {
  ClientState, ClientTools, GradFn, Model, Payload, Score, Statistics, Strategy, Update,
} from "../strategies/types.ts";
import { type Network, rowsOf, type Tensor } from "../tensors/tensors.ts";
import { DEVICE } from "../texts.ts";
import type { Labelled, OwnExamples, Split } from "./examples.ts";
import { Meter } from "./meter.ts";
import type { RoundFigures } from "./page_messages.ts";
import { isServed } from "./journal.ts";
import { predictWith } from "./predictions.ts";
import type { Store } from "./store.ts";
import { TrainingControl } from "./training.ts";

const WARM_UP_CALLS = 2;
const MEASURED_CALLS = 10;

/** Runs a bundle's programs on the owner's examples, for whichever strategy the coordinator names. */
export class Learner implements LocalLearner, RateTester {
  readonly model: Model;
  readonly meter = new Meter();
  readonly control = new TrainingControl();
  readonly #manifest: Manifest;
  readonly #programs: Programs;
  readonly #examples: OwnExamples;
  readonly #deviceId: string;
  #split: Split;
  #lastSteps = 0;
  #expectedSteps = 0;
  /** Settles when no fold is being held out. */
  #folding: Promise<unknown> = Promise.resolve();
  /** Learning rates that were tried, and how many there are; null: none are being tried. */
  #rates: { tried: number; readonly all: number } | null = null;
  #figures = {
    start: null as number | null, before: null as number | null, after: null as number | null, stepMs: 0, seconds: 0,
  };

  constructor(bundle: Bundle, examples: OwnExamples, deviceId: string) {
    this.model = bundle.model();
    this.#manifest = bundle.manifest;
    this.#programs = Programs.open(bundle);
    this.#examples = examples;
    this.#deviceId = deviceId;
    this.#split = examples.split();
  }

  /** Of the training in progress, 0 to 1: a round's by the steps of the round before, else by its settings. */
  get progress(): number {
    if (this.#rates !== null) return this.#rates.tried / this.#rates.all;
    return this.#expectedSteps === 0 ? 0 : Math.min(1, this.control.steps / this.#expectedSteps);
  }

  /** Training examples, as the presence tells their number. */
  get numExamples(): number {
    return this.#examples.trainCounts.reduce((sum, count) => sum + count, 0);
  }

  /** Training examples of each class. */
  get classCounts(): readonly number[] {
    return this.model.numClasses > 0 ? this.#examples.trainCounts : [];
  }

  /** Key of the owner's last example. */
  get lastExample(): number {
    return this.#examples.last;
  }

  /** Whether a strategy registers class counts; of one that this device cannot do nobody asks. */
  asksClassCounts(name: string): boolean {
    const declared = this.#manifest.strategy;
    try {
      return build(name, declared.name === name ? declared.settings : {}, this.model).classCounts;
    } catch (error) {
      if (error instanceof InputError) return false;
      throw error;
    }
  }

  /** The strategy `name` for this bundle's model; throws InputError where one of them does not fit. */
  strategy(name: string, settings: Readonly<Record<string, unknown>>): Strategy {
    const strategy = build(name, settings, this.model);
    const missing = strategy.programs.find((objective) => !this.#programs.gradFns.has(objective));
    if (missing !== undefined) {
      throw new InputError(DEVICE.noProgram(name, missing, [...this.#programs.gradFns.keys()].sort().join(", ")));
    }
    checkBatchSizes(strategy.batchSizes, this.#programs.minBatch);
    return strategy;
  }

  /** One whole local round of what the store remembers, on the examples up to the key `last`. */
  async round(strategy: Strategy, store: Store, received: ReceivedPayload, last: number): Promise<TrainedRound> {
    this.control.begin();
    await this.#folding;
    this.control.steps = 0;
    this.#split = this.#examples.split(last);
    const all = stepsOf(store.journal.settings, this.#split.train.y.shape[0]!);
    this.#expectedSteps = this.#lastSteps || Math.ceil(received.order.work * all);
    const started = performance.now();
    const memory = await memoryOf(store);
    const before = await this.#score(strategy, memory.state ?? strategy.clientInit());
    const trained = await trainRound(this, strategy, memory, received);
    this.#lastSteps = this.control.steps;
    const after = await this.#score(strategy, trained.state);
    this.#figures = { ...this.#figures, before, after, seconds: (performance.now() - started) / 1000 };
    return trained;
  }

  /** What learning rates do to the loss on held-out training examples; empty: there are too few. */
  async tryRates(asked: RatesToTry): Promise<readonly number[]> {
    this.control.begin();
    await this.#folding;
    const { train } = this.#examples.split();
    const { kept, held } = heldOut(train.y);
    if (held.length === 0 || kept.length < this.#programs.minBatch) return [];
    this.#split = { train: rowsIn(train, kept), test: rowsIn(train, held) };
    const rates = { tried: 0, all: asked.rates.length };
    this.#rates = rates;
    try {
      return await tryRates(this, asked, () => (rates.tried += 1));
    } finally {
      this.#rates = null;
      this.#split = this.#examples.split();
      this.meter.take(); // no round's costs
    }
  }

  /**
   * A personal model that has not seen a fold of a round's training part, compared on that, as of a device that joins in
   * this round: what it keeps from earlier ones has seen the fold. The next round waits for it. No examples where the
   * fold has none, there are too few others, or training diverges; throws TrainingCancelled.
   */
  holdOut(strategy: Strategy, { order, payload }: ReceivedPayload, last: number, fold: number): Promise<ComparedExamples> {
    const work = this.#holdOut(strategy, payload, order.seed, this.#examples.split(last).train, fold);
    this.#folding = work.catch(() => {}); // whoever waits for the result is told
    return work;
  }

  async #holdOut(
    strategy: Strategy, payload: Payload, seed: bigint, train: Labelled, fold: number,
  ): Promise<ComparedExamples> {
    const folds = foldsOf(train.y, FOLDS);
    const [held, kept] = [true, false].map((is) => folds.flatMap((one, row) => ((one === fold) === is ? [row] : [])));
    if (held!.length === 0 || kept!.length < Math.max(1, this.#programs.minBatch)) return NO_EXAMPLES;
    const split = { train: rowsIn(train, kept!), test: rowsIn(train, held!) };
    const started = performance.now();
    try {
      const [state] = await this.#update(strategy, null, payload, seed, 1, { split, meter: new Meter() });
      return await this.#compared(strategy, state, split);
    } catch (error) {
      if (error instanceof DivergedError) return NO_EXAMPLES;
      throw error;
    } finally {
      this.meter.count("gate", (performance.now() - started) / 1000);
    }
  }

  /** On the test part. */
  async loss(network: Network, score: Score | null): Promise<number> {
    return (await this.#evaluator().evaluate(network, score)).ownLoss;
  }

  async train(
    strategy: Strategy,
    state: ClientState | null,
    payload: Payload,
    seed: bigint,
    work = 1,
  ): Promise<readonly [ClientState, Update]> {
    const parts = { split: this.#split, meter: this.meter };
    const [trained, update] = await this.#update(strategy, state, payload, seed, work, parts);
    // In each round, because the test part grows with the owner's examples.
    const start = await this.meter.within("evaluate", () => this.#evaluator().statistics(this.model.network));
    this.#figures.start = start === null ? null : this.#headline(start);
    return [trained, { ...update, evaluation: { ...update.evaluation, start } }];
  }

  /** A local round on some examples, whose time a meter counts. */
  async #update(
    strategy: Strategy,
    state: ClientState | null,
    payload: Payload,
    seed: bigint,
    work: number,
    { split, meter }: { readonly split: Split; readonly meter: Meter },
  ): Promise<readonly [ClientState, Update]> {
    const { x, y } = split.train;
    const rng = await clientRng(seed, payload.roundId, this.#deviceId);
    const evaluator = this.#evaluator(split);
    const tools: ClientTools = {
      clientId: this.#deviceId,
      training: {
        name: `client '${this.#deviceId}'`,
        x,
        y,
        gradFns: this.#timed(meter),
        rng,
        minBatch: this.#programs.minBatch,
        work,
      },
      predict: (network, examples) => this.#programs.predict(network, examples),
      features: (network, examples) => this.#programs.features(network, examples),
      evaluate: (network, score) => meter.within("evaluate", () => evaluator.evaluate(network, score ?? null)),
      statistics: (network) => meter.within("evaluate", () => evaluator.statistics(network)),
    };
    return meter.within("train", () => strategy.clientUpdate(state ?? strategy.clientInit(), payload, tools));
  }

  async compare(strategy: Strategy, state: ClientState): Promise<GateEvidence> {
    const tests = await this.meter.within("evaluate", () => this.#compared(strategy, state, this.#split));
    const { train, test } = this.#split;
    return { ...pooled(this.#manifest.task, tests), oneClass: isOneClass(train.y, test.y) };
  }

  /** The model of a state beside the bundle's, on a test part. */
  async #compared(strategy: Strategy, state: ClientState, split: Split): Promise<ComparedExamples> {
    const evaluator = this.#evaluator(split);
    const before = await evaluator.scores(this.model.network);
    const now = await evaluator.scores(strategy.clientModel(state), strategy.clientScore(state));
    return compare(evaluator.task, before, now, split.test.y);
  }

  async costs(strategy: Strategy, state: ClientState): Promise<Costs> {
    await this.meter.within("infer", () => this.#measureInference(strategy, state));
    const costs = this.meter.take();
    const steps = [...costs.trainStepMs].sort((one, other) => one - other);
    this.#figures.stepMs = steps[Math.floor(steps.length / 2)] ?? 0;
    return costs;
  }

  /** What the owner wants to know of the round that was trained last. */
  figures({ roundId, loss }: Update): RoundFigures {
    return { round: roundId, loss: Number.isFinite(loss) ? loss : null, ...this.#figures };
  }

  /** Outputs of the last model that counted with this bundle where that is served, else of the bundle's own. */
  async predict(store: Store, x: Tensor): Promise<Tensor> {
    const { strategy: name, settings } = store.journal;
    const { state } = await memoryOf(store);
    if (state === null || !isServed(store.journal.state, store.use)) return this.#programs.predict(this.model.network, x);
    return predictWith(this.#programs, this.strategy(name, settings), state, x);
  }

  async close(): Promise<void> {
    await this.#programs.close();
  }

  #timed(meter: Meter): Map<string, GradFn> {
    const timed = (gradFn: GradFn): GradFn => async (network, batch, rng) => {
      // How fast the phone is says nothing of its waits.
      if (this.control.held) await meter.within("idle", () => this.control.between());
      else await this.control.between();
      const started = performance.now();
      const step = await gradFn(network, batch, rng);
      meter.step(performance.now() - started);
      return step;
    };
    return new Map([...this.#programs.gradFns].map(([objective, gradFn]) => [objective, timed(gradFn)]));
  }

  #evaluator(split: Split = this.#split): Evaluator {
    const { task, classes, targets } = this.#manifest;
    return new Evaluator(this.#programs, task, Math.max(classes.length, targets.length), split.test);
  }

  /** How good a model is on the owner's test part; null where there is none. */
  async #score(strategy: Strategy, state: ClientState): Promise<number | null> {
    const network = strategy.clientModel(state);
    const score = strategy.clientScore(state);
    const statistics = await this.meter.within("evaluate", () => this.#evaluator().statistics(network, score));
    return statistics === null ? null : this.#headline(statistics);
  }

  #headline(statistics: Statistics): number | null {
    const task = TASKS[this.#manifest.task];
    const scores = task.score(statistics);
    const value = scores.accuracy ?? scores[task.headline] ?? NaN;
    return Number.isFinite(value) ? value : null;
  }

  /** Times single examples, as a device in use would call the model. */
  async #measureInference(strategy: Strategy, state: ClientState): Promise<void> {
    const { train, test } = this.#split;
    const { x } = test.y.shape[0] ? test : train;
    const count = x.shape[0]!;
    for (let call = 0; count > 0 && call < WARM_UP_CALLS + MEASURED_CALLS; call += 1) {
      const started = performance.now();
      await predictWith(this.#programs, strategy, state, rowsOf(x, [call % count]));
      if (call >= WARM_UP_CALLS) this.meter.inference(performance.now() - started);
    }
  }
}

function rowsIn({ x, y }: Labelled, rows: readonly number[]): Labelled {
  return { x: rowsOf(x, rows), y: rowsOf(y, rows) };
}

/** What the last delivered round has left. */
async function memoryOf(store: Store): Promise<ClientMemory> {
  const { state } = store.journal;
  if (state === null) return { state: null, residual: new Map(), heldOut: null };
  return {
    heldOut: heldOutGain(state.evidence ?? {}),
    state: { roundId: state.roundId, tensors: tensorsOf(await store.read(state.blob)) },
    residual: state.residual === null ? new Map() : tensorsOf(await store.read(state.residual)),
  };
}

/** Training steps, as far as the settings that most strategies share tell. */
function stepsOf(settings: Readonly<Record<string, unknown>>, count: number): number {
  const initial = initials(TRAINING);
  const { epochs = initial.epochs, batch_size: size = initial.batchSize } = settings;
  return Number(epochs) * Math.ceil(count / Number(size)) || 0;
}
