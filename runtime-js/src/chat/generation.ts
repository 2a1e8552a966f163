/** One answer: tokens from the engine, text to the caller, up to where it ends. */

import { EdgeRelaxError, throwIfAborted } from '../errors.ts';
import type { Engine, Picture, Scored, Token, TokenMask } from './engine.ts';
import type { Settings } from './request.ts';
import { Detokenizer, StopStrings } from './stream.ts';
import type { Tokenizer } from './tokenizer.ts';
import type { Timings, TokenLogprob, TopLogprob, Usage } from './types.ts';

export interface Job {
  readonly engine: Engine;
  readonly tokenizer: Tokenizer;
  /** Tokens that end an answer. */
  readonly eos: ReadonlySet<number>;
  readonly prompt: readonly number[];
  /** What the prompt has of images. */
  readonly pictures?: readonly Picture[];
  readonly settings: Settings;
  readonly mask: TokenMask | undefined;
  readonly signal: AbortSignal;
  /** Whether the answer is a text of its own, and not the rest of the prompt's. */
  readonly begins: boolean;
  /** Special tokens that belong to the text. */
  readonly shown: ReadonlySet<number>;
  /** Whether the pieces so far are the whole answer. */
  readonly enough?: (() => boolean) | undefined;
}

export interface LoggedToken extends TokenLogprob {
  /** Where its text begins in the answer, in UTF-16 units. */
  readonly start: number;
}

/** Text that is certain, with the tokens that begin in it. */
export interface Piece {
  readonly text: string;
  readonly tokens: readonly LoggedToken[];
}

export interface Summary {
  readonly finish: 'stop' | 'length';
  readonly usage: Usage;
  readonly timings: Timings;
}

/** Throws `context` for a prompt that leaves no room for an answer. */
export function checkRoom(prompt: readonly number[], context: number): void {
  if (prompt.length < context) return;
  throw new EdgeRelaxError(
    'context',
    `the prompt has ${prompt.length} tokens, and the context holds ${context}, of which the answer takes 1 at least; shorten the prompt`,
  );
}

export async function* generate(job: Job): AsyncGenerator<Piece, Summary> {
  const { engine, tokenizer, prompt, settings, eos, signal } = job;
  const limit = Math.min(
    settings.limit ?? engine.answer ?? Infinity,
    engine.context - prompt.length,
  );
  const detokenizer = new Detokenizer(tokenizer, job);
  const stops = new StopStrings(settings.stops);
  const log = new Log(tokenizer, settings.logprobs !== undefined);
  const clock = new Clock();
  let reused = 0;
  let finish: Summary['finish'] = 'length';
  const tokens = engine.generate(prompt, settings.sampling, {
    limit,
    signal,
    onPrompt: (count) => (reused = count),
    ...(settings.logprobs !== undefined && { logprobs: settings.logprobs }),
    ...(job.mask && { mask: job.mask }),
    ...(job.pictures && job.pictures.length > 0 && { pictures: job.pictures }),
  });
  for await (const token of tokens) {
    throwIfAborted(signal);
    clock.count();
    if (eos.has(token.id) && !settings.ignoreEos) {
      finish = 'stop';
      break;
    }
    const decoded = detokenizer.push(token.id);
    log.add(token, decoded.length);
    const text = stops.push(decoded);
    if (text !== '') yield { text, tokens: log.release(text.length) };
    if (stops.stopped || clock.tokens >= limit) break;
    if (job.enough?.()) {
      finish = 'stop';
      break;
    }
  }
  throwIfAborted(signal); // an engine may just end then
  const rest = stops.stopped ? '' : stops.push(detokenizer.flush()) + stops.flush();
  if (stops.stopped) finish = 'stop';
  const last = stops.stopped ? log.release(rest.length) : log.all();
  if (rest !== '' || last.length > 0) yield { text: rest, tokens: last };
  return { finish, usage: usageOf(prompt.length, clock.tokens, reused), timings: clock.timings() };
}

function usageOf(prompt: number, completion: number, reused: number): Usage {
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: reused },
  };
}

class Clock {
  tokens = 0;
  readonly #start = performance.now();
  #first = this.#start;
  #last = this.#start;

  count(): void {
    this.#last = performance.now();
    if (this.tokens++ === 0) this.#first = this.#last;
  }

  timings(): Timings {
    const generation = (this.#last - this.#first) / 1000;
    const speed = this.tokens > 1 && generation > 0 ? (this.tokens - 1) / generation : 0;
    return {
      first_token: (this.#first - this.#start) / 1000,
      generation,
      tokens_per_second: speed,
    };
  }
}

/** Probabilities wait until text of their token is certain. */
class Log {
  readonly #tokenizer: Tokenizer;
  readonly #on: boolean;
  #waiting: LoggedToken[] = [];
  #decoded = 0;
  #released = 0;

  constructor(tokenizer: Tokenizer, on: boolean) {
    this.#tokenizer = tokenizer;
    this.#on = on;
  }

  add({ id, logprob, top = [] }: Token, length: number): void {
    const start = this.#decoded;
    this.#decoded += length;
    if (!this.#on) return;
    if (logprob === undefined) throw new EdgeRelaxError('vm', 'the engine gave no probability');
    const top_logprobs = top.map((other) => this.#told(other));
    this.#waiting.push({ ...this.#told({ id, logprob }), top_logprobs, start });
  }

  release(length: number): readonly LoggedToken[] {
    this.#released += length;
    const count = this.#waiting.findIndex((token) => token.start >= this.#released);
    return this.#waiting.splice(0, count < 0 ? this.#waiting.length : count);
  }

  all(): readonly LoggedToken[] {
    return this.#waiting.splice(0);
  }

  #told({ id, logprob }: Scored): TopLogprob {
    const bytes = this.#tokenizer.bytes(id);
    const token = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
    return { token, logprob, bytes: [...bytes] };
  }
}
