/**
 * A character drawn by finger → the pixels that the data sets have.
 *
 * Small images (8x8) as E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", 1998, have
 * them: 32 x 32 bits of which all rows and at most 20 columns are filled, about as much ink in each, and
 * the bits of each 4x4 block counted (figures measured on the data set). Large ones (28x28) as MNIST: the
 * bounding box fitted into 20 x 20 with its proportions kept, its centre of mass put in the middle.
 */

import type { Preprocessing } from "../bundle/manifest.ts";

export interface Point {
  readonly x: number;
  readonly y: number;
}

/** One line of the finger, in any unit; y grows downwards. */
export type Stroke = readonly Point[];

/** Side in pixels of the square, grey image that the bundle takes; null where it takes another input. */
export function drawingSize(preprocessing: Preprocessing, classes: readonly string[]): number | null {
  if (preprocessing.tokens !== null || classes.length === 0) return null;
  const shape = preprocessing.input_shape.filter((axis) => axis !== 1);
  const side = shape.length === 1 ? Math.sqrt(shape[0]!) : shape[0]!;
  const square = shape.length === 1 ? Number.isInteger(side) : shape.length === 2 && shape[1] === side;
  const drawable = classes.every((name) => [...name].length === 1);
  return square && side >= 8 && drawable ? side : null;
}

/** The image as the bundle takes it, row by row; null where nothing is drawn. */
export function drawnExample(strokes: readonly Stroke[], preprocessing: Preprocessing, side: number): Float32Array | null {
  if (strokes.every((stroke) => stroke.length === 0)) return null;
  const image = side < 16 ? countedBlocks(strokes, side) : centredInk(strokes, side);
  const [mean, std] = [preprocessing.mean[0] ?? 0, preprocessing.std[0] ?? 1];
  return image.map((value) => (value - mean) / std);
}

const BLOCK = 4;
/** Share of the bits that are ink in the data set, whatever the digit. */
const INK_SHARE = 19.6 / 64;
const BOX_WIDTH = 20 / 32;
/** How much taller than wide a flat drawing may become. */
const MOST_STRETCH = 2;

function countedBlocks(strokes: readonly Stroke[], side: number): Float32Array {
  const bits = side * BLOCK;
  const box = boundsOf(strokes);
  // The pen's radius in bits, by bisection: more ink grows with it.
  let [thin, thick] = [0.02 * bits, 0.16 * bits];
  let drawn: Uint8Array = new Uint8Array(bits * bits);
  for (let step = 0; step < 7; step++) {
    const radius = (thin + thick) / 2;
    const [width, height] = [BOX_WIDTH * bits - 2 * radius, bits - 2 * radius];
    const fill = height / Math.max(box.height, 1e-9);
    const across = Math.min(width / Math.max(box.width, 1e-9), fill);
    const down = Math.min(fill, MOST_STRETCH * across);
    drawn = rasterised(strokes, bits, radius, {
      across, down, left: bits / 2 - across * box.middleX, top: bits / 2 - down * box.middleY,
    });
    const ink = drawn.reduce((sum, bit) => sum + bit, 0);
    if (ink < INK_SHARE * bits * bits) thin = radius;
    else thick = radius;
  }
  return blockMeans(drawn, side, BLOCK);
}

const MNIST_SIDE = 28;
const MNIST_BOX = 20;
const MNIST_RADIUS = 1.15;
const FINE = 4;

function centredInk(strokes: readonly Stroke[], side: number): Float32Array {
  const fine = (side / MNIST_SIDE) * FINE;
  const bits = side * FINE;
  const radius = MNIST_RADIUS * fine;
  const box = boundsOf(strokes);
  const scale = (MNIST_BOX * fine - 2 * radius) / Math.max(box.width, box.height, 1e-9);
  const place = (x: number, y: number): Placement => ({
    across: scale, down: scale, left: bits / 2 - scale * x, top: bits / 2 - scale * y,
  });
  const first = rasterised(strokes, bits, radius, place(box.middleX, box.middleY));
  const centre = centreOfMass(first, bits);
  return blockMeans(
    rasterised(strokes, bits, radius, place(
      box.middleX + (centre.x - bits / 2) / scale, box.middleY + (centre.y - bits / 2) / scale,
    )),
    side, FINE,
  );
}

function boundsOf(strokes: readonly Stroke[]) {
  const points = strokes.flat();
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return {
    width: right - left, height: bottom - top, middleX: (left + right) / 2, middleY: (top + bottom) / 2,
  };
}

interface Placement {
  readonly across: number;
  readonly down: number;
  readonly left: number;
  readonly top: number;
}

/** Bits (side x side) within `radius` of the strokes. */
function rasterised(strokes: readonly Stroke[], side: number, radius: number, at: Placement): Uint8Array {
  const bits = new Uint8Array(side * side);
  const placed = (point: Point) => ({ x: at.left + at.across * point.x, y: at.top + at.down * point.y });
  for (const stroke of strokes) {
    stroke.forEach((point, k) => fillLine(bits, side, radius, placed(stroke[Math.max(k - 1, 0)]!), placed(point)));
  }
  return bits;
}

function fillLine(bits: Uint8Array, side: number, radius: number, from: Point, to: Point): void {
  const clamp = (value: number) => Math.min(side - 1, Math.max(0, value));
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length2 = dx * dx + dy * dy;
  const lastRow = clamp(Math.ceil(Math.max(from.y, to.y) + radius));
  const lastColumn = clamp(Math.ceil(Math.max(from.x, to.x) + radius));
  for (let row = clamp(Math.floor(Math.min(from.y, to.y) - radius)); row <= lastRow; row++) {
    for (let column = clamp(Math.floor(Math.min(from.x, to.x) - radius)); column <= lastColumn; column++) {
      const [x, y] = [column + 0.5 - from.x, row + 0.5 - from.y];
      const along = length2 > 0 ? Math.min(1, Math.max(0, (x * dx + y * dy) / length2)) : 0;
      if (Math.hypot(x - along * dx, y - along * dy) <= radius) bits[row * side + column] = 1;
    }
  }
}

function centreOfMass(bits: Uint8Array, side: number): Point {
  let [sum, x, y] = [0, 0, 0];
  bits.forEach((bit, k) => {
    sum += bit;
    x += bit * ((k % side) + 0.5);
    y += bit * (Math.floor(k / side) + 0.5);
  });
  return { x: x / Math.max(sum, 1), y: y / Math.max(sum, 1) };
}

function blockMeans(bits: Uint8Array, side: number, block: number): Float32Array {
  const image = new Float32Array(side * side);
  bits.forEach((bit, k) => {
    const [row, column] = [Math.floor(k / (side * block)), k % (side * block)];
    image[Math.floor(row / block) * side + Math.floor(column / block)]! += bit;
  });
  return image.map((count) => count / (block * block));
}
