/** Bundles exported for these tests with what Python computes of them: tests/web/program_cases.py. */

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, renameSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Manifest } from "../../src/bundle/manifest.ts";
import type { ProgramSource } from "../../src/runtime/programs.ts";
import { Layout, TensorMap } from "../../src/tensors/tensors.ts";
import type { Network, Tensor } from "../../src/tensors/tensors.ts";

const REPOSITORY = fileURLToPath(new URL("../../../../", import.meta.url));
const SCRIPT = join(REPOSITORY, "tests/web/program_cases.py");

interface Stored {
  readonly file: string;
  readonly dtype: "float32" | "int64";
  readonly shape: number[];
}

interface StoredCase {
  readonly params: Stored;
  readonly buffers: Stored;
  readonly steps: readonly {
    readonly objective: string;
    readonly inputs: Readonly<Record<string, Stored>>;
    readonly losses: readonly number[];
    readonly grads: Stored;
    readonly buffers: Stored;
  }[];
  readonly x: Stored;
  readonly logits: Stored;
  readonly features: Stored;
}

/** A bundle's folder. */
export class Case implements ProgramSource {
  readonly manifest: Manifest;
  readonly stored: StoredCase;

  constructor(readonly folder: string) {
    this.manifest = this.#json("manifest.json") as Manifest;
    this.stored = this.#json("case.json") as StoredCase;
  }

  file(name: string): Uint8Array {
    return new Uint8Array(readFileSync(join(this.folder, name)));
  }

  tensor({ file, dtype, shape }: Stored): Tensor {
    const { buffer } = this.file(file);
    return { dtype, shape, data: dtype === "int64" ? new BigInt64Array(buffer) : new Float32Array(buffer) };
  }

  /** The bundle's values, fresh. */
  network(): Network {
    const { params, state } = this.manifest;
    const packed = (declared: Manifest["params"], stored: Stored): TensorMap =>
      new TensorMap(
        new Layout(declared.map(({ name, shape }) => [name, shape])),
        this.tensor(stored).data as Float32Array,
      );
    return { params: packed(params, this.stored.params), buffers: packed(state, this.stored.buffers) };
  }

  #json(name: string): unknown {
    return JSON.parse(readFileSync(join(this.folder, name), "utf8"));
  }
}

/** The case of that name; all are exported by the repository's Python, once for every version of the script. */
export function openCase(name: string): Case {
  const version = createHash("sha256").update(readFileSync(SCRIPT)).digest("hex").slice(0, 12);
  const kept = join(tmpdir(), `protofleet-web-cases-${version}`);
  if (!existsSync(kept)) {
    const python = process.env["PYTHON"] ?? ".venv/bin/python";
    const folder = mkdtempSync(`${kept}-`);
    execFileSync(python, [SCRIPT, folder], {
      stdio: ["ignore", "ignore", "pipe"],
      cwd: REPOSITORY,
      env: { ...process.env, OMP_NUM_THREADS: "1" },
    });
    if (!existsSync(kept)) renameSync(folder, kept);
  }
  return new Case(join(kept, name));
}
