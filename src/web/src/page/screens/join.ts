/** Before the phone belongs to a federation: take an invitation by camera, by address or by paste. */

import type { App, Screen, View } from "../app.ts";
import { button, h, newId, setText, show } from "../dom.ts";
import { sentence } from "../format.ts";
import { icon } from "../icons.ts";
import { canScan, invitationIn, scan } from "../scanner.ts";
import { JOIN, PHASES } from "../../texts.ts";

export interface JoinScreen extends Screen {
  /** Why an invitation was not taken. */
  refused(text: string): void;
}

/** `carried`: the invitation in the address with which the page was opened. */
export function joinScreen(app: App, carried: string | null): JoinScreen {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const tell = (text: string) => {
    setText(problem, sentence(text));
    show(problem, text !== "");
  };
  const broker = new BrokerField();
  const enrol = (invitation: string | null, deviceId = "") => {
    const wrong = invitation === null ? JOIN.none : broker.problem();
    tell(wrong);
    if (wrong !== "") return;
    const address = broker.value();
    const named = deviceId === "" ? {} : { deviceId };
    app.device.send({ kind: "enrol", invitation: invitation!, ...named, ...(address === "" ? {} : { broker: address }) });
  };
  const detail = h("p", { class: "quiet" });
  const busy = h("div", { class: "card busy", hidden: true },
    h("div", { class: "spinner", "aria-hidden": "true" }), h("h2", {}, PHASES.enrolling.title), h("p", {}, PHASES.enrolling.text), detail);
  const told = h("p", { class: "detail", hidden: true });
  const first = carried === null ? scanBox(enrol, tell) : carriedBox(() => enrol(carried));
  const open = new OpenBox((deviceId) => enrol("", deviceId));
  const choices = h("div", { class: "stack" }, first, open.element, pasteBox(enrol, broker));
  const introduced = introduction();
  return {
    element: h("div", { class: `screen join${carried === null ? "" : " carried"}` },
      introduced, h("div", { class: "stack" }, told, problem, choices, busy)),
    update: ({ status }: View) => {
      const enrolling = status.phase === "enrolling";
      if (status.phase === "needs-invitation") open.look();
      show(busy, enrolling);
      show(choices, !enrolling);
      introduced.classList.toggle("brief", enrolling);
      setText(enrolling ? detail : told, sentence(status.detail));
      show(told, !enrolling && status.detail !== "");
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

/** Shown only where the hub says that its federation has no keys. */
class OpenBox {
  readonly element: HTMLElement;
  readonly #text = h("p");
  #looked = false;

  constructor(join: (deviceId: string) => void) {
    const id = newId();
    const field = h("input", { id, type: "text", maxlength: 64, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
    const submit = (event: Event) => {
      event.preventDefault();
      join(field.value.trim());
    };
    this.element = h("form", { class: "card", hidden: true, submit },
      this.#text, h("label", { for: id }, JOIN.openName), field, h("button", { class: "button plain", type: "submit" }, JOIN.openJoin));
  }

  /** Asks the hub, once. */
  look(): void {
    if (this.#looked) return;
    this.#looked = true;
    void openFederation().then((name) => {
      if (name === null) return;
      setText(this.#text, JOIN.open(name));
      show(this.element, true);
    });
  }
}

async function openFederation(): Promise<string | null> {
  try {
    const answer = await fetch("/federation.json");
    const said: unknown = answer.ok ? await answer.json() : null;
    if (typeof said !== "object" || said === null || !("keys" in said) || !("federation" in said)) return null;
    return said.keys === false && typeof said.federation === "string" ? said.federation : null;
  } catch {
    return null; // no network, or a hub that does not say: an invitation tells
  }
}

function scanBox(enrol: (invitation: string) => void, tell: (text: string) => void): HTMLElement {
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

function pasteBox(enrol: (invitation: string | null) => void, broker: BrokerField): HTMLElement {
  const id = newId();
  const field = h("textarea", { id, rows: 3, placeholder: JOIN.placeholder, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const submit = (event: Event) => {
    event.preventDefault();
    enrol(invitationIn(field.value));
  };
  return h("form", { class: "card", submit },
    h("label", { for: id }, JOIN.paste), field, broker.element, h("button", { class: "button plain", type: "submit" }, JOIN.join));
}

/** The address of a broker that the phone reaches without the hub; mostly empty. */
class BrokerField {
  readonly #field: HTMLInputElement;
  readonly element: HTMLElement;

  constructor() {
    const [id, hint] = [newId(), newId()];
    this.#field = h("input", { id, type: "url", placeholder: JOIN.brokerPlaceholder, autocomplete: "off", "aria-describedby": hint });
    this.element = h("details", {}, h("summary", {}, JOIN.broker),
      h("label", { for: id }, JOIN.brokerLabel), this.#field, h("p", { class: "quiet", id: hint }, JOIN.brokerHint));
  }

  value(): string {
    return this.#field.value.trim();
  }

  problem(): string {
    return this.value() === "" || /^wss?:\/\/./.test(this.value()) ? "" : JOIN.brokerWrong;
  }
}
