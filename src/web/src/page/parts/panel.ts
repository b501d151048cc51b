/** What the ways to add examples have in common. */

import type { BundleFacts } from "../../device/page_messages.ts";
import { InputError } from "../../errors.ts";
import type { App } from "../app.ts";

/** One way to add examples. */
export interface Panel {
  readonly element: HTMLElement;
  /** It is no longer seen: sensors are let go. */
  leave(): void;
}

export type PanelMaker = (app: App, bundle: BundleFacts) => Panel;

/** Says what a person can mend; anything else is a fault of this page and goes on. */
export function tellInputError(app: App, error: unknown): void {
  if (!(error instanceof InputError)) throw error;
  app.notice(error.message, "bad");
}
