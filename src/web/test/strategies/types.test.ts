/** What may travel: names, shapes, dtypes, and tensors that come all together or not at all. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { RefusedError } from "../../src/errors.ts";
import { checkTensors } from "../../src/strategies/types.ts";
import type { TensorSchema, TensorSchemas } from "../../src/strategies/types.ts";
import { float32 } from "../../src/tensors/tensors.ts";
import type { Tensor } from "../../src/tensors/tensors.ts";

const form = (shape: TensorSchema["shape"], most = 0): TensorSchema => ({ shape, dtype: "float32", most });
const zeros = (...shape: number[]): Tensor => float32(shape, new Float32Array(shape.reduce((a, b) => a * b, 1)));
const forms: TensorSchemas = {
  required: new Map([["w", form([2, 3])], ["rows", form([null, 4], 5)]]),
  optional: new Map([["anchors", form([2])], ["more", form([])]]),
};
const required: [string, Tensor][] = [["w", zeros(2, 3)], ["rows", zeros(5, 4)]];

function refused(tensors: readonly [string, Tensor][], message: RegExp): void {
  assert.throws(
    () => checkTensors(forms, new Map(tensors)),
    (error) => error instanceof RefusedError && error.rule === "layout" && message.test(error.message),
  );
}

test("what the forms say may travel, with all that is optional or nothing of it", () => {
  checkTensors(forms, new Map(required));
  checkTensors(forms, new Map([...required, ["anchors", zeros(2)], ["more", zeros()]]));
  refused([...required, ["anchors", zeros(2)]], /'more': expected \[\] float32, got nothing/);
});

test("other names, shapes and dtypes are refused by the rule layout", () => {
  refused([...required, ["x", zeros(1)]], /'x': the strategy expects no such name/);
  refused(required.slice(1), /'w': expected \[2, 3\] float32, got nothing/);
  refused([["w", zeros(3, 2)], required[1]!], /'w': expected \[2, 3\] float32, got \[3, 2\] float32/);
  refused([required[0]!, ["rows", zeros(6, 4)]], /'rows': expected \[n, 4\] float32 with n <= 5, got \[6, 4\]/);
  const doubles: Tensor = { dtype: "float64", shape: [2, 3], data: new Float64Array(6) };
  refused([["w", doubles], required[1]!], /'w': expected \[2, 3\] float32, got \[2, 3\] float64/);
});
