/** Points in time as a manifest's `created` has them. */

const DATE = /^(\d{4})(?:-(\d\d)-(\d\d)|(\d\d)(\d\d)|-?W(\d\d)(?:-?(\d))?)/;
const TIME = /^(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,]\d+)?)?)?(Z|[+-]\d\d(?::?\d\d(?::?\d\d(?:\.\d+)?)?)?)?$/;

/** Whether a text is a day, or a day and a time of it, of the ISO 8601 calendar (Python's `fromisoformat`). */
export function isTimestamp(text: string): boolean {
  const date = DATE.exec(text);
  if (date === null || !isDay(date)) return false;
  const rest = [...text.slice(date[0].length)];
  if (rest.length === 0) return true;
  const time = TIME.exec(rest.slice(1).join(""));
  if (time === null) return false;
  const [hour, minute, second] = time.slice(1, 4).map((digits) => Number(digits ?? 0));
  const zone = (time[4] ?? "").match(/\d\d/)?.[0] ?? "0";
  return hour! < 24 && minute! < 60 && second! < 60 && Number(zone) < 24;
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
