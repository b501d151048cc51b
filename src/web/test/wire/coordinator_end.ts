/** The Python package's end of the wire in a process of its own (tests/web/coordinator_end.py). */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Interface, createInterface } from "node:readline";

import { fromHex } from "../../src/hash.ts";
import { DeviceProtection, Plain, type Protection } from "../../src/wire/protection.ts";
import { PYTHON, PYTHON_ENVIRONMENT, REPOSITORY } from "../python.ts";
import { keysOf } from "./keys.ts";

/** What the coordinator saw; the other fields are the event's. */
export interface Seen {
  readonly event: string;
  readonly [field: string]: unknown;
}

interface Shown {
  readonly key: string;
  readonly grant: string;
  readonly federation_key: string;
  readonly start: number;
  readonly announced: number;
}

export class CoordinatorEnd {
  /** Of device `pi-7`; null where there are no keys. */
  credentials: Shown | null = null;
  #starts = 0;
  readonly #process: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  readonly #reader: Interface;

  private constructor(url: string, keyed: boolean) {
    const folder = mkdtempSync(join(tmpdir(), "coordinator-"));
    const script = `${REPOSITORY}tests/web/coordinator_end.py`;
    this.#process = spawn(PYTHON, [script, url, folder, ...(keyed ? ["--keyed"] : [])], {
      cwd: REPOSITORY,
      env: PYTHON_ENVIRONMENT,
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#reader = createInterface({ input: this.#process.stdout! });
    this.#lines = this.#reader[Symbol.asyncIterator]();
  }

  static async start(url: string, keyed: boolean): Promise<CoordinatorEnd> {
    const end = new CoordinatorEnd(url, keyed);
    end.credentials = await end.#read();
    await end.next("connected");
    return end;
  }

  /** Of the device's next process. */
  async protection(): Promise<Protection> {
    const shown = this.credentials;
    if (shown === null) return new Plain();
    this.#starts += 1;
    return DeviceProtection.create({
      federation: "lab",
      deviceId: "pi-7",
      key: (await keysOf("Ed25519", fromHex(shown.key))).privateKey,
      grant: shown.grant,
      federationKey: shown.federation_key,
      start: shown.start + this.#starts,
      announced: shown.announced,
      note: async () => undefined,
    });
  }

  order(order: Readonly<Record<string, unknown>>): void {
    this.#process.stdin!.write(`${JSON.stringify(order)}\n`);
  }

  /** The next event of that name; passes over others. */
  async next(event: string): Promise<Seen> {
    for (;;) {
      const seen = await this.#read<Seen>();
      if (seen.event === event) return seen;
    }
  }

  async stop(): Promise<void> {
    this.#process.stdin!.end();
    if (this.#process.exitCode === null && this.#process.signalCode === null) await once(this.#process, "exit");
  }

  async #read<T>(): Promise<T> {
    const { done, value } = await this.#lines.next();
    if (done === true) throw new Error("the coordinator's end has ended");
    return JSON.parse(value) as T;
  }
}
