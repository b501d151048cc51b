/** Motion sensors: choose what one does, start, stop; and see what the model takes it for. */

import type { BundleFacts } from "../../device/page_messages.ts";
import { windowBlock } from "../../intake/csv.ts";
import { inputTensor, labelled } from "../../intake/examples.ts";
import { type MotionPlan, MotionIntake, motionPlan, type MotionReading, toReading } from "../../intake/motion.ts";
import type { Window } from "../../intake/windows.ts";
import type { App } from "../app.ts";
import { button, facts, h, setText, show } from "../dom.ts";
import { sentence } from "../format.ts";
import { DATA, LIVE, SENSORS } from "../../texts.ts";
import { classChoice } from "./class_choice.ts";
import { Guess } from "./guess.ts";
import { type Panel, tellInputError } from "./panel.ts";
import { Trace } from "./trace.ts";

const SILENT_MS = 3000;
/** Seconds at both ends that are left out: the phone is being put away, or taken out. */
export const TRIM_S = 2;

interface WithPermission {
  readonly requestPermission?: () => Promise<string>;
}

/** Listens to the sensors until `stop`; several may listen at once. */
class Listening {
  readonly #heard: (reading: MotionReading) => void;
  readonly #silence: ReturnType<typeof setTimeout>;
  readonly #turned = /iPhone|iPad|iPod/.test(navigator.userAgent) || (/Mac/.test(navigator.userAgent) && navigator.maxTouchPoints > 1);

  constructor(heard: (reading: MotionReading) => void, silent: () => void) {
    this.#heard = heard;
    this.#silence = setTimeout(silent, SILENT_MS);
    window.addEventListener("devicemotion", this.#hear);
  }

  stop(): void {
    clearTimeout(this.#silence);
    window.removeEventListener("devicemotion", this.#hear);
  }

  readonly #hear = (event: DeviceMotionEvent) => {
    const reading = toReading(event, this.#turned);
    if (reading === null) return;
    clearTimeout(this.#silence);
    this.#heard(reading);
  };
}

/** Must be called from a tap. */
async function sensorsAllowed(app: App): Promise<boolean> {
  if (typeof DeviceMotionEvent === "undefined") {
    app.notice(SENSORS.absent, "bad");
    return false;
  }
  const { requestPermission } = DeviceMotionEvent as unknown as WithPermission;
  const answer = await (requestPermission?.call(DeviceMotionEvent).catch(() => "denied") ?? "granted");
  if (answer !== "granted") app.notice(SENSORS.refused, "bad");
  return answer === "granted";
}

export function sensorsPanel(app: App, bundle: BundleFacts): Panel {
  const plan = motionPlan(bundle.preprocessing);
  const record = recorder(app, bundle);
  const live = liveGuess(app, bundle);
  return {
    element: h("div", { class: "stack" }, record.element, live.element, assumptions(plan)),
    leave: () => {
      record.leave();
      live.leave();
    },
  };
}

function recorder(app: App, bundle: BundleFacts): Panel {
  const { window: length, rate_hz: rate } = bundle.preprocessing;
  const lengthS = length! / rate!;
  const choice = classChoice(SENSORS.choose, bundle.classes, () => (press.disabled = false));
  const trace = new Trace();
  const [title, clock, count] = [h("p", { class: "name", role: "status" }), h("p", { class: "clock", "aria-hidden": "true" }), h("p", { role: "status" })];
  const running = h("div", { class: "running", hidden: true }, title, clock, trace.element, count);
  const press = button(SENSORS.start, "primary", () => (session === null ? void start() : stop()));
  press.disabled = true;
  let session: Session | null = null;

  async function start(): Promise<void> {
    const label = choice.chosen();
    if (!(await sensorsAllowed(app))) return;
    session = new Session(bundle, label, {
      heard: (seconds, reading) => {
        setText(clock, SENSORS.seconds(Math.floor(seconds)));
        trace.push(reading.timeS, Math.hypot(...(reading.gravity ?? reading.linear ?? reading.rotation ?? [0])));
      },
      counted: (windows) => setText(count, SENSORS.windows(windows)),
      failed: (error) => {
        end();
        tellInputError(app, error);
      },
      silent: () => {
        end();
        app.notice(SENSORS.silent, "bad");
      },
    });
    setText(title, SENSORS.recording(bundle.classes[label]!));
    setText(clock, SENSORS.seconds(0));
    setText(count, SENSORS.first(lengthS.toFixed(1)));
    setText(press, SENSORS.stop);
    choice.disable(true);
    show(running, true);
  }

  function stop(): void {
    const windows = session?.finish() ?? [];
    end();
    if (windows.length === 0) return app.notice(SENSORS.none, "bad");
    const { examples } = labelled([windowBlock(windows)], bundle, "both");
    void app.device.add(examples, "motion sensors").then((kept) => kept && app.notice(DATA.added(windows.length), "good"));
  }

  function end(): void {
    session?.close();
    session = null;
    trace.clear();
    setText(press, SENSORS.start);
    choice.disable(false);
    show(running, false);
  }

  return {
    element: h("div", { class: "stack" }, h("p", {}, SENSORS.lead), choice.element, running, h("div", { class: "actions" }, press),
      h("p", { class: "quiet" }, SENSORS.trimmed(TRIM_S))),
    leave: end,
  };
}

interface SessionListener {
  heard(seconds: number, reading: MotionReading): void;
  counted(windows: number): void;
  failed(error: unknown): void;
  silent(): void;
}

/** One recording of one class. */
class Session {
  readonly #intake: MotionIntake;
  readonly #listening: Listening;
  readonly #lengthS: number;
  #windows: Window[] = [];
  #startS: number | null = null;
  #lastS = 0;

  constructor(bundle: BundleFacts, label: number, listener: SessionListener) {
    const { preprocessing } = bundle;
    this.#intake = new MotionIntake(preprocessing);
    this.#lengthS = preprocessing.window! / preprocessing.rate_hz!;
    this.#listening = new Listening((reading) => {
      if (this.#startS === null) {
        this.#startS = reading.timeS;
        this.#intake.mark(reading.timeS + TRIM_S, label);
      }
      this.#lastS = reading.timeS;
      listener.heard(reading.timeS - this.#startS, reading);
      try {
        const found = this.#intake.push(reading);
        this.#windows.push(...found);
        if (found.length > 0) listener.counted(this.#usable().length);
      } catch (error) {
        listener.failed(error);
      }
    }, listener.silent);
  }

  /** The windows that have the label throughout. */
  finish(): Window[] {
    this.#windows.push(...this.#intake.flush());
    return this.#usable();
  }

  close(): void {
    this.#listening.stop();
  }

  #usable(): Window[] {
    const lastStart = this.#lastS - TRIM_S - this.#lengthS;
    return this.#windows.filter((window) => window.label >= 0 && window.startS <= lastStart);
  }
}

function liveGuess(app: App, bundle: BundleFacts): Panel {
  const guess = new Guess(bundle.classes, true, LIVE.waiting);
  show(guess.element, false);
  let listening: Listening | null = null;
  const press = button(LIVE.start, "plain", () => (listening === null ? void start() : stop()));

  async function start(): Promise<void> {
    if (!(await sensorsAllowed(app))) return;
    const intake = new MotionIntake(bundle.preprocessing);
    listening = new Listening((reading) => {
      try {
        const window = intake.push(reading).at(-1);
        if (window !== undefined) void look(window);
      } catch (error) {
        stop();
        tellInputError(app, error);
      }
    }, () => {
      stop();
      app.notice(SENSORS.silent, "bad");
    });
    setText(press, LIVE.stop);
    guess.clear(LIVE.waiting);
    show(guess.element, true);
  }

  async function look(window: Window): Promise<void> {
    const x = inputTensor(window.x, [1, ...bundle.preprocessing.input_shape], false);
    const outputs = await app.device.predict(x).catch((error: Error) => {
      guess.clear(sentence(error.message));
      return null;
    });
    if (outputs !== null && listening !== null) guess.update(outputs);
  }

  function stop(): void {
    listening?.stop();
    listening = null;
    setText(press, LIVE.start);
    show(guess.element, false);
  }

  return {
    element: h("div", { class: "inset" }, h("h3", {}, LIVE.title), guess.element, press, h("p", { class: "quiet" }, LIVE.note)),
    leave: stop,
  };
}

function assumptions(plan: MotionPlan): HTMLElement {
  const rows = plan.channels.map(({ name, quantity, axis, unit }) => {
    const letter = "xyz"[axis]!;
    const text = quantity === "rotation" ? SENSORS.turn(letter, unit) : SENSORS.channel(SENSORS.quantities[quantity], letter, unit);
    return [name, text] as const;
  });
  return h("details", {}, h("summary", {}, SENSORS.assumed),
    h("p", {}, plan.unitsSaid ? SENSORS.unitsSaid : plan.unitsKnown ? SENSORS.unitsKnown : SENSORS.unitsUnknown), h("p", {}, SENSORS.axes), facts(rows));
}
