/** Every bound of a record in Python holds here: tests/web/golden_messages.py makes messages from the records' types. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";

import { decode, SCHEMAS } from "../../src/wire/messages.ts";
import type { Kind } from "../../src/wire/messages.ts";
import { writtenByPython } from "../python.ts";

interface Case {
  readonly kind: Kind;
  readonly field: string;
  readonly text: string;
  readonly taken: boolean;
}

const CASES = JSON.parse(readFileSync(join(writtenByPython("golden_messages.py"), "messages.json"), "utf8")) as readonly Case[];

/** What a browser does not read: Python's alone are their rules. */
const NOT_HERE = ["handshake.refused", "handshake.starts"];

/** Whether this end takes a message. */
function taken({ kind, text }: Case): boolean {
  try {
    decode(new TextEncoder().encode(text), kind);
  } catch (error) {
    assert.equal((error as { rule?: string }).rule, "message-schema", text);
    return false;
  }
  return true;
}

describe("rules of messages", () => {
  for (const kind of Object.keys(SCHEMAS) as Kind[]) {
    test(`'${kind}' is taken and refused as in Python`, () => {
      const known = SCHEMAS[kind].fields;
      const here = (field: string): boolean => field === "" || (field.split(".")[0] ?? "") in known;
      const cases = CASES.filter((one) => one.kind === kind && here(one.field) && !NOT_HERE.includes(one.field));
      assert.ok(cases.some((one) => one.taken) && cases.some((one) => !one.taken));
      for (const one of cases) {
        const there = one.taken ? "takes" : "refuses";
        assert.equal(taken(one), one.taken, `${one.field}: Python ${there} ${one.text.slice(0, 2000)}`);
      }
    });
  }
});
