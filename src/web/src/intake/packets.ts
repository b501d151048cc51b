/**
 * When readings were taken that share a stamp, or that come in packets, as `edge/data/packets.py`.
 *
 * The number of readings between the stamps says how fast they were taken; they are spread evenly.
 */

/** By which part the readings a second may differ from those that are wanted. */
export const TOLERANCE = 0.2;
/** Readings closer than this part of the time between two come together. */
const TOGETHER = 0.5;
const LEAST_SIZE = 1.25;
/** Packets that begin this many times farther apart than most had a pause between them. */
const PAUSE = 3;
/** Begun ones, by which packets are known: the first may lack readings, the last is not whole. */
const LEAST_PACKETS = 4;
const FIRST = 16;
/** Part of the first readings that come together where packets are looked for. */
const CLUMPED = 0.25;

/** How readings come that have no times of their own. */
export interface Packets {
  /** Mean number in a packet. */
  readonly size: number;
  /** Readings a second. */
  readonly rateHz: number;
  /** From one packet to the next. */
  readonly periodS: number;
  /** A longer step begins a packet. */
  readonly cutS: number;
  /** Whether those of a packet share one stamp. */
  readonly isShared: boolean;
}

/** Whether they are as many as are wanted, so that they can be spread evenly. */
export function fits(packets: Packets, wantedHz: number): boolean {
  return Math.abs(packets.rateHz / wantedHz - 1) <= TOLERANCE;
}

/** Whether so many finite times tell if readings come in packets; what is as long as a window is none. */
export function isKnown(times: readonly number[], wantedHz: number, windowS: number): boolean {
  return telling(times, TOGETHER / wantedHz, windowS) !== null;
}

/** How many of the first times tell, however many there are; null: not yet. */
function telling(times: readonly number[], cutS: number, windowS: number): number | null {
  if (times.length < FIRST) return null;
  let together = 0;
  for (let k = 1; k < FIRST; k++) together += times[k]! - times[k - 1]! < cutS ? 1 : 0;
  if (together / (FIRST - 1) < CLUMPED) return FIRST;
  let [packets, begin] = [1, 0];
  for (let k = 0; k < times.length; k++) {
    if (k > 0 && Math.abs(times[k]! - times[k - 1]!) > cutS) [packets, begin] = [packets + 1, k];
    const isWhole = packets >= LEAST_PACKETS && times[k]! - times[0]! >= windowS;
    if (isWhole || times[k]! - times[begin]! >= windowS) return k + 1;
  }
  return null;
}

/** How readings come together, by the first times that tell; null where each has a time of its own. */
export function findPackets(given: readonly number[], wantedHz: number, windowS: number): Packets | null {
  const cutS = TOGETHER / wantedHz;
  const times = given.slice(0, telling(given, cutS, windowS) ?? given.length);
  const begins = beginsOf(times, cutS);
  const whole = begins.slice(1).map((end, k) => {
    const begin = begins[k]!;
    return { size: end - begin, period: times[end]! - times[begin]!, span: times[end - 1]! - times[begin]! };
  });
  // The first packet may have begun before the recording.
  const forward = whole.slice(whole.length > 1 ? 1 : 0).filter(({ period }) => period > 0);
  if (forward.length === 0) return null;
  const most = PAUSE * median(forward.map(({ period }) => period));
  const usual = forward.filter(({ period }) => period <= most);
  const periodS = median(usual.map(({ period }) => period));
  const spanS = median(usual.map(({ span }) => span));
  const count = usual.reduce((sum, { size }) => sum + size, 0);
  const size = count / usual.length;
  if (size < LEAST_SIZE || spanS > periodS / 2 || spanS >= windowS) return null;
  const rateHz = count / usual.reduce((sum, { period }) => sum + period, 0);
  return { size, rateHz, periodS, cutS, isShared: spanS === 0 };
}

function beginsOf(times: readonly number[], cutS: number): number[] {
  return times.flatMap((time, k) => (k === 0 || Math.abs(time - times[k - 1]!) > cutS ? [k] : []));
}

/** The middle one; of two the mean. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/**
 * Times of readings that come in packets → times of their own, incrementally.
 *
 * Those of a packet are spread evenly over the time to the next. Where a packet lacks readings they
 * keep the usual distance, behind its stamp or, of the first packet, before the next one's.
 */
export class Spreader {
  readonly #packets: Packets;
  readonly #stepS: number;
  readonly #most: number;
  #waiting: number[] = [];
  #isFirst = true;

  constructor(packets: Packets) {
    this.#packets = packets;
    this.#stepS = 1 / packets.rateHz;
    this.#most = 4 * Math.ceil(packets.size) + 64;
  }

  /** Takes times in, gives back those of the oldest readings that are known now; NaN stays NaN. */
  push(timesS: readonly number[]): number[] {
    const times = [...this.#waiting, ...timesS];
    const finite = times.flatMap((time, k) => (Number.isFinite(time) ? [k] : []));
    const begins = beginsOf(finite.map((k) => times[k]!), this.#packets.cutS).map((k) => finite[k]!);
    const out = [...times];
    begins.slice(1).forEach((end, at) => {
      const begin = begins[at]!;
      const part = finite.filter((k) => k >= begin && k < end);
      this.#spread(times[begin]!, times[end]!, part.length).forEach((time, k) => {
        out[part[k]!] = time;
      });
    });
    let ready = begins.at(-1) ?? 0;
    // A stamp that stays for ever must not fill the memory: what is too much for it is dropped.
    if (times.length - ready > this.#most) ready = times.length;
    this.#waiting = times.slice(ready);
    return out.slice(0, ready);
  }

  /** The times of the readings that are left; the next packet is another recording's. */
  flush(): number[] {
    const waiting = this.#waiting;
    this.#waiting = [];
    this.#isFirst = true;
    const begin = Math.min(...waiting.filter(Number.isFinite));
    let place = 0;
    return waiting.map((time) => (Number.isFinite(time) ? begin + this.#stepS * place++ : time));
  }

  #spread(beginS: number, nextS: number, count: number): number[] {
    const places = Array.from({ length: count }, (_, k) => k);
    const lastsS = nextS - beginS;
    const lacking = count + 1 < ((1 - TOLERANCE) * lastsS) / this.#stepS;
    const first = this.#isFirst;
    this.#isFirst = lastsS <= 0;
    if (lacking && first && lastsS <= 2 * this.#packets.periodS) {
      return places.map((place) => nextS - this.#stepS * (count - place));
    }
    if (lacking || lastsS <= 0) return places.map((place) => beginS + this.#stepS * place);
    return places.map((place) => beginS + (lastsS * place) / count);
  }
}
