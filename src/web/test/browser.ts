/** The system's Chromium for tests: started, killed and started again on the same profile. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { build } from "esbuild";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const START_MS = 20_000;

/** Path of a browser; null where none is installed. */
export function findChromium(): string | null {
  for (const name of NAMES) {
    try {
      return execFileSync("sh", ["-c", `command -v ${name}`], { encoding: "utf-8" }).trim();
    } catch {
      continue;
    }
  }
  return null;
}

/** A browser with a profile of its own, which outlives its process. */
export class TestBrowser {
  readonly profile = mkdtempSync(join(tmpdir(), "protofleet-browser-"));
  readonly #path: string;
  #process: ChildProcess | null = null;
  #browser: Browser | null = null;

  constructor() {
    const path = findChromium();
    if (path === null) throw new Error(`no Chromium: none of ${NAMES.join(", ")} is installed`);
    this.#path = path;
  }

  get context(): BrowserContext {
    const context = this.#browser?.contexts()[0];
    if (context === undefined) throw new Error("the browser is not running");
    return context;
  }

  async start(): Promise<void> {
    const port = join(this.profile, "DevToolsActivePort");
    rmSync(port, { force: true });
    const args = [
      "--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
      "--disable-background-networking", "--disable-component-update", "--ignore-certificate-errors",
      "--remote-debugging-port=0", `--user-data-dir=${this.profile}`, "about:blank",
    ];
    this.#process = spawn(this.#path, args, { detached: true, stdio: "ignore" });
    const until = Date.now() + START_MS;
    while (!existsSync(port) || readFileSync(port, "utf-8").split("\n").length < 2) {
      if (Date.now() > until) throw new Error("the browser did not start");
      await sleep(20);
    }
    const [number, path] = readFileSync(port, "utf-8").split("\n");
    this.#browser = await chromium.connectOverCDP(`ws://127.0.0.1:${number}${path}`);
  }

  /** Another phone, as it were: it shares nothing with the other pages. */
  async newProfile(): Promise<BrowserContext> {
    if (this.#browser === null) throw new Error("the browser is not running");
    return this.#browser.newContext();
  }

  async open(url: string): Promise<Page> {
    const page = await this.context.newPage();
    await page.goto(url);
    return page;
  }

  /** As the system does when it needs the memory. */
  async kill(): Promise<void> {
    const gone = new Promise((resolve) => this.#process?.once("exit", resolve));
    if (this.#process?.pid !== undefined) process.kill(-this.#process.pid, "SIGKILL");
    await gone;
    this.#browser = null;
    rmSync(join(this.profile, "SingletonLock"), { force: true });
  }

  async close(): Promise<void> {
    if (this.#browser !== null) await this.kill();
    // Children of a killed browser may still write.
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

/** Serves one module of the tests, bundled, on a page of its own; returns its address. */
export async function servePage(entry: string): Promise<{ url: string; server: Server }> {
  const made = await build({ entryPoints: [entry], bundle: true, format: "esm", write: false, target: "es2022" });
  const script = made.outputFiles[0]!.text;
  const server = createServer((request, response) => {
    const asked = request.url === "/page.js";
    response.setHeader("Content-Type", asked ? "text/javascript" : "text/html");
    response.end(asked ? script : '<!doctype html><title>test</title><script type="module" src="/page.js"></script>');
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, server };
}
