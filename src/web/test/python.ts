/** Where the Python package is, whose other end and golden data tests ask for. */

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const REPOSITORY = fileURLToPath(new URL("../../..", import.meta.url));

const own = `${REPOSITORY}.venv/bin/python`;
/** `PYTHON` of the environment, else the repository's own, else the system's. */
export const PYTHON = process.env["PYTHON"] ?? (existsSync(own) ? own : "python3");

/** The environment in which helpers of `tests/` find each other. */
export const PYTHON_ENVIRONMENT = {
  ...process.env,
  PYTHONPATH: ["tests/support", "tests"].map((folder) => REPOSITORY + folder).join(":"),
  OMP_NUM_THREADS: "1",
};

/** Runs `tests/web/SCRIPT FOLDER` with a new folder, and returns that; it is gone when the process ends. */
export function writtenByPython(script: string): string {
  const parent = mkdtempSync(join(tmpdir(), "protofleet-web-"));
  process.on("exit", () => rmSync(parent, { recursive: true, force: true }));
  const folder = join(parent, "files");
  execFileSync(PYTHON, [join(REPOSITORY, "tests", "web", script), folder], {
    cwd: REPOSITORY,
    env: PYTHON_ENVIRONMENT,
    stdio: ["ignore", "ignore", "inherit"],
  });
  return folder;
}
