/** Numbers as people read them. */

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Bytes in the largest unit of which there is one at least: 1.2 MB. */
export function bytes(count: number): string {
  if (count < 1000) return `${count} B`;
  const [value, unit] = count < 999_500 ? [count / 1e3, "kB"] : count < 999_500_000 ? [count / 1e6, "MB"] : [count / 1e9, "GB"];
  return `${value.toFixed(value < 9.95 ? 1 : 0)} ${unit}`;
}

/** 182 410 → 182,410; from a million on 1.4 million. */
export function amount(count: number): string {
  return count < 1e6 ? GROUPED.format(count) : `${(count / 1e6).toFixed(1)} million`;
}

export function percent(share: number): number {
  return Math.round(100 * share);
}

export function milliseconds(value: number): string {
  return value < 9.95 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
}

export function duration(seconds: number): string {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return whole < 100 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** A long hexadecimal name in groups, as far as people compare it. */
export function fingerprint(hex: string): string {
  return (hex.slice(0, 16).match(/.{1,4}/g) ?? []).join(" ");
}

/** A message of the device as a sentence: with a capital, and a full stop. */
export function sentence(text: string): string {
  if (text === "") return "";
  const begun = text[0]!.toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
