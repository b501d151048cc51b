/** What leaves the phone, and what does not. */

import type { Screen } from "../app.ts";
import { card, facts, h, show } from "../dom.ts";
import { bytes } from "../format.ts";
import { SENT } from "../texts.ts";

export function sentScreen(): Screen {
  const totals = h("div");
  const rows = h("tbody");
  const sum = h("td");
  const table = h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, SENT.name), h("th", { scope: "col" }, SENT.size))),
    rows,
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, SENT.total), sum)));
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": SENT.last }, table);
  const empty = h("p", { class: "empty" }, SENT.none);
  let shown = "";
  return {
    element: h("div", { class: "screen" },
      h("h1", {}, SENT.title), h("p", { class: "lead" }, SENT.lead),
      h("div", { class: "columns" },
        card(SENT.last, empty, scroll),
        h("div", { class: "stack" },
          card(SENT.all, totals),
          card(SENT.stays, list(SENT.staying)),
          card(SENT.beside, list(SENT.besides), h("p", { class: "quiet" }, SENT.limit))))),
    update: ({ status }) => {
      const key = JSON.stringify([status.lastSent, status.bytesUp, status.bytesDown, status.history.length]);
      if (key === shown) return;
      shown = key;
      show(empty, status.lastSent.length === 0);
      show(scroll, status.lastSent.length > 0);
      rows.replaceChildren(...status.lastSent.map((part) =>
        h("tr", {}, h("th", { scope: "row" }, h("code", {}, part.name)), h("td", {}, bytes(part.bytes)))));
      sum.textContent = bytes(status.lastSent.reduce((total, part) => total + part.bytes, 0));
      totals.replaceChildren(facts([
        [SENT.up, bytes(status.bytesUp)],
        [SENT.down, bytes(status.bytesDown)],
        [SENT.updates, String(status.history.length)],
      ]));
    },
  };
}

function list(texts: readonly string[]): HTMLElement {
  return h("ul", { class: "plain-list" }, ...texts.map((text) => h("li", {}, text)));
}
