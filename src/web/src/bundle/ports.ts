/** What a manifest may say of its programs' inputs and outputs: rule `port` of docs/bundle.md. */

import { RefusedError } from "../errors.ts";
import { sameShape, sizeOf } from "../tensors/tensors.ts";
import { shown } from "../text.ts";
import type { Manifest, Port, Program, Role } from "./manifest.ts";

const MAX_AXES = 8;
/** Values of a port for one example of a batch, as what the runtime allocates: 1 GiB as float32. */
const MAX_PORT_VALUES = 2 ** 28;
const BATCH = /^batch(?:\*[1-9][0-9]{0,5})?$/;
const INPUT_ROLES: ReadonlySet<Role> = new Set(["param", "state", "input", "noise"]);
const OUTPUT_ROLES: ReadonlySet<Role> = new Set(["loss", "grad", "state", "output"]);

/** Shapes of the tensors that a port's key may name. */
interface Declared {
  readonly params: ReadonlyMap<string, readonly number[]>;
  readonly state: ReadonlyMap<string, readonly number[]>;
}

/** Throws RefusedError, rule `port`. */
export function checkPrograms(manifest: Manifest): void {
  const declared = {
    params: new Map(manifest.params.map(({ name, shape }) => [name, shape])),
    state: new Map(manifest.state.map(({ name, shape }) => [name, shape])),
  };
  for (const [name, program] of Object.entries(manifest.programs)) {
    checkProgram(`program '${shown(name)}'`, program, manifest, declared);
  }
}

function checkProgram(what: string, program: Program, manifest: Manifest, declared: Declared): void {
  const files = [program.file, program.tflite].filter((file) => file !== null);
  if (files.length === 0) throw refused(what, "has neither an ONNX nor a TFLite file");
  const absent = files.find((file) => !(file in manifest.files));
  if (absent !== undefined) throw refused(what, `file '${shown(absent, 80)}' is not declared`);
  for (const [ports, roles] of [[program.inputs, INPUT_ROLES], [program.outputs, OUTPUT_ROLES]] as const) {
    if (new Set(ports.map(({ name }) => name)).size !== ports.length) {
      throw refused(what, "two ports share a name");
    }
    for (const port of ports) {
      const place = `${what}, port '${shown(port.name)}'`;
      if (!roles.has(port.role)) throw refused(place, `role '${port.role}' not here`);
      checkPort(place, port, declared);
    }
  }
  for (const port of [...program.inputs, ...program.outputs]) {
    const place = `${what}, port '${shown(port.name)}'`;
    checkTask(place, port, manifest);
    checkFeatures(place, port);
  }
  if (program.precision !== "float32" && program.inputs.some(({ role }) => role !== "input")) {
    throw refused(what, `${program.precision} takes inputs only`);
  }
}

function checkPort(what: string, port: Port, declared: Declared): void {
  const { role, key, shape, dtype, distribution } = port;
  const odd = shape.find((axis) => (typeof axis === "number" ? axis < 0 : !BATCH.test(axis)));
  if (odd !== undefined) throw refused(what, `impossible axis ${shown(String(odd))}`);
  if (shape.length > MAX_AXES || sizeOf(shape.map(perExample)) > MAX_PORT_VALUES) {
    throw refused(
      what,
      `expected at most ${MAX_AXES} axes and ${MAX_PORT_VALUES} values for each example of a batch, ` +
        `got ${listed(shape)}`,
    );
  }
  if ((role === "noise") !== (distribution !== null)) {
    throw refused(what, "a distribution belongs to a noise port and only there");
  }
  if (role !== "param" && role !== "grad" && role !== "state") return;
  const group = role === "state" ? "state" : "params";
  const wanted = declared[group].get(key);
  if (wanted === undefined) throw refused(what, `no tensor '${shown(key, 80)}' in ${group}`);
  if (dtype !== "float32" || !sameShape(shape, wanted)) {
    throw refused(what, `expected [${wanted.join(", ")}] float32, got ${described(port)}`);
  }
}

/** True values and outputs are what the task says. */
function checkTask(what: string, port: Port, manifest: Manifest): void {
  const isClassifier = manifest.task === "classification";
  const each = ["batch", (isClassifier ? manifest.classes : manifest.targets).length];
  const isTrue = port.role === "input" && port.key === "y";
  if (!isTrue && !(port.role === "output" && port.key === "logits")) return;
  const [dtype, shape] = isTrue && isClassifier ? ["int64", ["batch"]] : ["float32", each];
  if (port.dtype !== dtype || !sameShape(port.shape, shape)) {
    throw refused(
      what, `expected [${shape.join(", ")}] ${dtype} for task ${manifest.task}, got ${described(port)}`,
    );
  }
}

/** Features, and activations of layers, are rows of numbers. */
function checkFeatures(what: string, port: Port): void {
  const { role, key, shape, dtype } = port;
  const rows = key === "features" || key === "penultimate" || key.startsWith("layers.");
  if (role !== "output" || !rows) return;
  const fits = shape.length === 2 && shape[0] === "batch" && typeof shape[1] === "number";
  if (!fits || dtype !== "float32") {
    throw refused(what, `expected [batch, d] float32, got ${described(port)}`);
  }
}

/** How long an axis is with a batch of one; `batch*8` is 8. */
function perExample(axis: number | string): number {
  return typeof axis === "number" ? axis : Number(axis.split("*")[1] ?? 1);
}

function described({ shape, dtype }: Port): string {
  return `${listed(shape)} ${dtype}`;
}

function listed(shape: Port["shape"]): string {
  return shown(`[${shape.join(", ")}]`, 80);
}

function refused(what: string, problem: string): RefusedError {
  return new RefusedError("port", `${what}: ${problem}`);
}
