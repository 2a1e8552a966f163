/** How the tokens of texts are drawn: which of the model's functions, and what these take. */

import type { TensorData } from '../tensors.ts';
import type { GenerateOptions, Sampling, Scored, Token } from './engine.ts';

const PROMPT = 1 << 30; // marks, in counts, a token of the prompt: only repetition looks at those
const SEEDS = 0x7fffffff;

type Inputs = Record<string, TensorData>;

/** Roles of functions, as the manifest names them. */
export const ROLES = ['step', 'greedy', 'sample', 'adjusted', 'top', 'count', 'clear'] as const;
export type Role = (typeof ROLES)[number];

/** Ways of drawing, each a function for all texts that draw so. */
export const DRAWS = ['greedy', 'sample', 'adjusted'] as const;
export type Draw = (typeof DRAWS)[number];

/** A text, for its next draw. */
export interface Drawer {
  /** The row of its logits, of what was drawn, and of its counts. */
  readonly row: number;
  readonly sampling: Sampling;
  /** How many of the likeliest tokens are wanted, if probabilities are. */
  readonly logprobs: number | undefined;
  /** How many tokens were drawn for it. */
  readonly drawn: number;
  /** The bits of what may come. */
  readonly allowed: Int32Array | undefined;
}

export function drawOf(
  sampling: Sampling,
  { logprobs, mask }: Pick<GenerateOptions, 'logprobs' | 'mask'>,
): Draw {
  const { temperature, logitBias } = sampling;
  const { repetitionPenalty, presencePenalty, frequencyPenalty } = sampling;
  const penalties = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
  if (penalties || logitBias.size > 0 || mask !== undefined) return 'adjusted';
  return temperature === 0 && logprobs === undefined ? 'greedy' : 'sample';
}

export function rowsOf(texts: readonly { readonly row: number }[]): TensorData {
  return tensor(
    Int32Array.from(texts, ({ row }) => row),
    texts.length,
  );
}

/** What the function takes for the next token of each text. */
export function drawInputs(draw: Draw, texts: readonly Drawer[], vocabulary: number): Inputs {
  const { length } = texts;
  const rows = rowsOf(texts);
  if (draw === 'greedy') return { rows };
  const numbers = texts.flatMap(({ sampling: s }) => [
    ...[s.temperature, s.topP, s.minP],
    ...[s.repetitionPenalty, s.presencePenalty, s.frequencyPenalty],
  ]);
  const integers = texts.flatMap(({ sampling: { topK, seed } }) => [topK, seed & SEEDS]);
  const inputs = {
    rows,
    numbers: tensor(Float32Array.from(numbers), length, 6),
    integers: tensor(Int32Array.from(integers), length, 2),
    steps: tensor(
      Int32Array.from(texts, ({ drawn }) => drawn),
      length,
    ),
  };
  return draw === 'sample' ? inputs : { ...inputs, ...adjustments(texts, vocabulary) };
}

/** Biases, of fewer tokens with ones that are none; masks. */
function adjustments(texts: readonly Drawer[], vocabulary: number): Inputs {
  const { length } = texts;
  const most = Math.max(...texts.map(({ sampling }) => sampling.logitBias.size));
  const ids = new Int32Array(length * most).fill(vocabulary);
  const bias = new Float32Array(length * most);
  const words = Math.ceil(vocabulary / 32);
  const allowed = new Uint32Array(length * words).fill(0xffffffff);
  for (const [k, text] of texts.entries()) {
    ids.set([...text.sampling.logitBias.keys()], k * most);
    bias.set([...text.sampling.logitBias.values()], k * most);
    if (text.allowed) allowed.set(text.allowed.subarray(0, words), k * words);
  }
  return {
    bias_ids: tensor(ids, length, most),
    bias: tensor(bias, length, most),
    allowed: tensor(allowed, length, words),
  };
}

/** What `count` takes for a row: what the prompt has, and what was generated. */
export function countInputs(
  row: number,
  prompt: readonly number[],
  generated: readonly number[],
): Inputs {
  const counts = new Map<number, number>();
  for (const token of generated) counts.set(token, (counts.get(token) ?? 0) + 1);
  for (const token of new Set(prompt)) counts.set(token, (counts.get(token) ?? 0) + PROMPT);
  const { size } = counts;
  return {
    rows: tensor(new Int32Array(size).fill(row), size),
    tokens: tensor(Int32Array.from(counts.keys()), size),
    amounts: tensor(Int32Array.from(counts.values()), size),
  };
}

/** The token that was drawn for text `at` of those that were asked for; `best` is what `top` gave. */
export function tokenOf(
  at: number,
  logprobs: number | undefined,
  drawn: Results,
  best: Results | undefined,
): Token {
  const id = number(drawn, 'token', at);
  if (logprobs === undefined) return { id };
  const top: Scored[] = [];
  const width = best?.['ids']?.shape[1] ?? 0;
  for (let k = 0; best && k < Math.min(logprobs, width); k++) {
    const logprob = number(best, 'logprobs', at * width + k);
    if (logprob > -Infinity) top.push({ id: number(best, 'ids', at * width + k), logprob });
  }
  return { id, logprob: number(drawn, 'logprob', at), top };
}

interface Result {
  readonly data: ArrayLike<number | bigint>;
  readonly shape: readonly number[];
}

type Results = Readonly<Record<string, Result>>;

function number(results: Results, name: string, at: number): number {
  return Number(results[name]?.data[at]);
}

export function tensor(data: TensorData['data'], ...shape: number[]): TensorData {
  return { data, shape };
}
