/** A window's text as segments with times. */

import type { SpeechInfo } from './info.ts';

/** What was said from `start` to `end`, in samples of the window. */
export interface Part {
  readonly start: number;
  readonly end: number;
  readonly tokens: readonly number[];
}

export interface Parts {
  readonly parts: readonly Part[];
  /** How far the audio is transcribed by them. */
  readonly reached: number;
}

/**
 * The parts of a window of `length` samples. Two timestamps in a row end a part. What follows the
 * last such pair is said again in the next window, which begins there, unless one timestamp alone
 * ends the text: nobody speaks after it.
 */
export function partsOf(tokens: readonly number[], info: SpeechInfo, length: number): Parts {
  const first = info.first_timestamp;
  if (first === null) return { parts: [{ start: 0, end: length, tokens }], reached: length };
  const at = (id: number): number => Math.min((id - first) * info.tick, length);
  const isTime = (id: number | undefined): boolean => id !== undefined && id >= first;
  const ends = [...tokens.keys()].filter((k) => isTime(tokens[k - 1]) && isTime(tokens[k]));
  if (ends.length === 0) {
    const last = tokens.findLast(isTime) ?? first;
    return {
      parts: [{ start: 0, end: last > first ? at(last) : length, tokens }],
      reached: length,
    };
  }
  const closed = tokens.length > 1 && isTime(tokens.at(-1)) && !isTime(tokens.at(-2));
  if (closed) ends.push(tokens.length);
  const parts = ends.map((end, k) => {
    const part = tokens.slice(ends[k - 1] ?? 0, end);
    return { start: at(part[0]!), end: at(part.at(-1)!), tokens: part };
  });
  const reached = closed ? length : parts.at(-1)!.end;
  return { parts, reached: reached || length }; // a text that goes nowhere is not tried for ever
}
