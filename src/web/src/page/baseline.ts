/** What the browser must have, and the sentence for each lack. */

import { BASELINE } from "../texts.ts";

/** The shortest module with a SIMD instruction: (func (result v128) i32.const 0, i8x16.splat). */
const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11,
]);

/** Plain http: there is nothing that could be looked for. */
export function isInsecure(): boolean {
  return !window.isSecureContext || globalThis.crypto?.subtle === undefined;
}

/** Sentences of what is lacking, in the order in which they should be mended. */
export async function lacks(): Promise<string[]> {
  const checks: readonly (readonly [string, boolean | Promise<boolean>])[] = [
    [BASELINE.ed25519, makesKeys("Ed25519", ["sign", "verify"])],
    [BASELINE.x25519, makesKeys("X25519", ["deriveBits"])],
    [BASELINE.simd, typeof WebAssembly === "object" && WebAssembly.validate(SIMD)],
    [BASELINE.indexedDb, opensDatabases()],
    [BASELINE.locks, "locks" in navigator],
    [BASELINE.streams, "DecompressionStream" in globalThis],
  ];
  const found = await Promise.all(checks.map(async ([text, check]) => ((await check) ? null : text)));
  return found.filter((text) => text !== null);
}

async function makesKeys(name: string, usages: KeyUsage[]): Promise<boolean> {
  try {
    await crypto.subtle.generateKey(name, false, usages);
    return true;
  } catch {
    return false;
  }
}

function opensDatabases(): Promise<boolean> {
  return new Promise((resolve) => {
    try {
      const request = indexedDB.open("protofleet-try");
      request.onerror = () => resolve(false);
      request.onsuccess = () => {
        request.result.close();
        indexedDB.deleteDatabase("protofleet-try");
        resolve(true);
      };
    } catch {
      resolve(false);
    }
  });
}
