/** Outputs of a client's model. */

import type { Programs } from "../runtime/programs.ts";
import type { ClientState, Strategy } from "../strategies/types.ts";
import type { Tensor } from "../tensors/tensors.ts";

/** Outputs (n, C) of `x`, (n, …), as the strategy predicts with a state. */
export async function predictWith(programs: Programs, strategy: Strategy, state: ClientState, x: Tensor): Promise<Tensor> {
  const network = strategy.clientModel(state);
  const score = strategy.clientScore(state);
  return score === null ? programs.predict(network, x) : score(await programs.features(network, x));
}
