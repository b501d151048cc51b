/** What the page is shown in pictures: states of a device, told by a worker that follows a script. */

import { pooled } from "../src/federation/gate.ts";
import type { BundleFacts, MoveTold, Phase, RoundFigures, Status } from "../src/device/page_messages.ts";

const hex = (seed: number) => Array.from({ length: 32 }, (_, k) => (((seed + k) * 151 + 37) % 256).toString(16).padStart(2, "0")).join("");

export const ACTIVITIES: BundleFacts = {
  name: "activities-of-the-day",
  digest: hex(3),
  signer: hex(11),
  classes: ["walking", "upstairs", "downstairs", "sitting", "standing", "laying"],
  targets: [],
  preprocessing: {
    input_shape: [128, 6], rate_hz: 50, window: 128, hop: 64, tokens: null,
    channels: ["acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"],
    mean: [0.8, -0.02, 0.08, 0, 0, 0], std: [0.41, 0.4, 0.36, 0.4, 0.38, 0.3],
  },
  bytes: 5_783_680,
  parameters: 1_445_126,
};

export const DIGITS: BundleFacts = {
  name: "digits",
  digest: hex(5),
  signer: hex(11),
  classes: [..."0123456789"],
  targets: [],
  preprocessing: { input_shape: [1, 8, 8], rate_hz: null, window: null, hop: null, tokens: null, channels: [], mean: [0], std: [1] },
  bytes: 412_000,
  parameters: 51_210,
};

const HISTORY: readonly RoundFigures[] = [
  [0.52, 0.61, 1.21], [0.58, 0.66, 0.98], [0.63, 0.71, 0.84], [0.7, 0.74, 0.73], [0.69, 0.79, 0.61], [0.76, 0.82, 0.55], [0.79, 0.85, 0.49],
].map(([before, after, loss], k) => ({ round: k + 1, before: before!, after: after!, loss: loss!, stepMs: 57.6 - k / 3, seconds: 41 - k }));

export const BEFORE: Status = {
  phase: "needs-invitation", pausedBy: null, detail: "", federation: "", deviceId: "", strategy: "", round: 0, rounds: 0, progress: 0,
  history: [], bytesUp: 0, bytesDown: 0, lastSent: [], exampleCounts: [], bundle: null, moved: null, use: "auto", inUse: null,
  policy: { onlyCharging: false, onlyUnmetered: false }, persisted: true,
};

export const JOINED: Status = {
  ...BEFORE, phase: "needs-examples", federation: "Riverside study", deviceId: "anna", strategy: "fedali", rounds: 20,
  bundle: ACTIVITIES, bytesDown: 5_861_003, exampleCounts: [0, 0, 0, 0, 0, 0],
};

export const TRAINING: Status = {
  ...JOINED, phase: "train", round: 8, progress: 0.62, history: HISTORY, bytesUp: 20_344_120, bytesDown: 46_288_024,
  exampleCounts: [42, 18, 7, 51, 33, 24],
  inUse: {
    personal: true,
    evidence: pooled("classification", { examples: 33, before: 17.16, now: 28.05, gain: 10.89, squares: 13 }),
  },
  lastSent: [
    "patch.conv.weight", "patch.conv.bias", "blocks.0.attention.query.weight", "blocks.0.attention.key.weight",
    "blocks.0.attention.value.weight", "blocks.0.feed_forward.0.weight", "blocks.0.feed_forward.2.weight", "head.weight", "head.bias", "prototypes",
  ].map((name, k) => ({ name, bytes: [13_824, 768, 147_456, 147_456, 147_456, 589_824, 589_824, 4_608, 24, 73_728][k]! })),
};

export const MOVED: MoveTold = {
  text: "moved from bundle 0f3c9a1be2d47788 to 71ab04c2d9e65f30: tensors: 2 kept, 2 kept in part, 3 new, 1 dropped",
  notes: [
    "12 of 175 examples are set aside: the new bundle has not their class, or takes another input; they stay on this phone",
    "predictions stay those of the model before until a round has counted",
  ],
  tensors: [
    "new: params/blocks.0.attention.query.weight (comes with the federation's model)",
    "new: params/blocks.0.attention.key.weight (comes with the federation's model)",
    "kept in part: params/head.bias ((5,) is now (6,): the rows of 5 classes)",
    "kept in part: params/head.weight ((5, 192) is now (6, 192): the rows of 5 classes)",
    "kept: params/norm.bias",
    "kept: params/norm.weight",
    "new: params/patch.conv.weight (comes with the federation's model)",
    "dropped: optimiser/0.0 (belongs to the run that is over)",
  ],
};

export function at(phase: Phase, more: Partial<Status> = {}): Status {
  return { ...TRAINING, phase, ...more };
}

/** The text of a worker that tells `status`, counts examples, and predicts the same for everything. */
export function script(status: Status): string {
  return `
    let status = ${JSON.stringify(status)};
    const tell = () => postMessage({ kind: "status", status });
    onmessage = ({ data }) => {
      if (data.kind === "open") tell();
      if (data.kind === "enrol") postMessage({ kind: "refused", command: "enrol", id: null,
        text: "This invitation was valid until 2026-11-22 18:00 UTC: ask for a new one." });
      if (data.kind === "setPolicy") { status = { ...status, policy: data.policy }; tell(); }
      if (data.kind === "addExamples") {
        const exampleCounts = [...status.exampleCounts];
        for (const label of data.examples.y.data) exampleCounts[Number(label)] += 1;
        status = { ...status, exampleCounts };
        tell();
        postMessage({ kind: "added", id: data.id });
      }
      if (data.kind === "predict") {
        const count = status.bundle.classes.length;
        const scores = Float32Array.from({ length: count }, (_, k) => 4 - 1.7 * ((k + count - 3) % count));
        postMessage({ kind: "prediction", id: data.id, outputs: { dtype: "float32", shape: [1, count], data: scores } });
      }
    };
  `;
}
