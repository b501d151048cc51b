/** The page's end of the line to the worker that holds the device. */

import type { Command, Examples, Status, Told } from "../device/page_messages.ts";
import type { Tensor } from "../tensors/tensors.ts";

declare const WORKER_URL: string;

export interface Device {
  send(command: Command): void;
  /** Outputs of the phone's model for examples as the bundle takes them. */
  predict(x: Tensor): Promise<Tensor>;
  /** Resolves to whether the examples are kept; why they are not, the listener is told. */
  add(examples: Examples, source: string): Promise<boolean>;
}

export interface DeviceListener {
  status(status: Status): void;
  /** A command was not carried out. */
  refused(command: Command["kind"], text: string): void;
  /** The worker ended without a word. */
  broken(): void;
}

interface Prediction {
  readonly resolve: (outputs: Tensor) => void;
  readonly reject: (reason: Error) => void;
}

/** `remembered`: what the page has kept of the device outside of its store. */
export function startDevice(listener: DeviceListener, remembered: string): Device {
  const worker = new Worker(WORKER_URL, { type: "module" });
  const predictions = new Map<number, Prediction>();
  const additions = new Map<number, (kept: boolean) => void>();
  let next = 1;
  const answer = (told: Exclude<Told, { kind: "status" }>): void => {
    if (told.id !== null) {
      if (told.kind === "prediction") predictions.get(told.id)?.resolve(told.outputs);
      else if (told.kind === "refused") predictions.get(told.id)?.reject(new Error(told.text));
      additions.get(told.id)?.(told.kind === "added");
      predictions.delete(told.id);
      additions.delete(told.id);
    }
    if (told.kind === "refused") listener.refused(told.command, told.text);
  };
  worker.addEventListener("message", ({ data }: MessageEvent<Told>) => {
    if (data.kind === "status") listener.status(data.status);
    else answer(data);
  });
  worker.addEventListener("error", () => listener.broken());
  worker.postMessage({ kind: "open", remembered } satisfies Command);
  return {
    send: (command) => worker.postMessage(command),
    predict: (x) =>
      new Promise((resolve, reject) => {
        const id = next++;
        predictions.set(id, { resolve, reject });
        worker.postMessage({ kind: "predict", id, x } satisfies Command);
      }),
    add: (examples, source) =>
      new Promise((resolve) => {
        const id = next++;
        additions.set(id, resolve);
        worker.postMessage({ kind: "addExamples", id, examples, source } satisfies Command);
      }),
  };
}
