/** Topics: where each message travels (`docs/protocol.md`, Topics); nobody else joins strings. */

import { InputError } from "../errors.ts";

export const PREFIX = "fl/v2";
/** The coordinator's account at the broker. */
export const COORDINATOR = "coordinator";
/** What accounts of open invitations begin with. */
export const INVITED = "invite.";
const ID = /^[A-Za-z0-9._-]{1,64}$/;

/** What a topic carries; the value is the topic below the federation, without the device. */
export const CHANNELS = {
  announcement: "all/ctl",
  presence: "st",
  upOffer: "up/m",
  upChunk: "up/c",
  upRequest: "up/q",
  upStatus: "up/s",
  downAnswer: "dn/a",
  downChunk: "dn/c",
  downTask: "dn/t",
} as const;
export type Channel = keyof typeof CHANNELS;
export type DeviceChannel = Exclude<Channel, "announcement">;

const BY_PARTS: ReadonlyMap<string, Channel> = new Map(
  Object.entries(CHANNELS).map(([channel, parts]) => [parts, channel as Channel]),
);

/** A parsed topic: its channel and the device that it names ("" for `all/ctl`). */
export interface TopicAddress {
  readonly channel: Channel;
  readonly deviceId: string;
}

/**
 * `value` itself, if it can be part of a topic.
 *
 * @throws InputError not 1 to 64 characters of `A-Z a-z 0-9 . _ -`
 */
export function checkId(value: string, what = "id"): string {
  if (!ID.test(value)) {
    const shown = JSON.stringify(value.slice(0, 80));
    throw new InputError(`${what}: expected 1 to 64 characters of A-Z a-z 0-9 . _ -, got ${shown}`);
  }
  return value;
}

/**
 * `value` itself, if a device may be called so; its account at the broker is called the same.
 *
 * @throws InputError not as `checkId` says, the coordinator's account, or one of an invitation
 */
export function checkDeviceId(value: string): string {
  checkId(value, "device id");
  if (isReserved(value)) {
    throw new InputError(
      `device id '${value}': expected another one; '${COORDINATOR}' and names that begin with ` +
        `'${INVITED}' are accounts of the broker for other purposes`,
    );
  }
  return value;
}

/** The account of a device's invitation; throws InputError for no id of a device, or too long a one. */
export function invitedAccount(deviceId: string): string {
  return checkId(INVITED + checkDeviceId(deviceId), "device id, invited");
}

/** Builds and parses the topics of one federation; throws InputError for ids that break topics. */
export class Topics {
  readonly #head: string;

  constructor(readonly federation: string) {
    this.#head = `${PREFIX}/${checkId(federation, "federation")}/`;
  }

  /** Retained announcement, coordinator → all. */
  get announcement(): string {
    return this.#head + CHANNELS.announcement;
  }

  /** The topic of a channel that belongs to one device. */
  of(channel: DeviceChannel, deviceId: string): string {
    const [head, ...leaf] = CHANNELS[channel].split("/");
    return this.#head + [head, checkDeviceId(deviceId), ...leaf].join("/");
  }

  /** What a device subscribes to: 2 filters; managed brokers allow as few as 8. */
  deviceFilters(deviceId: string): readonly [string, string] {
    return [this.announcement, `${this.#head}dn/${checkDeviceId(deviceId)}/+`];
  }

  /** Where an invited device asks for its grant. */
  enrolmentRequest(deviceId: string): string {
    return `${this.#head}en/${invitedAccount(deviceId)}/q`;
  }

  /** Where it is answered. */
  enrolmentAnswer(deviceId: string): string {
    return `${this.#head}en/${invitedAccount(deviceId)}/a`;
  }

  /** Channel and device of a topic; null for any topic that is not of this federation. */
  parse(topic: string): TopicAddress | null {
    if (!topic.startsWith(this.#head)) return null;
    const rest = topic.slice(this.#head.length);
    if (rest === CHANNELS.announcement) return { channel: "announcement", deviceId: "" };
    const [head, deviceId, ...leaf] = rest.split("/");
    if (head === undefined || deviceId === undefined || !ID.test(deviceId) || isReserved(deviceId)) return null;
    const channel = BY_PARTS.get([head, ...leaf].join("/"));
    return channel === undefined || channel === "announcement" ? null : { channel, deviceId };
  }
}

/** Whether messages of this topic are retained, in any federation. */
export function isRetained(topic: string): boolean {
  const levels = topic.split("/").slice(PREFIX.split("/").length + 1);
  return levels.join("/") === CHANNELS.announcement || (levels.length === 2 && levels[0] === CHANNELS.presence);
}

function isReserved(name: string): boolean {
  return name === COORDINATOR || name.startsWith(INVITED);
}
