/** The frame around all screens: header, sections, messages, questions. */

import type { Status } from "../device/page_messages.ts";
import type { Question, Screen, ScreenName, View } from "./app.ts";
import { button, h, newId, setText, show } from "./dom.ts";
import { icon, logo } from "./icons.ts";
import { ANNOUNCE, NAVIGATION, PHASES, PRODUCT, SETTINGS, SKIP_LINK, STATES } from "../texts.ts";

const NOTICE_MS = 6000;
const NAMES: readonly ScreenName[] = ["train", "data", "sent", "settings"];

/** What stands in the place of a screen: one of them, or what comes before a phone has joined. */
export class Shell {
  readonly #screens: Readonly<Record<ScreenName, Screen>>;
  readonly #main = h("main", { id: "content", tabindex: -1 });
  readonly #federation = h("span", { class: "federation" });
  readonly #state = h("span", { class: "state" });
  readonly #links = new Map<ScreenName, HTMLAnchorElement>();
  readonly #nav: HTMLElement;
  readonly #live = h("div", { class: "visually-hidden", "aria-live": "polite" });
  readonly #notices = h("div", { class: "notices", "aria-live": "polite" });
  #name: ScreenName = named(window.location.hash) ?? "train";
  #instead: Screen | null = null;
  #view: View | null = null;

  constructor(screens: Readonly<Record<ScreenName, Screen>>) {
    this.#screens = screens;
    this.#nav = h("nav", { "aria-label": NAVIGATION.label }, h("ul", {}, ...NAMES.map((name) => h("li", {}, this.#link(name)))));
    document.body.replaceChildren(
      h("a", { class: "skip", href: "#content", click: (event: Event) => { event.preventDefault(); this.#main.focus(); } }, SKIP_LINK),
      h("header", {}, h("div", { class: "inner" },
        logo(), h("div", { class: "brand" }, h("span", { class: "product" }, PRODUCT), this.#federation), this.#state)),
      this.#nav, this.#main, this.#live, this.#notices);
    window.addEventListener("hashchange", () => {
      const name = named(window.location.hash);
      if (name !== null) this.#open(name);
    });
  }

  /** `instead`: shown in the place of all screens; null: the screens. */
  update(view: View, instead: Screen | null): void {
    const before = this.#view?.status ?? null;
    this.#view = view;
    this.#instead = instead;
    show(this.#nav, instead === null);
    document.body.classList.toggle("alone", instead !== null);
    setText(this.#federation, view.status.federation);
    setText(this.#state, STATES[view.status.phase]);
    this.#state.dataset["phase"] = view.status.phase;
    this.#place();
    this.#announce(before, view.status);
  }

  notice(text: string, kind: "good" | "bad" = "good"): void {
    const box = h("p", { class: `notice ${kind}` }, text);
    this.#notices.replaceChildren(box);
    setTimeout(() => box.remove(), NOTICE_MS + 40 * text.length);
  }

  #link(name: ScreenName): HTMLAnchorElement {
    const link = h("a", { href: `#/${name}` }, icon(name), h("span", {}, NAVIGATION[name]));
    this.#links.set(name, link);
    return link;
  }

  #open(name: ScreenName): void {
    if (name === this.#name) return;
    this.#screens[this.#name].leave?.();
    this.#name = name;
    this.#place();
    window.scrollTo(0, 0);
    this.#main.focus({ preventScroll: true });
  }

  #place(): void {
    const screen = this.#instead ?? this.#screens[this.#name];
    for (const [name, link] of this.#links) {
      if (name === this.#name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (this.#main.firstChild !== screen.element) this.#main.replaceChildren(screen.element);
    if (this.#view !== null) screen.update(this.#view);
    document.title = this.#instead === null ? `${NAVIGATION[this.#name]} · ${PRODUCT}` : PRODUCT;
  }

  #announce(before: Status | null, now: Status): void {
    if (before !== null && before.phase !== "opening" && now.moved !== null && before.moved?.text !== now.moved.text) {
      this.notice(ANNOUNCE.moved);
    }
    const last = now.history.at(-1);
    const trained = before !== null && last !== undefined && now.history.length > before.history.length;
    if (trained) {
      setText(this.#live, ANNOUNCE.trained(last.round, last.after === null ? null : Math.round(100 * last.after)));
    } else if (before !== null && before.phase !== now.phase) {
      setText(this.#live, PHASES[now.phase].title);
    }
  }
}

function named(hash: string): ScreenName | null {
  if (hash === "") return "train"; // the address as it was opened
  return NAMES.find((name) => hash === `#/${name}`) ?? null;
}

/** Asks, with the harmless answer in focus. */
export function ask({ title, text, yes }: Question): Promise<boolean> {
  const id = newId();
  return new Promise((resolve) => {
    let answer = false;
    const dialog = h("dialog", { "aria-labelledby": id, close: () => { dialog.remove(); resolve(answer); } },
      h("h2", { id }, title), h("p", {}, text),
      h("div", { class: "actions" },
        button(SETTINGS.cancel, "plain", () => dialog.close()),
        button(yes, "danger", () => { answer = true; dialog.close(); })));
    document.body.append(dialog);
    dialog.showModal();
  });
}
