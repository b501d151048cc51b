/** A phone in the tests: a page of the hub that holds the built worker, and nothing else. */

import assert from "node:assert/strict";

import type { Page } from "playwright-core";

import type { Command, Status, Told } from "../src/device/page_messages.ts";
import type { TestBrowser } from "../test/browser.ts";
import { type Federation, type PhoneExamples, workerPath } from "./federation.ts";

const PATIENCE_MS = 60_000;

interface Driver {
  worker: Worker;
  status: Status | null;
  told: Told[];
  /** Phases in the order in which they came, each behind the number of rounds that were finished. */
  seen: string[];
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
  static async open(browser: TestBrowser, federation: Federation): Promise<Phone> {
    const opened = await Phone.openIdle(browser, federation);
    await opened.begin();
    return opened;
  }

  /** Opens a page of the hub's origin; `begin` starts the worker. */
  static async openIdle(browser: TestBrowser, federation: Federation): Promise<Phone> {
    return new Phone(await browser.open(`${federation.url}/federation.json`));
  }

  /** Starts the worker in the page as it is. */
  async begin(remembered = ""): Promise<void> {
    await this.page.evaluate(
      ([path, text]) => {
        const worker = new Worker(path, { type: "module" });
        const driver: Driver = { worker, status: null, told: [], seen: [] };
        worker.onmessage = ({ data }: MessageEvent<Told>) => {
          if (data.kind !== "status") driver.told.push(data);
          else {
            driver.status = data.status;
            const now = `${data.status.history.length} ${data.status.phase}`;
            if (driver.seen.at(-1) !== now) driver.seen.push(now);
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
        phone.worker.postMessage({ kind: "addExamples", id: 0, examples, source: "a test" });
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

  /** Waits for the middle of the training that follows so many finished rounds. */
  async inTraining(finished: number): Promise<Status> {
    const status = await this.until(({ phase, progress, history }) =>
      (history.length === finished && phase === "train" && progress > 0) || history.length > finished);
    const { phase, progress, history } = status;
    assert.ok(phase === "train" && history.length === finished && progress < 1, `over too soon: ${phase} ${progress}`);
    return status;
  }

  /** Waits for the end of a round that was broken off in its training, and checks that it was: it is trained again. */
  async trainedAgain(finished: number): Promise<Status> {
    const status = await this.until(({ history }) => history.length > finished);
    const seen = await this.page.evaluate(() => phone.seen);
    assert.ok(seen.includes(`${finished} train`), `was not in training: ${seen.join(", ")}`);
    return status;
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
