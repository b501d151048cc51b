/** What the browser lacks, and what to do. */

import { h } from "../dom.ts";
import { icon } from "../icons.ts";
import { BASELINE, PRODUCT } from "../../texts.ts";

export function showLacks(texts: readonly string[]): void {
  stop(BASELINE.title, h("p", {}, BASELINE.intro), h("ul", { class: "plain-list" }, ...texts.map((text) => h("li", {}, text))),
    h("p", { class: "quiet" }, BASELINE.remedy));
}

export function showInsecure(): void {
  stop(BASELINE.insecureTitle, h("p", {}, BASELINE.insecureIntro),
    h("ol", { class: "steps" }, ...BASELINE.insecureSteps.map((text) => h("li", {}, text))),
    h("p", {}, h("a", { class: "button plain", href: "/ca.pem", download: "protofleet-ca.pem" }, icon("down"), BASELINE.authority)));
}

function stop(title: string, ...content: HTMLElement[]): void {
  document.body.replaceChildren(h("main", { class: "lacking" },
    icon("warning"), h("p", { class: "eyebrow" }, PRODUCT), h("h1", {}, title), ...content));
}
