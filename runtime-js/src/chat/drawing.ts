/** How the tokens of a text are drawn: which of the model's functions, and what that takes. */

import type { TensorData } from '../tensors.ts';
import type { GenerateOptions, Sampling, Scored, Token } from './engine.ts';

/** The row of a text's logits, of what was drawn, and of its counts: there is one text. */
export const ROW = tensor(Int32Array.of(0), 1);

const PROMPT = 1 << 30; // marks, in counts, a token of the prompt: only repetition looks at those
const SEEDS = 0x7fffffff;

type Inputs = Record<string, TensorData>;

/** Roles of functions, as the manifest names them. */
export const ROLES = ['step', 'greedy', 'sample', 'adjusted', 'top', 'count', 'clear'] as const;
export type Role = (typeof ROLES)[number];

export class Drawing {
  readonly role: 'greedy' | 'sample' | 'adjusted';
  /** How many of the likeliest tokens are wanted, if probabilities are. */
  readonly logprobs: number | undefined;
  readonly #vocabulary: number;
  readonly #same: Inputs;

  constructor(
    sampling: Sampling,
    { logprobs, mask }: Pick<GenerateOptions, 'logprobs' | 'mask'>,
    vocabulary: number,
  ) {
    const { temperature, topP, topK, minP, seed, logitBias } = sampling;
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = sampling;
    const penalties = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    const adjusted = penalties || logitBias.size > 0 || mask !== undefined;
    const greedy = temperature === 0 && logprobs === undefined;
    this.role = adjusted ? 'adjusted' : greedy ? 'greedy' : 'sample';
    this.logprobs = logprobs;
    this.#vocabulary = vocabulary;
    this.#same = { rows: ROW };
    if (this.role === 'greedy') return;
    const cuts = [temperature, topP, minP];
    const taken = [repetitionPenalty, presencePenalty, frequencyPenalty];
    this.#same['numbers'] = tensor(Float32Array.of(...cuts, ...taken), 1, 6);
    this.#same['integers'] = tensor(Int32Array.of(topK, seed & SEEDS), 1, 2);
    if (this.role === 'sample') return;
    this.#same['bias_ids'] = tensor(Int32Array.from(logitBias.keys()), 1, logitBias.size);
    this.#same['bias'] = tensor(Float32Array.from(logitBias.values()), 1, logitBias.size);
    const every = new Uint32Array(Math.ceil(vocabulary / 32)).fill(0xffffffff);
    this.#same['allowed'] = tensor(every, 1, every.length);
  }

  /** What the function takes for draw number `step`. */
  inputs(step: number, allowed: Int32Array | undefined): Inputs {
    if (this.role === 'greedy') return this.#same;
    const inputs = { ...this.#same, steps: tensor(Int32Array.of(step), 1) };
    if (!allowed) return inputs;
    const words = Uint32Array.from(allowed).subarray(0, Math.ceil(this.#vocabulary / 32));
    return { ...inputs, allowed: tensor(words, 1, words.length) };
  }

  /** What `count` takes for a prompt. */
  static counts(prompt: readonly number[]): Inputs {
    const tokens = Int32Array.from(new Set(prompt));
    const { length } = tokens;
    return {
      rows: tensor(new Int32Array(length), length),
      tokens: tensor(tokens, length),
      amounts: tensor(new Int32Array(length).fill(PROMPT), length),
    };
  }

  /** The token that a draw gave; `best` is what `top` gave. */
  token(drawn: Results, best: Results | undefined): Token {
    const id = number(drawn, 'token', 0);
    if (this.logprobs === undefined) return { id };
    const top: Scored[] = [];
    for (let k = 0; best && k < Math.min(this.logprobs, size(best, 'ids')); k++) {
      const logprob = number(best, 'logprobs', k);
      if (logprob > -Infinity) top.push({ id: number(best, 'ids', k), logprob });
    }
    return { id, logprob: number(drawn, 'logprob', 0), top };
  }
}

type Results = Readonly<Record<string, { readonly data: ArrayLike<number | bigint> }>>;

function number(results: Results, name: string, at: number): number {
  return Number(results[name]?.data[at]);
}

function size(results: Results, name: string): number {
  return results[name]?.data.length ?? 0;
}

export function tensor(data: TensorData['data'], ...shape: number[]): TensorData {
  return { data, shape };
}
