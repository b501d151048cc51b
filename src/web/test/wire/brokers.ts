/** Mosquitto behind its own WebSocket listener on a free loopback port, and brokers of a few bytes. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { type AddressInfo, type Server, type Socket, connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { WebSocket as NodeWebSocket, WebSocketServer, createWebSocketStream } from "ws";

// Node 20 has none; the browser's own is what the link uses.
globalThis.WebSocket = NodeWebSocket as unknown as typeof WebSocket;

const PORTS_TRIED = 5;
const SEARCH_PATH = `${process.env["PATH"]}:/usr/sbin`;

/** Why no Mosquitto can be started here; false if one can. */
export const withoutMosquitto =
  spawnSync("sh", ["-c", "command -v mosquitto"], { env: { PATH: SEARCH_PATH } }).status === 0
    ? false
    : "needs the Mosquitto broker: apt install mosquitto";

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}

async function answers(port: number): Promise<boolean> {
  const socket = connect(port, "127.0.0.1");
  const answered = await Promise.race([
    once(socket, "connect").then(() => true),
    once(socket, "error").then(() => false),
  ]).catch(() => false);
  socket.destroy();
  return answered;
}

export async function until(holds: () => boolean | Promise<boolean>, seconds = 20): Promise<void> {
  const deadline = performance.now() + seconds * 1000;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not within ${seconds} s: ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A Mosquitto with WebSocket and TCP listeners and further lines of configuration. */
export class Mosquitto {
  #process: ChildProcess | null = null;

  private constructor(
    readonly folder: string,
    readonly port: number,
    readonly tcpPort: number,
  ) {}

  static async start(...lines: readonly string[]): Promise<Mosquitto> {
    const folder = await mkdtemp(join(tmpdir(), "mosquitto-"));
    for (let left = PORTS_TRIED; ; left -= 1) {
      const broker = new Mosquitto(folder, await freePort(), await freePort());
      if (await broker.run(...lines)) return broker;
      if (left === 1) throw new Error(`Mosquitto ended at its start, on ${PORTS_TRIED} pairs of ports`);
    }
  }

  get url(): string {
    return `ws://127.0.0.1:${this.port}`;
  }

  /** Starts it on its ports; false where somebody else has taken one of them meanwhile. */
  async run(...lines: readonly string[]): Promise<boolean> {
    const basic = [
      ...(lines.some((line) => line.startsWith("allow_anonymous")) ? [] : ["allow_anonymous true"]),
      "persistence false",
      "user root",
      `listener ${this.tcpPort} 127.0.0.1`,
      `listener ${this.port} 127.0.0.1`,
      "protocol websockets",
    ];
    const config = join(this.folder, "mosquitto.conf");
    await writeFile(config, [...lines, ...basic, ""].join("\n"));
    this.#process = spawn("mosquitto", ["-c", config], {
      stdio: "ignore",
      env: { ...process.env, PATH: SEARCH_PATH },
    });
    const ended = (): boolean => this.#process?.exitCode !== null;
    await until(async () => ended() || (await answers(this.port)));
    // Who answers may be another: a Mosquitto without its ports ends at once.
    await new Promise((resolve) => setTimeout(resolve, 50));
    return !ended();
  }

  /** As after SIGKILL: sessions and retained messages are gone. */
  async kill(): Promise<void> {
    const running = this.#process;
    if (running === null || running.exitCode !== null || running.signalCode !== null) return;
    const gone = once(running, "exit");
    running.kill("SIGKILL");
    await gone;
  }

  async stop(): Promise<void> {
    await this.kill();
    await rm(this.folder, { recursive: true });
  }
}

/** Answers each message of the n-th connection as a function says; null ends the connection, a text closes it. */
export type Script = (connection: number, sent: Buffer) => Uint8Array | string | null | undefined;

/** A WebSocket server that sends what a script says. */
export class ScriptedBroker {
  readonly connects: Buffer[] = [];
  readonly #server: WebSocketServer;

  private constructor(server: WebSocketServer) {
    this.#server = server;
  }

  static async start(script: Script): Promise<ScriptedBroker> {
    const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
    await once(server, "listening");
    const broker = new ScriptedBroker(server);
    server.on("connection", (socket) => {
      const connection = broker.connects.length;
      socket.on("message", (data: Buffer) => {
        if (data[0] === 0x10) broker.connects.push(data);
        const answer = script(connection, data);
        if (answer === null) socket.terminate();
        else if (typeof answer === "string") socket.close(1013, answer);
        else if (answer !== undefined) socket.send(answer);
      });
    });
    return broker;
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Connections that are open now. */
  get open(): number {
    return this.#server.clients.size;
  }

  stop(): void {
    for (const client of this.#server.clients) client.terminate();
    this.#server.close();
  }
}

/** Passes TCP connections on, counts their bytes, and cuts them. */
export class Proxy {
  up = 0;
  down = 0;
  readonly #open = new Set<Socket>();
  readonly #server: Server;

  private constructor(target: number) {
    this.#server = createServer((client) => {
      const broker = connect(target, "127.0.0.1");
      client.on("data", (data) => (this.up += data.length)).pipe(broker);
      broker.on("data", (data) => (this.down += data.length)).pipe(client);
      for (const end of [client, broker]) {
        this.#open.add(end);
        end.on("error", () => undefined).on("close", () => [client, broker].forEach((one) => one.destroy()));
      }
    }).listen(0, "127.0.0.1");
  }

  static async start(target: number): Promise<Proxy> {
    const proxy = new Proxy(target);
    await once(proxy.#server, "listening");
    return proxy;
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Ends all connections, and takes no other. */
  cut(): void {
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
  }
}

/** As a hub passes the WebSocket on to the broker's TCP port; returns its address. */
export async function bridge(t: TestContext, broker: Mosquitto): Promise<string> {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await once(server, "listening");
  server.on("connection", (socket) => {
    const [browser, tcp] = [createWebSocketStream(socket), connect(broker.tcpPort, "127.0.0.1")];
    browser.pipe(tcp).pipe(browser);
    for (const end of [browser, tcp]) end.on("error", () => [browser, tcp].forEach((one) => one.destroy()));
  });
  t.after(() => server.close());
  return `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
