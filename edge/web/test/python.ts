/** Files that the Python package writes for a test. */

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const OWN = join(ROOT, ".venv", "bin", "python");
const PYTHON = process.env["PYTHON"] ?? (existsSync(OWN) ? OWN : "python3");

/** Runs `tests/web/SCRIPT FOLDER` with a new folder, and returns that; it is gone when the process ends. */
export function writtenByPython(script: string): string {
  const parent = mkdtempSync(join(tmpdir(), "protofleet-web-"));
  process.on("exit", () => rmSync(parent, { recursive: true, force: true }));
  const folder = join(parent, "files");
  const paths = [join(ROOT, "tests"), join(ROOT, "tests", "support")].join(":");
  execFileSync(PYTHON, [join(ROOT, "tests", "web", script), folder], {
    cwd: ROOT,
    env: { ...process.env, PYTHONPATH: paths, OMP_NUM_THREADS: "1" },
    stdio: ["ignore", "ignore", "inherit"],
  });
  return folder;
}
