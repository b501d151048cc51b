/** What leaves the phone, and what does not. */

import type { Screen } from "../app.ts";
import { card, facts, h, show } from "../dom.ts";
import { bytes } from "../format.ts";
import { SENT } from "../../texts.ts";

export function sentScreen(): Screen {
  const totals = h("div");
  const rows = h("tbody");
  const [sum, count] = [h("span", { class: "big" }), h("span", { class: "quiet" })];
  const headline = h("p", { class: "headline" }, sum, count);
  const table = h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, SENT.name), h("th", { scope: "col" }, SENT.size))), rows);
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": SENT.parts }, table);
  const empty = h("p", { class: "empty" }, SENT.none);
  let shown = "";
  return {
    element: h("div", { class: "screen" },
      h("h1", {}, SENT.title), h("p", { class: "lead" }, SENT.lead),
      h("div", { class: "columns" },
        card(SENT.last, empty, headline, scroll),
        h("div", { class: "stack" },
          card(SENT.all, totals),
          card(SENT.stays, list(SENT.staying)),
          card(SENT.beside, list(SENT.besides), h("p", { class: "quiet" }, SENT.limit))))),
    update: ({ status }) => {
      const key = JSON.stringify([status.lastSent, status.bytesUp, status.bytesDown, status.history.length]);
      if (key === shown) return;
      shown = key;
      show(empty, status.lastSent.length === 0);
      show(headline, status.lastSent.length > 0);
      show(scroll, status.lastSent.length > 0);
      rows.replaceChildren(...status.lastSent.map((part) =>
        h("tr", {}, h("th", { scope: "row" }, h("code", {}, ...breakable(part.name))), h("td", {}, bytes(part.bytes)))));
      count.textContent = SENT.partsCount(status.lastSent.length);
      sum.textContent = bytes(status.lastSent.reduce((total, part) => total + part.bytes, 0));
      totals.replaceChildren(facts([
        [SENT.up, bytes(status.bytesUp)],
        [SENT.down, bytes(status.bytesDown)],
        [SENT.updates, String(status.history.length)],
      ]));
    },
  };
}

/** A dotted name that may be broken behind its dots. */
function breakable(name: string): (string | HTMLElement)[] {
  return name.split(/(?<=[._])/).flatMap((part, k) => (k === 0 ? [part] : [h("wbr"), part]));
}

function list(texts: readonly string[]): HTMLElement {
  return h("ul", { class: "plain-list" }, ...texts.map((text) => h("li", {}, text)));
}
