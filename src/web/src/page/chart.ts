/** Accuracy by round, before and after training, as an SVG and as a table. */

import type { RoundFigures } from "../device/page_messages.ts";
import { h, s } from "./dom.ts";
import { duration, percent } from "./format.ts";
import { TRAIN } from "../texts.ts";

const HEIGHT = 190;
const MARGIN = { top: 12, right: 14, bottom: 26, left: 48 };
/** Beyond, dots of neighbouring rounds would touch. */
const MOST_DOTS = 24;

type Key = "before" | "after";

export class AccuracyChart {
  readonly element: HTMLElement;
  readonly #plot = h("div", { class: "plot" });
  readonly #rows = h("tbody");
  #history: readonly RoundFigures[] = [];
  #drawn = "";

  constructor() {
    const head = Object.values(TRAIN.table).map((name) => h("th", { scope: "col" }, name));
    this.element = h(
      "figure", { class: "chart" },
      h("figcaption", { class: "legend" },
        h("span", { class: "key after" }, TRAIN.after), h("span", { class: "key before" }, TRAIN.before)),
      this.#plot,
      h("details", {}, h("summary", {}, TRAIN.asTable),
        h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": TRAIN.asTable },
          h("table", {}, h("thead", {}, h("tr", {}, ...head)), this.#rows))),
    );
    new ResizeObserver(() => this.#draw()).observe(this.#plot);
  }

  update(history: readonly RoundFigures[]): void {
    this.#history = history.filter((one) => one.after !== null || one.before !== null);
    this.#draw();
  }

  #draw(): void {
    const width = this.#plot.clientWidth;
    const key = `${width} ${JSON.stringify(this.#history)}`;
    if (width === 0 || key === this.#drawn || this.#history.length === 0) return;
    this.#drawn = key;
    this.#plot.replaceChildren(drawing(this.#history, width));
    this.#rows.replaceChildren(...[...this.#history].reverse().map(row));
  }
}

function row(one: RoundFigures): HTMLElement {
  const share = (value: number | null) => (value === null ? "–" : `${percent(value)} %`);
  const cells = [share(one.before), share(one.after), one.loss?.toFixed(2) ?? "–", duration(one.seconds)];
  return h("tr", {}, h("th", { scope: "row" }, String(one.round)), ...cells.map((text) => h("td", {}, text)));
}

function drawing(history: readonly RoundFigures[], width: number): SVGElement {
  const values = history.flatMap((one) => [one.before, one.after]).filter((value) => value !== null);
  const lowest = Math.max(0, Math.floor((Math.min(...values) - 0.05) * 5) / 5);
  const highest = Math.min(1, Math.ceil((Math.max(...values) + 0.02) * 5) / 5);
  const [first, last] = [history[0]!.round, Math.max(history.at(-1)!.round, history[0]!.round + 1)];
  const x = (round: number) => MARGIN.left + ((round - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
  const y = (share: number) =>
    MARGIN.top + ((highest - share) / (highest - lowest || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const line = (key: Key) => series(history, key, x, y);
  return s(
    "svg",
    { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": TRAIN.chartLabel(history.length) },
    ...steps(lowest, highest).map((share) => gridLine(share, y(share), width)),
    ...roundsToName(history, width).map((round) =>
      s("text", { class: "axis", x: x(round), y: HEIGHT - 6, "text-anchor": "middle" }, String(round))),
    line("before"), line("after"),
  );
}

/** Shares at which a line helps the eye: four or five of them. */
function steps(lowest: number, highest: number): number[] {
  const step = highest - lowest > 0.5 ? 0.2 : 0.1;
  const count = Math.round((highest - lowest) / step);
  return Array.from({ length: count + 1 }, (_, k) => lowest + k * step);
}

function gridLine(share: number, y: number, width: number): SVGElement {
  return s("g", {},
    s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
    s("text", { class: "axis", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, `${percent(share)} %`));
}

function roundsToName(history: readonly RoundFigures[], width: number): number[] {
  const every = Math.ceil(history.length / Math.max(2, Math.floor(width / 60)));
  const last = history.length - 1;
  return history.filter((_, k) => (last - k) % every === 0).map((one) => one.round);
}

function series(
  history: readonly RoundFigures[],
  key: Key,
  x: (round: number) => number,
  y: (share: number) => number,
): SVGElement {
  const points = history.flatMap((one) => (one[key] === null ? [] : [[x(one.round), y(one[key])] as const]));
  const path = points.map(([px, py], k) => `${k ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  const shown = key === "after" ? (points.length <= MOST_DOTS ? points : points.slice(-1)) : points.length === 1 ? points : [];
  return s("g", { class: key },
    s("path", { class: "line", d: path }),
    ...shown.map(([px, py]) => s("circle", { cx: px.toFixed(1), cy: py.toFixed(1), r: 3.5 })));
}
