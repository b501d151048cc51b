/** Before the phone belongs to a federation: take an invitation by camera, by address or by paste. */

import type { App, Screen, View } from "../app.ts";
import { button, h, newId, setText, show } from "../dom.ts";
import { icon } from "../icons.ts";
import { canScan, invitationIn, scan } from "../scanner.ts";
import { JOIN, PHASES } from "../texts.ts";

export interface JoinScreen extends Screen {
  /** Why an invitation was not taken. */
  refused(text: string): void;
}

/** `carried`: the invitation in the address with which the page was opened. */
export function joinScreen(app: App, carried: string | null): JoinScreen {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const tell = (text: string) => {
    setText(problem, text);
    show(problem, text !== "");
  };
  const enrol = (text: string) => {
    const invitation = invitationIn(text);
    tell(invitation === null ? JOIN.none : "");
    if (invitation !== null) app.device.send({ kind: "enrol", invitation });
  };
  const choices = h("div", { class: "stack" }, ...(carried === null ? [] : [carriedBox(() => enrol(carried))]), scanBox(enrol, tell), pasteBox(enrol));
  const busy = h("div", { class: "card busy", hidden: true },
    h("div", { class: "spinner", "aria-hidden": "true" }), h("h2", {}, PHASES.enrolling.title), h("p", {}, PHASES.enrolling.text));
  const detail = h("p", { class: "quiet" });
  busy.append(detail);
  return {
    element: h("div", { class: "screen join" }, introduction(), h("div", { class: "stack" }, problem, choices, busy)),
    update: ({ status }: View) => {
      show(busy, status.phase === "enrolling");
      show(choices, status.phase !== "enrolling");
      setText(detail, status.detail);
    },
    refused: tell,
  };
}

function introduction(): HTMLElement {
  const icons = ["down", "phone", "sent"] as const;
  return h("div", { class: "intro" },
    h("h1", {}, JOIN.lead),
    h("ol", { class: "how" }, ...JOIN.how.map(([head, text], k) =>
      h("li", {}, h("span", { class: "badge" }, icon(icons[k]!)), h("div", {}, h("strong", {}, `${head}, `), text)))),
    h("p", { class: "quiet" }, JOIN.trust));
}

function carriedBox(press: () => void): HTMLElement {
  return h("div", { class: "card" }, h("p", {}, JOIN.carried), button(JOIN.carriedJoin, "primary", press));
}

function scanBox(enrol: (text: string) => void, tell: (text: string) => void): HTMLElement {
  const press = button(JOIN.scan, "primary", () => {
    scan().then((found) => found !== null && enrol(found), () => tell(JOIN.cameraRefused));
  });
  press.prepend(icon("camera"));
  const without = h("p", { class: "quiet", hidden: true }, JOIN.scanUnavailable);
  show(press, false);
  void canScan().then((can) => {
    show(press, can);
    show(without, !can);
  });
  return h("div", { class: "card" }, press, without);
}

function pasteBox(enrol: (text: string) => void): HTMLElement {
  const id = newId();
  const field = h("textarea", { id, rows: 3, placeholder: JOIN.placeholder, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const submit = (event: Event) => {
    event.preventDefault();
    enrol(field.value);
  };
  return h("form", { class: "card", submit },
    h("label", { for: id }, JOIN.paste), field, h("button", { class: "button plain", type: "submit" }, JOIN.join));
}
