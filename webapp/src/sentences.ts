/** Compares sentences by the meaning that MiniLM sees in them. */

import { Tokenizer } from '@huggingface/tokenizers';

const MOST_TOKENS = 128; // that the network was trained on
const PADDING = 0n;

/** Sentences as the network takes them: [sentences, tokens], the shorter ones padded. */
export interface Tokens {
  readonly ids: BigInt64Array;
  readonly mask: BigInt64Array;
  readonly shape: [number, number];
}

/** Reads a tokenizer.json; gives the function from sentences to tokens. */
export function tokenizer(description: object): (sentences: readonly string[]) => Tokens {
  const tokens = new Tokenizer(description, {});
  return (sentences) => pack(sentences.map((sentence) => shortened(tokens.encode(sentence).ids)));
}

/** A long sentence loses its end, but not the mark of it. */
function shortened(ids: readonly number[]): readonly number[] {
  const last = ids.at(-1);
  if (ids.length <= MOST_TOKENS || last === undefined) return ids;
  return [...ids.slice(0, MOST_TOKENS - 1), last];
}

function pack(rows: readonly (readonly number[])[]): Tokens {
  const length = Math.max(0, ...rows.map((row) => row.length));
  const shape: [number, number] = [rows.length, length];
  const ids = new BigInt64Array(rows.length * length).fill(PADDING);
  const mask = new BigInt64Array(rows.length * length);
  rows.forEach((row, k) => {
    row.forEach((id, n) => {
      ids[k * length + n] = BigInt(id);
      mask[k * length + n] = 1n;
    });
  });
  return { ids, mask, shape };
}

/** The cosine between the first row and each of the others. */
export function similarities(
  embeddings: Float32Array,
  [count = 0, size = 0]: readonly number[],
): number[] {
  const row = (k: number): Float32Array => embeddings.subarray(k * size, (k + 1) * size);
  return Array.from({ length: Math.max(0, count - 1) }, (_, k) => cosine(row(0), row(k + 1)));
}

function cosine(a: Float32Array, b: Float32Array): number {
  let [ab, aa, bb] = [0, 0, 0];
  a.forEach((x, k) => {
    const y = b[k] ?? 0;
    ab += x * y;
    aa += x * x;
    bb += y * y;
  });
  return aa && bb ? ab / Math.sqrt(aa * bb) : 0;
}
