/** Pages of a cache of keys and values, and which text whole ones keep. */

import { EdgeRelaxError } from '../errors.ts';

/** Stands for a text that ends with a whole page. */
export type Text = number;

/** What the tokens in a range of a text stand for beside themselves. */
export type Marks = (start: number, stop: number) => string;

const unmarked: Marks = () => '';

/** The text before the first page. */
export const START: Text = 0;

/**
 * `count` pages of `size` tokens each. A page that is given back keeps what it has until it is
 * needed: a text that begins as an earlier one did finds its whole pages again.
 */
export class PagePool {
  readonly count: number;
  readonly size: number;
  readonly #free: number[];
  readonly #holders: number[];
  /** By the text before a page and the page's own tokens. */
  readonly #kept = new Map<string, { readonly page: number; readonly text: Text }>();
  readonly #keys = new Map<number, string>();
  readonly #idle = new Set<number>(); // kept, and given back; the oldest first
  #texts = START;

  constructor(count: number, size: number) {
    this.count = count;
    this.size = size;
    this.#free = Array.from({ length: count }, (_, k) => count - 1 - k);
    this.#holders = new Array<number>(count).fill(0);
  }

  /** Pages that can be taken. */
  get available(): number {
    return this.#free.length + this.#idle.size;
  }

  /** A page, its contents lost. Throws `context` where all are in use. */
  take(): number {
    const page = this.#free.pop() ?? this.#oldest();
    this.#holders[page] = 1;
    return page;
  }

  /** The page that was given back the longest ago. */
  #oldest(): number {
    const [oldest] = this.#idle;
    if (oldest === undefined) {
      throw new EdgeRelaxError(
        'context',
        `all ${this.count} pages of ${this.size} tokens of the cache are in use`,
      );
    }
    this.#idle.delete(oldest);
    this.forget(oldest);
    return oldest;
  }

  /**
   * Takes the whole pages that keep the beginning of a text, and says what they end with. Others may
   * hold them too.
   */
  find(
    tokens: readonly number[],
    marks: Marks = unmarked,
  ): { readonly pages: number[]; readonly text: Text } {
    const pages: number[] = [];
    let text = START;
    for (let end = this.size; end <= tokens.length; end += this.size) {
      const start = end - this.size;
      const found = this.#kept.get(keyOf(text, tokens.slice(start, end), marks(start, end)));
      if (!found) break;
      pages.push(found.page);
      text = found.text;
    }
    for (const page of pages) {
      this.#holders[page] = (this.#holders[page] ?? 0) + 1;
      this.#idle.delete(page);
    }
    return { pages, text };
  }

  /** Says what a taken page has, now that it is whole; of two pages of one text the first stays. */
  keep(page: number, before: Text, tokens: readonly number[], marks = ''): Text {
    const key = keyOf(before, tokens, marks);
    const known = this.#kept.get(key);
    if (known) return known.text;
    const text = ++this.#texts;
    this.#kept.set(key, { page, text });
    this.#keys.set(page, key);
    return text;
  }

  /** Whether a page is another text's too. */
  isShared(page: number): boolean {
    return (this.#holders[page] ?? 0) > 1;
  }

  /** Whether a page can be found by its text. */
  isKept(page: number): boolean {
    return this.#keys.has(page);
  }

  /** A page is to be written anew: it keeps no text any more. */
  forget(page: number): void {
    this.#kept.delete(this.#keys.get(page) ?? '');
    this.#keys.delete(page);
  }

  /** Gives pages of a text back: its end is forgotten before its beginning. */
  release(pages: readonly number[]): void {
    for (const page of [...pages].reverse()) {
      const others = (this.#holders[page] ?? 1) - 1;
      this.#holders[page] = others;
      if (others > 0) continue;
      if (this.#keys.has(page)) this.#idle.add(page);
      else this.#free.push(page);
    }
  }
}

function keyOf(before: Text, tokens: readonly number[], marks: string): string {
  return `${before}:${tokens.join()}:${marks}`;
}

/** So many pages or a few more, at most `most`, so that few numbers of pages come up. */
export function bucket(count: number, most: number): number {
  let step = 1;
  while (step * 8 < count) step *= 2;
  return Math.min(Math.ceil(count / step) * step, most);
}
