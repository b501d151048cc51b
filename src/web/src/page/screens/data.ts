/** Examples: what the phone has of each class, and the ways to add more. */

import type { BundleFacts, Status } from "../../device/page_messages.ts";
import { drawingSize } from "../../intake/digits.ts";
import { motionPlan } from "../../intake/motion.ts";
import type { App, Screen } from "../app.ts";
import { button, card, h, newId, show } from "../dom.ts";
import { drawingPanel } from "../parts/drawing_panel.ts";
import { filePanel } from "../parts/file_panel.ts";
import type { Panel, PanelMaker } from "../parts/panel.ts";
import { sensorsPanel } from "../parts/sensors_panel.ts";
import { DATA } from "../../texts.ts";

const GOOD_START = 10;

export function dataScreen(app: App): Screen {
  const counts = countsPart(app);
  const ways = new Ways(app);
  const waiting = h("p", { class: "empty" }, DATA.noBundle);
  return {
    element: h("div", { class: "screen" }, h("h1", {}, DATA.title), h("p", { class: "lead" }, DATA.lead), waiting,
      h("div", { class: "columns data" }, ways.element, counts.element)),
    update: (view) => {
      const { bundle } = view.status;
      show(waiting, bundle === null);
      show(counts.element, bundle !== null);
      show(ways.element, bundle !== null);
      counts.update(view);
      if (bundle !== null) ways.update(bundle);
    },
    leave: () => ways.leave(),
  };
}

function countsPart(app: App): Screen {
  const body = h("div", { class: "stack" });
  const clear = button(DATA.clear, "plain", () => {
    void app.confirm({ title: DATA.clearTitle, text: DATA.clearText, yes: DATA.clearYes }).then((yes) => {
      if (yes) app.device.send({ kind: "clearExamples" });
    });
  });
  let shown = "";
  return {
    element: card(DATA.counts, body, clear),
    update: ({ status }) => {
      const key = JSON.stringify([status.exampleCounts, status.bundle?.digest]);
      if (key === shown) return;
      shown = key;
      const total = status.exampleCounts.reduce((sum, count) => sum + count, 0);
      show(clear, total > 0);
      body.replaceChildren(...countLines(status, total));
    },
  };
}

function countLines({ exampleCounts, bundle }: Status, total: number): HTMLElement[] {
  const hint = h("p", { class: "quiet" }, DATA.emptyHint(GOOD_START));
  if (total === 0) return [h("p", { class: "empty" }, DATA.empty), hint];
  const sum = h("p", { class: "headline" }, h("span", { class: "big" }, String(total)), h("span", { class: "quiet" }, DATA.total(total).replace(/^\d+ /, "")));
  if (bundle === null || bundle.classes.length === 0) return [sum];
  const most = Math.max(...exampleCounts, GOOD_START);
  const lines = bundle.classes.map((name, k) => {
    const count = exampleCounts[k] ?? 0;
    const fill = h("span", { class: "fill" });
    fill.style.inlineSize = `${(100 * count) / most}%`;
    return h("li", {}, h("span", { class: "bar-name" }, name), h("span", { class: "track", "aria-hidden": "true" }, fill), h("span", { class: "number" }, String(count)));
  });
  const few = exampleCounts.some((count) => count < GOOD_START);
  return [sum, h("ul", { class: "bars counts" }, ...lines), ...(few ? [hint] : [])];
}

/** Tabs: sensors, drawing and file, as far as they fit the bundle. */
class Ways {
  readonly element: HTMLElement;
  readonly #app: App;
  readonly #tabs = h("div", { class: "tabs", role: "tablist", "aria-label": DATA.ways });
  readonly #body = h("div");
  #digest = "";
  #panel: Panel | null = null;

  constructor(app: App) {
    this.#app = app;
    this.element = card(DATA.ways, this.#tabs, this.#body);
  }

  update(bundle: BundleFacts): void {
    if (bundle.digest === this.#digest) return;
    this.#digest = bundle.digest;
    const ways = waysFor(bundle);
    const tabs = ways.map(([name, maker]) => this.#tab(name, maker, bundle));
    this.#tabs.replaceChildren(...tabs);
    show(this.#tabs, tabs.length > 1);
    tabs[0]!.click();
  }

  leave(): void {
    this.#panel?.leave();
  }

  #tab(name: string, maker: PanelMaker, bundle: BundleFacts): HTMLButtonElement {
    const [id, panelId] = [newId(), newId()];
    const press = () => {
      this.leave();
      for (const other of this.#tabs.children) {
        other.setAttribute("aria-selected", String(other === tab));
        (other as HTMLElement).tabIndex = other === tab ? 0 : -1;
      }
      this.#panel = maker(this.#app, bundle);
      this.#body.replaceChildren(h("div", { role: "tabpanel", id: panelId, "aria-labelledby": id, tabindex: -1 }, this.#panel.element));
      tab.setAttribute("aria-controls", panelId);
    };
    const move = (event: Event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[(event as KeyboardEvent).key];
      if (step === undefined) return;
      const all = [...this.#tabs.children] as HTMLElement[];
      const next = all[(all.indexOf(tab) + step + all.length) % all.length]!;
      next.click();
      next.focus();
    };
    const tab = h("button", { type: "button", role: "tab", id, click: press, keydown: move }, name);
    return tab;
  }
}

function waysFor(bundle: BundleFacts): [string, PanelMaker][] {
  const ways: [string, PanelMaker][] = [];
  if (hasMotion(bundle)) ways.push([DATA.sensors, sensorsPanel]);
  if (drawingSize(bundle.preprocessing, bundle.classes) !== null) ways.push([DATA.draw, drawingPanel]);
  ways.push([DATA.file, filePanel]);
  return ways;
}

function hasMotion({ preprocessing, classes }: BundleFacts): boolean {
  const { window, channels, input_shape: shape } = preprocessing;
  if (classes.length === 0 || shape.length !== 2 || shape[0] !== window || shape[1] !== channels.length) return false;
  try {
    motionPlan(preprocessing);
    return true;
  } catch {
    return false; // the file panel names the channels
  }
}
