/** The page on which a browser judges hostile files, which another address serves. */

import { type Hostile, misjudged } from "./hostile.ts";

Object.assign(globalThis, {
  misjudged: (some: readonly Hostile[], signer: string, address: string) =>
    misjudged(some, signer, async (name) => new Uint8Array(await (await fetch(address + name)).arrayBuffer())),
});
