/** What a device predicts with after it has moved to another bundle, until a round with that one counts. */

import type { Bundle } from "../bundle/bundle.ts";
import type { Manifest } from "../bundle/manifest.ts";
import { tensorsOf } from "../federation/coding.ts";
import { Programs } from "../runtime/programs.ts";
import { build } from "../strategies/index.ts";
import type { ClientState, Strategy } from "../strategies/types.ts";
import type { Tensor } from "../tensors/tensors.ts";
import { openKept } from "./hub.ts";
import { otherInput, rescaled } from "./inputs.ts";
import { isServed, type PersonalState } from "./journal.ts";
import { outputsOf } from "./move.ts";
import { predictWith } from "./predictions.ts";
import type { Store } from "./store.ts";

/** The model of another bundle, for examples of the present one. */
export class FormerModel {
  readonly #bundle: Bundle;
  readonly #programs: Programs;
  readonly #strategy: Strategy;
  /** Null: the bundle's own model is in use. */
  readonly #state: ClientState | null;

  private constructor(bundle: Bundle, strategy: Strategy, state: ClientState | null) {
    this.#bundle = bundle;
    this.#programs = Programs.open(bundle);
    this.#strategy = strategy;
    this.#state = state;
  }

  static async open(store: Store, { binding, bundle: file, strategy, settings, state }: PersonalState): Promise<FormerModel> {
    const bundle = await openKept(await store.read(file), binding);
    const own = isServed(state, store.use)
      ? { roundId: state.roundId, tensors: tensorsOf(await store.read(state.blob)) }
      : null;
    return new FormerModel(bundle, build(strategy, settings, bundle.model()), own);
  }

  /**
   * Outputs (n, C) for `x` as the bundle `now` takes it, in the order of its outputs; a class that this model does not
   * know has -Infinity. null: it takes other inputs, or estimates something else.
   */
  async predict(x: Tensor, now: Manifest): Promise<Tensor | null> {
    const { manifest } = this.#bundle;
    const known = outputsOf(manifest);
    const columns = outputsOf(now).map((name) => known.indexOf(name));
    const common = columns.filter((column) => column >= 0).length;
    const enough = now.classes.length > 0 ? common > 0 : common === columns.length;
    const tokens = manifest.preprocessing.tokens === now.preprocessing.tokens;
    const other = otherInput(manifest.preprocessing, now.preprocessing) !== null;
    if (manifest.task !== now.task || !enough || !tokens || other) return null;
    const own = rescaled(x, now.preprocessing, manifest.preprocessing);
    const { data, shape } = await this.#outputs(own);
    const made = new Float32Array(shape[0]! * columns.length);
    for (let row = 0; row < shape[0]!; row += 1) {
      columns.forEach((column, k) => {
        made[row * columns.length + k] = column < 0 ? -Infinity : Number(data[row * known.length + column]);
      });
    }
    return { dtype: "float32", shape: [shape[0]!, columns.length], data: made };
  }

  #outputs(x: Tensor): Promise<Tensor> {
    if (this.#state === null) return this.#programs.predict(this.#bundle.model().network, x);
    return predictWith(this.#programs, this.#strategy, this.#state, x);
  }

  async close(): Promise<void> {
    await this.#programs.close();
  }
}

/** Opens the former model when it is asked for, and lets it go when a round has counted. */
export class FormerModels {
  #digest = "";
  #model: Promise<FormerModel | null> = Promise.resolve(null);

  /** That of the store; null: the device predicts with the model of its bundle. */
  of(store: Store): Promise<FormerModel | null> {
    const { former } = store.journal;
    const digest = former === null ? "" : `${former.binding.bundle} ${store.use}`;
    if (digest !== this.#digest) {
      void this.#model.then((model) => model?.close());
      this.#digest = digest;
      this.#model = former === null ? Promise.resolve(null) : FormerModel.open(store, former);
    }
    return this.#model;
  }
}
