/** A whole federation of real processes for the tests of the browser's device: broker, coordinator, hub, devices. */

import { type ChildProcess, execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { appendFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import type { Examples } from "../src/device/page_messages.ts";
import { TestBrowser } from "../test/browser.ts";
import { Mosquitto } from "../test/wire/brokers.ts";
import { PYTHON, PYTHON_ENVIRONMENT, REPOSITORY } from "../test/python.ts";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const ENVIRONMENT = { ...PYTHON_ENVIRONMENT, PROTOFLEET_NUMBA: "0" };
const PATIENCE_MS = 60_000;

/** A line of a command's `--json`. */
export type JsonEvent = Readonly<Record<string, unknown>>;

/** A running program of Python's whose stdout is one JSON event per line. */
export class Command {
  readonly events: JsonEvent[] = [];
  readonly #name: string;
  readonly #process: ChildProcess;
  readonly #log: string;
  #rest = "";

  constructor(name: string, argv: readonly string[], folder: string) {
    this.#name = name;
    this.#log = join(folder, `${name}.log`);
    this.#process = spawn(PYTHON, argv, { cwd: folder, env: ENVIRONMENT });
    this.#process.stdout?.on("data", (data: Buffer) => this.#read(data.toString()));
    this.#process.stderr?.on("data", (data: Buffer) => appendFileSync(this.#log, data));
  }

  get running(): boolean {
    return this.#process.exitCode === null;
  }

  get log(): string {
    try {
      return readFileSync(this.#log, "utf-8");
    } catch {
      return "";
    }
  }

  /** The first event, also of those that have come already, that fulfils `found`. */
  async waitFor(found: (event: JsonEvent) => boolean, ms = PATIENCE_MS): Promise<JsonEvent> {
    for (const until = Date.now() + ms; Date.now() < until; await sleep(20)) {
      const event = this.events.find(found);
      if (event !== undefined) return event;
      if (this.#process.exitCode !== null && !this.events.some(found)) break;
    }
    throw new Error(`${this.#name}: ${JSON.stringify(this.events.slice(-3))} ${this.log.slice(-2000)}`);
  }

  /** Its exit status. */
  async finish(ms = PATIENCE_MS): Promise<number> {
    for (const until = Date.now() + ms; this.#process.exitCode === null; await sleep(20)) {
      if (Date.now() > until) throw new Error(`${this.#name}: still runs: ${this.log.slice(-2000)}`);
    }
    return this.#process.exitCode;
  }

  stop(): void {
    if (this.#process.exitCode === null) this.#process.kill("SIGTERM");
  }

  kill(): void {
    if (this.#process.exitCode === null) this.#process.kill("SIGKILL");
  }

  #read(text: string): void {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("{")) this.events.push(JSON.parse(line) as JsonEvent);
      else appendFileSync(this.#log, `${line}\n`);
    }
  }
}

export interface FederationOptions {
  readonly rounds: number;
  /** Names of Python devices. */
  readonly devices: readonly string[];
  /** Names of phones. */
  readonly phones: readonly string[];
  /**
   * Mosquitto (the default) or the embedded amqtt with TLS, accounts and an access list; or a Mosquitto
   * without any of it, which has a WebSocket listener, and then the federation has no keys.
   */
  readonly broker?: "mosquitto" | "embedded" | "open";
  /** Writes bundle, signer and everybody's data into the federation's folder; default: `phone_files.py`. */
  readonly prepare?: (folder: string) => Promise<void>;
  readonly bundle?: string;
  /** More lines of the federation file, before its tables. */
  readonly settings?: string;
}

/** Runs `tests/web/SCRIPT FOLDER ARGUMENT...`; what it writes to stdout. */
export async function runScript(script: string, folder: string, ...argv: readonly string[]): Promise<string> {
  return (await promisify(execFile)(PYTHON, [join(REPOSITORY, "tests/web", script), folder, ...argv], { env: ENVIRONMENT })).stdout;
}

/** Of `result.json`, what is looked at here. */
export interface Result {
  readonly rounds: readonly { readonly participants: number }[];
  readonly calibration: Readonly<{ devices: number; lr: number; rates: number[]; ratios: number[] }>;
}

/** Examples of a phone: x (n, features) and y (n,). */
export interface PhoneExamples {
  readonly x: number[][];
  readonly y: number[];
  /** Of one example, as the bundle has it; default: that of a row of x. */
  readonly shape?: number[];
  readonly part?: Examples["part"];
}

/** A federation of real processes, all of it in one folder. */
export class Federation {
  readonly folder = mkdtempSync(join(tmpdir(), "protofleet-e2e-"));
  readonly #options: FederationOptions;
  readonly #running: Command[] = [];
  readonly #invitations = new Map<string, string>();
  readonly #network = new Network();
  #open: Mosquitto | null = null;
  #hub: Command | null = null;
  #hubPort = 0;
  #brokerPort = 0;

  constructor(options: FederationOptions) {
    this.#options = options;
  }

  /** Address of the hub, as phones reach it. */
  get url(): string {
    return `http://127.0.0.1:${this.#network.port}`;
  }

  /** Of the broker itself, as if it spoke WebSocket there. */
  get brokerUrl(): string {
    return `ws://localhost:${this.#brokerPort}/mqtt`;
  }

  /** Between phones and the hub. */
  get network(): Network {
    return this.#network;
  }

  /** What the coordinator has written of the run. */
  get result(): Result {
    return JSON.parse(readFileSync(join(this.folder, "run/result.json"), "utf-8")) as Result;
  }

  /** How many updates each round has used. */
  get participants(): number[] {
    return this.result.rounds.map(({ participants }) => participants);
  }

  /** Hash of the server's state after the last round. */
  get outcome(): string {
    const folder = join(this.folder, "run/states");
    const files = readdirSync(folder).sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
    return createHash("sha256").update(readFileSync(join(folder, files.at(-1)!))).digest("hex");
  }

  /** The WebSocket listener of a broker that has one. */
  get listener(): string {
    return this.#open?.url ?? "";
  }

  /** Everything but the coordinator and the Python devices. */
  async start(): Promise<void> {
    const { devices, phones, broker, prepare } = this.#options;
    const files = prepare?.(this.folder) ?? runScript("phone_files.py", this.folder, ...devices, ...phones);
    if (broker === "open") this.#open = await Mosquitto.start();
    else await this.#startSecured();
    await files;
    this.write();
    await this.startHub();
  }

  /** Writes the federation file: which bundle, signed by whom, and in which folder it is run. */
  write({ bundle = this.#bundle, signer = "signer.pem", run = "run" } = {}): void {
    const { devices, phones, rounds, settings = "" } = this.#options;
    const pem = readFileSync(join(this.folder, signer), "utf-8").split("\n")[1]!;
    const key = Buffer.from(pem, "base64").subarray(-32).toString("hex");
    const secured =
      `keys = "federation"\n[broker]\nurl = "mqtts://coordinator@localhost:${this.#brokerPort}"\n` +
      'ca_file = "federation/broker/ca.pem"\npassword_file = "federation/broker/coordinator.password"\n';
    writeFileSync(
      join(this.folder, "federation.toml"),
      `federation = "federation"\nbundle = "${bundle}"\ntrusted = ["${key}"]\n` +
        `run_dir = "${run}"\nrounds = ${rounds}\nseed = 3\ncohort = {minimum = ${devices.length + phones.length}}\n` +
        // On a loaded machine a browser takes long to come back, and its rounds without a network long to end.
        `liveness = {grace_s = 120.0}\n${settings}` +
        (this.#open === null ? secured : `broker = "mqtt://127.0.0.1:${this.#open.tcpPort}"\n`),
    );
  }

  async startHub(...options: readonly string[]): Promise<void> {
    this.#hubPort ||= await freePort();
    const listener = this.listener === "" ? [] : ["--websocket", this.listener];
    const argv = ["--port", String(this.#hubPort), "--no-qr", ...listener, ...options];
    const hub = this.#hub = this.command("hub", "hub", "federation.toml", ...argv);
    await answers(this.#hubPort, hub);
    await this.#network.lead(this.#hubPort);
  }

  /** With the federation file as it is now. */
  async restartHub(...options: readonly string[]): Promise<void> {
    this.#hub?.stop();
    await this.#hub?.finish();
    await this.startHub(...options);
  }

  startCoordinator(): Command {
    return this.command("coordinator", "coordinator", "run", "federation.toml", "--json");
  }

  /** Enrols the Python devices and lets them join with these options; the coordinator has to run. */
  async startDevices(optionsOf: (name: string) => readonly string[] = () => []): Promise<void> {
    await Promise.all(this.#options.devices.map(async (name) => {
      await this.#run("-m", "protofleet", "device", "enroll", this.invitation(name), "--store", `store-${name}`);
      const files = ["--bundle", this.#bundle, "--trust", "signer.pem", "--data", `${name}.npz`];
      this.command(name, "device", "join", "--store", `store-${name}`, ...files, ...optionsOf(name), "--json");
    }));
  }

  /** Invites one more, and answers it as long as the command runs. */
  async invite(name: string): Promise<string> {
    const { invitation } = await this.command("invite", "device", "invite", name, "--json")
      .waitFor(({ invitation: text }) => typeof text === "string");
    return invitation as string;
  }

  invitation(name: string): string {
    const found = this.#invitations.get(name);
    if (found === undefined) throw new Error(`'${name}' was not invited`);
    return found;
  }

  /** What a phone learns from, as `phone_files.py` has written it. */
  examples(name: string): PhoneExamples {
    return JSON.parse(readFileSync(join(this.folder, `${name}.json`), "utf-8")) as PhoneExamples;
  }

  get #bundle(): string {
    return this.#options.bundle ?? "tiny.pfb";
  }

  command(name: string, ...argv: readonly string[]): Command {
    return this.#python(name, "-m", "protofleet", ...argv);
  }

  /** Ends its processes and removes its folder. */
  async close(): Promise<void> {
    await this.#network.close();
    const running = this.#running.reverse();
    for (const command of running) command.stop();
    await Promise.all(running.map((command) => command.finish(10_000).catch(() => command.kill())));
    await this.#open?.stop();
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }

  /** A broker's folder, the broker, and everybody's invitation. */
  async #startSecured(): Promise<void> {
    const { devices, phones, broker } = this.#options;
    this.#brokerPort = await freePort();
    await this.#run("-m", "protofleet", "broker", "init", "--host", "localhost", "--port", String(this.#brokerPort));
    const script = broker === "embedded" ? [join(REPOSITORY, "tests/web/embedded_broker.py")] : ["-m", "protofleet", "broker", "run"];
    await answers(this.#brokerPort, this.#python("broker", ...script, "federation/broker"));
    const invited = await this.#run("-m", "protofleet", "device", "invite", "--no-wait", "--json", ...devices, ...phones);
    for (const line of invited.trim().split("\n")) {
      const { device_id: id, invitation } = JSON.parse(line) as { device_id: string; invitation: string };
      this.#invitations.set(id, invitation);
    }
  }

  #python(name: string, ...argv: readonly string[]): Command {
    const command = new Command(name, argv, this.folder);
    this.#running.push(command);
    return command;
  }

  /** What a program of Python's says, which must succeed. */
  async #run(...argv: readonly string[]): Promise<string> {
    return (await promisify(execFile)(PYTHON, argv, { cwd: this.folder, env: ENVIRONMENT })).stdout;
  }
}

/** The way to a port, which a test can cut. */
export class Network {
  readonly #sockets = new Set<Socket>();
  #cut = false;
  #target = 0;
  #server = createServer((socket) => {
    if (this.#cut) {
      socket.destroy();
      return;
    }
    const onward = connect(this.#target, "127.0.0.1");
    for (const [one, other] of [[socket, onward], [onward, socket]] as const) {
      this.#sockets.add(one);
      one.pipe(other);
      one.once("error", () => other.destroy());
      one.once("close", () => (other.destroy(), this.#sockets.delete(one)));
    }
  });

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async lead(port: number): Promise<void> {
    this.#target = port;
    if (!this.#server.listening) await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
  }

  /** Ends what is open, and refuses what comes. */
  cut(): void {
    this.#cut = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend(): void {
    this.#cut = false;
  }

  async close(): Promise<void> {
    this.cut();
    if (this.#server.listening) await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** Path of the built worker on the hub. */
export function workerPath(): string {
  const names = readdirSync(join(HERE, "../../protofleet/hub/page/assets"));
  const found = names.find((name) => /^worker-[0-9a-f]+\.js$/.test(name));
  if (found === undefined) throw new Error("no assets/worker-….js: npm run build");
  return `/assets/${found}`;
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function answers(port: number, server: Command): Promise<void> {
  for (const until = Date.now() + PATIENCE_MS; Date.now() < until && server.running; await sleep(50)) {
    const open = await new Promise<boolean>((resolve) => {
      const socket = connect(port, "127.0.0.1", () => (socket.end(), resolve(true)));
      socket.once("error", () => resolve(false));
    });
    if (open) return;
  }
  throw new Error(`nothing answers at port ${port}: ${server.log}`);
}

/** A federation and a browser that run while the tests of the `describe` around the call do. */
export function forSuite(options: FederationOptions): { federation: Federation; browser: TestBrowser } {
  const federation = new Federation(options);
  const browser = new TestBrowser();
  before(async () => {
    await Promise.all([federation.start(), browser.start()]);
  });
  after(async () => {
    await browser.close();
    await federation.close();
  });
  return { federation, browser };
}
