/** The strategies that this device can do: those that pass the golden rounds of the Python devices. */

import { InputError } from "../errors.ts";
import * as ditto from "./ditto.ts";
import * as fedala from "./fedala.ts";
import * as fedali from "./fedali.ts";
import * as fedavg from "./fedavg.ts";
import * as fedavgC from "./fedavg_c.ts";
import * as fedhp from "./fedhp.ts";
import * as fedper from "./fedper.ts";
import * as fedproto from "./fedproto.ts";
import * as fedprox from "./fedprox.ts";
import * as fedrep from "./fedrep.ts";
import * as local from "./local.ts";
import * as moon from "./moon.ts";
import * as protohar from "./protohar.ts";
import * as scaffold from "./scaffold.ts";
import type { Factory, Model, Strategy } from "./types.ts";

/** Factories by name. */
export const STRATEGIES: ReadonlyMap<string, Factory> = new Map([
  ["ditto", ditto.build],
  ["fedala", fedala.build],
  ["fedali", fedali.build],
  ["fedavg", fedavg.build],
  ["fedavg_c", fedavgC.build],
  ["fedhp", fedhp.build],
  ["fedper", fedper.build],
  ["fedproto", fedproto.build],
  ["fedprox", fedprox.build],
  ["fedrep", fedrep.build],
  ["local", local.build],
  ["moon", moon.build],
  ["protohar", protohar.build],
  ["scaffold", scaffold.build],
]);

/** Strategies that look at classes, and so know no other task. */
export const OF_CLASSES: ReadonlySet<string> = new Set(["fedhp", "fedproto", "moon", "protohar"]);

/** Strategies of which a client may do a part of its training, as `partial_work` of the Python ones says. */
export const PARTIAL_WORK: ReadonlySet<string> = new Set([
  "ditto", "fedala", "fedali", "fedavg", "fedavg_c", "fedper", "fedprox", "moon", "scaffold",
]);

/** The share of its training that a client does where `asked` is asked for. */
export function workOf(name: string, asked: number): number {
  return PARTIAL_WORK.has(name) ? asked : 1;
}

/**
 * The strategy of a task for a model; throws InputError for an unknown name or setting, a wrong
 * value, or a model or a task that does not fit.
 */
export function build(name: string, settings: Readonly<Record<string, unknown>>, model: Model): Strategy {
  const factory = STRATEGIES.get(name);
  if (factory === undefined) {
    const known = [...STRATEGIES.keys()].join(", ");
    throw new InputError(`strategy '${name}': this device cannot do it; it does ${known}`);
  }
  if (OF_CLASSES.has(name) && model.task !== "classification") {
    const others = [...STRATEGIES.keys()].filter((one) => !OF_CLASSES.has(one)).join(", ");
    throw new InputError(
      `strategy '${name}': expected a bundle of task classification, because it looks at classes, got ` +
        `${model.task}; use one of ${others}`,
    );
  }
  return factory(settings, model);
}
