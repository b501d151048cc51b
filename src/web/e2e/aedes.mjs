/** A second broker of another make for tests: `node aedes.mjs PORT`, on loopback. */

import { createServer } from "node:net";

import { Aedes } from "aedes";

const broker = await Aedes.createBroker();
createServer(broker.handle).listen(Number(process.argv[2]), "127.0.0.1");
