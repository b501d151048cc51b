/** The Python package's end of the wire (`tests/web/wire_peer.py`), asked line by line. */

import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from "node:child_process";
import { createInterface } from "node:readline";

import { RefusedError } from "../../src/errors.ts";
import { PYTHON, PYTHON_ENVIRONMENT, REPOSITORY } from "../python.ts";

/** Why tests with the package cannot run; false where they can. */
export const WITHOUT_PYTHON: string | false =
  spawnSync(PYTHON, ["-c", "import protofleet.wire.trust.protection"], { env: PYTHON_ENVIRONMENT }).status === 0
    ? false
    : `${PYTHON} has no protofleet: set PYTHON to an interpreter that has it`;

export type Reply = Readonly<Record<string, string>>;

export class Peer {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #lines: AsyncIterator<string>;

  constructor() {
    this.#process = spawn(PYTHON, [`${REPOSITORY}tests/web/wire_peer.py`], { env: PYTHON_ENVIRONMENT });
    this.#process.stderr.pipe(process.stderr);
    this.#lines = createInterface(this.#process.stdout)[Symbol.asyncIterator]();
  }

  /** Throws RefusedError where the other end refused. */
  async ask(what: string, given: Readonly<Record<string, unknown>> = {}): Promise<Reply> {
    this.#process.stdin.write(`${JSON.stringify({ do: what, ...given })}\n`);
    const { value, done } = await this.#lines.next();
    if (done === true) throw new Error(`wire_peer.py ended at '${what}'`);
    const reply = JSON.parse(value) as Reply;
    if (reply["rule"] !== undefined) throw new RefusedError(reply["rule"], reply["message"] ?? "");
    return reply;
  }

  /** The bytes that it answers with. */
  async bytes(what: string, given: Readonly<Record<string, unknown>> = {}): Promise<Uint8Array> {
    const reply = await this.ask(what, given);
    return Buffer.from(reply["payload"] ?? reply["record"] ?? "", "hex");
  }

  stop(): void {
    this.#process.kill();
  }
}
