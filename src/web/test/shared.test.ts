/**
 * What both languages must have in common: tests/web/golden_shared.py writes it from the Python package, and
 * tests/web/test_golden.py fails where it is out of date. So a change in one language alone fails a test.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";

import * as archive from "../src/bundle/archive.ts";
import * as bundle from "../src/bundle/bundle.ts";
import * as manifest from "../src/bundle/manifest.ts";
import * as onnx from "../src/bundle/onnx.ts";
import * as calibration from "../src/federation/calibration.ts";
import * as programs from "../src/runtime/programs.ts";
import * as common from "../src/strategies/common.ts";
import { OF_CLASSES, PARTIAL_WORK, STRATEGIES } from "../src/strategies/index.ts";
import * as settings from "../src/strategies/settings.ts";
import * as tasks from "../src/strategies/tasks.ts";
import * as types from "../src/strategies/types.ts";
import * as safetensors from "../src/tensors/safetensors.ts";
import * as chunks from "../src/wire/chunks.ts";
import { NAMES } from "../src/wire/codecs.ts";
import * as enrolment from "../src/wire/enrolment.ts";
import * as identity from "../src/wire/identity.ts";
import * as inbound from "../src/wire/inbound.ts";
import * as messages from "../src/wire/messages.ts";
import * as sender from "../src/wire/sender.ts";
import * as session from "../src/wire/session.ts";
import * as topics from "../src/wire/topics.ts";

interface SharedField {
  readonly required: boolean;
  readonly default?: unknown;
  readonly words?: readonly string[];
}

interface Shared {
  readonly constants: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  readonly topics: {
    readonly prefix: string;
    readonly coordinator: string;
    readonly invited: string;
    readonly channels: Readonly<Record<string, string>>;
  };
  readonly codecs: readonly string[];
  readonly strategies: Readonly<Record<string, { readonly tasks: readonly string[]; readonly partial_work: boolean }>>;
  readonly records: Readonly<Record<string, Readonly<Record<string, SharedField>>>>;
}

const SHARED = JSON.parse(readFileSync(new URL("golden/shared.json", import.meta.url), "utf8")) as Shared;

/** Python's modules, and where their constants are here. */
const MODULES: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  "wire/messages": messages,
  "wire/transfers/chunks": chunks,
  "wire/transfers/sender": sender,
  "wire/transfers/inbound": inbound,
  "wire/trust/session": session,
  "wire/trust/identity": identity,
  "wire/trust/enrolment": enrolment,
  "tensors/blobs": safetensors,
  "bundle/bundle": bundle,
  "bundle/manifest": manifest,
  "bundle/onnx_files": onnx,
  "bundle/files": archive,
  "strategies/bounds": settings,
  "strategies/scores": tasks,
  "strategies/types": types,
  "strategies/common": common,
  "federation/outcomes/calibration": calibration,
  "edge/learning/training": programs,
};

/** Channels of which a browser knows nothing: between coordinators, of bundles, and of shared chunks. */
const OTHER_CHANNELS = ["LEASE", "DOWN_BUNDLE", "SHARED_CHUNK"];

/** Fields that a browser neither reads nor writes; who adds one decides, and says here that it is not for browsers. */
const NOT_HERE: Readonly<Record<string, readonly string[]>> = {
  need: ["listening"],
  heartbeat: ["log"],
  presence: ["doubts"],
  task: ["baseline"],
};

describe("shared with Python", () => {
  for (const [place, constants] of Object.entries(SHARED.constants)) {
    test(`constants of ${place}`, () => {
      const here = Object.keys(constants).map((name) => [name, MODULES[place]?.[name]]);
      assert.deepEqual(Object.fromEntries(here), constants);
    });
  }

  test("topics", () => {
    const { prefix, coordinator, invited, channels } = SHARED.topics;
    assert.deepEqual([topics.PREFIX, topics.COORDINATOR, topics.INVITED], [prefix, coordinator, invited]);
    const known = Object.entries(channels).filter(([name]) => !OTHER_CHANNELS.includes(name));
    assert.deepEqual(Object.values(topics.CHANNELS).toSorted(), known.map(([, parts]) => parts).toSorted());
  });

  test("codecs", () => {
    assert.deepEqual(NAMES.toSorted(), SHARED.codecs.toSorted());
  });

  test("what strategies look at, and whether a part of their work means the same", () => {
    for (const name of STRATEGIES.keys()) {
      const there = SHARED.strategies[name];
      assert.ok(there, `strategy ${name}`);
      assert.equal(OF_CLASSES.has(name), !there.tasks.includes("regression"), `${name}: classes`);
      assert.equal(PARTIAL_WORK.has(name), there.partial_work, `${name}: partial work`);
    }
    for (const name of [...OF_CLASSES, ...PARTIAL_WORK]) assert.ok(STRATEGIES.has(name), name);
  });

  for (const [type, fields] of Object.entries(SHARED.records)) {
    test(`fields of '${type}'`, () => {
      const here = messages.SCHEMAS[type as keyof typeof messages.SCHEMAS].fields as Readonly<Record<string, object>>;
      assert.deepEqual(Object.keys(here).filter((name) => !(name in fields)), []);
      const missing = Object.keys(fields).filter((name) => !(name in here));
      assert.deepEqual(missing, NOT_HERE[type] ?? []);
      for (const [name, field] of Object.entries(here)) check(field, fields[name] as SharedField, name);
    });
  }
});

/** A field is required in both or has one default, and takes the same words. */
function check(field: object, there: SharedField, name: string): void {
  assert.equal(!("fallback" in field), there.required, `${name}: required`);
  if ("fallback" in field && "default" in there) {
    const fallback = typeof field.fallback === "bigint" ? Number(field.fallback) : field.fallback;
    assert.deepEqual(fallback, there.default, `${name}: default`);
  }
  if (there.words === undefined) return;
  const { read } = field as { read: (value: unknown, where: string) => unknown };
  for (const word of there.words) assert.equal(read(word, name), word);
  assert.throws(() => read("none of these", name), `${name}: words`);
}
