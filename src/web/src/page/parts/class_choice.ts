/** One class among a bundle's, as radio buttons that look like chips. */

import { h, newId } from "../dom.ts";

export interface ClassChoice {
  readonly element: HTMLElement;
  /** Number of the class, -1: none yet. */
  readonly chosen: () => number;
  disable(disabled: boolean): void;
}

export function classChoice(legend: string, classes: readonly string[], changed: () => void = () => undefined): ClassChoice {
  const name = newId();
  const boxes = classes.map((_, k) => h("input", { type: "radio", name, value: k, change: changed }));
  const chips = classes.map((text, k) => h("label", { class: "chip" }, boxes[k]!, h("span", {}, text)));
  const element = h("fieldset", {}, h("legend", {}, legend), h("div", { class: "choices" }, ...chips));
  return {
    element,
    chosen: () => boxes.findIndex((box) => box.checked),
    disable: (disabled) => {
      element.disabled = disabled;
    },
  };
}
