/** What the phone gets from the hub that its page came from, and why it believes it. */

import { type Bundle, checkBundleSize, openBundle } from "../bundle/bundle.ts";
import { ProvisionError, RefusedError, UnavailableError } from "../errors.ts";
import { HUB, STORE } from "../texts.ts";
import type { Announcement } from "../wire/messages.ts";
import type { StoreBinding } from "./journal.ts";

/** What the hub says of its federation; with keys only a certified announcement counts. */
export interface FederationInfo {
  readonly federation: string;
  readonly digest: string;
  readonly keys: boolean;
}

/** A bundle that the federation's announcement has named. */
export interface Adopted {
  readonly bundle: Bundle;
  readonly bytes: Uint8Array;
  readonly binding: StoreBinding;
}

export async function fetchFederation(origin: string): Promise<FederationInfo> {
  const found: unknown = await (await fetched(`${origin}/federation.json`)).json();
  const { federation, digest, keys } = (found ?? {}) as Partial<FederationInfo>;
  if (typeof federation !== "string" || typeof digest !== "string" || typeof keys !== "boolean") {
    throw new UnavailableError(HUB.notAHub(`${origin}/federation.json`));
  }
  return { federation, digest, keys };
}

/**
 * The hub's bundle, if it is the one that an announcement names. The hub vouches for nothing: the
 * announcement is certified by the federation's key, and names the hash of the bundle's manifest. Whose
 * signature it is, the store judges (`checkBundle`).
 *
 * @throws UnavailableError the hub serves another one, or nothing
 * @throws RefusedError the bundle breaks a rule
 */
export async function adoptBundle(
  origin: string,
  announced: Pick<Announcement, "federation" | "bundle" | "layout_hash">,
): Promise<Adopted> {
  const bytes = await download(`${origin}/bundle.pfb`);
  const bundle = await openBundle(bytes, { anySigner: true });
  if (bundle.digest !== announced.bundle) {
    throw new UnavailableError(HUB.otherBundle(origin, bundle.digest.slice(0, 16), announced.bundle.slice(0, 16)));
  }
  const { layout_hash: layoutHash } = bundle.manifest;
  if (layoutHash !== announced.layout_hash) {
    throw new RefusedError("layout", HUB.layout);
  }
  const binding = { federation: announced.federation, bundle: bundle.digest, layoutHash, signer: bundle.signer };
  return { bundle, bytes, binding };
}

/** The bundle that the store has kept. */
export async function openKept(bytes: Uint8Array, { bundle: digest, signer }: StoreBinding): Promise<Bundle> {
  const bundle = await openBundle(bytes, { trusted: [signer] });
  if (bundle.digest === digest) return bundle;
  throw new ProvisionError(STORE.otherBundle);
}

async function download(url: string): Promise<Uint8Array> {
  const response = await fetched(url);
  const parts: Uint8Array[] = [];
  let size = 0;
  try {
    // Counted as it comes: what is too large is never held whole.
    for (const reader = response.body!.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      size += value.length;
      checkBundleSize(size);
      parts.push(value);
    }
  } catch (error) {
    if (error instanceof RefusedError) throw error;
    throw new UnavailableError(HUB.brokeOff(url, String(error)));
  }
  return new Uint8Array(await new Blob(parts as Uint8Array<ArrayBuffer>[]).arrayBuffer());
}

async function fetched(url: string): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, { cache: "no-cache" });
  } catch (error) {
    throw new UnavailableError(HUB.noAnswer(url, String(error)));
  }
  if (!response.ok) throw new UnavailableError(HUB.answers(url, `${response.status} ${response.statusText}`));
  return response;
}
