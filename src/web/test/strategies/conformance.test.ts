/**
 * Every strategy's rounds in the browser against those of the Python devices.
 *
 * A client goes on from its own state of the round before. What its parameters and its buffers differ by is measured
 * by the largest change of the Python client's in the round; other tensors (prototypes, moments, mixing weights) by
 * their own largest number, an increment by that of what it changes.
 */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { InputError } from "../../src/errors.ts";
import { heldOut, tryRates } from "../../src/federation/calibration.ts";
import { Evaluator } from "../../src/runtime/evaluation.ts";
import { Programs } from "../../src/runtime/programs.ts";
import { clientRng } from "../../src/runtime/random.ts";
import { BUFFERS, CHANGE, merged, networkTensors, PARAMS, tensorOf, withoutPrefix } from "../../src/strategies/common.ts";
import { build, STRATEGIES } from "../../src/strategies/index.ts";
import { checkTensors } from "../../src/strategies/types.ts";
import type {
  ClientState, ClientTools, Evaluation, Model, Payload, Strategy, TensorSchemas, Update,
} from "../../src/strategies/types.ts";
import type { Tensor, Tensors } from "../../src/tensors/tensors.ts";
import { rowsOf } from "../../src/tensors/tensors.ts";
import { goldenRounds } from "../golden_rounds.ts";
import type { Case, Told } from "../golden_rounds.ts";

const LIMIT = 1e-5;
const golden = goldenRounds();

/** Largest differences of a case. */
interface Errors {
  model: number;
  others: number;
}

/** A bundle with the programs that are open. */
interface Opened {
  readonly model: Model;
  readonly programs: Programs;
  readonly outputs: number;
  readonly data: Tensors;
}

const opened = new Map<string, Promise<Opened>>();
const table: [string, Errors][] = [];

function open(name: string): Promise<Opened> {
  const found = opened.get(name) ?? opening(name);
  opened.set(name, found);
  return found;
}

async function opening(name: string): Promise<Opened> {
  const bundle = await golden.bundle(name);
  const { classes, targets } = bundle.manifest;
  return {
    model: bundle.model(),
    programs: Programs.open(bundle),
    outputs: (classes.length > 0 ? classes : targets).length,
    data: golden.data(name),
  };
}

after(async () => {
  for (const one of opened.values()) await (await one).programs.close();
  const lines = table.map(([name, { model, others }]) => `${name.padEnd(48)} ${shown(model)}  ${shown(others)}`);
  console.log(`${"strategy, settings".padEnd(48)} ${"model".padEnd(8)}  others\n${lines.join("\n")}`);
});

function shown(error: number): string {
  return error.toExponential(1).padEnd(8);
}

test("each strategy that this device offers has golden rounds, and no other", () => {
  const measured = new Set(golden.cases.map(({ strategy }) => strategy));
  assert.deepEqual([...STRATEGIES.keys()].sort(), [...measured].sort());
});

for (const one of golden.cases) {
  const name = `${one.strategy}, ${one.name}`;
  test(`${name}: the rounds of the Python devices`, async () => {
    const bundle = await open(one.bundle);
    const strategy = build(one.strategy, one.settings, bundle.model);
    checkDescription(strategy, one);
    const errors = { model: 0, others: 0 };
    table.push([name, errors]);
    await compareRounds(one, strategy, bundle, errors);
    assert.ok(errors.model <= LIMIT, `the model differs by ${errors.model} of its change`);
    assert.ok(errors.others <= LIMIT, `other tensors differ by ${errors.others}`);
  });
}

/** Rates of which a first payload is the server's own draw. */
const DRAWN = new Set(["fedhp, its own", "fedhp, sum, lost anchors", "fedproto, as FedAli compares it"]);

for (const one of golden.cases) {
  const name = `${one.strategy}, ${one.name}`;
  test(`${name}: what learning rates do, as the Python devices find it`, async () => {
    const bundle = await open(one.bundle);
    let tried = 0;
    const { settings, ratios: expected } = one.calibration;
    const asked = { strategy: one.strategy, settings, seed: golden.seed, rates: golden.rates };
    const ratios = await tryRates(await testerOf(bundle), asked, () => (tried += 1));
    if (DRAWN.has(name)) {
      assert.deepEqual([ratios, tried], [[], 0]);
      return;
    }
    assert.ok(tried >= 3, `${tried} rates`);
    assert.equal(ratios.length, expected.length);
    for (const [at, ratio] of expected.entries()) {
      assert.ok(Math.abs(ratios[at]! - ratio) < 1e-4 * Math.max(1, ratio), `expected ${expected}, got ${ratios}`);
    }
  });
}

/** The client `phone` without a quarter of its examples. */
async function testerOf(bundle: Opened): Promise<Parameters<typeof tryRates>[0]> {
  const { model, programs, outputs, data } = bundle;
  const part = (name: string): Tensor => tensorOf(data, `phone/${name}`);
  const { kept, held } = heldOut(part("y_train"));
  const rows = (numbers: readonly number[]): { x: Tensor; y: Tensor } =>
    ({ x: rowsOf(part("x_train"), numbers), y: rowsOf(part("y_train"), numbers) });
  const evaluator = new Evaluator(programs, model.task, outputs, rows(held));
  return {
    model,
    strategy: (name, settings) => build(name, settings, model),
    train: async (strategy, state, payload) => {
      const tools = await toolsOf(bundle, "phone", payload);
      const training = { ...tools.training, ...rows(kept) };
      const evaluate: ClientTools["evaluate"] = (network, score) => evaluator.evaluate(network, score);
      const statistics: ClientTools["statistics"] = (network) => evaluator.statistics(network);
      return strategy.clientUpdate(state ?? strategy.clientInit(), payload, { ...tools, training, evaluate, statistics });
    },
    loss: async (network, score) => (await evaluator.evaluate(network, score)).ownLoss,
  };
}

test("a strategy takes and refuses the settings that the Python devices do, and names the same one", async () => {
  for (const { strategy, bundle, settings, refused } of golden.asked) {
    const { model } = await open(bundle);
    const got = refusal(() => build(strategy, settings, model));
    const asked = `${strategy} on '${bundle}' with ${JSON.stringify(settings)}`;
    assert.equal(got === null, refused === null, `${asked}: expected ${refused}, got ${got}`);
    if (refused !== null) assert.deepEqual(namedIn(got!), namedIn(refused), asked);
  }
});

test("a strategy that this device cannot do is refused by name", async () => {
  const { model } = await open("perceptron");
  assert.match(refusal(() => build("fedsub", {}, model))!, /'fedsub': this device cannot do it; it does ditto, /);
  assert.match(refusal(() => build("toString", {}, model))!, /'toString': this device cannot do it/);
});

function refusal(attempt: () => unknown): string | null {
  try {
    attempt();
    return null;
  } catch (error) {
    assert.ok(error instanceof InputError);
    return error.message;
  }
}

/** The strategy and the setting that a refusal is about: what it says in quotes before its second colon. */
function namedIn(message: string): (string | undefined)[] {
  const quoted = [...message.split(":", 2).join(":").matchAll(/[`'](?:[a-z_]+\.)*([a-z_]+)[`']/g)];
  return quoted.map(([, name]) => name);
}

async function compareRounds(one: Case, strategy: Strategy, bundle: Opened, errors: Errors): Promise<void> {
  const tensors = golden.tensors(one.tensors);
  const states = new Map<string, ClientState>();
  const pythons = new Map<string, Tensors>();
  for (const { round_id: roundId, final, clients } of one.rounds) {
    for (const [client, told] of Object.entries(clients)) {
      const part = (kind: string): Tensors => withoutPrefix(`${roundId}/${client}/${kind}/`, tensors);
      const [sent, kept, came] = [part("payload"), part("state"), part("update")];
      const first = strategy.clientInit();
      const payload = { roundId, final, tensors: sent };
      checkTensors(strategy.payload, sent);
      const tools = await toolsOf(bundle, client, payload);
      const before = told.fresh ? first : states.get(client)!;
      const inputs = [before.tensors, sent, networkTensors(bundle.model.network), bundle.data];
      const copies = structuredClone(inputs);
      const [state, update] = await strategy.clientUpdate(before, payload, tools);
      assert.deepEqual(inputs, copies, "an input was written");
      checkTensors(strategy.uplink, update.tensors);
      checkTold(update, client, roundId, told);
      const own = told.fresh ? first.tensors : pythons.get(client)!;
      const starts = [own, merged(own, sent)];
      measure(errors, state.tensors, kept, { starts, kept });
      measure(errors, update.tensors, came, { starts, kept });
      checkUse(strategy, state, told);
      assert.equal(state.roundId, roundId);
      states.set(client, state);
      pythons.set(client, kept);
    }
  }
}

async function toolsOf({ programs, model, outputs, data }: Opened, client: string, payload: Payload): Promise<ClientTools> {
  const part = (name: string): Tensor => tensorOf(data, `${client}/${name}`);
  const [x, y] = [part("x_train"), part("y_train")];
  const evaluator = new Evaluator(programs, model.task, outputs, { x: part("x_test"), y: part("y_test") });
  const rng = await clientRng(golden.seed, payload.roundId, client);
  return {
    clientId: client,
    training: { name: `client '${client}'`, x, y, gradFns: programs.gradFns, rng, minBatch: programs.minBatch, work: 1 },
    predict: (network, examples) => programs.predict(network, examples),
    features: (network, examples) => programs.features(network, examples),
    evaluate: (network, score) => evaluator.evaluate(network, score),
    statistics: (network) => evaluator.statistics(network),
  };
}

function checkDescription(strategy: Strategy, one: Case): void {
  assert.equal(strategy.name, one.strategy);
  assert.deepEqual(strategy.programs, one.programs);
  assert.equal(strategy.classCounts, one.class_counts);
  assert.deepEqual(asObject(strategy.payload), one.payload);
  assert.deepEqual(asObject(strategy.uplink), one.uplink);
}

function asObject({ required, optional }: TensorSchemas): Case["payload"] {
  return { required: Object.fromEntries(required), optional: Object.fromEntries(optional) };
}

function checkTold(update: Update, client: string, roundId: number, told: Told): void {
  assert.equal(update.clientId, client);
  assert.equal(update.roundId, roundId);
  assert.equal(update.numExamples, told.num_examples);
  const { own, ownLoss, more }: Evaluation = update.evaluation;
  close([update.loss, ownLoss], [told.loss ?? NaN, told.own_loss ?? NaN]);
  assert.deepEqual([...more.keys()], Object.keys(told.more));
  for (const [got, expected] of [[own, told.own], ...[...more].map(([name, one]) => [one, told.more[name]])]) {
    assert.equal(got?.length, expected?.length);
    close(got?.flat() ?? [], expected?.flat() ?? []);
  }
}

/** The device infers with the model that it keeps. */
function checkUse(strategy: Strategy, state: ClientState, told: Told): void {
  for (const [name, { data }] of networkTensors(strategy.clientModel(state))) {
    assert.deepEqual(data, tensorOf(state.tensors, name).data);
  }
  assert.equal(strategy.clientScore(state) !== null, told.scores_features);
}

/** Counts are equal, sums and losses close. */
function close(got: readonly number[], expected: readonly number[]): void {
  assert.equal(got.length, expected.length);
  for (const [at, value] of expected.entries()) {
    const within = Math.abs(got[at]! - value) <= LIMIT * Math.max(1, Math.abs(value));
    assert.ok(within || (Number.isNaN(value) && Number.isNaN(got[at])), `expected ${value}, got ${got[at]}`);
  }
}

/** A Python client's round: training began with one of `starts`, whichever is nearer. */
interface Trained {
  readonly starts: readonly Tensors[];
  readonly kept: Tensors;
}

function measure(errors: Errors, got: Tensors, expected: Tensors, { starts, kept }: Trained): void {
  assert.deepEqual([...got.keys()].sort(), [...expected.keys()].sort());
  for (const [name, want] of expected) {
    const { dtype, shape, data } = tensorOf(got, name);
    assert.deepEqual([name, dtype, shape], [name, want.dtype, want.shape]);
    if (dtype !== "float32") assert.deepEqual(data, want.data);
    const kind = [PARAMS, BUFFERS].find((prefix) => name.startsWith(prefix));
    const changed = name.startsWith(CHANGE) ? tensorOf(kept, name.slice(CHANGE.length)) : want;
    const scale = kind === undefined ? largest(changed.data) : change(kind, expected, starts);
    const away = largest(data, want.data);
    const error = away === 0 ? 0 : away / scale;
    if (kind === undefined) errors.others = Math.max(errors.others, error);
    else errors.model = Math.max(errors.model, error);
  }
}

/** The largest change of a tensor with this prefix. */
function change(prefix: string, end: Tensors, starts: readonly Tensors[]): number {
  const moved = [...end].filter(([name]) => name.startsWith(prefix));
  const changes = starts.map((start) => moved.map(([name, { data }]) => largest(data, tensorOf(start, name).data)));
  return Math.min(...changes.map((one) => Math.max(...one)));
}

/** The largest number, or the largest difference of two arrays. */
function largest(one: Tensor["data"], other?: Tensor["data"]): number {
  let most = 0;
  for (let at = 0; at < one.length; at += 1) {
    most = Math.max(most, Math.abs(Number(one[at]) - (other === undefined ? 0 : Number(other[at]))));
  }
  return most;
}
