/**
 * Builds the package's `hub/page/`: the page, the device's worker, the service worker, icons, and ONNX Runtime's wasm.
 *
 * Names under `assets/` end with a hash of their content, so that they may be kept for ever. Every
 * file that shrinks lies beside its `.gz` and `.br`. The build fails if a first start would
 * transfer more than 4.5 MB.
 */

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";

import { build } from "esbuild";

import { iconPng, iconSvg } from "./icons.mjs";

const ROOT = dirname(fileURLToPath(import.meta.url));
const OUT = join(ROOT, "../protofleet/hub/page");
const MOST_FIRST_TRANSFER = 4_500_000;
const WASM = "ort-wasm-simd-threaded.wasm";
const BIG = 1 << 20;

/** Path under `OUT` → content. */
const files = new Map();

function put(path, content) {
  files.set(path, Buffer.from(content));
  return path;
}

function hashed(path, content) {
  const hash = createHash("sha256").update(content).digest("hex").slice(0, 10);
  const dot = path.lastIndexOf(".");
  return put(`${path.slice(0, dot)}-${hash}${path.slice(dot)}`, content);
}

async function bundled(entry, options = {}) {
  const made = await build({
    entryPoints: [join(ROOT, entry)],
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022", "safari18.4"],
    legalComments: "none",
    write: false,
    logLevel: "warning",
    ...options,
  });
  return made.outputFiles[0].contents;
}

/** The wasm build of ONNX Runtime with one thread, whichever name it is imported by. */
function onnxRuntime(wasmPath) {
  const script = createRequire(import.meta.url).resolve(`onnxruntime-web/${WASM}`);
  const module = join(dirname(script), "ort.wasm.bundle.min.mjs");
  return {
    name: "onnxruntime-web",
    setup(plugin) {
      plugin.onResolve({ filter: /^onnxruntime-web(\/wasm)?$/ }, () => ({ path: module }));
      plugin.onLoad({ filter: /ort\.wasm\.bundle\.min\.mjs$/ }, ({ path }) => {
        const source = readFileSync(path, "utf-8");
        if (!source.includes(`"${WASM}"`)) throw new Error(`${path}: does not name ${WASM}`);
        return { contents: source.replaceAll(`"${WASM}"`, `"${basename(wasmPath)}"`), loader: "js" };
      });
    },
  };
}

async function compressed(content) {
  // The best quality takes a minute for ONNX Runtime's wasm and gains a tenth.
  const quality = content.length > BIG ? 9 : 11;
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: quality,
    [constants.BROTLI_PARAM_LGWIN]: 24,
    [constants.BROTLI_PARAM_SIZE_HINT]: content.length,
  };
  const [gz, br] = await Promise.all([
    promisify(gzip)(content, { level: 9 }),
    promisify(brotliCompress)(content, { params }),
  ]);
  return { gz, br };
}

function manifest(icons) {
  return JSON.stringify({
    id: "/",
    name: "Protofleet",
    short_name: "Protofleet",
    description: "This phone trains a shared model. Your data stay on it.",
    start_url: "/",
    scope: "/",
    display: "standalone",
    background_color: "#f5f7f8",
    theme_color: "#0b6e6e",
    icons,
  });
}

async function assemble() {
  const require = createRequire(import.meta.url);
  const wasm = hashed(`assets/${WASM}`, readFileSync(require.resolve(`onnxruntime-web/${WASM}`)));
  const worker = hashed(
    "assets/worker.js",
    await bundled("src/device/worker.ts", { plugins: [onnxRuntime(wasm)], define: { global: "globalThis" } }),
  );
  const styles = hashed("assets/page.css", await bundled("src/page/page.css"));
  const script = hashed(
    "assets/page.js",
    await bundled("src/page/main.ts", { define: { WORKER_URL: JSON.stringify(`/${worker}`) } }),
  );
  const svg = hashed("assets/icon.svg", iconSvg());
  const touch = hashed("assets/touch-icon.png", iconPng(180, false));
  const png = [192, 512].map((size) => [size, hashed(`assets/icon-${size}.png`, iconPng(size, true))]);
  const maskable = hashed("assets/icon-maskable.png", iconPng(512, false));
  put("manifest.webmanifest", manifest([
    { src: `/${svg}`, sizes: "any", type: "image/svg+xml" },
    ...png.map(([size, path]) => ({ src: `/${path}`, sizes: `${size}x${size}`, type: "image/png" })),
    { src: `/${maskable}`, sizes: "512x512", type: "image/png", purpose: "maskable" },
  ]));
  const html = readFileSync(join(ROOT, "src/page/index.html"), "utf-8");
  const names = { styles, script, svg, touch };
  put("index.html", html.replaceAll(/\{\{(\w+)\}\}/g, (_, name) => `/${names[name]}`));
  const shell = ["/", `/${script}`, `/${styles}`, `/${worker}`, `/${svg}`, "/manifest.webmanifest"];
  const version = createHash("sha256").update([...files.keys()].join("\n")).update(html).digest("hex").slice(0, 10);
  put("service_worker.js", await bundled("src/service_worker.ts", {
    define: {
      VERSION: JSON.stringify(version),
      SHELL: JSON.stringify(shell),
      LATER: JSON.stringify([`/${wasm}`]),
      DEVICE: JSON.stringify(`/${worker}`),
    },
  }));
  // What a first start fetches: icons are the installer's, and one of them is in the page's head.
  return ["index.html", "manifest.webmanifest", "service_worker.js", script, styles, worker, svg, wasm];
}

async function write() {
  rmSync(OUT, { recursive: true, force: true });
  const sizes = new Map();
  for (const [path, content] of files) {
    mkdirSync(dirname(join(OUT, path)), { recursive: true });
    writeFileSync(join(OUT, path), content);
    const { gz, br } = await compressed(content);
    const smaller = !path.endsWith(".png") && gz.length < content.length;
    if (smaller) {
      writeFileSync(join(OUT, `${path}.gz`), gz);
      writeFileSync(join(OUT, `${path}.br`), br);
    }
    sizes.set(path, [content.length, smaller ? gz.length : content.length, smaller ? br.length : content.length]);
  }
  return sizes;
}

function report(sizes, first) {
  const line = (name, numbers) => console.log(name.padEnd(52), ...numbers.map((n) => String(n).padStart(10)));
  line("first start, bytes", ["plain", "gzip", "brotli"]);
  const total = [0, 0, 0];
  for (const path of first) {
    line(path, sizes.get(path));
    sizes.get(path).forEach((size, k) => (total[k] += size));
  }
  line("total", total);
  if (Math.max(total[1], total[2]) > MOST_FIRST_TRANSFER) {
    console.error(`first start: expected at most ${MOST_FIRST_TRANSFER} bytes compressed, got ${total[1]}`);
    process.exitCode = 1;
  }
}

const first = await assemble();
report(await write(), first);
