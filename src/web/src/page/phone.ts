/** What the browser tells of the phone: power, network, screen. */

import type { Command } from "../device/page_messages.ts";

interface Battery extends EventTarget {
  readonly charging: boolean;
  readonly level: number;
}

interface Connection extends EventTarget {
  readonly type?: string;
  readonly saveData?: boolean;
}

interface WithHardware {
  readonly getBattery?: () => Promise<Battery>;
  readonly connection?: Connection;
}

/** `null`: the browser does not tell. */
export interface PhoneState {
  readonly charging: boolean | null;
  /** 0 to 1. */
  readonly level: number | null;
  readonly unmetered: boolean | null;
  readonly online: boolean;
}

/** Calls back at once and after each change. */
export async function watchPhone(changed: (state: PhoneState) => void): Promise<void> {
  const hardware = navigator as Navigator & WithHardware;
  const connection = hardware.connection;
  let battery: Battery | null = null;
  const tell = () => changed({
    charging: battery?.charging ?? null,
    level: battery?.level ?? null,
    unmetered: unmetered(connection),
    online: navigator.onLine,
  });
  window.addEventListener("online", tell);
  window.addEventListener("offline", tell);
  connection?.addEventListener("change", tell);
  tell();
  try {
    battery = (await hardware.getBattery?.()) ?? null;
  } catch {
    return; // refused by the browser's policy: as if it told nothing
  }
  battery?.addEventListener("chargingchange", tell);
  battery?.addEventListener("levelchange", tell);
  if (battery !== null) tell();
}

function unmetered(connection: Connection | undefined): boolean | null {
  if (connection?.saveData) return false;
  const type = connection?.type;
  if (type === "wifi" || type === "ethernet") return true;
  return type === "cellular" ? false : null;
}

export function phoneCommand(state: PhoneState): Command {
  const { charging, unmetered: free, online } = state;
  return { kind: "phone", charging, unmetered: free, online };
}

export function canKeepScreenOn(): boolean {
  return "wakeLock" in navigator;
}

/** Keeps the screen on while it is wanted; the browser lets go whenever the page is hidden. */
export class ScreenLock {
  #wanted = false;
  #lock: WakeLockSentinel | null = null;
  readonly #changed: (held: boolean) => void;

  constructor(changed: (held: boolean) => void) {
    this.#changed = changed;
    document.addEventListener("visibilitychange", () => void this.#settle());
  }

  want(wanted: boolean): void {
    if (wanted === this.#wanted) return;
    this.#wanted = wanted;
    void this.#settle();
  }

  async #settle(): Promise<void> {
    if (!canKeepScreenOn()) return;
    if (!this.#wanted) {
      await this.#lock?.release();
      return;
    }
    if (this.#lock !== null || document.visibilityState !== "visible") return;
    try {
      const lock = await navigator.wakeLock.request("screen");
      this.#lock = lock;
      lock.addEventListener("release", () => {
        this.#lock = null;
        this.#changed(false);
      });
      this.#changed(true);
      if (!this.#wanted) await lock.release();
    } catch {
      this.#changed(false); // low battery, or the browser's policy
    }
  }
}
