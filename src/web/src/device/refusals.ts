/** What a device refused, counted by rule. */

import type { RefusedError } from "../errors.ts";

const SHOWN = 400;

export class Refusals {
  readonly #counts = new Map<string, number>();
  readonly #warn: (line: string) => void;

  /** `warn` takes a line for whoever debugs the page. */
  constructor(warn: (line: string) => void) {
    this.#warn = warn;
  }

  /** How many, by the broken rule's name. */
  get byRule(): Readonly<Record<string, number>> {
    return Object.fromEntries(this.#counts);
  }

  /** Counts a refusal; `what` begins the line, such as `refused a task`. */
  note(what: string, error: RefusedError): void {
    const count = (this.#counts.get(error.rule) ?? 0) + 1;
    this.#counts.set(error.rule, count);
    // Of a flood few: the first ones, then at every doubling.
    if (count > 3 && (count & (count - 1)) !== 0) return;
    const { message } = error;
    const shown = message.length <= SHOWN ? message : `${message.slice(0, SHOWN)}…`;
    this.#warn(`${what}: ${error.rule}: ${shown}`);
  }
}
