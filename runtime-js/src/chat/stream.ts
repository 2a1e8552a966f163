/** Tokens to text as it comes: characters once they are whole, no text that may yet be a stop. */

import type { Tokenizer } from './tokenizer.ts';

export interface DetokenizerOptions {
  /** Whether the text begins here: then the space that tokenizers put before it goes. */
  readonly begins: boolean;
  /** Special tokens that are shown nevertheless. */
  readonly shown?: ReadonlySet<number>;
}

/** Gives a text piece by piece. Bytes that are no UTF-8 become U+FFFD, as decoders have it. */
export class Detokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #shown: ReadonlySet<number>;
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  #prefixed: boolean;

  constructor(tokenizer: Tokenizer, { begins, shown = new Set() }: DetokenizerOptions) {
    this.#tokenizer = tokenizer;
    this.#shown = shown;
    this.#prefixed = begins && tokenizer.prefixed;
  }

  /** The characters that this token completes. */
  push(id: number): string {
    if (this.#tokenizer.isSpecial(id) && !this.#shown.has(id)) return '';
    const text = this.#decoder.decode(this.#tokenizer.bytes(id), { stream: true });
    if (!this.#prefixed || text === '') return text;
    this.#prefixed = false;
    return text.startsWith(' ') ? text.slice(1) : text;
  }

  /** What is left when no more tokens come. */
  flush(): string {
    return this.#decoder.decode();
  }
}

/** Lets text through up to the first stop string, which is not part of it. */
export class StopStrings {
  readonly #stops: readonly string[];
  #held = '';
  #stopped = false;

  constructor(stops: readonly string[]) {
    this.#stops = stops.filter((stop) => stop !== ''); // which would stop everything
  }

  get stopped(): boolean {
    return this.#stopped;
  }

  /** The text that is certain now. */
  push(text: string): string {
    const all = this.#held + text;
    const found = this.#stops.map((stop) => all.indexOf(stop)).filter((at) => at >= 0);
    if (found.length > 0) {
      this.#stopped = true;
      this.#held = '';
      return all.slice(0, Math.min(...found));
    }
    const held = Math.max(0, ...this.#stops.map((stop) => overlap(all, stop)));
    this.#held = all.slice(all.length - held);
    return all.slice(0, all.length - held);
  }

  /** What was held back when no more text comes. */
  flush(): string {
    const rest = this.#held;
    this.#held = '';
    return rest;
  }
}

/** How long the longest end of a text is that begins `mark` without being all of it. */
export function overlap(text: string, mark: string): number {
  for (let length = Math.min(text.length, mark.length - 1); length > 0; length--) {
    if (text.endsWith(mark.slice(0, length))) return length;
  }
  return 0;
}
