/** What goes on now: phase, round, progress, own accuracy, figures, and what is learned. */

import type { InUse, MoveTold, Phase, Status, Use } from "../../device/page_messages.ts";
import type { App, Screen } from "../app.ts";
import { AccuracyChart } from "../chart.ts";
import { button, card, facts, h, setText, show } from "../dom.ts";
import { amount, bytes, duration, fingerprint, milliseconds, percent, sentence } from "../format.ts";
import type { PhoneState } from "../phone.ts";
import { IN_USE, PHASES, TRAIN } from "../../texts.ts";

const PAUSABLE: ReadonlySet<Phase> = new Set(["connecting", "waiting", "calibrate", "receive", "train", "send"]);
const TRAINING: ReadonlySet<Phase> = new Set(["calibrate", "train"]);
const BUSY: ReadonlySet<Phase> = new Set(["opening", "enrolling", "fetching-bundle", "connecting", "receive", "send"]);
const OVER: ReadonlySet<Phase> = new Set(["left", "finished"]);

export function trainScreen(app: App): Screen {
  const [now, yours, figures, learns] = [nowPart(app), yoursPart(), figuresPart(), learnsPart()];
  const results = h("div", { class: "stack" }, yours.element, figures.element);
  return {
    element: h("div", { class: "screen columns" }, now.element, results, learns.element),
    update: (view) => {
      const { bundle, phase } = view.status;
      show(results, bundle !== null);
      show(learns.element, bundle !== null || phase === "fetching-bundle");
      [now, yours, figures, learns].forEach((part) => part.update(view));
    },
  };
}

function nowPart(app: App): Screen {
  const [round, title, text] = [h("p", { class: "eyebrow" }), h("h1"), h("p")];
  const detail = h("p", { class: "detail", role: "status" });
  const fill = h("div", { class: "fill" });
  const bar = h("div", { class: "bar", role: "progressbar", "aria-label": TRAIN.progress, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const share = h("span", { class: "share", "aria-hidden": "true" });
  const meter = h("div", { class: "meter" }, bar, share);
  const moving = h("div", { class: "moving", "aria-hidden": "true" });
  const awake = h("span", { class: "quiet" });
  const pause = button(TRAIN.pause, "plain", () => app.device.send({ kind: "pause" }));
  const resume = button(TRAIN.resume, "primary", () => app.device.send({ kind: "resume" }));
  const again = button(TRAIN.again, "primary", () => window.location.reload());
  const settings = button(TRAIN.settings, "plain", () => app.go("settings"));
  const add = button(TRAIN.addExamples, "primary", () => app.go("data"));
  const element = h("section", { class: "card hero" }, round, title, text, detail, meter, moving,
    h("div", { class: "actions" }, pause, resume, settings, again, add, awake));
  return {
    element,
    update: ({ status, awake: held }) => {
      const { phase } = status;
      const none = status.moved === null ? TRAIN.noRound : TRAIN.noRoundYet;
      setText(round, status.round > 0 ? TRAIN.round(status.round, status.rounds) : none);
      show(round, status.round > 0 || (status.bundle !== null && !OVER.has(phase)));
      setText(title, PHASES[phase].title);
      const byPolicy = status.pausedBy === "policy";
      const never = phase === "finished" && status.history.length === 0;
      const said = byPolicy ? TRAIN.byPolicy : never ? TRAIN.finishedBefore : PHASES[phase].text;
      setText(text, said);
      show(text, said !== "");
      setText(detail, sentence(status.detail));
      show(detail, status.detail !== "");
      show(meter, TRAINING.has(phase));
      show(moving, BUSY.has(phase));
      fill.style.inlineSize = `${100 * status.progress}%`;
      bar.setAttribute("aria-valuenow", String(percent(status.progress)));
      setText(share, `${percent(status.progress)} %`);
      show(pause, PAUSABLE.has(phase));
      setText(resume, phase === "left" ? TRAIN.comeBack : TRAIN.resume);
      show(resume, (phase === "paused" && !byPolicy) || phase === "left");
      show(settings, byPolicy);
      show(again, phase === "failed");
      show(add, phase === "needs-examples");
      setText(awake, held ? TRAIN.keepOpen : TRAIN.mayTurnOff);
      show(awake, PAUSABLE.has(phase));
    },
  };
}

function yoursPart(): Screen {
  const chart = new AccuracyChart();
  const now = h("p", { class: "headline" });
  const used = h("p", { class: "quiet" });
  const empty = h("p", { class: "empty" });
  return {
    element: card(TRAIN.yours, now, used, chart.element, empty),
    update: ({ status }) => {
      const scored = status.history.filter((one) => one.after !== null);
      const last = scored.at(-1)?.after ?? null;
      show(chart.element, scored.length > 0);
      show(now, last !== null);
      show(empty, scored.length === 0);
      setText(used, status.inUse === null ? "" : inUseText(status.inUse, status.use));
      show(used, status.inUse !== null);
      setText(empty, status.history.length === 0 ? TRAIN.yoursEmpty : TRAIN.yoursNoTest);
      const start = scored.at(-1)?.start ?? null;
      const from = scored[0]?.before ?? null;
      const change = start !== null ? TRAIN.sinceStart(percent(start), percent(last ?? start))
        : from === null ? null : TRAIN.change(percent(last ?? from) - percent(from));
      if (last !== null) {
        now.replaceChildren(
          h("span", { class: "big" }, `${percent(last)} %`),
          change === null ? "" : h("span", { class: "quiet" }, change),
        );
      }
      chart.update(status.history);
    },
  };
}

/** Which model answers on this phone, and why. */
function inUseText({ personal, evidence }: InUse, use: Use): string {
  const which = personal ? IN_USE.personal : IN_USE.bundle;
  if (use !== "auto") return `${which} ${IN_USE.chosen}`;
  if (evidence === null) return which;
  const { task, examples, before, now, oneClass } = evidence;
  if (examples === 0) return `${which} ${IN_USE.untested}`;
  if (oneClass) return `${which} ${IN_USE.oneClass}`;
  const worth = (value: number): string => (task === "regression" ? IN_USE.error(-value) : `${percent(value)} %`);
  const compared = IN_USE.compared(worth(now), worth(before), examples);
  return `${which} ${compared}${personal ? "" : ` ${IN_USE.tooLittle}`}`;
}

function figuresPart(): Screen {
  const names = [TRAIN.received, TRAIN.sent, TRAIN.step, TRAIN.lastRound, TRAIN.battery, TRAIN.network];
  const values = names.map(() => h("span"));
  const power = h("small", { class: "quiet" });
  const tiles = names.map((name, k) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, values[k]!, name === TRAIN.battery && " ", name === TRAIN.battery && power)));
  return {
    element: card(TRAIN.figures, h("dl", { class: "tiles" }, ...tiles)),
    update: ({ status, phone }) => {
      const last = status.history.at(-1);
      [
        bytes(status.bytesDown),
        bytes(status.bytesUp),
        last === undefined ? "–" : milliseconds(last.stepMs),
        last === undefined ? "–" : duration(last.seconds),
        battery(phone),
        network(phone),
      ].forEach((text, k) => setText(values[k]!, text));
      setText(power, phone.charging === null ? "" : phone.charging ? TRAIN.charging : TRAIN.discharging);
    },
  };
}

function battery({ level }: PhoneState): string {
  return level === null ? TRAIN.untold : TRAIN.level(percent(level));
}

function network({ online, unmetered }: PhoneState): string {
  if (!online) return TRAIN.offline;
  if (unmetered === null) return TRAIN.online;
  return unmetered ? TRAIN.unmetered : TRAIN.metered;
}

function learnsPart(): Screen {
  const body = h("div");
  let shown = "";
  return {
    element: card(TRAIN.learns, body),
    update: ({ status }) => {
      const key = `${status.federation} ${status.deviceId} ${status.strategy} ${status.bundle?.digest} ${status.moved?.text}`;
      if (key === shown) return;
      shown = key;
      body.replaceChildren(...bundleFacts(status));
    },
  };
}

function bundleFacts(status: Status): HTMLElement[] {
  const { bundle } = status;
  if (bundle === null) return [h("p", { class: "empty" }, TRAIN.learnsEmpty)];
  const names = bundle.targets.length > 0 ? bundle.targets : bundle.classes;
  const code = (text: string) => h("code", {}, text);
  const chips = h("ul", { class: "chips" }, ...names.map((name) => h("li", {}, name)));
  return [
    h("p", { class: "headline" }, h("span", { class: "name" }, bundle.name)),
    facts([
      [bundle.targets.length > 0 ? TRAIN.targets : TRAIN.classes, chips],
      [TRAIN.federation, status.federation],
      [TRAIN.device, code(status.deviceId)],
      [TRAIN.strategy, status.strategy],
      [TRAIN.size, TRAIN.sizeOf(amount(bundle.parameters), bytes(bundle.bytes))],
      [TRAIN.signer, code(fingerprint(bundle.signer))],
      [TRAIN.digest, code(fingerprint(bundle.digest))],
    ]),
    ...(status.moved === null ? [] : [movedPart(status.moved)]),
  ];
}

/** What was taken along when the federation changed its bundle. */
function movedPart({ text, notes, tensors }: MoveTold): HTMLElement {
  const list = h("ul", { class: "plain-list quiet" }, ...tensors.map((line) => h("li", {}, line)));
  return h("div", { class: "inset" }, h("h3", {}, TRAIN.moved),
    ...[text, ...notes].map((one) => h("p", {}, sentence(one))),
    tensors.length > 0 && h("details", {}, h("summary", {}, TRAIN.movedTensors), list));
}
