/** Rounds that the Python devices made; tests/web/golden_rounds.py writes them, anew for each run of the tests. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { openBundle } from "../src/bundle/bundle.ts";
import type { Bundle } from "../src/bundle/bundle.ts";
import type { Statistics, TensorSchema } from "../src/strategies/types.ts";
import { decode } from "../src/tensors/safetensors.ts";
import type { Tensors } from "../src/tensors/tensors.ts";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));

/** What one client told in one round, beside its tensors; null stands for NaN. */
export interface Told {
  /** It had no state, or had lost it. */
  readonly fresh: boolean;
  readonly num_examples: number;
  readonly loss: number | null;
  readonly own: Statistics | null;
  readonly own_loss: number | null;
  readonly more: Readonly<Record<string, Statistics>>;
  /** Something else than the model's own head classifies its features now. */
  readonly scores_features: boolean;
}

export interface Round {
  readonly round_id: number;
  readonly final: boolean;
  readonly clients: Readonly<Record<string, Told>>;
}

type Forms = Readonly<Record<"required" | "optional", Readonly<Record<string, TensorSchema>>>>;

export interface Case {
  readonly strategy: string;
  readonly name: string;
  readonly bundle: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly programs: readonly string[];
  readonly class_counts: boolean;
  readonly payload: Forms;
  readonly uplink: Forms;
  /** File of the tensors. */
  readonly tensors: string;
  readonly rounds: readonly Round[];
  /** All settings, and what each of `GoldenRounds.rates` does to the loss of `phone` on held-out examples. */
  readonly calibration: { readonly settings: Case["settings"]; readonly ratios: readonly number[] };
}

/** Settings that the Python strategies refuse, or take. */
export interface Asked {
  readonly strategy: string;
  readonly bundle: string;
  readonly settings: Readonly<Record<string, unknown>>;
  /** Python's message; null: taken. */
  readonly refused: string | null;
}

/** The folder's documents and files. */
export class GoldenRounds {
  readonly seed: bigint;
  readonly rates: readonly number[];
  readonly cases: readonly Case[];
  readonly asked: readonly Asked[];
  readonly #folder: string;
  readonly #signer: string;

  constructor(folder: string) {
    const document = JSON.parse(readFileSync(join(folder, "cases.json"), "utf8"));
    this.seed = BigInt(document.seed);
    this.rates = document.rates;
    this.cases = document.cases;
    this.asked = document.asked;
    this.#signer = document.signer;
    this.#folder = folder;
  }

  bundle(name: string): Promise<Bundle> {
    return openBundle(this.#read(`${name}.pfb`), { trusted: [this.#signer] });
  }

  /** Tensors `<client>/<x_train|…>` of a bundle's clients. */
  data(bundle: string): Tensors {
    return this.tensors(`${bundle}.data.safetensors`);
  }

  tensors(file: string): Tensors {
    const bytes = this.#read(file);
    return decode(bytes, bytes.length).tensors;
  }

  #read(file: string): Uint8Array {
    return new Uint8Array(readFileSync(join(this.#folder, file)));
  }
}

/** Those of this version of the package; `GOLDEN_ROUNDS` names a folder that has them already. */
export function goldenRounds(): GoldenRounds {
  const { GOLDEN_ROUNDS: given, PYTHON: python = join(ROOT, ".venv/bin/python") } = process.env;
  if (given !== undefined) return new GoldenRounds(given);
  const folder = mkdtempSync(join(tmpdir(), "golden-rounds-"));
  process.on("exit", () => rmSync(folder, { recursive: true }));
  const environment = { ...process.env, OMP_NUM_THREADS: "1" };
  execFileSync(python, [join(ROOT, "tests/web/golden_rounds.py"), folder], { env: environment });
  return new GoldenRounds(folder);
}
