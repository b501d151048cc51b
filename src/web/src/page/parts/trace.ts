/** The last seconds of a signal as a line, so that one sees that the sensors are alive. */

import { s } from "../dom.ts";

const WIDTH = 300;
const HEIGHT = 60;
const SECONDS = 5;
const REDRAW_MS = 100;

export class Trace {
  readonly element = s("svg", { class: "trace", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  readonly #path = s("path", {});
  #points: [number, number][] = [];
  #drawnAt = 0;

  constructor() {
    this.element.append(this.#path);
  }

  push(timeS: number, value: number): void {
    this.#points.push([timeS, value]);
    const now = performance.now();
    if (now - this.#drawnAt < REDRAW_MS) return;
    this.#drawnAt = now;
    this.#points = this.#points.filter(([time]) => time > timeS - SECONDS);
    const values = this.#points.map(([, one]) => one);
    const [low, high] = [Math.min(...values) - 1, Math.max(...values) + 1];
    const path = this.#points.map(([time, one], k) => {
      const x = WIDTH * (1 - (timeS - time) / SECONDS);
      return `${k ? "L" : "M"}${x.toFixed(1)} ${(HEIGHT * (1 - (one - low) / (high - low))).toFixed(1)}`;
    });
    this.#path.setAttribute("d", path.join(""));
  }

  clear(): void {
    this.#points = [];
    this.#path.removeAttribute("d");
  }
}
