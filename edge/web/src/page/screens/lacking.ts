/** What the browser lacks, and what to do. */

import { h } from "../dom.ts";
import { icon } from "../icons.ts";
import { BASELINE, PRODUCT } from "../texts.ts";

export function showLacks(texts: readonly string[]): void {
  const insecure = texts.includes(BASELINE.secureContext);
  document.body.replaceChildren(h("main", { class: "lacking" },
    icon("warning"),
    h("p", { class: "eyebrow" }, PRODUCT), h("h1", {}, BASELINE.title), h("p", {}, BASELINE.intro),
    h("ul", { class: "plain-list" }, ...texts.map((text) => h("li", {}, text))),
    insecure && h("p", {}, h("a", { class: "button plain", href: "/ca.pem" }, BASELINE.authority)),
    !insecure && h("p", { class: "quiet" }, BASELINE.remedy)));
}
