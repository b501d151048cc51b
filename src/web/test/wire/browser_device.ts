/** In a browser's worker: takes payloads and sends each back, its bytes backwards; told what by messages. */

import { fromHex } from "../../src/hash.ts";
import { DeviceEndpoint } from "../../src/wire/endpoint.ts";
import { message } from "../../src/wire/messages.ts";
import { DeviceProtection } from "../../src/wire/protection.ts";
import { keysOf } from "./keys.ts";
import { MemoryBlobs } from "./memory_blobs.ts";

/** What the test asks for; `credentials` as tests/web/coordinator_end.py writes them. */
export interface Order {
  readonly url: string;
  readonly rounds: number;
  readonly credentials: { readonly key: string; readonly grant: string; readonly federation_key: string };
}

async function run({ url, rounds, credentials }: Order): Promise<string[]> {
  const presence = (status: "online" | "offline" | "left") =>
    message("presence", { device_id: "pi-7", boot_id: "b", status });
  const protection = await DeviceProtection.create({
    federation: "lab",
    deviceId: "pi-7",
    key: (await keysOf("Ed25519", fromHex(credentials.key))).privateKey,
    grant: credentials.grant,
    federationKey: credentials.federation_key,
    start: 1,
    announced: 0,
    note: async () => undefined,
  });
  const endpoint = await DeviceEndpoint.create({
    broker: { url, user: "", password: "" },
    federation: "lab",
    deviceId: "pi-7",
    protection,
    blobs: new MemoryBlobs(),
    will: presence("offline"),
  });
  endpoint.start();
  const seen: string[] = [];
  while (seen.filter((kind) => kind === "delivered").length < rounds) {
    const event = await endpoint.poll();
    if (event === null) continue;
    seen.push(event.kind === "disconnected" || event.kind === "ignored" ? JSON.stringify(event) : event.kind);
    if (event.kind === "message" && event.message.type === "announcement") await endpoint.publish(presence("online"));
    if (event.kind === "message" && event.message.type === "task" && event.message.payload !== null) {
      await endpoint.expect(event.message.payload);
    }
    if (event.kind === "received") {
      await endpoint.accept(event.offer.transfer_id);
      await endpoint.sendUpdate(event.blob.slice().reverse(), event.offer.round_id, null);
    }
  }
  await endpoint.publish(presence("left"));
  await endpoint.close();
  return seen;
}

self.onmessage = async ({ data }: MessageEvent<Order>) => {
  try {
    postMessage(await run(data));
  } catch (error) {
    postMessage([String(error)]);
  }
};
