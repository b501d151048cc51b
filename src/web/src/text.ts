/** Texts from outside, judged and ordered as Python does it. */

const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const EACH_UNPRINTABLE = new RegExp(UNPRINTABLE, "gu");

/** No control, format or unassigned characters, and no white space but the space. */
export function isPrintable(text: string): boolean {
  return !UNPRINTABLE.test(text);
}

/** Whether a text has 1 to `most` characters (code points), all of them printable. */
export function isLabel(text: string, most: number): boolean {
  return text !== "" && text.length <= 2 * most && characters(text) <= most && isPrintable(text);
}

/** The beginning of a text from outside, for a message. */
export function shown(text: string, most = 40): string {
  return text.slice(0, most).replace(EACH_UNPRINTABLE, "\ufffd");
}

/** For `sort`: by code points, where JavaScript's own order is one of UTF-16 units. */
export function byCodePoint(left: string, right: string): number {
  if (left === right) return 0;
  const shorter = Math.min(left.length, right.length);
  for (let at = 0; at < shorter; at++) {
    const [a, b] = [left.charCodeAt(at), right.charCodeAt(at)];
    if (a !== b) return rank(a) - rank(b);
  }
  return left.length - right.length;
}

function characters(text: string): number {
  let count = 0;
  for (const _ of text) count++;
  return count;
}

/** Surrogates stand for code points behind all that are one unit. */
function rank(unit: number): number {
  return unit >= 0xd800 && unit <= 0xdfff ? unit + 0x10000 : unit;
}
