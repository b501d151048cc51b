/** Starts the page: looks at the browser, starts the device's worker, and shows what it says. */

import type { Phase, Status } from "../device/page_messages.ts";
import type { App } from "./app.ts";
import { isInsecure, lacks } from "./baseline.ts";
import { type Device, startDevice } from "./device.ts";
import { keepOffline } from "./installation.ts";
import { phoneCommand, type PhoneState, ScreenLock, watchPhone } from "./phone.ts";
import { invitationIn } from "./scanner.ts";
import { dataScreen } from "./screens/data.ts";
import { type JoinScreen, joinScreen } from "./screens/join.ts";
import { showInsecure, showLacks } from "./screens/lacking.ts";
import { sentScreen } from "./screens/sent.ts";
import { settingsScreen } from "./screens/settings.ts";
import { trainScreen } from "./screens/train.ts";
import { ask, Shell } from "./shell.ts";
import { BASELINE } from "../texts.ts";

const OPENING: Status = {
  phase: "opening", pausedBy: null, detail: "", federation: "", deviceId: "", strategy: "", round: 0, rounds: 0, progress: 0,
  history: [], bytesUp: 0, bytesDown: 0, lastSent: [], exampleCounts: [], bundle: null, moved: null, use: "auto", inUse: null,
  policy: { onlyCharging: false, onlyUnmetered: false }, persisted: null,
};

/** Those in which the phone takes part, so that its screen should stay on. */
const ACTIVE: ReadonlySet<Phase> = new Set(["connecting", "waiting", "calibrate", "receive", "train", "send"]);
const WITHOUT_FEDERATION: ReadonlySet<Phase> = new Set(["needs-invitation", "enrolling"]);
/** A new invitation in the address is taken up in these, too. */
const ENDED: ReadonlySet<Phase> = new Set(["left", "finished"]);
/** Those in which the invitation of the address may still be wanted. */
const UNUSED: ReadonlySet<Phase> = new Set(["opening", ...WITHOUT_FEDERATION, ...ENDED, "failed", "other-tab"]);

/** Keys of the browser's small store, which is not the device's. */
const SCREEN_ON = "keep-screen-on";
const REMEMBERED = "device";

class Page {
  #status: Status = OPENING;
  #phone: PhoneState = { charging: null, level: null, unmetered: null, online: navigator.onLine };
  #awake = false;
  #askedToKeep = false;
  #carried: string | null = takeInvitation();
  #join: JoinScreen;
  readonly #app: App;
  readonly #device: Device;
  readonly #shell: Shell;
  readonly #lock = new ScreenLock((held) => {
    this.#awake = held;
    this.#update();
  });

  constructor() {
    this.#device = startDevice({
      status: (status) => {
        // The invitation in the address has been used, or is not wanted by a phone that takes part.
        const joined = this.#status.phase === "enrolling" && !WITHOUT_FEDERATION.has(status.phase);
        if (this.#carried !== null && (joined || !UNUSED.has(status.phase))) this.#setInvitation(null);
        this.#status = status;
        remember(status);
        void this.#askToKeep(status);
        this.#update();
      },
      refused: (command, text) => {
        if (command === "enrol") this.#join.refused(text);
        else if (command !== "predict") this.#shell.notice(text, "bad");
      },
      broken: () => {
        if (this.#status === OPENING) showLacks([BASELINE.workerFailed]);
        else this.#shell.notice(BASELINE.workerFailed, "bad");
      },
    }, localStorage.getItem(REMEMBERED) ?? "");
    this.#app = {
      device: this.#device,
      notice: (text, kind) => this.#shell.notice(text, kind),
      confirm: ask,
      go: (screen) => {
        window.location.hash = `#/${screen}`;
      },
      keepScreenOn: (wanted) => this.#keepScreenOn(wanted),
    };
    this.#join = joinScreen(this.#app, this.#carried);
    const app = this.#app;
    this.#shell = new Shell({ train: trainScreen(app), data: dataScreen(app), sent: sentScreen(), settings: settingsScreen(app) });
    window.addEventListener("hashchange", () => this.#takeInvitation());
    void watchPhone((state) => {
      this.#phone = state;
      this.#device.send(phoneCommand(state));
      this.#update();
    });
    this.#update();
  }

  #update(): void {
    const { phase } = this.#status;
    this.#lock.want(ACTIVE.has(phase) && this.#keepScreenOn());
    const joins = WITHOUT_FEDERATION.has(phase) || (ENDED.has(phase) && this.#carried !== null);
    this.#shell.update({ status: this.#status, phone: this.#phone, awake: this.#awake }, joins ? this.#join : null);
  }

  /** The camera app opens the address of this page anew, perhaps in this very tab. */
  #takeInvitation(): void {
    const found = takeInvitation();
    if (found === null) return;
    this.#setInvitation(found);
    this.#update();
  }

  #setInvitation(invitation: string | null): void {
    this.#carried = invitation;
    this.#join = joinScreen(this.#app, invitation);
  }

  /** Once the phone has joined: a key and a model are worth keeping. Some browsers ask their owner. */
  async #askToKeep({ deviceId, persisted }: Status): Promise<void> {
    if (deviceId === "" || persisted !== false || this.#askedToKeep) return;
    this.#askedToKeep = true;
    if (await navigator.storage.persist()) this.#device.send(phoneCommand(this.#phone));
  }

  #keepScreenOn(wanted?: boolean): boolean {
    if (wanted !== undefined) {
      localStorage.setItem(SCREEN_ON, String(wanted));
      this.#update();
    }
    return localStorage.getItem(SCREEN_ON) !== "false";
  }
}

/** So that a phone whose store the browser has deleted is told what is gone. */
function remember({ phase, deviceId, federation }: Status): void {
  if (phase === "needs-invitation") localStorage.removeItem(REMEMBERED);
  else if (deviceId !== "") localStorage.setItem(REMEMBERED, `${deviceId} of ${federation}`);
}

/** The invitation in the address, which then no longer shows it. */
function takeInvitation(): string | null {
  const found = invitationIn(decodeURIComponent(window.location.hash));
  if (found !== null) window.history.replaceState(null, "", window.location.pathname);
  return found;
}

async function start(): Promise<void> {
  if (isInsecure()) {
    showInsecure();
    return;
  }
  const texts = await lacks();
  if (texts.length > 0) {
    showLacks(texts);
    return;
  }
  await keepOffline();
  new Page();
}

void start();
