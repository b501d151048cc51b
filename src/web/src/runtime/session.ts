/**
 * ONNX Runtime compiled to WebAssembly, on one thread: opening a program's file and running it.
 *
 * Its runs keep values on a stack across awaits, so one is never begun before the last has ended.
 */

import { env, InferenceSession, Tensor as OrtTensor } from "onnxruntime-web/wasm";
import type { Port, Program } from "../bundle/manifest.ts";
import { ProvisionError, UnavailableError } from "../errors.ts";
import { sizeOf } from "../tensors/tensors.ts";
import type { Tensor } from "../tensors/tensors.ts";
import { RUNTIME } from "../texts.ts";

env.wasm.numThreads = 1;
env.logLevel = "error";

const OPTIONS: InferenceSession.SessionOptions = {
  executionProviders: ["wasm"],
  logSeverityLevel: 3,
  // Planned memory comes on top of what is there already, and is no faster.
  enableMemPattern: false,
  // A bundle's ONNX files are checked for bytes outside them; ONNX Runtime's own format is not.
  extra: { session: { load_model_format: "ONNX" } },
};

/** Milliseconds of computing for which the worker's other events get a turn, and the most turns at once. */
const TURN_MS = 25;
const MOST_TURNS = 8;

let busy: Promise<unknown> = Promise.resolve();
let turnedAt = 0;

/** One use of the runtime after the other. */
function exclusively<T>(work: () => Promise<T>): Promise<T> {
  const done = busy.then(work);
  busy = done.catch(() => undefined);
  return done;
}

/** Lets messages, timers and the network in: awaiting a run alone never does, it computes at once. */
async function takeTurns(): Promise<void> {
  const turns = Math.min(MOST_TURNS, Math.floor((performance.now() - turnedAt) / TURN_MS));
  for (let turn = 0; turn < turns; turn += 1) await nextTask();
  if (turns > 0) turnedAt = performance.now();
}

/** Resolves after the events that wait now; a timer of 0 would wait for 4 ms more. */
function nextTask(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** A loaded program. */
export class Session {
  readonly #session: InferenceSession;
  readonly #where: string;
  readonly #wanted: readonly string[];

  private constructor(session: InferenceSession, where: string, program: Program) {
    this.#session = session;
    this.#where = where;
    this.#wanted = program.outputs.map((port) => port.name);
  }

  /**
   * Loads the serialised ONNX model of a program; `where` is its path in the bundle.
   *
   * Throws ProvisionError if it does not load or differs from its ports, UnavailableError where
   * WebAssembly does not start.
   */
  static open(model: Uint8Array, where: string, program: Program): Promise<Session> {
    return exclusively(async () => {
      await started();
      try {
        const session = await InferenceSession.create(model, OPTIONS);
        checkPorts(where, program, session);
        return new Session(session, where, program);
      } catch (error) {
        throw error instanceof ProvisionError ? error : failure(`program '${where}': does not load`, error);
      }
    });
  }

  /** Outputs by port name; inputs are copied before anything is computed, outputs are the caller's. */
  run(inputs: ReadonlyMap<string, Tensor>): Promise<ReadonlyMap<string, Tensor>> {
    const feeds: Record<string, OrtTensor> = {};
    for (const [name, tensor] of inputs) feeds[name] = ortTensor(tensor);
    return exclusively(async () => {
      await takeTurns();
      try {
        const found = await this.#session.run(feeds, this.#wanted);
        return new Map(this.#wanted.map((name) => [name, ownTensor(found[name]!)]));
      } catch (error) {
        throw failure(`program '${this.#where}'`, error);
      }
    });
  }

  close(): Promise<void> {
    return exclusively(() => this.#session.release());
  }
}

let start: Promise<void> | undefined;

/** Starts WebAssembly with the smallest model there is: what fails then is not the bundle's fault. */
function started(): Promise<void> {
  start ??= InferenceSession.create(IDENTITY, OPTIONS).then(
    (session) => session.release(),
    async (error: unknown) => {
      await dropKept();
      throw new UnavailableError(RUNTIME.noStart(messageOf(error)));
    },
  );
  return start;
}

/** What the service worker keeps of WebAssembly may be what does not compile: the next start fetches it again. */
async function dropKept(): Promise<void> {
  for (const name of (await globalThis.caches?.keys()) ?? []) {
    const cache = await caches.open(name);
    const kept = (await cache.keys()).filter(({ url }) => url.endsWith(".wasm"));
    await Promise.all(kept.map((request) => cache.delete(request)));
  }
}

/** `y = Identity(x)` of one float32, as ONNX IR 8, opset 13. */
const IDENTITY = Uint8Array.from(
  atob("CAg6NwoQCgF4EgF5IghJZGVudGl0eRIBaVoPCgF4EgoKCAgBEgQKAggBYg8KAXkSCgoICAESBAoCCAFCBAoAEA0="),
  (letter) => letter.charCodeAt(0),
);

function ortTensor({ dtype, shape, data }: Tensor): OrtTensor {
  return new OrtTensor(dtype as "float32", data as Float32Array, shape);
}

function ownTensor({ type, dims, data }: OrtTensor): Tensor {
  return { dtype: type as "float32", shape: dims, data: data as Float32Array };
}

const SYMBOLIC_AXIS = /^batch(\*[1-9][0-9]*)?$/;

function checkPorts(where: string, program: Program, session: InferenceSession): void {
  const known = new Set(program.inputs.map((port) => port.name));
  const surplus = session.inputNames.filter((name) => !known.has(name)).sort();
  if (surplus.length > 0) throw new ProvisionError(`program '${where}': no port for its input '${surplus[0]}'`);
  for (const port of program.inputs) checkPort(where, port, session.inputMetadata);
  for (const port of program.outputs) checkPort(where, port, session.outputMetadata);
}

function checkPort(program: string, port: Port, found: readonly InferenceSession.ValueMetadata[]): void {
  const where = `program '${program}', port '${port.name}'`;
  const one = found.find(({ name }) => name === port.name);
  if (one === undefined) throw new ProvisionError(`${where}: not in the program`);
  const dtype = one.isTensor ? one.type : "no tensor";
  if (!one.isTensor || dtype !== port.dtype) {
    throw new ProvisionError(`${where}: expected ${port.dtype}, got ${dtype}`);
  }
  const symbol = port.shape.find((axis) => typeof axis === "string" && !SYMBOLIC_AXIS.test(axis));
  if (symbol !== undefined) {
    throw new ProvisionError(`${where}: expected a dimension like 'batch*8', got '${symbol}'`);
  }
  const differs = port.shape.some((axis, at) => {
    const got = one.shape[at];
    return typeof axis === "number" && typeof got === "number" && axis !== got;
  });
  if (port.shape.length !== one.shape.length || differs) {
    throw new ProvisionError(`${where}: expected [${port.shape.join(", ")}], got [${one.shape.join(", ")}]`);
  }
}

/** The data of an output that must have so many numbers. */
export function floatsOf(where: string, found: ReadonlyMap<string, Tensor>, port: Port, size: number): Float32Array {
  const { shape, data } = found.get(port.name)!;
  if (sizeOf(shape) !== size) {
    throw new ProvisionError(`program '${where}', port '${port.name}': expected ${size} numbers, got [${shape.join(", ")}]`);
  }
  return data as Float32Array;
}

/** What ONNX Runtime, its JavaScript around it and browsers say; the heap ends where an offset is out of its bounds. */
const NO_MEMORY = /bad_alloc|memory|OOM|allocat|out of bounds|array length/i;

/** Memory that is lacking is the device's fault, anything else the program's. */
function failure(what: string, error: unknown): Error {
  const message = messageOf(error);
  if (!NO_MEMORY.test(message)) return new ProvisionError(`${what}: ${message}`);
  return new UnavailableError(RUNTIME.tooLarge(what, message));
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
