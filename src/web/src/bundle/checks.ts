/** What a manifest may say: each function checks one group of rules of docs/bundle.md. */

import { RefusedError } from "../errors.ts";
import { sha256Hex } from "../hash.ts";
import { MAX_NAME_CHARS, MAX_TENSORS } from "../tensors/safetensors.ts";
import { sameShape, sizeOf, type Tensors } from "../tensors/tensors.ts";
import { byCodePoint, isLabel, shown } from "../text.ts";
import { MANIFEST, MAX_BUNDLE_BYTES, SIGNATURE } from "./archive.ts";
import { checkPrograms } from "./ports.ts";
import type { LayerDecl, Manifest, Preprocessing, TensorDecl } from "./manifest.ts";
import { isTimestamp } from "./timestamp.ts";

export const PARAMS = "params.safetensors";
export const STATE = "state.safetensors";
const MAX_FILES = 256;
const MAX_PATH_CHARS = 128;
const MAX_CLASSES = 10_000;
const MAX_LABEL_CHARS = 1024;
const MAX_AXES = 8;
/** Values of one example, and samples of a window: 64 MiB as float32. */
const MAX_EXAMPLE_VALUES = 2 ** 24;
const MAX_RATE_HZ = 1e6;
const MAX_CHANNELS = 4096;
/** As far as float32 counts: examples are kept in float32 arrays everywhere. */
const MAX_TOKENS = 2 ** 24;
const [LEAST_FLOAT32, MOST_FLOAT32] = [2 ** -126, (2 - 2 ** -23) * 2 ** 127];

const SEGMENT = "[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?";
const PATH = new RegExp(`^${SEGMENT}(?:/${SEGMENT}){0,3}$`);
const SHA256 = /^[0-9a-f]{64}$/;

/**
 * Everything that can be said without the files. Rejects with RefusedError, rule `path`,
 * `file-count`, `size`, `missing-file`, `manifest`, `layout`, `preprocessing` or `port`.
 */
export async function checkManifest(manifest: Manifest): Promise<void> {
  checkFiles(manifest);
  checkTexts(manifest);
  await checkLayout(manifest);
  checkParts(manifest);
  checkPreprocessing(manifest.preprocessing);
  checkPrograms(manifest);
}

/** Names, shapes and dtype of a decoded blob are those declared; rule `layout`. */
export function checkDeclared(tensors: Tensors, declared: readonly TensorDecl[], file: string): void {
  const shapes = new Map(declared.map(({ name, shape }) => [name, shape]));
  const missing = [...shapes.keys()].filter((name) => !tensors.has(name));
  const [odd] = [...tensors.keys()].filter((name) => !shapes.has(name)).concat(missing).sort(byCodePoint);
  if (odd !== undefined) {
    throw new RefusedError("layout", `${file}: tensor '${shown(odd)}' is surplus or absent`);
  }
  for (const [name, { shape, dtype }] of tensors) {
    const wanted = shapes.get(name)!;
    if (dtype !== "float32" || !sameShape(shape, wanted)) {
      throw new RefusedError(
        "layout",
        `tensor '${name}': expected [${wanted.join(", ")}] float32, got [${shape.join(", ")}] ${dtype}`,
      );
    }
  }
}

/** Paths, number, sizes and hash fields of the declared files. */
function checkFiles({ files, state }: Manifest): void {
  const entries = Object.entries(files);
  if (entries.length > MAX_FILES) {
    throw new RefusedError("file-count", `bundle: ${entries.length} files > ${MAX_FILES}`);
  }
  const folded = new Set<string>();
  for (const [path, { bytes, sha256 }] of entries) {
    const reserved = path === MANIFEST || path === SIGNATURE;
    if (path.length > MAX_PATH_CHARS || !PATH.test(path) || reserved) {
      throw new RefusedError("path", `bundle file '${shown(path, 80)}': path not allowed`);
    }
    if (folded.has(path.toLowerCase())) {
      throw new RefusedError("path", `bundle file '${path}': differs only in case from another`);
    }
    folded.add(path.toLowerCase());
    if (!(bytes >= 0 && bytes <= MAX_BUNDLE_BYTES) || !SHA256.test(sha256)) {
      throw new RefusedError("size", `bundle file '${path}': impossible size or hash`);
    }
  }
  const total = entries.reduce((sum, [, { bytes }]) => sum + bytes, 0);
  if (total > MAX_BUNDLE_BYTES) {
    throw new RefusedError("size", `bundle: ${total} bytes > ${MAX_BUNDLE_BYTES}`);
  }
  for (const needed of state.length > 0 ? [PARAMS, STATE] : [PARAMS]) {
    if (!(needed in files)) {
      throw new RefusedError("missing-file", `bundle file '${needed}': not in the manifest`);
    }
  }
}

function checkTexts(manifest: Manifest): void {
  const { name, strategy, programs, classes, targets, provenance, no_layers } = manifest;
  const labels = [
    name, strategy.name, ...Object.keys(programs), ...classes, ...targets,
    ...Object.entries(provenance).flat(), ...(no_layers === "" ? [] : [no_layers]),
  ];
  const odd = labels.find((label) => !isLabel(label, MAX_LABEL_CHARS));
  if (odd !== undefined) throw refusedManifest(`text '${shown(odd)}' is not allowed`);
  for (const field of ["sequence", "replaces_up_to"] as const) {
    const number = manifest[field];
    if (!(number >= 0 && number <= Number.MAX_SAFE_INTEGER)) {
      throw refusedManifest(`${field}: expected 0 to ${Number.MAX_SAFE_INTEGER}, got ${number}`);
    }
  }
  checkOutputs(manifest);
  if (!isTimestamp(manifest.created)) {
    throw refusedManifest(`created: expected ISO 8601, got '${shown(manifest.created)}'`);
  }
}

/** A classifier has classes, any other model targets, and never both. */
function checkOutputs({ task, classes, targets }: Manifest): void {
  const isClassifier = task === "classification";
  const [names, others] = isClassifier ? [classes, targets] : [targets, classes];
  const [wanted, surplus] = isClassifier ? ["classes", "targets"] : ["targets", "classes"];
  if (names.length === 0 || names.length > MAX_CLASSES || hasRepeated(names)) {
    throw refusedManifest(`${wanted} are absent, repeated or too many`);
  }
  if (others.length > 0) throw refusedManifest(`task ${task} has no ${surplus}`);
}

async function checkLayout({ params, state, layout_hash }: Manifest): Promise<void> {
  for (const kind of [params, state]) {
    if (kind.length > MAX_TENSORS || hasRepeated(kind.map(({ name }) => name))) {
      throw refusedLayout("tensor names repeated or too many");
    }
    kind.forEach(checkDecl);
  }
  const lines = params.map(({ name, shape }) => `${name} float32 [${shape.join(", ")}]\n`);
  const hash = await sha256Hex(new TextEncoder().encode(lines.join("")));
  if (hash !== layout_hash) {
    throw new RefusedError("layout", `layout hash: expected ${hash}, got '${shown(layout_hash, 80)}'`);
  }
}

function checkDecl({ name, shape }: TensorDecl): void {
  if (!isLabel(name, MAX_NAME_CHARS) || name.includes(" ")) {
    throw new RefusedError(
      "layout",
      `${MANIFEST}: tensor '${shown(name)}': expected a name of 1 to ${MAX_NAME_CHARS} printable characters, letters of any ` +
        "script but no space",
    );
  }
  const bytes = 4 * sizeOf(shape.map((axis) => Math.max(axis, 1)));
  if (shape.some((axis) => axis < 0) || bytes > MAX_BUNDLE_BYTES) {
    throw new RefusedError("layout", `tensor '${name}': impossible shape [${shape.join(", ").slice(0, 80)}]`);
  }
}

function checkParts({ params, programs, head, layers }: Manifest): void {
  const shapes = new Map(params.map(({ name, shape }) => [name, shape]));
  if (hasRepeated(head) || !head.every((name) => shapes.has(name))) {
    throw refusedLayout("head: expected names of params, each once");
  }
  const outputs = programs["features"]?.outputs ?? [];
  const told = new Map(outputs.map(({ key, shape }) => [key, shape]));
  const earlier = new Set<string>();
  for (const layer of layers) {
    const problem = layerProblem(layer, { shapes, told, earlier });
    if (problem !== null) throw refusedLayout(`layer '${shown(layer.name)}': ${problem}`);
    earlier.add(layer.name);
  }
}

interface Known {
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  readonly told: ReadonlyMap<string, readonly (number | string)[]>;
  readonly earlier: ReadonlySet<string>;
}

function layerProblem({ name, before }: LayerDecl, { shapes, told, earlier }: Known): string | null {
  const [width, ...rest] = shapes.get(`${name}.weight`) ?? [];
  if (earlier.has(name) || width === undefined || rest.length === 0) {
    return "expected params to have its weight of two axes or more, once";
  }
  if (before !== null && !(earlier.has(before) && told.has(`layers.${before}`))) {
    return "expected 'before' to name an earlier hidden layer";
  }
  if (!sameShape(told.get(`layers.${name}`) ?? ["batch", width], ["batch", width])) {
    return `its activations are not those of ${width} units`;
  }
  const inputs = sizeOf(rest);
  const units = before ? shapes.get(`${before}.weight`)![0]! : 1;
  return units === 0 || inputs % units !== 0 ? `${inputs} inputs are not those of ${units} units` : null;
}

/** Sizes, rates and statistics that fit together. */
function checkPreprocessing(pre: Preprocessing): void {
  for (const [holds, wanted, got] of [...sizeRules(pre), ...valueRules(pre)]) {
    if (!holds) throw refusedPreprocessing(`${wanted}, got ${shown(typeof got === "object" ? listed(got!) : String(got), 80)}`);
  }
  if (pre.tokens === null) return;
  const plain = pre.mean.length > 0 && pre.mean.every((value) => value === 0) && pre.std.every((value) => value === 1);
  if (!(pre.tokens > 0 && pre.tokens <= MAX_TOKENS && plain)) {
    throw refusedPreprocessing(`at most ${MAX_TOKENS} tokens, not normalised`);
  }
}

/** Whether it holds, what was expected, what was got. */
type Rule = readonly [boolean, string, number | string | null | readonly number[]];

function sizeRules(pre: Preprocessing): Rule[] {
  const shape = pre.input_shape;
  const isWithin = (number: number | null, most: number) =>
    number === null || (number > 0 && number <= most);
  const units = pre.units ?? [];
  const named = pre.channels.length <= MAX_CHANNELS &&
    pre.channels.every((name) => isLabel(name, MAX_LABEL_CHARS));
  return [
    [shape.length <= MAX_AXES, `at most ${MAX_AXES} axes in input_shape`, shape.length],
    [shape.every((axis) => axis > 0), "sizes > 0 in input_shape", shape],
    [sizeOf(shape) <= MAX_EXAMPLE_VALUES, `at most ${MAX_EXAMPLE_VALUES} values in an example`, shape],
    [isWithin(pre.rate_hz, MAX_RATE_HZ), `rate_hz > 0, at most ${MAX_RATE_HZ}`, pre.rate_hz],
    [isWithin(pre.window, MAX_EXAMPLE_VALUES), `window > 0, at most ${MAX_EXAMPLE_VALUES}`, pre.window],
    [isWithin(pre.hop, MAX_EXAMPLE_VALUES), `hop > 0, at most ${MAX_EXAMPLE_VALUES}`, pre.hop],
    [named, `at most ${MAX_CHANNELS} printable channel names`, pre.channels.length],
    [
      units.length === 0 || (units.length === pre.channels.length && units.every((unit) => isLabel(unit, MAX_LABEL_CHARS))),
      `a printable unit for each of ${pre.channels.length} channels`,
      units.join(", "),
    ],
  ];
}

function valueRules({ input_shape, channels, mean, std }: Preprocessing): Rule[] {
  const perChannel = channels.length > 0 ? channels.length : (input_shape.at(-1) ?? 1);
  const counted = (values: readonly number[]) => values.length === 1 || values.length === perChannel;
  return [
    [counted(mean), `1 or ${perChannel} values in mean`, mean.length],
    [counted(std), `1 or ${perChannel} values in std`, std.length],
    [mean.every((value) => Math.abs(value) <= MOST_FLOAT32), "mean within float32", mean],
    [std.every((value) => value >= LEAST_FLOAT32 && value <= MOST_FLOAT32), "std > 0 within float32", std],
  ];
}

function hasRepeated(names: readonly string[]): boolean {
  return new Set(names).size !== names.length;
}

function listed(values: readonly number[]): string {
  return `[${values.join(", ")}]`;
}

function refusedPreprocessing(wanted: string): RefusedError {
  return new RefusedError("preprocessing", `preprocessing: expected ${wanted}`);
}

function refusedManifest(what: string): RefusedError {
  return new RefusedError("manifest", `${MANIFEST}: ${what}`);
}

function refusedLayout(what: string): RefusedError {
  return new RefusedError("layout", `${MANIFEST}: ${what}`);
}
