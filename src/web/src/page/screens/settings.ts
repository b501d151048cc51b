/** When to train, what the phone keeps, and how to end. */

import type { Command, Policy, Use } from "../../device/page_messages.ts";
import type { App, Question, Screen } from "../app.ts";
import { button, card, h, newId, setText, show } from "../dom.ts";
import { type Installation, watchInstallation } from "../installation.ts";
import { canKeepScreenOn } from "../phone.ts";
import { SETTINGS } from "../../texts.ts";

export function settingsScreen(app: App): Screen {
  const [policy, use, page, end] = [policyPart(app), usePart(app), appPart(), endPart(app)];
  return {
    element: h("div", { class: "screen" }, h("h1", {}, SETTINGS.title),
      h("div", { class: "columns" }, h("div", { class: "stack" }, policy.element, use.element),
        h("div", { class: "stack" }, page.element, end.element))),
    update: (view) => [policy, use, page, end].forEach((part) => part.update(view)),
  };
}

interface Switch {
  readonly element: HTMLElement;
  set(on: boolean, hint: string): void;
}

function toggle(text: string, changed: (on: boolean) => void): Switch {
  const [id, hintId] = [newId(), newId()];
  const box = h("input", { type: "checkbox", role: "switch", id, "aria-describedby": hintId, change: () => changed(box.checked) });
  const hint = h("p", { class: "quiet", id: hintId });
  return {
    element: h("div", { class: "setting" }, h("label", { for: id }, text), box, hint),
    set: (on, said) => {
      box.checked = on;
      setText(hint, said);
      show(hint, said !== "");
    },
  };
}

function policyPart(app: App): Screen {
  let policy: Policy = { onlyCharging: false, onlyUnmetered: false };
  const change = (part: Partial<Policy>) => app.device.send({ kind: "setPolicy", policy: { ...policy, ...part } });
  const charging = toggle(SETTINGS.charging, (on) => change({ onlyCharging: on }));
  const wifi = toggle(SETTINGS.wifi, (on) => change({ onlyUnmetered: on }));
  const awake = toggle(SETTINGS.awake, (on) => app.keepScreenOn(on));
  return {
    element: card(SETTINGS.when, charging.element, wifi.element, awake.element),
    update: ({ status, phone }) => {
      policy = status.policy;
      charging.set(policy.onlyCharging, phone.charging === null ? SETTINGS.chargingUntold : "");
      wifi.set(policy.onlyUnmetered, phone.unmetered === null ? SETTINGS.wifiUntold : "");
      awake.set(app.keepScreenOn(), canKeepScreenOn() ? SETTINGS.awakeHint : SETTINGS.awakeUntold);
    },
  };
}

const USES: readonly Use[] = ["auto", "personal", "bundle"];

/** Which model answers. */
function usePart(app: App): Screen {
  const name = newId();
  const boxes = USES.map((use) => h("input", { type: "radio", name, value: use, change: () => app.device.send({ kind: "use", use }) }));
  const rows = USES.map((use, k) => h("label", { class: "setting" }, SETTINGS.uses[use], boxes[k]!));
  return {
    element: card(SETTINGS.use, h("fieldset", {}, h("legend", { class: "quiet" }, SETTINGS.useHint), ...rows)),
    update: ({ status }) => boxes.forEach((box, k) => (box.checked = USES[k] === status.use)),
  };
}

function appPart(): Screen {
  let state: Installation = { install: null, installed: false, update: null };
  const install = button(SETTINGS.install, "plain", () => state.install?.());
  const hint = h("p", { class: "quiet" });
  const update = button(SETTINGS.newerUse, "primary", () => state.update?.());
  const newer = h("div", { class: "setting" }, h("p", {}, SETTINGS.newer), update);
  const kept = h("p");
  const apple = /iPhone|iPad/.test(navigator.userAgent);
  watchInstallation((now) => {
    state = now;
    show(install, now.install !== null && !now.installed);
    show(newer, now.update !== null);
    const how = apple ? `${SETTINGS.installApple} ${SETTINGS.installHint}` : SETTINGS.installHint;
    setText(hint, now.installed ? SETTINGS.installed : how);
  });
  const title = h("h3", {}, SETTINGS.install);
  return {
    element: card(SETTINGS.app, newer, kept, title, hint, install),
    update: ({ status }) => {
      show(title, install.hidden && !state.installed);
      const promised = status.persisted ? SETTINGS.persisted : SETTINGS.notPersisted;
      setText(kept, status.persisted === null ? SETTINGS.persistUntold : promised);
    },
  };
}

function endPart(app: App): Screen {
  const leaving: Question = { title: SETTINGS.leaveTitle, text: SETTINGS.leaveText, yes: SETTINGS.leaveYes };
  const forgetting: Question = { title: SETTINGS.forgetTitle, text: SETTINGS.forgetText, yes: SETTINGS.forgetYes };
  const asked = async (question: Question, command: Command) => {
    if (await app.confirm(question)) app.device.send(command);
  };
  const leave = h("div", { class: "setting" },
    h("p", { class: "quiet" }, SETTINGS.leaveHint),
    button(SETTINGS.leave, "plain", () => void asked(leaving, { kind: "leave" })));
  return {
    element: card(SETTINGS.end, leave, h("div", { class: "setting" },
      h("p", { class: "quiet" }, SETTINGS.forgetHint),
      button(SETTINGS.forget, "danger", () => void asked(forgetting, { kind: "forget" })))),
    update: ({ status }) => show(leave, status.phase !== "left"),
  };
}
