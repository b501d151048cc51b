/**
 * One MQTT connection over a WebSocket, from CONNECT to its end; `link.ts` makes the next one.
 *
 * A new mqtt.js client for each: nothing of the old one's queue or state can leak into the next.
 */

import mqtt, { type IConnackPacket, type IPublishPacket, type MqttClient } from "mqtt";

/** A broker that takes this long to greet is overloaded or no broker. */
const OPEN_TIMEOUT_S = 15;
/** Publishes without PUBACK; Mosquitto's own default for the other direction. */
const IN_FLIGHT_MAX = 20;
/** Of these, chunks: the rest stays free for answers, which must not queue behind a window. */
const CHUNKS_IN_FLIGHT_MAX = 16;
/** What a broker may send without our PUBACK: a window of chunks, and records beside them. */
const RECEIVE_MAX = 32;
/** No packet of the protocol is larger. */
const PACKET_MAX_BYTES = 64 * 1024;
const FRAME_MAX_BYTES = 64 * 1024;
/** A browser masks what it sends. */
const MASK_BYTES = 4;
/** All that can be in flight; mqtt.js would wait a second where a socket holds more than its half MiB. */
const SOCKET_BUFFER_BYTES = 2 * IN_FLIGHT_MAX * PACKET_MAX_BYTES;
/** Fixed header, lengths and packet id around topic and payload, at most. */
const AROUND_BYTES = 16;
/** Every broker of MQTT 3.1.1 takes so many of `0-9a-zA-Z`, and not more surely. */
const CLIENT_ID_CHARS = 23;
const CLIENT_ID = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** How a hub closes a WebSocket whose broker does not answer (registry of RFC 6455). */
const TRY_AGAIN_LATER = 1013;
export const UNSUPPORTED_VERSION = 0x84;
export const NOT_AUTHORIZED = 0x87;
/** The broker drops this one, or ends the connection; the link then sends smaller chunks. */
export const PACKET_TOO_LARGE = 0x95;
/** What MQTT.js makes of Mosquitto's answer 0x95 to a publish, which the standard has for DISCONNECT alone. */
const UNKNOWN_PUBACK = "Invalid puback reason code";
/** Refusals of MQTT 3.1.1 by the codes of MQTT 5. */
const CODES_OF_3_1_1: ReadonlyMap<number, number> = new Map([
  [1, UNSUPPORTED_VERSION],
  [2, 0x85],
  [3, 0x88],
  [4, 0x86],
  [5, NOT_AUTHORIZED],
]);

export type Protocol = "5" | "3.1.1";

/** Where the broker is, and as whom to connect; an empty user: as nobody. */
export interface Broker {
  /** `ws://` or `wss://`. */
  readonly url: string;
  readonly user: string;
  readonly password: string;
}

/** The message that the broker publishes, retained, when this client vanishes. */
export interface Will {
  readonly topic: string;
  readonly payload: Uint8Array;
}

export interface LinkOptions {
  readonly broker: Broker;
  /** Subscribed with QoS 1 after each connect, before `connected` is reported. */
  readonly filters: readonly string[];
  readonly will: Will | null;
  /** MQTT keep-alive. */
  readonly keepaliveS?: number;
}

/** Connected and subscribed with this protocol; deliveries follow. */
export interface Connected {
  readonly kind: "connected";
  readonly protocol: Protocol;
}

/** A message arrived; `retained` if it is older than our subscription. */
export interface MqttMessage {
  readonly kind: "delivery";
  readonly topic: string;
  readonly payload: Uint8Array;
  readonly retained: boolean;
}

/** There is room again for chunks (`Link.room`). */
export interface Drained {
  readonly kind: "drained";
}

export type ConnectionEvent = Connected | MqttMessage | Drained;

/** Bytes over all connections of a link; `socket…` with the WebSocket's frames, before TLS. */
export interface Counters {
  socketUp: number;
  socketDown: number;
  payloadUp: number;
  payloadDown: number;
}

/** Takes what arrives; while `full`, nothing more is read, so that the broker feels the pressure. */
export interface Sink {
  put(event: ConnectionEvent): void;
  /** Resolves when there is room; null: there is. */
  full(): Promise<void> | null;
}

/** Why a connection ended. */
export interface Ending {
  readonly reason: string;
  /** MQTT reason code, 0 if the socket just closed. */
  readonly code: number;
  /** Whether the WebSocket had opened at all. */
  readonly greeted: boolean;
  /** Whether the other end of the WebSocket said that the broker behind it is away. */
  readonly away: boolean;
  /** Whether the broker had accepted us. */
  readonly opened: boolean;
  readonly stableS: number;
}

interface Outgoing {
  readonly topic: string;
  readonly payload: Uint8Array;
  readonly retain: boolean;
}

/** Connects once, and reports what arrives to a sink. */
export class Connection {
  /** The broker's limit; null if it states none. */
  maxPacketBytes: number | null = null;
  /** When and why it ended. */
  readonly ended: Promise<Ending>;
  readonly #client: MqttClient;
  readonly #resolve: (ending: Ending) => void;
  readonly #timer: ReturnType<typeof setTimeout>;
  #socket: WebSocket | null = null;
  #inFlightMax = IN_FLIGHT_MAX;
  #inFlight = 0;
  readonly #backlog: Outgoing[] = [];
  #early: MqttMessage[] = [];
  #greeted = false;
  #away = false;
  #openedAt: number | null = null;
  #over = false;
  #closing = false;
  /** Resolves when all is acknowledged of a connection that is to be closed. */
  readonly #idle = deferred<void>();

  /** Throws DOMException where the browser forbids the address, such as `ws:` on a page of `https:`. */
  constructor(
    private readonly options: LinkOptions,
    private readonly protocol: Protocol,
    private readonly counters: Counters,
    private readonly sink: Sink,
  ) {
    const { promise, resolve } = deferred<Ending>();
    this.ended = promise;
    this.#resolve = resolve;
    this.#client = this.#connect();
    const { url } = options.broker;
    this.#timer = setTimeout(() => this.#abort(`${url}: no answer from the broker`), OPEN_TIMEOUT_S * 1000);
  }

  /** Whether we are connected and subscribed. */
  get open(): boolean {
    return this.#openedAt !== null && !this.#over;
  }

  /** How many chunks may be published before the next acknowledgement. */
  get room(): number {
    const most = Math.min(CHUNKS_IN_FLIGHT_MAX, this.#inFlightMax);
    return this.open ? Math.max(0, most - this.#inFlight - this.#backlog.length) : 0;
  }

  /** Sends now or when the broker has acknowledged enough; false: the link is down, or it is too large. */
  publish(topic: string, payload: Uint8Array, retain: boolean): boolean {
    const bytes = payload.length + topic.length + AROUND_BYTES;
    if (!this.open || (this.maxPacketBytes !== null && bytes > this.maxPacketBytes)) return false;
    this.counters.payloadUp += payload.length;
    const packet = { topic, payload, retain };
    if (this.#inFlight >= this.#inFlightMax || this.#backlog.length > 0) {
      this.#backlog.push(packet);
    } else {
      this.#inFlight += 1;
      this.#send(packet);
    }
    return true;
  }

  /** Subscribes to our own filters; once more makes the broker send what it retains again. */
  subscribe(): void {
    this.#client.subscribe([...this.options.filters], { qos: 1 }, (error, _granted, answer) => {
      if (this.#over || this.#openedAt !== null) return;
      if (error === null) this.#opened();
      else if (answer !== undefined) this.#abort(`subscription refused: ${error.message}`, NOT_AUTHORIZED);
    });
  }

  /** Waits until everything is acknowledged, says DISCONNECT, ends; all within so many seconds. */
  async close(timeoutS: number): Promise<void> {
    this.#closing = true;
    const late = deferred<void>();
    const timer = setTimeout(late.resolve, timeoutS * 1000);
    if (this.open && this.#inFlight > 0) await Promise.race([this.#idle.promise, this.ended, late.promise]);
    if (!this.#over) {
      const polite = this.open && this.#inFlight === 0;
      this.#end("closed", 0);
      const closed = new Promise((resolve) => this.#client.once("close", () => resolve(null)));
      this.#client.end(!polite);
      // Whoever ends the worker now would end it before the broker knows, which then sends the will.
      await Promise.race([closed, late.promise]);
      this.#socket?.close();
    }
    clearTimeout(timer);
  }

  #connect(): MqttClient {
    const { broker, will, keepaliveS } = this.options;
    const client = mqtt.connect("ws://broker", {
      ...(broker.user === "" ? {} : { username: broker.user, password: broker.password }),
      ...(this.protocol === "5"
        ? { properties: { receiveMaximum: RECEIVE_MAX, maximumPacketSize: PACKET_MAX_BYTES } }
        : {}),
      ...(will === null ? {} : { will: { ...will, payload: will.payload as Buffer, qos: 1, retain: true } }),
      protocolVersion: this.protocol === "5" ? 5 : 4,
      clientId: drawClientId(),
      clean: true,
      keepalive: keepaliveS ?? 30,
      reconnectPeriod: 0,
      resubscribe: false,
      connectTimeout: 2 * OPEN_TIMEOUT_S * 1000,
      forceNativeWebSocket: true,
      browserBufferSize: SOCKET_BUFFER_BYTES,
      timerVariant: "native",
      createWebsocket: (_url, protocols) => this.#open(broker.url, protocols),
    });
    client.handleMessage = (_packet, done) => {
      const wait = this.sink.full();
      if (wait === null) done();
      else void wait.then(() => done());
    };
    client.on("connect", (packet) => this.#accepted(packet));
    client.on("message", (topic, payload, packet) => this.#deliver(topic, payload, packet));
    client.on("disconnect", ({ reasonCode = 0 }) => {
      this.#abort(`broker closed: ${mqtt.ReasonCodes[reasonCode as keyof typeof mqtt.ReasonCodes] || reasonCode}`, reasonCode);
    });
    client.on("error", (error) => this.#failed(error));
    client.on("close", () => this.#end("connection lost", 0));
    return client;
  }

  /** The socket that mqtt.js speaks through, counted: it offers no public place for that. */
  #open(url: string, protocols: string[]): WebSocket {
    const socket = new WebSocket(url, protocols);
    this.#socket = socket;
    const send = socket.send.bind(socket);
    // mqtt.js joins what is published at once; who relays WebSockets bounds their frames.
    socket.send = (data: Uint8Array<ArrayBuffer>) => {
      for (let start = 0; start < data.length; start += FRAME_MAX_BYTES) {
        const frame = data.subarray(start, start + FRAME_MAX_BYTES);
        this.counters.socketUp += frameBytes(frame.length) + MASK_BYTES;
        send(frame);
      }
    };
    socket.addEventListener("message", ({ data }: MessageEvent<ArrayBuffer>) => {
      this.counters.socketDown += frameBytes(data.byteLength);
    });
    socket.addEventListener("open", () => (this.#greeted = true));
    socket.addEventListener("close", ({ code, reason }) => {
      this.#away = code === TRY_AGAIN_LATER;
      this.#end(`connection lost${reason && `: ${reason}`}`, 0);
    });
    return socket;
  }

  #accepted({ properties }: IConnackPacket): void {
    this.#inFlightMax = Math.min(IN_FLIGHT_MAX, properties?.receiveMaximum ?? IN_FLIGHT_MAX);
    this.maxPacketBytes = properties?.maximumPacketSize ?? null;
    if (this.options.filters.length > 0) this.subscribe();
    else this.#opened();
  }

  #opened(): void {
    clearTimeout(this.#timer);
    this.#openedAt = performance.now();
    this.sink.put({ kind: "connected", protocol: this.protocol });
    for (const delivery of this.#early) this.sink.put(delivery);
    this.#early = [];
  }

  #deliver(topic: string, buffer: Buffer, { retain }: IPublishPacket): void {
    if (this.#over) return;
    this.counters.payloadDown += buffer.length;
    const payload = new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.length);
    const delivery: MqttMessage = { kind: "delivery", topic, payload, retained: retain };
    if (this.#openedAt === null) this.#early.push(delivery);
    else this.sink.put(delivery);
  }

  #send({ topic, payload, retain }: Outgoing): void {
    this.#client.publish(topic, payload as Buffer, { qos: 1, retain }, (error) => this.#published(error));
  }

  #published(error: Error | undefined | null): void {
    if (this.#over) return;
    if (error && codeOf(error) === NOT_AUTHORIZED) {
      this.#abort(`publish refused: ${error.message}`, NOT_AUTHORIZED);
      return;
    }
    const full = this.room === 0;
    const following = this.#backlog.shift();
    if (following === undefined) this.#inFlight -= 1;
    else this.#send(following);
    if (full && this.room > 0) this.sink.put({ kind: "drained" });
    if (this.#inFlight === 0 && this.#closing) this.#idle.resolve();
  }

  #failed(error: Error): void {
    if (error.message === UNKNOWN_PUBACK) {
      this.#abort("publish refused: packet too large, or another reason that MQTT does not know", PACKET_TOO_LARGE);
      return;
    }
    const code = codeOf(error);
    const refused = this.#openedAt === null && code > 0;
    this.#abort(refused ? `broker refused: ${error.message}` : `connection lost: ${error.message}`, code);
  }

  /** Ends now, without a word to the broker. */
  #abort(reason: string, code = 0): void {
    this.#end(reason, code);
    this.#client.end(true);
    this.#socket?.close();
  }

  #end(reason: string, code: number): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#timer);
    const opened = this.#openedAt !== null;
    const stableS = (performance.now() - (this.#openedAt ?? performance.now())) / 1000;
    this.#resolve({ reason, code, greeted: this.#greeted, away: this.#away, opened, stableS });
  }
}

/** A promise that others resolve. */
export function deferred<T>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => undefined;
  const promise = new Promise<T>((settle) => (resolve = settle));
  return { promise, resolve };
}

function codeOf(error: Error): number {
  const code = (error as { code?: unknown }).code;
  return typeof code === "number" ? (CODES_OF_3_1_1.get(code) ?? code) : 0;
}

/** A WebSocket frame of so many bytes, with its header but without a mask. */
function frameBytes(payload: number): number {
  return payload + (payload < 126 ? 2 : payload < 65_536 ? 4 : 10);
}

/** New for each connection: whoever knew it could end the connection by taking it. */
function drawClientId(): string {
  const draws = crypto.getRandomValues(new Uint8Array(4 * CLIENT_ID_CHARS));
  const fair = draws.filter((draw) => draw < 4 * CLIENT_ID.length);
  return Array.from(fair.subarray(0, CLIENT_ID_CHARS), (draw) => CLIENT_ID[draw % CLIENT_ID.length]).join("");
}
