/** A text that is being made: what is known of it, and what is under way. */

import { type Draw, type Drawer, drawOf } from './drawing.ts';
import type { GenerateOptions, Sampling, Token } from './engine.ts';
import { type PagePool, START, type Text } from './pages.ts';
import { type Eyes, Sights } from './sights.ts';

export class Sequence implements Drawer {
  readonly prompt: readonly number[];
  readonly sampling: Sampling;
  readonly options: GenerateOptions;
  readonly sights: Sights;
  readonly draw: Draw;
  /** The most tokens that it gets. */
  readonly most: number;
  /** Steps under way at once. */
  readonly flight: number;
  /** Of the prompt, and then those that are known. */
  readonly tokens: number[];
  pages: number[] = [];
  /** Tokens that the cache has taken, or that what is under way takes into it. */
  cached = 0;
  /** Of these, tokens that the text goes on without; first pages that were given back. */
  dropped = 0;
  #gone = 0;
  /** Its row among the states; -1 before it has begun. */
  row = -1;
  /** Draws that were begun, and tokens that the caller has. */
  drawn = 0;
  taken = 0;
  /** Whether its row has, or will have, the logits after its last token. */
  fresh = false;
  /** Whether its row has the counts of its tokens. */
  counted = false;
  allowed: Int32Array | undefined;
  /** The draw that the mask was asked for. */
  asked = -1;
  ended = false;
  failure: { readonly error: unknown } | undefined;
  readonly ready: Token[] = [];
  #told = false;
  #kept = 0;
  #text: Text = START;
  #wake: () => void = () => undefined;
  changed!: Promise<void>;

  constructor(
    prompt: readonly number[],
    sampling: Sampling,
    options: GenerateOptions,
    bounds: { readonly room: number; readonly flight: number },
    sights = Sights.none,
  ) {
    this.prompt = prompt;
    this.sampling = sampling;
    this.options = options;
    this.sights = sights;
    this.draw = drawOf(sampling, options);
    this.most = Math.min(options.limit, bounds.room);
    this.flight = options.mask ? 1 : (options.inFlight ?? bounds.flight); // a mask needs the token
    this.tokens = [...prompt];
    this.wake();
  }

  /** Tells who waits for `changed`. */
  wake(): void {
    this.#wake();
    this.changed = new Promise((resolve) => (this.#wake = resolve));
  }

  get logprobs(): number | undefined {
    return this.options.logprobs;
  }

  get over(): boolean {
    return this.ended || this.failure !== undefined;
  }

  /** Tokens, known or drawn, that the cache does not have. */
  get pending(): number {
    return this.prompt.length + this.drawn - this.cached;
  }

  /** Whether one more token may be begun before the caller has taken what there is. */
  get goesOn(): boolean {
    return !this.over && this.drawn < this.most && this.drawn - this.taken < this.flight;
  }

  /** The position of the next token. */
  get length(): number {
    return this.cached - this.dropped;
  }

  /** Finds what the cache has of its tokens, at most so much; one of them is computed anew. */
  begin(pool: PagePool, most = Infinity): void {
    const tokens = this.tokens.slice(0, Math.min(this.tokens.length - 1, most));
    const { pages, text } = pool.find(tokens, (start, stop) => this.sights.marks(start, stop));
    this.pages = pages;
    this.#kept = pages.length;
    this.#text = text;
    this.cached = pages.length * pool.size;
  }

  /** Tells how much of the prompt the cache held when it first began. */
  tell(): void {
    if (this.#told) return;
    this.#told = true;
    this.options.onPrompt(this.cached);
  }

  /** Pages for the next tokens. Throws `context` where there are none; what it got it keeps. */
  reserve(pool: PagePool, count: number): void {
    const needed = Math.ceil((this.length + count) / pool.size);
    while (this.pages.length < needed) this.pages.push(pool.take());
  }

  /**
   * Tokens as a step takes them: those that are not known yet are the ones drawn in its row, those of
   * images are rows of what the model has seen.
   */
  next(count: number, eyes: Eyes | undefined): number[] {
    const tokenAt = (place: number): number =>
      (eyes && this.sights.token(place, eyes)) ?? this.tokens[place] ?? -1 - this.row;
    return Array.from({ length: count }, (_, k) => tokenAt(this.cached + k));
  }

  /** A step takes the next tokens into the cache. */
  advance(pool: PagePool, count: number): void {
    this.cached += count;
    this.fresh = this.pending === 0;
    this.keep(pool);
  }

  /** Pages that are whole, with tokens that are known, can be found from now on. */
  keep(pool: PagePool): void {
    if (this.dropped > 0) return; // what is in later pages hangs on what was dropped
    const known = Math.min(this.cached, this.tokens.length);
    for (; (this.#kept + 1) * pool.size <= known; this.#kept++) {
      const first = this.#kept * pool.size;
      const tokens = this.tokens.slice(first, first + pool.size);
      const marks = this.sights.marks(first, first + pool.size);
      this.#text = pool.keep(this.pages[this.#kept] as number, this.#text, tokens, marks);
    }
  }

  /** Gives back pages that end before the next token's window, and that keep what they can. */
  passBy(pool: PagePool, window: number): void {
    const before = Math.floor((this.length - window + 1) / pool.size);
    const gone = Math.max(this.#gone, Math.min(before, this.#kept));
    pool.release(this.pages.slice(this.#gone, gone));
    this.#gone = gone;
  }

  /** A token came. What was drawn ahead for a text that is over is dropped. */
  add(token: Token, pool: PagePool): void {
    if (this.over) return;
    this.tokens.push(token.id);
    this.ready.push(token);
    this.keep(pool);
    this.ended = this.tokens.length - this.prompt.length >= this.most;
    this.wake();
  }

  fail(error: unknown): void {
    this.failure ??= { error };
    this.wake();
  }

  /** Gives up its pages: its tokens, which must all be known, can be computed again. */
  leave(pool: PagePool): void {
    pool.release(this.pages.slice(this.#gone));
    this.pages = [];
    this.cached = 0;
    this.dropped = 0;
    this.#gone = 0;
    this.fresh = false;
  }
}
