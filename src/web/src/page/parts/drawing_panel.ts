/** Drawing by finger: a canvas, what the model sees of it, and what it takes it for. */

import type { BundleFacts } from "../../device/page_messages.ts";
import { drawingSize, drawnExample, type Point } from "../../intake/digits.ts";
import { inputTensor, labelled } from "../../intake/examples.ts";
import type { App } from "../app.ts";
import { button, h, newId } from "../dom.ts";
import { sentence } from "../format.ts";
import { DATA, DRAWING, LIVE } from "../../texts.ts";
import { classChoice } from "./class_choice.ts";
import { Guess } from "./guess.ts";
import type { Panel } from "./panel.ts";

/** Pixels of the canvas, whatever its size on the screen. */
const SIDE = 512;
const PEN = 34;

export function drawingPanel(app: App, bundle: BundleFacts): Panel {
  const side = drawingSize(bundle.preprocessing, bundle.classes)!;
  const seen = h("canvas", { class: "seen", width: side, height: side, role: "img", "aria-label": DRAWING.seen(side) });
  const guess = new Guess(bundle.classes, true, LIVE.drawHint);
  const choice = classChoice(DRAWING.choose, bundle.classes);
  let asked = 0;

  const pad = new Pad(() => {
    const x = drawnExample(pad.strokes, bundle.preprocessing, side);
    showPixels(seen, x, bundle);
    if (x !== null) void look(x);
  });

  async function look(x: Float32Array): Promise<void> {
    const number = ++asked;
    const outputs = await app.device.predict(inputTensor(x, [1, ...bundle.preprocessing.input_shape], false)).catch((error: Error) => {
      guess.clear(sentence(error.message));
      return null;
    });
    if (outputs !== null && number === asked) guess.update(outputs);
  }

  function erase(): void {
    asked += 1;
    pad.clear();
    showPixels(seen, null, bundle);
    guess.clear(LIVE.drawHint);
  }

  function keep(): void {
    const x = drawnExample(pad.strokes, bundle.preprocessing, side);
    if (x === null) return app.notice(DRAWING.nothing, "bad");
    if (choice.chosen() < 0) return app.notice(DRAWING.noClass, "bad");
    const block = { x, labels: [choice.chosen()], targets: [], startS: null };
    void app.device.add(labelled([block], bundle, "both").examples, "drawing").then((kept) => {
      if (kept) app.notice(DATA.added(1), "good");
    });
    erase();
  }

  const hint = newId();
  pad.canvas.setAttribute("aria-describedby", hint);
  return {
    element: h("div", { class: "stack" }, h("p", {}, DRAWING.lead),
      h("div", { class: "drawing" }, pad.canvas,
        h("div", { class: "stack" }, h("div", { class: "sight" }, seen, h("span", { class: "quiet" }, DRAWING.seen(side))), guess.element)),
      choice.element,
      h("div", { class: "actions" }, button(DRAWING.keep, "primary", keep), button(DRAWING.erase, "plain", erase)),
      h("p", { class: "quiet", id: hint }, DRAWING.keyboard)),
    leave: () => undefined,
  };
}

/** Takes strokes of a finger, a pen or a mouse. */
class Pad {
  readonly canvas = h("canvas", { class: "pad", width: SIDE, height: SIDE, role: "img", "aria-label": DRAWING.canvas });
  readonly strokes: Point[][] = [];
  readonly #ended: () => void;
  #pointer: number | null = null;

  constructor(ended: () => void) {
    this.#ended = ended;
    this.canvas.addEventListener("pointerdown", (event) => {
      if (this.#pointer !== null) return;
      this.#pointer = event.pointerId;
      this.canvas.setPointerCapture(event.pointerId);
      this.strokes.push([]);
      this.#add(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerId !== this.#pointer) return;
      const all = event.getCoalescedEvents?.() ?? [];
      (all.length > 0 ? all : [event]).forEach((one) => this.#add(one));
    });
    for (const name of ["pointerup", "pointercancel"] as const) {
      this.canvas.addEventListener(name, (event) => {
        if (event.pointerId !== this.#pointer) return;
        this.#pointer = null;
        this.#ended();
      });
    }
  }

  clear(): void {
    this.strokes.length = 0;
    this.#context().clearRect(0, 0, SIDE, SIDE);
  }

  #context(): CanvasRenderingContext2D {
    return this.canvas.getContext("2d")!;
  }

  #add(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const point = { x: (SIDE * (event.clientX - box.left)) / box.width, y: (SIDE * (event.clientY - box.top)) / box.height };
    const stroke = this.strokes.at(-1)!;
    const from = stroke.at(-1) ?? point;
    stroke.push(point);
    const context = this.#context();
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = PEN;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(point.x, point.y);
    context.stroke();
  }
}

function showPixels(canvas: HTMLCanvasElement, x: Float32Array | null, { preprocessing }: BundleFacts): void {
  const context = canvas.getContext("2d")!;
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (x === null) return;
  const [mean, std] = [preprocessing.mean[0] ?? 0, preprocessing.std[0] ?? 1];
  const [red, green, blue] = getComputedStyle(canvas).color.match(/\d+/g)!.map(Number) as [number, number, number];
  const pixels = context.createImageData(canvas.width, canvas.height);
  x.forEach((value, k) => pixels.data.set([red, green, blue, 255 * (value * std + mean)], 4 * k));
  context.putImageData(pixels, 0, 0);
}
