/** FedAvg-C: FedAvg, and at the very end every client fine-tunes the global model for itself. */

import { buildAs } from "./fedavg.ts";

export const build = buildAs("fedavg_c");
