/** FedALA (Zhang et al., arXiv:2212.01197): a client learns how much of the global model it starts from. */

import { ALWAYS_LOCAL_INIT } from "./ala.ts";
import { averaging, SHARED_TRAINING, shareAll } from "./averaging.ts";
import { clientUpdate } from "./fedavg.ts";
import { choice, parseSettings } from "./settings.ts";
import { TASK_LOSS } from "./types.ts";
import type { Factory } from "./types.ts";

const NAME = "fedala";

const SETTINGS = {
  ...SHARED_TRAINING,
  local_init: ALWAYS_LOCAL_INIT,
  score_at: choice("start", ["start", "end"]),
};

export const build: Factory = (settings, model) => {
  const chosen = parseSettings(NAME, settings, SETTINGS);
  return averaging(shareAll({ name: NAME, programs: [TASK_LOSS], settings: chosen, model }), clientUpdate);
};
