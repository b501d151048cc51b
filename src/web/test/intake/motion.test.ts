import assert from "node:assert/strict";
import { test } from "node:test";

import type { Preprocessing } from "../../src/bundle/manifest.ts";
import { MotionIntake, motionPlan, toReading } from "../../src/intake/motion.ts";
import { MOTION } from "./golden.ts";

const G = 9.80665;

function event(timeMs: number, gravity: number[] | null, rotation: number[] | null): DeviceMotionEvent {
  const axes = (values: number[] | null) => values && { x: values[0], y: values[1], z: values[2] };
  return {
    timeStamp: timeMs, acceleration: null, accelerationIncludingGravity: axes(gravity),
    rotationRate: rotation && { beta: rotation[0], gamma: rotation[1], alpha: rotation[2] },
  } as unknown as DeviceMotionEvent;
}

test("mean and std tell g from m/s²", () => {
  const units = (preprocessing: Preprocessing) => motionPlan(preprocessing).channels.map((one) => one.unit);
  assert.deepEqual(units(MOTION), ["g", "g", "g", "rad/s", "rad/s", "rad/s"]);
  const metres = { ...MOTION, mean: [0, 9.5, 1, 0, 0, 0], std: [3, 3, 3, 90, 90, 90] };
  assert.deepEqual(units(metres), ["m/s²", "m/s²", "m/s²", "deg/s", "deg/s", "deg/s"]);
  const unknown = motionPlan({ ...MOTION, mean: [0], std: [1] });
  assert.equal(unknown.unitsKnown, false);
  assert.deepEqual([unknown.channels[0]!.unit, unknown.channels[3]!.unit], ["m/s²", "rad/s"]);
});

test("names tell sensor and axis", () => {
  const channels = ["ax", "a_y", "Accelerometer Z", "gz", "gyroscope_x", "linear_acceleration_y"];
  const plan = motionPlan({ ...MOTION, channels });
  assert.deepEqual(
    plan.channels.map(({ quantity, axis }) => [quantity, axis]),
    [["gravity", 0], ["gravity", 1], ["gravity", 2], ["rotation", 2], ["rotation", 0], ["linear", 1]],
  );
  assert.throws(() => motionPlan({ ...MOTION, channels: [...channels.slice(1), "heart_rate"] }), /channel 'heart_rate' is not known/);
});

test("a phone that lies on the table and turns about its length", () => {
  const preprocessing = { ...MOTION, window: 4, hop: 4 };
  const intake = new MotionIntake(preprocessing);
  const windows = [];
  for (let k = 0; k < 120; k++) {
    windows.push(...intake.push(toReading(event(20 * k, [0, 0, G], [0, 90, 0]), false)!));
  }
  assert.ok(Math.abs(intake.rateHz! - 50) < 1e-6);
  const rows = [0, 0, 1, 0, Math.PI / 2, 0].map((value, c) => (value - MOTION.mean[c]!) / MOTION.std[c]!);
  assert.ok(windows.length > 20);
  for (const { x } of windows) x.forEach((value, k) => assert.ok(Math.abs(value - rows[k % 6]!) < 1e-5));
});

test("iPhones' signs are turned, rotation's are not", () => {
  const reading = toReading(event(1000, [1, -2, -G], [90, 0, 180]), true)!;
  assert.deepEqual(reading.gravity, [-1, 2, G]);
  assert.deepEqual(reading.rotation, [Math.PI / 2, 0, Math.PI]);
  assert.equal(reading.timeS, 1);
});

test("marks before the first reading count", () => {
  const intake = new MotionIntake({ ...MOTION, window: 10, hop: 10 });
  intake.mark(0.5, 3);
  const labels = [];
  for (let k = 0; k < 100; k++) {
    for (const window of intake.push(toReading(event(20 * k, [0, 0, G], [0, 0, 0]), false)!)) labels.push([window.startS, window.label]);
  }
  for (const [start, label] of labels) assert.equal(label, start! >= 0.5 ? 3 : -1);
});

test("a computer without sensors, and a phone without a gyroscope", () => {
  assert.equal(toReading(event(0, null, null), false), null);
  const intake = new MotionIntake(MOTION);
  const reading = toReading(event(0, [0, 0, G], null), false)!;
  assert.throws(() => intake.push(reading), /does not tell what channel 'gyro_x' needs/);
});

test("units that the bundle says are taken, whatever mean and std are", () => {
  const units = ["g", "g", "g", "°/s", "°/s", "°/s"];
  const plan = motionPlan({ ...MOTION, mean: [0], std: [1], units });
  assert.deepEqual(plan.channels.map(({ unit }) => unit), ["g", "g", "g", "deg/s", "deg/s", "deg/s"]);
  assert.equal(plan.unitsSaid, true);
  const other = ["m/s^2", "m/s^2", "m/s^2", "rad/s", "rad/s", "rad/s"];
  assert.deepEqual(motionPlan({ ...MOTION, units: other }).channels.map(({ unit }) => unit).slice(2, 4), ["m/s²", "rad/s"]);
  assert.throws(() => motionPlan({ ...MOTION, units: ["mg", "mg", "mg", "rad/s", "rad/s", "rad/s"] }), /are in mg, which/);
});
