/**
 * Milliseconds per training step in headless Chromium's WebAssembly against native ONNX Runtime, on one
 * thread each, in turns in the same run: `npm run bench [-- NAME…]`.
 *
 * `step` is the training program alone (noise and copies included), `train` a step with Adam. Peak memory
 * is the resident memory of the tab's process, in a tab of its own for each model.
 */

import { execFileSync, spawn } from "node:child_process";
import type { ChildProcessWithoutNullStreams } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { chromium } from "playwright-core";
import type { Page } from "playwright-core";
import type { Request } from "./worker.ts";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const REPOSITORY = join(HERE, "../../..");
const PYTHON = process.env["PYTHON"] ?? ".venv/bin/python";
const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const FOLDER = join(tmpdir(), "protofleet-web-bench");
const WASM = "ort-wasm-simd-threaded.wasm";

/** Samples of each side; the median counts. A sample of fast calls is the mean of as many as fit in it. */
const SAMPLES = 11;
const SAMPLE_MS = 300;

interface Model {
  readonly name: string;
  readonly title: string;
  readonly batch: number;
  /** Arguments of `protofleet export`. */
  readonly model: readonly string[];
}

const CLASSES = "a,b,c,d,e,f";
const MODELS: readonly Model[] = [
  {
    name: "mlp",
    title: "MLP 561-128-512-6, batch 32",
    batch: 32,
    model: ["mlp", "--set", "inputs=561", "--set", "classes=6", "--input-shape", "561", "--classes", CLASSES, "--strategy", "fedavg"],
  },
  { name: "cnn", title: "CNN 28x28, batch 32", batch: 32, model: ["cnn", "--strategy", "fedavg"] },
  { name: "vit_digits", title: "ViT with ALP, digits 8x8, batch 32", batch: 32, model: ["vit_digits", "--strategy", "fedali"] },
  { name: "hart", title: "HART 128x6, batch 64", batch: 64, model: ["hart", "--strategy", "fedavg"] },
  { name: "hart_alp", title: "HART with ALP, batch 64", batch: 64, model: ["hart_alp", "--strategy", "fedali"] },
];

/** One side's answers, in milliseconds. */
type Ask = (call: "step" | "train", count: number) => Promise<number>;

function exported({ name, model }: Model): string {
  const path = join(FOLDER, `${name}.pfb`);
  if (existsSync(path)) return path;
  mkdirSync(FOLDER, { recursive: true });
  const partial = join(FOLDER, `${process.pid}-${name}.pfb`);
  const rest = ["--formats", "onnx", "--out", partial, "--quiet"];
  execFileSync(PYTHON, ["-m", "protofleet", "export", ...model, ...rest], { cwd: REPOSITORY, stdio: "ignore" });
  renameSync(partial, path);
  return path;
}

function native(path: string, batch: number): { readonly ask: Ask; readonly process: ChildProcessWithoutNullStreams } {
  const child = spawn(PYTHON, ["tests/web/native_steps.py", path, String(batch)], {
    cwd: REPOSITORY,
    env: { ...process.env, OMP_NUM_THREADS: "1", NUMBA_NUM_THREADS: "1" },
  });
  child.stderr.pipe(process.stderr);
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const ask: Ask = async (call, count) => {
    child.stdin.write(`${call} ${count}\n`);
    const { value, done } = await lines.next();
    if (done) throw new Error("native_steps.py: ended before it answered");
    return Number(value);
  };
  return { ask, process: child };
}

async function serve(): Promise<{ readonly url: string; readonly close: () => void }> {
  const { outputFiles } = await build({
    entryPoints: [join(HERE, "worker.ts")],
    bundle: true,
    format: "esm",
    platform: "browser",
    external: ["module", "worker_threads"],
    write: false,
  });
  const page = "<script type=module>const w = new Worker('/worker.js', { type: 'module' });" +
    "window.ask = (m) => new Promise((yes, no) => { w.onerror = (e) => no(new Error(e.message));" +
    "w.onmessage = ({ data }) => data.failed ? no(new Error(data.failed)) : yes(data.ms); w.postMessage(m) })</script>";
  const content = (path: string): readonly [string, Uint8Array | string] => {
    if (path === "/") return ["text/html", page];
    if (path === "/worker.js") return ["text/javascript", outputFiles[0]!.contents];
    if (path === `/${WASM}`) return ["application/wasm", readFileSync(join(HERE, "../node_modules/onnxruntime-web/dist", WASM))];
    return ["application/octet-stream", readFileSync(join(FOLDER, basename(path)))];
  };
  const server = createServer(({ url }, response) => {
    const path = url ?? "/";
    if (path === "/favicon.ico") return void response.writeHead(404).end();
    const [type, bytes] = content(path);
    response.writeHead(200, { "Content-Type": type }).end(bytes);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, close: () => server.close() };
}

function asking(page: Page): (request: Request) => Promise<number> {
  return (request) =>
    page.evaluate((message) => (globalThis as unknown as { ask: (m: unknown) => Promise<number> }).ask(message), request);
}

async function samplesOf(call: "step" | "train", sides: readonly Ask[]): Promise<number[][]> {
  const counts: number[] = [];
  for (const ask of sides) {
    await ask(call, 2);
    counts.push(Math.max(1, Math.round(SAMPLE_MS / (await ask(call, 3)))));
  }
  const samples: number[][] = sides.map(() => []);
  for (let turn = 0; turn < SAMPLES; turn += 1) {
    for (const [side, ask] of sides.entries()) samples[side]!.push(await ask(call, counts[side]!));
  }
  return samples;
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!;
}

/** Largest resident memory, in MB, of the processes that show pages; Linux tells it. */
function peakOfTabs(): number {
  const tabs = readdirSync("/proc").filter((entry) => {
    if (!/^\d+$/.test(entry)) return false;
    try {
      const command = readFileSync(join("/proc", entry, "cmdline"), "utf8");
      return command.includes("--type=renderer") && command.includes(`protofleet-bench-${process.pid}`);
    } catch {
      return false; // it has just ended
    }
  });
  const peaks = tabs.map((entry) => {
    const status = readFileSync(join("/proc", entry, "status"), "utf8");
    return Number(/VmHWM:\s+(\d+) kB/.exec(status)?.[1] ?? 0) / 1024;
  });
  return Math.max(...peaks);
}

async function measured(model: Model, url: string): Promise<void> {
  const path = exported(model);
  const browser = await chromium.launch({
    executablePath: CHROMIUM,
    // The last is for finding its processes.
    args: ["--no-sandbox", `--user-agent=protofleet-bench-${process.pid}`],
  });
  const { ask, process: child } = native(path, model.batch);
  try {
    const page = await browser.newPage();
    await page.goto(url);
    const inTab = asking(page);
    const opening = await inTab({ open: `/${model.name}.pfb`, batch: model.batch });
    const ours: Ask = (call, count) => inTab({ call, count });
    for (const call of ["step", "train"] as const) {
      const [web = [], theirs = []] = await samplesOf(call, [ours, ask]);
      const ratios = web.map((ms, at) => ms / theirs[at]!);
      const row = [median(web), median(theirs), median(ratios), Math.min(...web), Math.min(...theirs)];
      console.log(`${model.title.padEnd(36)} ${call.padEnd(6)}${row.map((value) => value.toFixed(2).padStart(11)).join("")}`);
    }
    console.log(`${"".padEnd(36)} opened, with one step, in ${Math.round(opening)} ms; peak of the tab ${Math.round(peakOfTabs())} MB`);
  } finally {
    child.stdin.end();
    await browser.close();
  }
}

const wanted = process.argv.slice(2);
const { url, close } = await serve();
const columns = ["browser ms", "native ms", "ratio", "least", "least"].map((name) => name.padStart(11)).join("");
console.log(`${"medians of " + SAMPLES}`.padEnd(43) + columns);
for (const model of MODELS) {
  if (wanted.length === 0 || wanted.includes(model.name)) await measured(model, url);
}
close();
