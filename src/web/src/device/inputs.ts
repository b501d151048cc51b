/** How the inputs of two bundles differ, and examples of one as those of the other. */

import type { Preprocessing } from "../bundle/manifest.ts";
import type { Tensor } from "../tensors/tensors.ts";

const MEANING = ["input_shape", "channels", "rate_hz", "window", "units"] as const;

/** In what the input of a bundle means something else than that of another; null: in its scale at most. */
export function otherInput(was: Preprocessing, now: Preprocessing): (typeof MEANING)[number] | null {
  const told = was.units?.length && now.units?.length;
  const compared = MEANING.filter((name) => name !== "units" || told);
  return compared.find((name) => JSON.stringify(was[name]) !== JSON.stringify(now[name])) ?? null;
}

/** Examples (n, …) that were normalised as one bundle says, normalised as another one does. */
export function rescaled(x: Tensor, was: Preprocessing, now: Preprocessing): Tensor {
  const same = String(was.mean) === String(now.mean) && String(was.std) === String(now.std);
  if (same || x.dtype !== "float32") return x;
  const width = x.shape.at(-1)!;
  const data = (x.data as Float32Array).map((value, at) => {
    const channel = at % width;
    const reading = value * of(was.std, channel) + of(was.mean, channel);
    return (reading - of(now.mean, channel)) / of(now.std, channel);
  });
  return { ...x, data };
}

/** A channel's number; one alone is that of all channels. */
export function of(values: readonly number[], channel: number): number {
  return values[channel % values.length]!;
}
