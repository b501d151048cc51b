/** Serves the built page as the hub does: compressed, with its security policy, and nothing else of it. */

import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { extname, join, normalize } from "node:path";

const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
  ".png": "image/png",
  ".wasm": "application/wasm",
  ".webmanifest": "application/manifest+json",
};
const POLICY =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; " +
  "style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self'; manifest-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export interface StaticServer {
  readonly url: string;
  /** Compressed bytes that were sent since the last call. */
  takeSent(): number;
  close(): Promise<void>;
}

/** `instead`: the content of a path, in the place of the file; null for the file. */
export async function serveStatic(root: string, instead: (path: string) => string | null): Promise<StaticServer> {
  let sent = 0;
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://localhost");
    const path = pathname === "/" ? "/index.html" : normalize(pathname);
    void contentOf(root, path, instead(path)).then(
      ([content, encoding]) => {
        const etag = `"${createHash("sha256").update(content).digest("hex").slice(0, 16)}"`;
        if (request.headers["if-none-match"] === etag) {
          response.writeHead(304, { etag, "content-security-policy": POLICY }).end();
          return;
        }
        sent += content.length;
        response.writeHead(200, {
          etag,
          "content-type": TYPES[extname(path)] ?? "application/octet-stream",
          "content-security-policy": POLICY,
          "cache-control": path.startsWith("/assets/") ? "public, max-age=31536000, immutable" : "no-cache",
          ...(encoding === null ? {} : { "content-encoding": encoding }),
        });
        response.end(content);
      },
      () => response.writeHead(404).end(),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://localhost:${port}`,
    takeSent: () => {
      const taken = sent;
      sent = 0;
      return taken;
    },
    close: () => new Promise((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    }),
  };
}

async function contentOf(root: string, path: string, instead: string | null): Promise<[Buffer, string | null]> {
  if (instead !== null) return [Buffer.from(instead), null];
  try {
    return [await readFile(join(root, `${path}.gz`)), "gzip"];
  } catch {
    return [await readFile(join(root, path)), null];
  }
}
