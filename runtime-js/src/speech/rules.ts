/**
 * Which tokens may come next in a window's text (arXiv 2212.04356, sections 2.3 and 4.5).
 *
 * Timestamps come in pairs, the end of a segment and the begin of the next, or alone at the ends of
 * a text; they never go back.
 */

import type { SpeechInfo } from './info.ts';

export interface RulesOptions {
  readonly vocabulary: number;
  /** The id that ends a text. */
  readonly end: number;
  readonly timestamps: boolean;
}

export class Rules {
  readonly #info: SpeechInfo;
  readonly #end: number;
  readonly #timed: boolean;
  /** 1 for each token that may come somewhere. */
  readonly #always: Uint8Array;

  constructor(info: SpeechInfo, { vocabulary, end, timestamps }: RulesOptions) {
    this.#info = info;
    this.#end = end;
    this.#timed = timestamps;
    this.#always = new Uint8Array(vocabulary).fill(1);
    for (const id of info.suppress) this.#always[id] = 0;
    if (!timestamps) this.#always.fill(0, info.first_timestamp ?? vocabulary);
    else if (info.no_timestamps !== null) this.#always[info.no_timestamps] = 0;
  }

  /** Bit id % 32 of word id / 32 says whether that token may follow those of the window. */
  allowed(text: readonly number[]): Uint32Array {
    const may = this.#always.slice();
    if (text.length === 0) for (const id of this.#info.begin_suppress) may[id] = 0;
    const first = this.#info.first_timestamp;
    if (this.#timed && first !== null) this.#keepTime(may, text, first);
    const words = new Uint32Array(Math.ceil(may.length / 32));
    for (const [id, one] of may.entries()) words[id >> 5]! |= one << (id & 31);
    return words;
  }

  #keepTime(may: Uint8Array, text: readonly number[], first: number): void {
    const most = this.#info.max_initial_timestamp;
    if (text.length === 0) {
      may.fill(0, 0, first);
      if (most !== null) may.fill(0, first + most + 1);
      return;
    }
    const isTime = (id: number | undefined): boolean => id === undefined || id >= first;
    const last = isTime(text.at(-1));
    const paired = last && isTime(text.at(-2)); // with another, or with the begin of the text
    if (paired) may.fill(0, first);
    else if (last) may.fill(0, 0, this.#end);
    const latest = text.findLast((id) => id >= first);
    if (latest !== undefined) may.fill(0, first, latest + (last && !paired ? 0 : 1));
  }
}
