/** The page's end of the line to the worker that holds the device. */

import type { Command, Status, Told } from "../device/page_messages.ts";
import type { Tensor } from "../tensors/tensors.ts";

declare const WORKER_URL: string;

export interface Device {
  send(command: Command): void;
  /** Outputs of the phone's model for examples as the bundle takes them. */
  predict(x: Tensor): Promise<Tensor>;
}

export interface DeviceListener {
  status(status: Status): void;
  /** A command was not carried out. */
  refused(command: Command["kind"], text: string): void;
  /** The worker ended without a word. */
  broken(): void;
}

interface Waiting {
  readonly resolve: (outputs: Tensor) => void;
  readonly reject: (reason: Error) => void;
}

/** `remembered`: what the page has kept of the device outside of its store. */
export function startDevice(listener: DeviceListener, remembered: string): Device {
  const worker = new Worker(WORKER_URL, { type: "module" });
  const predictions = new Map<number, Waiting>();
  let next = 1;
  worker.addEventListener("message", ({ data }: MessageEvent<Told>) => {
    if (data.kind === "status") listener.status(data.status);
    else if (data.kind === "prediction") {
      predictions.get(data.id)?.resolve(data.outputs);
      predictions.delete(data.id);
    } else {
      // Predictions are refused without their number; none of those under way will be answered.
      if (data.command === "predict") rejectAll(predictions, data.text);
      listener.refused(data.command, data.text);
    }
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
  };
}

function rejectAll(predictions: Map<number, Waiting>, text: string): void {
  for (const { reject } of predictions.values()) reject(new Error(text));
  predictions.clear();
}
