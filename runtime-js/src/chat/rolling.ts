/**
 * Texts longer than what a model sees (StreamingLLM): their first tokens stay, the oldest of the
 * others go. Positions count what is kept: keys that stay are turned to their new positions.
 */

import { EdgeRelaxError } from '../errors.ts';
import type { LanguageInfo } from '../manifest.ts';

/** First tokens that stay, if nobody says. */
const SINKS = 4;

/** `window` pages of a text at most are kept, the first `sinks` for good; `dropped` go at once. */
export interface Rolling {
  readonly window: number;
  readonly sinks: number;
  readonly dropped: number;
}

export interface RollingOptions {
  /** Tokens of a text that are kept, in whole pages: texts then have no end. */
  readonly window?: number;
  /** First tokens that a window keeps, in whole pages; 4 by default. */
  readonly sinks?: number;
}

/** Throws `input` for numbers that leave no room, and for a model that cannot do it. */
export function rollingOf(
  { window, sinks }: RollingOptions,
  language: LanguageInfo & { readonly page_size: number },
): Rolling | undefined {
  if (window === undefined && sinks === undefined) return undefined;
  if (window === undefined) throw new EdgeRelaxError('input', 'sinks are given without a window');
  const { context, page_size: size, functions } = language;
  const first = Math.ceil((sinks ?? SINKS) / size);
  const pages = Math.floor(window / size);
  const known = Number.isSafeInteger(window) && Number.isSafeInteger(sinks ?? SINKS);
  if (!known || first < 0 || window > context || pages < first + 2) {
    throw new EdgeRelaxError(
      'input',
      `a window of ${window} tokens with ${sinks ?? SINKS} sinks; it has at most the model's ` +
        `context of ${context}, in pages of ${size} tokens at least two more than the sinks take`,
    );
  }
  if (!Object.hasOwn(functions, 'shift')) {
    throw new EdgeRelaxError(
      'input',
      "this model's keys cannot be moved to other positions; leave the window out",
    );
  }
  return { window: pages, sinks: first, dropped: Math.max(1, Math.floor((pages - first) / 4)) };
}
