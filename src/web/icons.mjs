/** The page's icon: one drawing of discs and lines, written as SVG and as PNG. */

import { deflateSync } from "node:zlib";

const BACKGROUND = [11, 110, 110];
const FOREGROUND = [255, 255, 255];

// In units of the icon's width: a coordinator and the phones around it.
const CENTRE = { x: 0.5, y: 0.5, r: 0.105 };
const PHONES = [
  { x: 0.5, y: 0.235, r: 0.062 },
  { x: 0.27, y: 0.633, r: 0.062 },
  { x: 0.73, y: 0.633, r: 0.062 },
];
const LINE = 0.034;

export function iconSvg() {
  const [size, unit] = [512, (value) => (value * 512).toFixed(1)];
  const rgb = (colour) => `rgb(${colour.join(" ")})`;
  const line = ({ x, y }) =>
    `<path d="M${unit(CENTRE.x)} ${unit(CENTRE.y)}L${unit(x)} ${unit(y)}"/>`;
  const disc = ({ x, y, r }) => `<circle cx="${unit(x)}" cy="${unit(y)}" r="${unit(r)}"/>`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size} ${size}">` +
    `<rect width="${size}" height="${size}" rx="${unit(0.22)}" fill="${rgb(BACKGROUND)}"/>` +
    `<g stroke="${rgb(FOREGROUND)}" stroke-width="${unit(LINE)}">${PHONES.map(line).join("")}</g>` +
    `<g fill="${rgb(FOREGROUND)}">${[CENTRE, ...PHONES].map(disc).join("")}</g></svg>\n`
  );
}

/** A PNG of `size` pixels; `rounded` leaves the corners clear, else the drawing fills the square. */
export function iconPng(size, rounded) {
  const pixels = Buffer.alloc(size * (size * 4 + 1));
  for (let row = 0; row < size; row++) {
    for (let column = 0; column < size; column++) {
      const [x, y] = [(column + 0.5) / size, (row + 0.5) / size];
      const ink = coverage(distanceToDrawing(x, y), size);
      const alpha = rounded ? coverage(distanceToSquare(x, y, 0.22), size) : 1;
      const at = row * (size * 4 + 1) + 1 + column * 4;
      for (let k = 0; k < 3; k++) {
        pixels[at + k] = Math.round(BACKGROUND[k] + (FOREGROUND[k] - BACKGROUND[k]) * ink);
      }
      pixels[at + 3] = Math.round(255 * alpha);
    }
  }
  return png(size, pixels);
}

function coverage(distance, size) {
  return Math.min(1, Math.max(0, 0.5 - distance * size));
}

function distanceToDrawing(x, y) {
  const discs = [CENTRE, ...PHONES].map((disc) => Math.hypot(x - disc.x, y - disc.y) - disc.r);
  return Math.min(...discs, ...PHONES.map((phone) => distanceToLine(x, y, phone) - LINE / 2));
}

function distanceToLine(x, y, end) {
  const [dx, dy] = [end.x - CENTRE.x, end.y - CENTRE.y];
  const along = ((x - CENTRE.x) * dx + (y - CENTRE.y) * dy) / (dx * dx + dy * dy);
  const t = Math.min(1, Math.max(0, along));
  return Math.hypot(x - CENTRE.x - t * dx, y - CENTRE.y - t * dy);
}

function distanceToSquare(x, y, radius) {
  const [qx, qy] = [Math.abs(x - 0.5) - 0.5 + radius, Math.abs(y - 0.5) - 0.5 + radius];
  return Math.hypot(Math.max(qx, 0), Math.max(qy, 0)) + Math.min(Math.max(qx, qy), 0) - radius;
}

function png(size, rows) {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(size, 0);
  header.writeUInt32BE(size, 4);
  header.set([8, 6, 0, 0, 0], 8); // 8 bits, RGBA
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", header),
    chunk("IDAT", deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
  const out = Buffer.alloc(body.length + 8);
  out.writeUInt32BE(data.length, 0);
  body.copy(out, 4);
  out.writeUInt32BE(crc32(body), body.length + 4);
  return out;
}

function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}
