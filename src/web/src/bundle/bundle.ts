/** Signed bundles, verified whole before anything of them is believed (docs/bundle.md). */

import { InputError, RefusedError } from "../errors.ts";
import { sha256, sha256Hex, toHex } from "../hash.ts";
import type { Model } from "../strategies/types.ts";
import { checkFinite, decode } from "../tensors/safetensors.ts";
import { Layout, TensorMap, type Tensors } from "../tensors/tensors.ts";
import { Archive, MANIFEST, MAX_BUNDLE_BYTES, SIGNATURE } from "./archive.ts";
import { PARAMS, STATE, checkDeclared, checkManifest } from "./checks.ts";
import { type Manifest, type TensorDecl, parseManifest } from "./manifest.ts";
import { checkOnnx } from "./onnx.ts";

export { checkBundleSize } from "./archive.ts";

export const MAX_MANIFEST_BYTES = 4 * 1024 * 1024;
const KEY_BYTES = 32;
const SIGNATURE_BYTES = 64;

/** Whose signatures count. */
export interface OpenOptions {
  /** Hex of the raw public keys; none: nobody's, unless `anySigner`. */
  readonly trusted?: readonly string[];
  /** Accept any valid signature: it shows that the bundle is whole, not whom it comes from. */
  readonly anySigner?: boolean;
}

/** A verified bundle; its files are views into the bytes that were given. */
export class Bundle {
  readonly #files: ReadonlyMap<string, Uint8Array>;

  constructor(
    readonly manifest: Manifest,
    /** Hex SHA-256 of the manifest's bytes, the bundle's identity. */
    readonly digest: string,
    /** Hex of the raw Ed25519 public key. */
    readonly signer: string,
    files: ReadonlyMap<string, Uint8Array>,
  ) {
    this.#files = files;
  }

  /** One file's bytes, not to be written to; throws InputError if the manifest names no such file. */
  file(name: string): Uint8Array {
    const data = this.#files.get(name);
    if (data === undefined) {
      throw new InputError(`bundle: no file '${name}'; it has ${[...this.#files.keys()].join(", ")}`);
    }
    return data;
  }

  /** Initial values of the trained tensors, a fresh copy. */
  get params(): TensorMap {
    return packed(this.#tensors(PARAMS), this.manifest.params);
  }

  /** Initial values of the model's other tensors, a fresh copy. */
  get state(): TensorMap {
    return packed(this.#tensors(STATE), this.manifest.state);
  }

  /** Fresh copies of the initial tensors, and what their names mean. */
  model(): Model {
    const { programs, task, classes, head } = this.manifest;
    const width = programs["features"]?.outputs.find(({ key }) => key === "features")?.shape.at(-1);
    return {
      network: { params: this.params, buffers: this.state },
      task,
      numClasses: classes.length,
      features: typeof width === "number" ? width : 0,
      head,
    };
  }

  /** Throws RefusedError unless both blobs hold what the manifest declares, all of it finite. */
  checkTensors(): void {
    for (const [file, declared] of [[PARAMS, this.manifest.params], [STATE, this.manifest.state]] as const) {
      const tensors = this.#tensors(file);
      checkDeclared(tensors, declared, file);
      checkFinite(tensors);
    }
  }

  #tensors(file: string): Tensors {
    const data = this.#files.get(file);
    return data === undefined ? new Map() : decode(data, MAX_BUNDLE_BYTES).tensors;
  }
}

/**
 * Verify every byte of a single-file bundle.
 *
 * Rejects with RefusedError; its rule is the first one of docs/bundle.md that is broken.
 */
export async function openBundle(bytes: Uint8Array, options: OpenOptions = {}): Promise<Bundle> {
  const archive = new Archive(bytes);
  const text = archive.read(MANIFEST, MAX_MANIFEST_BYTES);
  const signer = await checkSignature(archive.read(SIGNATURE, KEY_BYTES + SIGNATURE_BYTES), text);
  await checkTrusted(signer, options);
  const manifest = parseManifest(text);
  await checkManifest(manifest);
  const declared = Object.entries(manifest.files);
  archive.checkSizes(
    new Map([
      [MANIFEST, text.length],
      [SIGNATURE, KEY_BYTES + SIGNATURE_BYTES],
      ...declared.map(([name, entry]) => [name, entry.bytes] as const),
    ]),
  );
  const files = new Map<string, Uint8Array>();
  for (const [name, entry] of declared) {
    const data = archive.read(name, entry.bytes);
    if ((await sha256Hex(data)) !== entry.sha256) {
      throw new RefusedError("sha256", `bundle file '${name}': not the bytes that were signed`);
    }
    files.set(name, data);
  }
  for (const file of new Set(Object.values(manifest.programs).map((program) => program.file))) {
    if (file !== null) checkOnnx(files.get(file)!, file);
  }
  const bundle = new Bundle(manifest, await sha256Hex(text), toHex(signer), files);
  bundle.checkTensors();
  return bundle;
}

/** First 32 hex digits of the SHA-256 of a raw public key, for people to compare. */
export async function fingerprint(publicKey: Uint8Array): Promise<string> {
  return toHex(await sha256(publicKey)).slice(0, 32);
}

/** The raw public key of the signer. */
async function checkSignature(signature: Uint8Array, text: Uint8Array): Promise<Uint8Array> {
  const signer = signature.subarray(0, KEY_BYTES);
  if (!(await verifies(signer, signature.subarray(KEY_BYTES), text))) {
    throw new RefusedError("signature", `bundle: '${SIGNATURE}' does not fit '${MANIFEST}'`);
  }
  return signer;
}

async function verifies(signer: Uint8Array, signature: Uint8Array, text: Uint8Array): Promise<boolean> {
  if (signer.length !== KEY_BYTES || signature.length !== SIGNATURE_BYTES) return false;
  let key: CryptoKey;
  try {
    key = await crypto.subtle.importKey("raw", signer as BufferSource, "Ed25519", false, ["verify"]);
  } catch (error) {
    if (error instanceof DOMException && error.name === "DataError") return false;
    throw error;
  }
  return crypto.subtle.verify("Ed25519", key, signature as BufferSource, text as BufferSource);
}

async function checkTrusted(signer: Uint8Array, { trusted = [], anySigner = false }: OpenOptions): Promise<void> {
  if (anySigner || trusted.includes(toHex(signer))) return;
  throw new RefusedError(
    "untrusted", `bundle: signed by ${await fingerprint(signer)}, which is not trusted`,
  );
}

function packed(tensors: Tensors, declared: readonly TensorDecl[]): TensorMap {
  const layout = new Layout(declared.map(({ name, shape }) => [name, shape] as const));
  const map = TensorMap.zeros(layout);
  for (const { name } of declared) map.view(name).set(tensors.get(name)!.data as Float32Array);
  return map;
}
