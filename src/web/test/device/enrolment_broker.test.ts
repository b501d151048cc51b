/** The browser's enrolment against the Python federation, over a real broker. */

import assert from "node:assert/strict";
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";

import { enrol, type Enrolled, type EnrolmentStore } from "../../src/device/enrolment.ts";
import type { Enrolment } from "../../src/device/store.ts";
import { parseInvitation } from "../../src/wire/enrolment.ts";
import { DEVICE_GRANT, readStatement } from "../../src/wire/identity.ts";
import { Link } from "../../src/wire/link.ts";
import { PYTHON, PYTHON_ENVIRONMENT, REPOSITORY } from "../python.ts";
import { Mosquitto } from "../wire/brokers.ts";
import { WITHOUT_PYTHON } from "../wire/peer.ts";

class MemoryStore implements EnrolmentStore {
  enrolment: Enrolment | null = null;
  asking: EnrolmentStore["asking"] = null;

  async keepAsking(invitation: string, keys: CryptoKeyPair): Promise<void> {
    this.asking = { invitation, keys };
  }

  async commitEnrolment(enrolment: Enrolment): Promise<void> {
    this.enrolment = enrolment;
  }
}

describe("enrolment over a broker", { skip: WITHOUT_PYTHON }, () => {
  let broker: Mosquitto;
  let federation: ChildProcessWithoutNullStreams;
  let lines: AsyncIterator<string>;

  before(async () => {
    broker = await Mosquitto.start();
    const given = [join(REPOSITORY, "tests/web/inviting.py"), join(broker.folder, "home"), `mqtt://127.0.0.1:${broker.tcpPort}`];
    federation = spawn(PYTHON, given, { env: PYTHON_ENVIRONMENT });
    lines = createInterface(federation.stdout)[Symbol.asyncIterator]();
  });
  after(async () => {
    federation.stdin.end();
    await once(federation, "exit");
    await broker.stop();
  });

  const invited = async (name: string): Promise<string> => {
    federation.stdin.write(`${name}\n`);
    return (await lines.next()).value as string;
  };
  const run = async (text: string, store: EnrolmentStore): Promise<Enrolled> =>
    enrol({
      invitation: await parseInvitation(text),
      store,
      broker: broker.url,
      told: () => undefined,
      connect: (access, filter) => {
        const link = new Link({ broker: access, filters: [filter], will: null });
        link.start();
        return link;
      },
    });

  test("a phone is granted its key, says so, and changes nothing by asking again", async () => {
    const [text, store] = [await invited("phone-1"), new MemoryStore()];
    const { enrolment, isNew, confirmed } = await run(text, store);
    assert.deepEqual([isNew, confirmed, enrolment.deviceId, enrolment.federation], [true, true, "phone-1", "home"]);
    const grant = await readStatement(enrolment.grant, DEVICE_GRANT, {
      signer: enrolment.federationKey, federation: "home", now: Date.now() / 1000,
    });
    assert.equal(grant.serial, 1);
    const again = await run(text, store);
    assert.deepEqual([again.isNew, again.confirmed, again.enrolment], [false, true, enrolment]);
  });

  test("of two phones with one invitation, one is told", async () => {
    const text = await invited("phone-2");
    await run(text, new MemoryStore());
    const second = new MemoryStore();
    await assert.rejects(run(text, second), { rule: "used", message: /another device has used this invitation/ });
    assert.equal(second.enrolment, null);
  });

  test("an invitation that was replaced is refused by name", async () => {
    const old = await invited("phone-3");
    await invited("phone-3");
    await assert.rejects(run(old, new MemoryStore()), { rule: "token", message: /ask for a new/ });
  });
});
