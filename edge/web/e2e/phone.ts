/** A phone in the tests: a page of the hub that holds the built worker, and nothing else. */

import type { Page } from "playwright-core";

import type { Command, Status, Told } from "../src/device/page_messages.ts";
import type { TestBrowser } from "../test/browser.ts";
import { type Federation, type PhoneExamples, workerPath } from "./federation.ts";

const PATIENCE_MS = 60_000;

interface Driver {
  worker: Worker;
  status: Status | null;
  told: Told[];
  /** Phases in the order in which they came. */
  phases: string[];
}

declare const phone: Driver;

export class Phone {
  readonly page: Page;
  /** What the worker has written to the console. */
  readonly lines: string[] = [];

  private constructor(page: Page) {
    this.page = page;
    page.on("console", (line) => this.lines.push(line.text()));
  }

  /** Opens a page of the hub's origin, with the worker. */
  static async open(browser: TestBrowser, federation: Federation, remembered = ""): Promise<Phone> {
    const page = await browser.open(`${federation.url}/federation.json`);
    const opened = new Phone(page);
    await opened.begin(remembered);
    return opened;
  }

  /** Starts the worker in the page as it is. */
  async begin(remembered = ""): Promise<void> {
    await this.page.evaluate(
      ([path, text]) => {
        const worker = new Worker(path, { type: "module" });
        const driver: Driver = { worker, status: null, told: [], phases: [] };
        worker.onmessage = ({ data }: MessageEvent<Told>) => {
          if (data.kind !== "status") driver.told.push(data);
          else {
            driver.status = data.status;
            if (driver.phases.at(-1) !== data.status.phase) driver.phases.push(data.status.phase);
          }
        };
        Object.assign(globalThis, { phone: driver });
        worker.postMessage({ kind: "open", remembered: text });
      },
      [workerPath(), remembered] as const,
    );
  }

  async send(command: Command): Promise<void> {
    await this.page.evaluate((it) => phone.worker.postMessage(it), command);
  }

  async addExamples({ x, y, shape = [x[0]!.length], part = "both" }: PhoneExamples): Promise<void> {
    await this.page.evaluate(
      ([rows, labels, each, of]) => {
        const examples = {
          x: { dtype: "float32", shape: [rows.length, ...each], data: Float32Array.from(rows.flat()) },
          y: { dtype: "int64", shape: [labels.length], data: BigInt64Array.from(labels.map(BigInt)) },
          follows: null,
          part: of,
        };
        phone.worker.postMessage({ kind: "addExamples", examples, source: "a test" });
      },
      [x, y, shape, part] as const,
    );
  }

  /** The class that the phone's model gives each row. */
  async classes(rows: number[][]): Promise<number[]> {
    await this.page.evaluate((given) => {
      const x = { dtype: "float32", shape: [given.length, given[0]!.length], data: Float32Array.from(given.flat()) };
      phone.told = [];
      phone.worker.postMessage({ kind: "predict", id: 1, x });
    }, rows);
    await this.page.waitForFunction(() => phone.told.length > 0);
    return this.page.evaluate((count) => {
      const [told] = phone.told;
      if (told?.kind !== "prediction") throw new Error(JSON.stringify(told));
      const width = told.outputs.data.length / count;
      return Array.from({ length: count }, (_, row) => {
        const scores = Array.from(told.outputs.data.slice(row * width, (row + 1) * width) as Float32Array);
        return scores.indexOf(Math.max(...scores));
      });
    }, rows.length);
  }

  async status(): Promise<Status> {
    return this.page.evaluate(() => phone.status!);
  }

  /** What was refused, and other answers to commands. */
  async told(): Promise<Told[]> {
    return this.page.evaluate(() => phone.told);
  }

  /** Waits for a command that could not be carried out; what was said. */
  async refused(): Promise<string> {
    await this.page.waitForFunction(() => phone.told.some(({ kind }) => kind === "refused"), null, { timeout: PATIENCE_MS });
    const found = (await this.told()).find(({ kind }) => kind === "refused");
    return found?.kind === "refused" ? found.text : "";
  }

  async phases(): Promise<string[]> {
    return this.page.evaluate(() => phone.phases);
  }

  /** Waits for a status that fulfils `found`. */
  async until(found: (status: Status) => boolean, ms = PATIENCE_MS): Promise<Status> {
    const deadline = Date.now() + ms;
    for (;;) {
      const { status, told } = await this.page.evaluate(() => ({ status: phone.status, told: phone.told }));
      if (status !== null && found(status)) return status;
      if (Date.now() > deadline) {
        throw new Error(`waited in vain: ${JSON.stringify(status)} ${JSON.stringify(told)} ${this.lines.slice(-8).join("; ")}`);
      }
      await this.page.waitForTimeout(50);
    }
  }
}
