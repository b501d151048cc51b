/** The device's worker: carries out the page's commands, and tells it the device's status. */

import { PhoneDevice, textOf } from "./device.ts";
import { DEVICE } from "../texts.ts";
import type { Command, Status, Told } from "./page_messages.ts";

/** The page redraws no more often. */
const STATUS_MS = 100;
/** How often the progress of training is looked at. */
const PROGRESS_MS = 200;
const LOCK = "protofleet-device";

declare const self: DedicatedWorkerGlobalScope;

const CLOSED: Status = {
  phase: "opening", pausedBy: null, detail: "", federation: "", deviceId: "", strategy: "", round: 0, rounds: 0, progress: 0,
  history: [], bytesUp: 0, bytesDown: 0, lastSent: [], exampleCounts: [], bundle: null, moved: null, use: "auto", inUse: null,
  policy: { onlyCharging: false, onlyUnmetered: false }, persisted: null,
};

let device: PhoneDevice | null = null;
/** Until it is known whether this page has the device. */
let opening: Promise<void> = Promise.resolve();
let closed: Pick<Status, "phase" | "detail"> = CLOSED;
let timer: ReturnType<typeof setTimeout> | null = null;
let last = "";

function tell(told: Told): void {
  self.postMessage(told);
}

/** Soon, and once for many changes. */
function changed(): void {
  timer ??= setTimeout(() => {
    timer = null;
    const status = device?.status ?? { ...CLOSED, ...closed };
    const text = JSON.stringify(status);
    if (text !== last) tell({ kind: "status", status });
    last = text;
  }, STATUS_MS);
}

/** One page of this browser has the device; the others wait until it is closed. */
async function open(remembered: string): Promise<void> {
  const place = { origin: location.origin, broker: `${location.origin.replace(/^http/, "ws")}/mqtt` };
  const own = async (): Promise<void> => {
    try {
      device = await PhoneDevice.open(place, changed, (line) => console.info(line), remembered);
    } catch (error) {
      closed = { phase: "failed", detail: textOf(error) };
    }
    changed();
  };
  const held = new Promise<never>(() => {});
  const free = await new Promise<boolean>((resolve) => {
    void navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock === null ? undefined : held;
    });
  });
  if (free) return own();
  closed = { phase: "other-tab", detail: DEVICE.otherTab };
  changed();
  void navigator.locks.request(LOCK, async () => {
    await own();
    await held;
  });
}

type Handlers = { readonly [K in Exclude<Command["kind"], "open">]: (it: PhoneDevice, command: Extract<Command, { kind: K }>) => Promise<void> };

const HANDLERS: Handlers = {
  enrol: (it, { invitation, ...how }) => it.enrol(invitation, how),
  addExamples: async (it, { id, examples, source }) => {
    await it.addExamples(examples, source);
    tell({ kind: "added", id });
  },
  clearExamples: (it) => it.clearExamples(),
  predict: async (it, { id, x }) => tell({ kind: "prediction", id, outputs: await it.predict(x) }),
  pause: (it) => it.pause(),
  resume: (it) => it.resume(),
  leave: (it) => it.leave(),
  forget: (it) => it.forget(),
  use: (it, { use }) => it.use(use),
  setPolicy: (it, { policy }) => it.setPolicy(policy),
  phone: (it, { charging, unmetered, online }) => it.phone({ charging, unmetered }, online),
};

setInterval(changed, PROGRESS_MS);
self.addEventListener("message", ({ data: command }: MessageEvent<Command>) => void obey(command));

async function obey(command: Command): Promise<void> {
  try {
    if (command.kind === "open") opening = open(command.remembered ?? "");
    await opening;
    if (command.kind === "open") return changed();
    if (device !== null) await HANDLERS[command.kind](device, command as never);
    else if (command.kind !== "phone") refuse(command, closed.detail);
  } catch (error) {
    refuse(command, textOf(error));
  }
  changed();
}

function refuse(command: Command, text: string): void {
  tell({ kind: "refused", command: command.kind, id: "id" in command ? command.id : null, text });
}
