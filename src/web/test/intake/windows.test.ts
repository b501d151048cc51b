import assert from "node:assert/strict";
import { test } from "node:test";

import { InputError } from "../../src/errors.ts";
import { SensorIntake, type Window } from "../../src/intake/windows.ts";
import { difference, floats, GOLDEN, type GoldenStream, MOTION, readings, SMALL } from "./golden.ts";

function windowsOf(golden: GoldenStream, block: number): { windows: Window[]; intake: SensorIntake } {
  const sensors = Object.entries(golden.sensors);
  const intake = new SensorIntake(
    golden.motion ? MOTION : SMALL, new Map(sensors.map(([name, spec]) => [name, spec.rate_hz])));
  for (const [timeS, label] of golden.marks) intake.mark(timeS, label);
  const windows: Window[] = [];
  const streams = sensors.map(([name, spec]) => ({ name, ...readings(spec) }));
  for (let begin = 0; begin < Math.max(...streams.map(({ times }) => times.length)); begin += block) {
    for (const { name, times, rows } of streams) {
      windows.push(...intake.push(name, times.slice(begin, begin + block), rows.slice(begin, begin + block)));
    }
  }
  windows.push(...intake.flush());
  return { windows, intake };
}

for (const golden of GOLDEN.streams) {
  test(`${golden.name}: the windows of the Python device`, () => {
    const { windows, intake } = windowsOf(golden, golden.block);
    assert.deepEqual(windows.map((one) => one.label), golden.windows.map((one) => one.label));
    assert.deepEqual(windows.map((one) => one.startS), golden.windows.map((one) => one.start_s));
    windows.forEach((one, k) => {
      const expected = floats(golden.windows[k]!.x);
      assert.ok(difference(one.x, expected) <= 1e-6, `window ${k} differs by ${difference(one.x, expected)}`);
    });
    for (const [name, expected] of Object.entries(golden.counters)) {
      const { notFinite, notForward, gaps, setBack, unmatched, interpolated } = intake.counters.get(name)!;
      assert.deepEqual([notFinite, notForward, gaps, setBack, unmatched, interpolated], expected);
    }
  });
}

test("blocks of any size give the same bits", () => {
  const golden = GOLDEN.streams.find((one) => one.name.startsWith("gaps"))!;
  const whole = windowsOf(golden, 5000).windows;
  for (const block of [1, 17, 300]) {
    assert.deepEqual(windowsOf(golden, block).windows, whole);
  }
});

test("a sensor that falls silent does not fill the memory", () => {
  const intake = new SensorIntake(SMALL, new Map([["acc", 50], ["gyro", 50]]));
  const row = Float64Array.of(1, 1);
  for (let second = 0; second < 180; second++) {
    const times = Array.from({ length: 50 }, (_, k) => second + k / 50);
    assert.deepEqual(intake.push("acc", times, times.map(() => row)), []);
  }
  assert.ok(intake.counters.get("acc")!.unmatched > 100 * SMALL.rate_hz!);
});

test("what is no series of windows is refused", () => {
  assert.throws(() => new SensorIntake({ ...SMALL, window: null }, new Map([["imu", 50]])), InputError);
  assert.throws(() => new SensorIntake(SMALL, new Map([["imu", 0]])), /expected > 0 Hz/);
  const intake = new SensorIntake(SMALL, new Map([["imu", 50]]));
  assert.throws(() => intake.push("gps", [0], [Float64Array.of(1)]), /sensor 'gps': expected one of imu/);
  const times = Array.from({ length: 60 }, (_, k) => k / 50);
  assert.throws(() => intake.push("imu", times, times.map(() => Float64Array.of(1))), /expected 3 channels in all, got 1/);
});
