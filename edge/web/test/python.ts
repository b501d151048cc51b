/** Where the Python package is, whose other end and golden data tests ask for. */

import { existsSync } from "node:fs";
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
