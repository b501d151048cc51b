/** What the page asks of the device's worker, and what the worker tells the page. */

import type { GateEvidence } from "../federation/gate.ts";
import type { Preprocessing } from "../bundle/manifest.ts";
import type { Tensor } from "../tensors/tensors.ts";

/** Labelled examples of the phone's owner; `y` are classes, or targets (n, T). */
export interface Examples {
  readonly x: Tensor;
  readonly y: Tensor;
  /** Whether each example overlaps the one before it, as windows of a stream do; null: none does. */
  readonly follows: readonly boolean[] | null;
  /** Of a file that says so; "both": the first of each class train, the last test. */
  readonly part: "train" | "test" | "both";
}

/** When training is allowed; what the browser cannot tell does not forbid it. */
export interface Policy {
  readonly onlyCharging: boolean;
  readonly onlyUnmetered: boolean;
}

/** Which model predicts: the one that the evidence is for, the owner's own, or the bundle's. */
export type Use = "auto" | "personal" | "bundle";

export type Command =
  /**
   * Opens the store; answered by `status`. `remembered`: what the page has kept of the device outside
   * of it, such as "phone-3 of sunrise", so that a store that the browser has deleted is told of.
   */
  | { readonly kind: "open"; readonly remembered?: string }
  /**
   * Takes the text of an invitation, or a page address that ends with it; "" joins a federation
   * without keys, as `deviceId` or under a name drawn at random. `broker`: WebSocket address of the
   * broker itself, in place of the hub's way there.
   */
  | { readonly kind: "enrol"; readonly invitation: string; readonly deviceId?: string; readonly broker?: string }
  /** Answered by `added` with the same id when they are kept. */
  | { readonly kind: "addExamples"; readonly id: number; readonly examples: Examples; readonly source: string }
  | { readonly kind: "clearExamples" }
  /** Answered by `prediction` with the same id; x holds examples as the bundle takes them. */
  | { readonly kind: "predict"; readonly id: number; readonly x: Tensor }
  | { readonly kind: "pause" }
  | { readonly kind: "resume" }
  /** Says goodbye to the federation; the model stays. */
  | { readonly kind: "leave" }
  /** Deletes all that this page has stored. */
  | { readonly kind: "forget" }
  | { readonly kind: "use"; readonly use: Use }
  | { readonly kind: "setPolicy"; readonly policy: Policy }
  /** What the page knows of the phone; null where the browser does not tell. */
  | { readonly kind: "phone"; readonly charging: boolean | null; readonly unmetered: boolean | null; readonly online: boolean };

export type Phase =
  | "opening" | "needs-invitation" | "enrolling" | "fetching-bundle" | "needs-examples"
  | "connecting" | "waiting" | "calibrate" | "receive" | "train" | "send" | "paused" | "finished" | "left"
  | "other-tab" | "failed";

/**
 * One finished round on this phone; accuracies are null where there is no test part. `start` is that of the bundle's
 * model; a round of an earlier version has none.
 */
export interface RoundFigures {
  readonly round: number;
  readonly start?: number | null;
  readonly before: number | null;
  readonly after: number | null;
  readonly loss: number | null;
  readonly stepMs: number;
  readonly seconds: number;
}

/** What the bundle says of itself, for the page. */
export interface BundleFacts {
  readonly name: string;
  readonly digest: string;
  readonly signer: string;
  readonly classes: readonly string[];
  readonly targets: readonly string[];
  readonly preprocessing: Preprocessing;
  readonly bytes: number;
  readonly parameters: number;
}

/** What a phone has taken along to another bundle, in words. */
export interface MoveTold {
  readonly text: string;
  /** What else the owner should know. */
  readonly notes: readonly string[];
  /** What became of each tensor. */
  readonly tensors: readonly string[];
}

/** `evidence`: how both models compare; null: a store of an earlier version. */
export interface InUse {
  readonly personal: boolean;
  readonly evidence: GateEvidence | null;
}

/** Everything that the page shows; sent whole after each change. */
export interface Status {
  readonly phase: Phase;
  /** Who has paused it; null: it is not. */
  readonly pausedBy: "owner" | "policy" | null;
  /** Why it is paused, waiting or failed, and what to do; "" if there is nothing to say. */
  readonly detail: string;
  readonly federation: string;
  readonly deviceId: string;
  readonly strategy: string;
  readonly round: number;
  readonly rounds: number;
  /** Of the training in progress, 0 to 1. */
  readonly progress: number;
  readonly history: readonly RoundFigures[];
  readonly bytesUp: number;
  readonly bytesDown: number;
  /** Names and sizes of what the last update held. */
  readonly lastSent: readonly { readonly name: string; readonly bytes: number }[];
  /** Examples per class, in the order of the bundle's classes. */
  readonly exampleCounts: readonly number[];
  readonly bundle: BundleFacts | null;
  /** The last move to another bundle; null: none. */
  readonly moved: MoveTold | null;
  readonly use: Use;
  /** Which model predicts, and why; null: no round has counted. */
  readonly inUse: InUse | null;
  readonly policy: Policy;
  readonly persisted: boolean | null;
}

export type Told =
  | { readonly kind: "status"; readonly status: Status }
  | { readonly kind: "prediction"; readonly id: number; readonly outputs: Tensor }
  | { readonly kind: "added"; readonly id: number }
  /** A command could not be carried out; nothing has changed. `id`: the command's, null if it has none. */
  | { readonly kind: "refused"; readonly command: Command["kind"]; readonly id: number | null; readonly text: string };
