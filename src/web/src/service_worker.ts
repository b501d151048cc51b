/**
 * Keeps the page on the phone: it starts without a network, and a second start asks for nothing but
 * this script, and whether the device's has changed. What belongs to the federation (`/bundle.pfb`, `/federation.json`, `/mqtt`) never
 * passes through here.
 */

export {};

declare const self: ServiceWorkerGlobalScope;
/** Made by the build: a hash of all names, the files that open the page, and those kept when used. */
declare const VERSION: string;
declare const SHELL: readonly string[];
declare const LATER: readonly string[];
/** The device's script. */
declare const DEVICE: string;

/** How long the hub is waited for before what is kept is taken. */
const PATIENCE_MS = 2_000;

const NAME = `protofleet-${VERSION}`;

self.addEventListener("install", (event) => {
  event.waitUntil(fill());
});

self.addEventListener("activate", (event) => {
  event.waitUntil(dropOthers().then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== self.location.origin) return;
  if (event.request.mode === "navigate" && url.pathname === "/") event.respondWith(kept("/"));
  else if (url.pathname === DEVICE) event.respondWith(confirmed(url.pathname));
  else if (SHELL.includes(url.pathname) || LATER.includes(url.pathname)) {
    event.respondWith(kept(url.pathname));
  }
});

self.addEventListener("message", (event) => {
  if (event.data === "use-now") void self.skipWaiting();
});

/** Hashed names that an older version has already are copied, not fetched. */
async function fill(): Promise<void> {
  const cache = await caches.open(NAME);
  await Promise.all(
    SHELL.map(async (path) => {
      const old = path.startsWith("/assets/") ? await caches.match(path) : undefined;
      await cache.put(path, old ?? (await fetched(path)));
    }),
  );
  await Promise.all(
    LATER.map(async (path) => {
      const old = await caches.match(path);
      if (old !== undefined) await cache.put(path, old);
    }),
  );
}

async function fetched(path: string): Promise<Response> {
  const found = await fetch(path);
  if (!found.ok) throw new Error(`${path}: the hub answered ${found.status}`);
  return found;
}

async function dropOthers(): Promise<void> {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith("protofleet-") && name !== NAME);
  await Promise.all(old.map((name) => caches.delete(name)));
}

/**
 * The script as it is kept, with the hub's present headers where it answers: its security policy says to which brokers
 * the script may speak, and may have changed while the script has not.
 */
async function confirmed(path: string): Promise<Response> {
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), PATIENCE_MS);
  const answer = await fetch(path, { cache: "no-cache", signal: patience.signal }).catch(() => null);
  clearTimeout(timer); // its content may take longer
  if (!answer?.ok) return kept(path);
  const cache = await caches.open(NAME);
  void cache.put(path, answer.clone()).catch(() => undefined);
  return answer;
}

async function kept(path: string): Promise<Response> {
  const cache = await caches.open(NAME);
  const found = await cache.match(path);
  if (found !== undefined) return found;
  const answer = await fetch(path, { cache: "no-cache" });
  if (answer.ok) {
    // Kept beside being read: 14 MB of wasm must not wait for the store.
    void cache.put(path, answer.clone()).catch(() => undefined);
  }
  return answer;
}
