/** What the model takes one example for. */

import type { Tensor } from "../../tensors/tensors.ts";
import { h, setText, show } from "../dom.ts";
import { percent } from "../format.ts";
import { LIVE } from "../../texts.ts";

const SHOWN = 3;

export class Guess {
  readonly element: HTMLElement;
  readonly #names: readonly string[];
  readonly #isClasses: boolean;
  readonly #empty: HTMLElement;
  readonly #best = h("p", { class: "best", role: "status" });
  readonly #bars = h("ul", { class: "bars", "aria-hidden": "true" });

  constructor(names: readonly string[], isClasses: boolean, empty: string) {
    [this.#names, this.#isClasses] = [names, isClasses];
    this.#empty = h("p", { class: "empty" }, empty);
    this.element = h("div", { class: "guess" }, this.#best, this.#bars, this.#empty);
    this.clear(empty);
  }

  clear(text: string): void {
    setText(this.#empty, text);
    show(this.#empty, true);
    show(this.#best, false);
    this.#bars.replaceChildren();
  }

  /** `outputs`: (1, C) scores of classes, or values of targets. */
  update(outputs: Tensor): void {
    const scores = Array.from(outputs.data, Number);
    show(this.#empty, false);
    show(this.#best, true);
    if (!this.#isClasses) {
      setText(this.#best, this.#names.map((name, k) => `${name}: ${scores[k]?.toPrecision(4)}`).join(", "));
      return;
    }
    const shares = softmax(scores);
    const order = shares.map((_, k) => k).sort((a, b) => shares[b]! - shares[a]!).slice(0, SHOWN);
    setText(this.#best, LIVE.guess(this.#names[order[0]!]!, percent(shares[order[0]!]!)));
    this.#bars.replaceChildren(...order.map((k) => bar(this.#names[k]!, shares[k]!)));
  }
}

function softmax(scores: readonly number[]): number[] {
  const most = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

function bar(name: string, share: number): HTMLElement {
  const fill = h("span", { class: "fill" });
  fill.style.inlineSize = `${100 * share}%`;
  return h("li", {}, h("span", { class: "bar-name" }, name), h("span", { class: "track" }, fill));
}
