/**
 * The MQTT link over a WebSocket: one connection kept alive, seen as a queue of events.
 *
 * Publishing never blocks and nothing is queued across a reconnect: what was not sent when the link
 * broke is lost, and the transfer rules (`transfer.ts`) send it again. MQTT 5 where the broker speaks
 * it, else 3.1.1.
 */

import { InputError } from "../errors.ts";
import { HUB } from "../texts.ts";
import { HEADER_BYTES, MAX_DATA_BYTES, MIN_DATA_BYTES, RESERVED_BYTES } from "./chunks.ts";
import { TAG_BYTES } from "./ciphers.ts";
import { Connection, type ConnectionEvent, type Counters, deferred, type Ending, type LinkOptions, NOT_AUTHORIZED, PACKET_TOO_LARGE, type Protocol, UNSUPPORTED_VERSION } from "./connection.ts";

/** Upper bound of the first random wait: a restarted broker is back within about a second. */
const BACKOFF_MIN_S = 1;
/** Doubling stops here: a fleet of 10,000 then knocks 170 times a second in the mean. */
const BACKOFF_MAX_S = 120;
/** Only a connection that lasted this long resets the back-off, else a flapping link storms. */
const STABLE_S = 60;
/** Unread events; beyond it nothing more is read. */
const QUEUE_MAX = 1024;
/** Timers take no more. */
const TIMER_MAX_MS = 2 ** 31 - 1;
/** Not authorised, bad client id, bad user or password, banned, bad method: trying again is no help. */
const FINAL_CODES: ReadonlySet<number> = new Set([NOT_AUTHORIZED, 0x85, 0x86, 0x8a, 0x8c]);

/** The connection is gone or was refused; the link tries again unless `final`. */
export interface Disconnected {
  readonly kind: "disconnected";
  readonly reason: string;
  readonly final: boolean;
  /** Whether the broker had let us in: then its access list refuses a topic, and not the account. */
  readonly forbidden?: boolean;
}

/** `Link.wake` was called. */
export interface Woken {
  readonly kind: "woken";
}

export type LinkEvent = ConnectionEvent | Disconnected | Woken;

/** Bytes since the link was made, over reconnects; `payload…` of MQTT alone. */
export interface Traffic {
  readonly socketUpBytes: number;
  readonly socketDownBytes: number;
  readonly payloadUpBytes: number;
  readonly payloadDownBytes: number;
}

/** Addresses that the page's security policy has kept the browser from; sockets do not say why they failed. */
const forbidden = new Set<string>();
globalThis.addEventListener?.("securitypolicyviolation", (event) => {
  forbidden.add((event as SecurityPolicyViolationEvent).blockedURI);
});

/** Keeps one MQTT session. */
export class Link {
  readonly #events: LinkEvent[] = [];
  readonly #counters: Counters = { socketUp: 0, socketDown: 0, payloadUp: 0, payloadDown: 0 };
  #notify: (() => void) | null = null;
  #hurry: (() => void) | null = null;
  #spreadS = 0;
  #room: { readonly freed: Promise<void>; readonly free: () => void } | null = null;
  #connection: Connection | null = null;
  #chunkLimit = MAX_DATA_BYTES;
  #protocol: Protocol = "5";
  #protocolKnown = false;
  #everGreeted = false;
  #closing = false;

  /** Throws InputError unless the broker's address is a WebSocket's. */
  constructor(
    private readonly options: LinkOptions,
    private readonly jitter: () => number = Math.random,
  ) {
    const { url } = options.broker;
    if (!/^wss?:\/\/[^/]/.test(url)) {
      throw new InputError(`broker: expected an address of ws:// or wss://, got '${url}'; a browser speaks no other`);
    }
  }

  /** Begins to connect. */
  start(): void {
    void this.#run();
  }

  /** Sends with QoS 1; false if it was dropped: the link is down, or the broker takes no such packet. */
  publish(topic: string, payload: Uint8Array, retain = false): boolean {
    return this.#connection?.publish(topic, payload, retain) ?? false;
  }

  /** The next event, waiting at most so many seconds; null if none came. One caller at a time. */
  async get(timeoutS: number): Promise<LinkEvent | null> {
    if (this.#events.length === 0) {
      await this.#wait(timeoutS, (notify) => (this.#notify = notify));
      this.#notify = null;
    }
    const event = this.#events.shift() ?? null;
    if (this.#room !== null && this.#events.length < QUEUE_MAX) {
      this.#room.free();
      this.#room = null;
    }
    return event;
  }

  /** Makes a waiting `get` return `woken` now. */
  wake(): void {
    this.#put({ kind: "woken" });
  }

  /** The network may be back: does not wait for the next attempt to connect. */
  hurry(): void {
    this.#hurry?.();
  }

  /** Has the broker send what it retains for us once more. */
  subscribeAgain(): void {
    if (this.connected) this.#connection?.subscribe();
  }

  /** From now on waits up to so many seconds before the first reconnect: so large is the fleet. */
  spread(seconds: number): void {
    this.#spreadS = seconds;
  }

  /** Whether `publish` would send now. */
  get connected(): boolean {
    return this.#connection?.open ?? false;
  }

  /** Chunks that may be published now; `drained` comes when 0 has become more. */
  get room(): number {
    return this.#connection?.room ?? 0;
  }

  /** Largest chunk data that this broker takes; halved after a refused packet. */
  get chunkBytes(): number {
    const most = this.#connection?.maxPacketBytes ?? Infinity;
    const around = RESERVED_BYTES + HEADER_BYTES + TAG_BYTES;
    return Math.max(MIN_DATA_BYTES, Math.min(this.#chunkLimit, most - around));
  }

  get traffic(): Traffic {
    const { socketUp, socketDown, payloadUp, payloadDown } = this.#counters;
    return {
      socketUpBytes: socketUp,
      socketDownBytes: socketDown,
      payloadUpBytes: payloadUp,
      payloadDownBytes: payloadDown,
    };
  }

  /** Sends what is queued, disconnects without firing the will, ends. */
  async close(timeoutS = 5): Promise<void> {
    this.#closing = true;
    this.#hurry?.();
    await this.#connection?.close(timeoutS);
  }

  async #run(): Promise<void> {
    for (let attempt = 0; !this.#closing; ) {
      const ending = await this.#attempt();
      if (this.#closing) return;
      const final = FINAL_CODES.has(ending.code);
      const forbidden = ending.opened && ending.code === NOT_AUTHORIZED;
      this.#put({ kind: "disconnected", reason: this.#reason(ending), final, ...(forbidden && { forbidden }) });
      if (final) return;
      this.#everGreeted ||= ending.greeted;
      attempt = ending.stableS >= STABLE_S ? 0 : attempt + 1;
      if (!this.#adapt(ending)) await this.#wait(this.#backoffS(attempt), (hurry) => (this.#hurry = hurry));
      this.#hurry = null;
    }
  }

  async #attempt(): Promise<Ending> {
    const sink = { put: (event: ConnectionEvent) => this.#put(event), full: () => this.#full() };
    try {
      this.#connection = new Connection(this.options, this.#protocol, this.#counters, sink);
      return await this.#connection.ended;
    } catch (error) {
      // Only the WebSocket's own constructor throws, for an address that this page must not open.
      const reason = `${this.options.broker.url}: ${error instanceof Error ? error.message : String(error)}`;
      return { reason, code: NOT_AUTHORIZED, greeted: true, away: false, opened: false, stableS: 0 };
    } finally {
      this.#connection = null;
    }
  }

  #reason({ reason, greeted }: Ending): string {
    if (greeted) return reason;
    const { url } = this.options.broker;
    if (globalThis.navigator?.onLine === false) return HUB.noNetwork(url);
    if (forbidden.has(new URL(url).href)) return HUB.forbidden(url);
    return this.#everGreeted ? HUB.noConnection(url) : HUB.noWebSocket(url);
  }

  /** Learns from the ending; true if the next attempt should come at once. */
  #adapt(ending: Ending): boolean {
    if (ending.code === PACKET_TOO_LARGE) {
      this.#chunkLimit = Math.max(MIN_DATA_BYTES, Math.floor(this.#chunkLimit / 2));
    }
    this.#protocolKnown ||= ending.opened;
    const refused = ending.code === UNSUPPORTED_VERSION || (ending.greeted && !ending.away);
    if (this.#protocolKnown || !refused) return false;
    this.#protocol = this.#protocol === "5" ? "3.1.1" : "5";
    return this.#protocol === "3.1.1";
  }

  #backoffS(attempt: number): number {
    const first = Math.max(BACKOFF_MIN_S, this.#spreadS);
    const ceiling = Math.min(BACKOFF_MAX_S, first * 2 ** Math.min(Math.max(attempt - 1, 0), 10));
    return ceiling * this.jitter();
  }

  #put(event: LinkEvent): void {
    this.#events.push(event);
    this.#notify?.();
  }

  #full(): Promise<void> | null {
    if (this.#events.length < QUEUE_MAX) return null;
    if (this.#room === null) {
      const { promise, resolve } = deferred<void>();
      this.#room = { freed: promise, free: resolve };
    }
    return this.#room.freed;
  }

  /** Waits so long, or until the function that `expose` is given is called. */
  async #wait(seconds: number, expose: (end: () => void) => void): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = seconds === Infinity ? undefined : setTimeout(resolve, Math.min(Math.max(0, seconds) * 1000, TIMER_MAX_MS));
      expose(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}
