/** What screens get from the page, and what the page gets from a screen. */

import type { Status } from "../device/page_messages.ts";
import type { Device } from "./device.ts";
import type { PhoneState } from "./phone.ts";

export interface App {
  readonly device: Device;
  /** A short message at the bottom; screen readers say it. */
  notice(text: string, kind?: "good" | "bad"): void;
  /** Asks before what cannot be undone. */
  confirm(question: Question): Promise<boolean>;
  go(screen: ScreenName): void;
  /** Whether the owner wants the screen on while training. */
  keepScreenOn(wanted?: boolean): boolean;
}

export interface Question {
  readonly title: string;
  readonly text: string;
  readonly yes: string;
}

export type ScreenName = "train" | "data" | "sent" | "settings";

export interface View {
  readonly status: Status;
  readonly phone: PhoneState;
  /** Whether the screen is being kept on. */
  readonly awake: boolean;
}

export interface Screen {
  readonly element: HTMLElement;
  update(view: View): void;
  /** Another screen takes its place: sensors and cameras are let go. */
  leave?(): void;
}
