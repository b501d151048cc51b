/**
 * Tries a ladder of learning rates, as `federation/outcomes/calibration.py` does: one local round with every rate, without a
 * quarter of the examples, and by how much that changes the loss on them. Which rate is chosen the server says.
 */

import { DivergedError } from "../errors.ts";
import { TRAINING } from "../strategies/training_settings.ts";
import type { ClientState, Model, Payload, Score, Strategy, Update } from "../strategies/types.ts";
import type { Network, Tensor } from "../tensors/tensors.ts";

type Settings = Readonly<Record<string, unknown>>;

/** Ratio of a rate with which training has made the loss so much larger, or has diverged. */
export const WORST = 10;
/** Of so many training examples of a class one is held out. */
const HELD_OUT = 4;
/** After so many rates in a row that do worse than the best one the larger ones are not tried. */
const ENOUGH_WORSE = 2;
/** Times that a rate of the ladder is the one below it, about. */
const RUNG = 3;

/** What an announcement asks for: `settings` of `strategy` with any rate; `rates` ascend. */
export interface RatesToTry {
  readonly strategy: string;
  readonly settings: Settings;
  readonly seed: bigint;
  readonly rates: readonly number[];
}

/** A learner that has held out a part of its training examples; `device/learner.ts` is one. */
export interface RateTester {
  readonly model: Model;
  strategy(name: string, settings: Settings): Strategy;
  train(strategy: Strategy, state: ClientState | null, payload: Payload, seed: bigint): Promise<readonly [ClientState, Update]>;
  /** On the held-out examples. */
  loss(network: Network, score: Score | null): Promise<number>;
}

/**
 * Numbers of the training examples that train, and of those that are held out: the last quarter of each class in
 * their order, as neighbouring windows of a stream overlap. Without classes the last quarter of all.
 */
export function heldOut({ dtype, shape, data }: Tensor): { readonly kept: readonly number[]; readonly held: readonly number[] } {
  const groups = new Map<string, number[]>();
  for (let row = 0; row < shape[0]!; row += 1) {
    const label = dtype === "int64" ? String(data[row]) : "";
    const group = groups.get(label);
    if (group === undefined) groups.set(label, [row]);
    else group.push(row);
  }
  const held = new Set([...groups.values()].flatMap((rows) => rows.slice(rows.length - Math.floor(rows.length / HELD_OUT))));
  const all = Array.from({ length: shape[0]! }, (_, row) => row);
  return { kept: all.filter((row) => !held.has(row)), held: all.filter((row) => held.has(row)) };
}

/**
 * What each rate does to the loss on held-out examples: divided by the loss before, at most `WORST`.
 *
 * A strategy of which a first round trains nothing tries them as if each device were alone. Empty: nothing can be
 * compared, or the server draws what the first round starts from. `tried` is told after each local round.
 */
export async function tryRates(tester: RateTester, asked: RatesToTry, tried: () => void): Promise<readonly number[]> {
  const start = await tester.loss(tester.model.network, null);
  const tensors = tester.strategy(asked.strategy, asked.settings).initialPayload();
  if (!(start > 0 && start < Infinity) || tensors === null) return [];
  const payload: Payload = { roundId: 1, tensors, final: false };
  const search = (strategy: string, settings: Settings): Promise<readonly number[]> =>
    searched(asked.rates.length, async (place) => {
      const one = tester.strategy(strategy, withRate(settings, asked.rates[place]!));
      const ratio = await ratioOf(tester, one, payload, asked.seed, start);
      tried();
      return ratio;
    });
  const found = await search(asked.strategy, asked.settings);
  const alike = new Set(found).size === 1 && found[0]! < WORST;
  return alike ? search("local", plain(asked.settings)) : found;
}

/**
 * Ratios of all rates, of which some are tried: from the middle up, to one that is hopeless or two in a row that do
 * worse than the best; then down, to one that does worse than the best.
 */
export async function searched(rates: number, ratio: (place: number) => Promise<number>): Promise<readonly number[]> {
  const middle = Math.floor(rates / 2);
  const up: number[] = [];
  for (let place = middle; place < rates; place += 1) {
    up.push(await ratio(place));
    const worse = up.slice(Math.max(0, up.length - ENOUGH_WORSE));
    if (up.at(-1)! >= WORST || (up.length > ENOUGH_WORSE && Math.min(...worse) > Math.min(...up))) break;
  }
  const down: number[] = [];
  for (let place = middle - 1; place >= 0; place -= 1) {
    const best = Math.min(...up, ...down, WORST);
    down.push(await ratio(place));
    if (down.at(-1)! > best && best < 1) break;
  }
  // A third of the gain for a third of the rate.
  while (down.length < middle) down.push(1 - Math.max(1 - down.at(-1)!, 0) / RUNG);
  const beyond = new Array<number>(rates - middle - up.length).fill(Math.max(...up));
  return [...down.reverse(), ...up, ...beyond];
}

async function ratioOf(
  tester: RateTester, strategy: Strategy, payload: Payload, seed: bigint, start: number,
): Promise<number> {
  try {
    const [first, update] = await tester.train(strategy, null, payload, seed);
    const second = strategy.nextAlone?.(payload, update);
    const [state] = second === undefined ? [first] : await tester.train(strategy, first, second, seed);
    const loss = await tester.loss(strategy.clientModel(state), strategy.clientScore(state));
    return Number.isFinite(loss) ? Math.min(loss / start, WORST) : WORST;
  } catch (error) {
    if (error instanceof DivergedError) return WORST;
    throw error;
  }
}

/** The settings with a number in the place of the optimiser's rate. */
export function withRate(settings: Settings, lr: number): Settings {
  return { ...settings, optimiser: { ...(settings["optimiser"] as Settings | undefined), lr } };
}

/** What training alone takes of a strategy's settings. */
function plain(settings: Settings): Settings {
  return Object.fromEntries(Object.keys(TRAINING).filter((name) => name in settings).map((name) => [name, settings[name]]));
}
