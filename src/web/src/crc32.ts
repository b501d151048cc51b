/** CRC-32 as in zlib, ZIP and PNG. */

const POLYNOMIAL = 0xedb88320;
/** Of the four bytes of a word: what each changes in the sum behind the word. */
const TABLES = tables(4);

/** From 0 to 2^32 - 1; `sum` is that of the bytes before. */
export function crc32(bytes: Uint8Array, sum = 0): number {
  const [t0, t1, t2, t3] = TABLES as [Uint32Array, Uint32Array, Uint32Array, Uint32Array];
  let crc = ~sum;
  let at = 0;
  for (const whole = bytes.length - 3; at < whole; at += 4) {
    crc ^= bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
    crc = t3[crc & 255]! ^ t2[(crc >>> 8) & 255]! ^ t1[(crc >>> 16) & 255]! ^ t0[crc >>> 24]!;
  }
  for (; at < bytes.length; at++) crc = t0[(crc ^ bytes[at]!) & 255]! ^ (crc >>> 8);
  return ~crc >>> 0;
}

function tables(count: number): Uint32Array[] {
  const first = Uint32Array.from({ length: 256 }, (_, byte) => {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
    return crc;
  });
  const all = [first];
  while (all.length < count) {
    all.push(all.at(-1)!.map((crc) => first[crc & 255]! ^ (crc >>> 8)));
  }
  return all;
}
