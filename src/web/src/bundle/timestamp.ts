/** Points in time as a manifest's `created` has them. */

const DATE = /^(\d{4})(?:-(\d\d)-(\d\d)|(\d\d)(\d\d)|-?W(\d\d)(?:-?(\d))?)/;
/** With colons between all parts or between none; the same of a time zone. */
const CLOCK = String.raw`(\d\d)(?::(\d\d)(?::(\d\d)(?:[.,]\d+)?)?|(\d\d)(?:(\d\d)(?:[.,]\d+)?)?)?`;
const TIME = new RegExp(`^${CLOCK}(?:Z|[+-]${CLOCK})?$`);

/** Whether a text is a day, or a day and a time of it, of the ISO 8601 calendar (Python's `fromisoformat`). */
export function isTimestamp(text: string): boolean {
  const date = DATE.exec(text);
  if (date === null || !isDay(date)) return false;
  const rest = [...text.slice(date[0].length)];
  if (rest.length === 0) return true;
  const time = TIME.exec(rest.slice(1).join(""));
  if (time === null) return false;
  const [, hour, minute, second, shortMinute, shortSecond, zoneHours] = time;
  return (
    Number(hour) < 24 &&
    Number(minute ?? shortMinute ?? 0) < 60 &&
    Number(second ?? shortSecond ?? 0) < 60 &&
    Number(zoneHours ?? 0) < 24
  );
}

function isDay([, year, month, day, shortMonth, shortDay, week, weekday]: RegExpExecArray): boolean {
  if (Number(year) === 0) return false;
  if (week !== undefined) {
    const last = weeksOf(Number(year));
    return Number(week) >= 1 && Number(week) <= last && Number(weekday ?? 1) >= 1 && Number(weekday ?? 1) <= 7;
  }
  const [m, d] = [Number(month ?? shortMonth), Number(day ?? shortDay)];
  // Day 0 of the next month is the last of this one.
  return m >= 1 && m <= 12 && d >= 1 && d <= new Date(Date.UTC(2000 + (Number(year) % 400), m, 0)).getUTCDate();
}

/** 53 in years that begin on a Thursday, and in leap years that begin on a Wednesday; else 52. */
function weeksOf(year: number): number {
  const first = new Date(Date.UTC(2000 + (year % 400), 0, 1)).getUTCDay();
  const isLeap = new Date(Date.UTC(2000 + (year % 400), 2, 0)).getUTCDate() === 29;
  return first === 4 || (isLeap && first === 3) ? 53 : 52;
}
