/** FedPer (Arivazhagan et al., arXiv:1912.00818): the head stays, the body is averaged; both train together. */

import { averaging, SHARED_TRAINING } from "./averaging.ts";
import { sharedLayout } from "./common.ts";
import { clientUpdate } from "./fedavg.ts";
import { parseSettings, text } from "./settings.ts";
import { TASK_LOSS } from "./types.ts";
import type { Factory } from "./types.ts";

const NAME = "fedper";

const SETTINGS = {
  ...SHARED_TRAINING,
  /** Parameters whose names start so stay on the device; null: those that the bundle calls its head. */
  head: text(null),
};

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  const shared = sharedLayout(model, chosen.head);
  return averaging({ name: NAME, programs: [TASK_LOSS], settings: chosen, model, shared }, clientUpdate);
};
