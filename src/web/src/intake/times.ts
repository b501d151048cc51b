/** Numbers and dates in the cells of a table, as `edge/data/sample_times.py` has them. */

const NUMBER = /^[+-]?(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:e[+-]?\d+(?:_\d+)*)?$/i;
const SPECIAL: Readonly<Record<string, number>> = { nan: NaN, inf: Infinity, infinity: Infinity };
const DATE = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?$/;
/** Day and month before the year: the month first between slashes, unless it cannot be one. */
const OTHER_DATE = /^(\d{1,2})([/.])(\d{1,2})\2(\d{4})[ T]+(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?: ?([AaPp])[Mm])?$/;

/** A number as Python's `float` reads it; null for other text. */
export function toNumber(text: string): number | null {
  const word = text.trim();
  if (NUMBER.test(word)) return Number(word.replaceAll("_", ""));
  const special = SPECIAL[word.replace(/^[+-]/, "").toLowerCase()];
  if (special === undefined) return null;
  return word.startsWith("-") ? -special : special;
}

/** A number, or the seconds since 1970 of a date, without a zone in UTC; null: neither. */
export function toTime(text: string): number | null {
  const number = toNumber(text);
  const found = number === null ? DATE.exec(isoOf(text.trim())) : null;
  if (found === null) return number;
  const [, year, month, day, hour = "00", minute = "00", second = "00", fraction = "0", zone = "Z"] = found;
  const [, sign, hours = "0", minutes = "0"] = /^([+-])(\d\d):?(\d\d)?$/.exec(zone) ?? [];
  const away = (sign === "-" ? -60 : 60) * (60 * Number(hours) + Number(minutes));
  const wholeS = Date.parse(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`) / 1000;
  return Number.isFinite(wholeS) ? wholeS + Number(`0.${fraction}`) - away : null;
}

/** A date with day and month before the year as ISO 8601 has it; other text as it is. */
function isoOf(text: string): string {
  const found = OTHER_DATE.exec(text);
  if (found === null) return text;
  const [, one, mark, other, year, hours, minutes, seconds = "00", fraction = "0", half = ""] = found;
  const [day, month] = mark === "." || Number(one) > 12 ? [one!, other!] : [other!, one!];
  const hour = half === "" ? Number(hours) : (Number(hours) % 12) + (/p/i.test(half) ? 12 : 0);
  const two = (number: string | number): string => String(number).padStart(2, "0");
  return `${year}-${two(month)}-${two(day)} ${two(hour)}:${minutes}:${seconds}.${fraction.slice(0, 6)}`;
}
