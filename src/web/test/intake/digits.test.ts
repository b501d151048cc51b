import assert from "node:assert/strict";
import { test } from "node:test";

import type { Preprocessing } from "../../src/bundle/manifest.ts";
import { drawingSize, drawnExample, type Point, type Stroke } from "../../src/intake/digits.ts";
import { GOLDEN, SMALL } from "./golden.ts";

const image = (...shape: number[]): Preprocessing => ({
  input_shape: shape, rate_hz: null, window: null, hop: null, channels: [], mean: [0], std: [1], tokens: null,
});
const TEN = [..."0123456789"];

function arc(x: number, y: number, width: number, height: number, from: number, to: number): Point[] {
  return Array.from({ length: 25 }, (_, k) => {
    const angle = (Math.PI / 180) * (from + ((to - from) * k) / 24);
    return { x: x + width * Math.cos(angle), y: y + height * Math.sin(angle) };
  });
}

const line = (...points: [number, number][]): Point[] => points.map(([x, y]) => ({ x, y }));

/** Digits as a finger draws them, on 100 x 100. */
const DRAWN: readonly Stroke[][] = [
  [arc(50, 50, 22, 35, -90, 270)],
  [line([40, 28], [52, 15], [52, 85])],
  [[...arc(50, 32, 20, 18, 190, 395), ...line([30, 85], [72, 85])]],
  [[...arc(48, 32, 20, 17, 210, 440), ...arc(48, 67, 22, 18, -80, 150)]],
  [line([55, 15], [28, 58], [75, 58]), line([60, 40], [58, 88])],
  [line([70, 15], [36, 15], [33, 46]), [...arc(48, 64, 22, 21, -125, 150)]],
  [[...line([60, 14], [38, 45]), ...arc(50, 66, 18, 19, 190, 540)]],
  [line([28, 18], [72, 18], [46, 86]), line([38, 52], [66, 52])],
  [[...arc(50, 32, 15, 16, 90, 450), ...arc(50, 67, 18, 18, -90, 270)]],
  [[...arc(50, 33, 18, 18, 0, 360), ...line([68, 33], [64, 86])]],
];

const EXAMPLES = Object.entries(GOLDEN.digits).flatMap(([digit, images]) =>
  images.split(" ").map((letters) => ({ digit: Number(digit), image: [...letters].map((one) => (one.charCodeAt(0) - 97) / 16) })));

/** The class of most of the five nearest images of the data set. */
function nearest(drawn: Float32Array): number {
  const distances = EXAMPLES.map(({ digit, image }) => ({
    digit, distance: image.reduce((sum, value, k) => sum + (value - drawn[k]!) ** 2, 0),
  }));
  const votes = distances.sort((a, b) => a.distance - b.distance).slice(0, 5).map(({ digit }) => digit);
  const count = (digit: number) => votes.filter((vote) => vote === digit).length;
  return votes.reduce((best, digit) => (count(digit) > count(best) ? digit : best));
}

test("drawn digits are known by the data set's own images", () => {
  const found = DRAWN.map((strokes) => nearest(drawnExample(strokes, image(1, 8, 8), 8)!));
  assert.deepEqual(found, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

test("small images fill their height and have the data set's amount of ink", () => {
  for (const strokes of DRAWN) {
    const drawn = drawnExample(strokes, image(1, 8, 8), 8)!;
    const ink = drawn.reduce((sum, value) => sum + value, 0);
    assert.ok(ink > 15 && ink < 24, `ink ${ink}`);
    assert.ok(drawn.slice(0, 8).some((value) => value > 0) && drawn.slice(56).some((value) => value > 0));
    assert.ok(drawn.every((value) => value >= 0 && value <= 1 && Number.isInteger(value * 16)));
  }
});

test("large images keep proportions, and their centre of mass is the middle", () => {
  for (const strokes of DRAWN) {
    const drawn = drawnExample(strokes, image(28, 28), 28)!;
    let [ink, x, y] = [0, 0, 0];
    drawn.forEach((value, k) => {
      ink += value;
      x += value * ((k % 28) + 0.5);
      y += value * (Math.floor(k / 28) + 0.5);
    });
    assert.ok(Math.hypot(x / ink - 14, y / ink - 14) < 0.3, `centre ${x / ink} ${y / ink}`);
    assert.ok(ink > 30 && ink < 180, `ink ${ink}`);
  }
});

test("size and place of a drawing do not matter, and mean and std are applied", () => {
  const small = DRAWN[3]!.map((stroke) => stroke.map(({ x, y }) => ({ x: x * 4 + 300, y: y * 4 - 20 })));
  const plain = drawnExample(DRAWN[3]!, image(1, 28, 28), 28)!;
  assert.deepEqual(drawnExample(small, image(1, 28, 28), 28), plain);
  const signed = drawnExample(DRAWN[3]!, { ...image(1, 28, 28), mean: [0.5], std: [0.5] }, 28)!;
  assert.deepEqual([...signed], [...plain].map((value) => value * 2 - 1));
});

test("a dot is a drawing, and nothing is none", () => {
  assert.ok(drawnExample([line([5, 5])], image(8, 8), 8)!.some((value) => value > 0));
  assert.equal(drawnExample([], image(8, 8), 8), null);
});

test("drawing is offered for square grey images of single characters", () => {
  assert.equal(drawingSize(image(1, 8, 8), TEN), 8);
  assert.equal(drawingSize(image(28, 28, 1), TEN), 28);
  assert.equal(drawingSize(image(784), TEN), 28);
  assert.equal(drawingSize(image(3, 32, 32), TEN), null);
  assert.equal(drawingSize(image(1, 28, 28), ["shirt", "shoe"]), null);
  assert.equal(drawingSize(SMALL, ["run", "walk"]), null);
});
