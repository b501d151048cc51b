/** One program of a bundle as a function of a network: ports by role, and the batch on its way in. */

import type { Port, Program, Role } from "../bundle/manifest.ts";
import { InputError, ProvisionError } from "../errors.ts";
import type { Batch, Step } from "../strategies/types.ts";
import { float32, Layout, sizeOf, TensorMap } from "../tensors/tensors.ts";
import type { Network, Tensor } from "../tensors/tensors.ts";
import type { Generator } from "./random.ts";
import { floatsOf, Session } from "./session.ts";

/** Layouts of a bundle's parameters and buffers. */
export interface Layouts {
  readonly params: Layout;
  readonly buffers: Layout;
}

/** A program, its model's layouts and its file; it is loaded at the first call. */
export class LazyProgram {
  #session: Promise<Session> | undefined;
  readonly #model: () => Uint8Array;

  /** Throws ProvisionError where ports of parameters and buffers do not fit the layouts. */
  constructor(
    readonly where: string,
    readonly program: Program,
    readonly layouts: Layouts,
    model: () => Uint8Array,
  ) {
    this.#model = model;
    for (const port of [...program.inputs, ...program.outputs]) this.#checkLayout(port);
  }

  /** The loaded program; a failure is told again at the next call. */
  session(): Promise<Session> {
    this.#session ??= Session.open(this.#model(), this.where, this.program);
    return this.#session;
  }

  async close(): Promise<void> {
    const open = this.#session;
    this.#session = undefined;
    await open?.then(
      (session) => session.close(),
      () => undefined,
    );
  }

  inputs(role: Role): readonly Port[] {
    return this.program.inputs.filter((port) => port.role === role);
  }

  outputs(role: Role): readonly Port[] {
    return this.program.outputs.filter((port) => port.role === role);
  }

  /** The only float32 output of a role (and key); throws ProvisionError. */
  onlyOutput(role: Role, key?: string): Port {
    const ports = this.outputs(role).filter((port) => key === undefined || port.key === key);
    const [port] = ports;
    if (port === undefined || ports.length > 1 || port.dtype !== "float32") {
      const named = key === undefined ? "" : ` and key '${key}'`;
      throw new ProvisionError(
        `program '${this.where}': expected one float32 output with role '${role}'${named}, got ${ports.length}`,
      );
    }
    return port;
  }

  /** Parameters and buffers by port name, where they lie; throws InputError for another network's. */
  values({ params, buffers }: Network): Map<string, Tensor> {
    checkMap("params", params, this.layouts.params);
    checkMap("buffers", buffers, this.layouts.buffers);
    const valued = (role: Role, map: TensorMap): [string, Tensor][] =>
      this.inputs(role).map(({ name, key }) => [name, float32(map.layout.span(key).shape, map.view(key))]);
    return new Map([...valued("param", params), ...valued("state", buffers)]);
  }

  #checkLayout(port: Port): void {
    const { params, buffers } = this.layouts;
    const layout = { param: params, grad: params, state: buffers }[port.role as string];
    if (layout === undefined) return;
    const expected = layout.has(port.key) ? layout.span(port.key).shape : null;
    if (expected?.join() !== port.shape.join() || port.dtype !== "float32") {
      throw new ProvisionError(
        `program '${this.where}', port '${port.name}': ${port.role} '${port.key}' is ` +
          `${expected === null ? "absent" : shown(expected)} float32 in the bundle, got ${shown(port.shape)} ${port.dtype}`,
      );
    }
  }
}

function checkMap(what: string, tensors: TensorMap, layout: Layout): void {
  if (tensors.layout === layout) return;
  const same =
    tensors.layout.spans.length === layout.spans.length &&
    layout.spans.every(({ name, shape }, at) => {
      const got = tensors.layout.spans[at]!;
      return got.name === name && got.shape.join() === shape.join();
    });
  if (!same) {
    throw new InputError(
      `${what}: expected the bundle's ${layout.names.length} tensors of ${layout.size} numbers, got ` +
        `${tensors.layout.names.length} of ${tensors.layout.size}`,
    );
  }
}

/** The batch size of a batch; 1 where no input has a batch axis. */
function batchSize(where: string, ports: readonly Port[], batch: Batch): number {
  const port = ports.find(({ shape }) => shape.includes("batch"));
  if (port === undefined) return 1;
  const tensor = tensorAt(where, port, batch);
  const size = tensor.shape[port.shape.indexOf("batch")] ?? 0;
  if (tensor.shape.length !== port.shape.length || size < 1) {
    throw new InputError(
      `program '${where}', input '${port.key}': expected ${shown(port.shape)} ${port.dtype} with a batch of ` +
        `at least 1, got ${shown(tensor.shape)} ${tensor.dtype}`,
    );
  }
  return size;
}

/** The batch's tensors by port name; an int64 port takes whole numbers in float32, too: examples are kept so. */
function staged(where: string, ports: readonly Port[], batch: Batch, size: number): [string, Tensor][] {
  return ports.map((port) => {
    const tensor = tensorAt(where, port, batch);
    const shape = resolved(port, size);
    const fitting = tensor.dtype === port.dtype ? tensor : wholeNumbers(tensor, port);
    if (fitting === null || tensor.shape.join() !== shape.join()) {
      throw new InputError(
        `program '${where}', input '${port.key}': expected ${shown(shape)} ${port.dtype}, got ` +
          `${shown(tensor.shape)} ${tensor.dtype}`,
      );
    }
    return [port.name, fitting];
  });
}

function tensorAt(where: string, port: Port, batch: Batch): Tensor {
  const found = batch.get(port.key);
  if (found !== undefined) return found;
  throw new InputError(
    `program '${where}', input '${port.key}': expected ${shown(port.shape)} ${port.dtype}, got nothing`,
  );
}

function wholeNumbers({ dtype, shape, data }: Tensor, port: Port): Tensor | null {
  if (port.dtype !== "int64" || dtype !== "float32") return null;
  const numbers = data as Float32Array;
  if (!numbers.every(Number.isInteger)) return null;
  return { dtype: "int64", shape, data: BigInt64Array.from(numbers, BigInt) };
}

/** The shape of a port at a batch size: `["batch*8", 192]` at 64 is `[512, 192]`. */
function resolved(port: Port, batch: number): number[] {
  return port.shape.map((axis) => (typeof axis === "number" ? axis : batch * Number(axis.split("*")[1] ?? 1)));
}

function shown(shape: readonly (number | string)[]): string {
  return `[${shape.join(", ")}]`;
}

/** A training program: forward and backward over one batch. Gradients and buffers lie in its own memory. */
export class TrainProgram {
  readonly #source: LazyProgram;
  readonly #loss: Port;
  readonly #inputs: readonly Port[];
  readonly #noise: readonly Port[];
  readonly #grads: readonly Port[];
  readonly #buffers: readonly Port[];
  readonly #drawn = new Map<number, readonly [Port, Tensor][]>();
  #results: { readonly grads: TensorMap; readonly buffers: TensorMap } | undefined;

  constructor(source: LazyProgram) {
    this.#source = source;
    this.#loss = source.onlyOutput("loss");
    this.#inputs = source.inputs("input");
    this.#noise = source.inputs("noise");
    this.#grads = source.outputs("grad");
    this.#buffers = source.outputs("state");
    for (const { name, dtype, distribution } of this.#noise) {
      if (distribution === null || dtype !== "float32") {
        throw new ProvisionError(
          `program '${source.where}', noise '${name}': expected float32 with a distribution, got ${dtype} and ` +
            `${distribution ?? "none"}`,
        );
      }
    }
  }

  /**
   * Loss and gradients of `batch` at the network's parameters; noise is drawn in the order of the ports.
   *
   * Throws InputError for another network or batch than the program's, or fewer examples than it takes,
   * ProvisionError if the program fails.
   */
  async step(network: Network, batch: Batch, rng: Generator): Promise<Step> {
    const { where, program } = this.#source;
    const size = batchSize(where, this.#inputs, batch);
    if (size < program.min_batch) {
      throw new InputError(
        `program '${where}': expected at least ${program.min_batch} examples, got ${size}: the model ` +
          "normalises over the batch, and one example has no variance",
      );
    }
    const session = await this.#source.session();
    const inputs = this.#source.values(network);
    for (const [name, tensor] of staged(where, this.#inputs, batch, size)) inputs.set(name, tensor);
    for (const [port, tensor] of this.#draw(size, rng)) inputs.set(port.name, tensor);
    return this.#collect(await session.run(inputs), network);
  }

  #draw(size: number, rng: Generator): readonly [Port, Tensor][] {
    let drawn = this.#drawn.get(size);
    if (drawn === undefined) {
      drawn = this.#noise.map((port) => {
        const shape = resolved(port, size);
        return [port, float32(shape, new Float32Array(sizeOf(shape)))];
      });
      // A full and a last partial batch; not one for every size that ever was.
      if (this.#drawn.size > 1) this.#drawn.clear();
      this.#drawn.set(size, drawn);
    }
    for (const [port, { data }] of drawn) {
      if (port.distribution === "uniform") rng.uniform(data as Float32Array);
      else rng.normal(data as Float32Array);
    }
    return drawn;
  }

  #collect(found: ReadonlyMap<string, Tensor>, network: Network): Step {
    const { where, layouts } = this.#source;
    this.#results ??= { grads: TensorMap.zeros(layouts.params), buffers: TensorMap.zeros(layouts.buffers) };
    const { grads, buffers } = this.#results;
    // What the program does not write is carried over.
    if (buffers.buffer !== network.buffers.buffer) buffers.buffer.set(network.buffers.buffer);
    for (const [ports, into] of [[this.#grads, grads], [this.#buffers, buffers]] as const) {
      for (const port of ports) {
        const { offset, size } = into.layout.span(port.key);
        into.buffer.set(floatsOf(where, found, port, size), offset);
      }
    }
    return { loss: floatsOf(where, found, this.#loss, 1)[0]!, grads, buffers };
  }
}

/** A program without gradients, evaluated in batches of consecutive rows, the last one partial. */
export class InferProgram {
  readonly #source: LazyProgram;
  readonly #output: Port;
  readonly #inputs: readonly Port[];

  constructor(source: LazyProgram, output: string) {
    this.#source = source;
    this.#output = source.onlyOutput("output", output);
    this.#inputs = source.inputs("input");
    const { shape } = this.#output;
    if (shape[0] !== "batch" || shape.slice(1).some((axis) => typeof axis !== "number")) {
      throw new ProvisionError(
        `program '${source.where}': expected an output '${output}' of [batch, …], got ${shown(shape)}`,
      );
    }
    if (source.inputs("noise").length > 0) throw new ProvisionError(`program '${source.where}': expected no noise`);
  }

  /** The output for every row of `x`, (n, …). */
  async rows(network: Network, x: Tensor, size: number): Promise<Tensor> {
    if (!(size >= 1)) throw new InputError(`batch_size: expected at least 1, got ${size}`);
    const { where } = this.#source;
    const values = this.#source.values(network);
    const count = x.shape[0]!;
    const axes = this.#output.shape.slice(1) as number[];
    const width = sizeOf(axes);
    const result = new Float32Array(count * width);
    for (let start = 0; start < count; start += size) {
      const session = await this.#source.session();
      const rows = Math.min(size, count - start);
      const part = staged(where, this.#inputs, new Map([["x", consecutive(x, start, rows)]]), rows);
      const found = await session.run(new Map([...values, ...part]));
      result.set(floatsOf(where, found, this.#output, rows * width), start * width);
    }
    return float32([count, ...axes], result);
  }
}

/** Rows where they lie. */
function consecutive({ dtype, shape, data }: Tensor, start: number, rows: number): Tensor {
  const [, ...axes] = shape;
  const width = sizeOf(axes);
  return { dtype, shape: [rows, ...axes], data: data.subarray(start * width, (start + rows) * width) };
}
