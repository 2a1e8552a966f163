/** Vectors of texts, by a compiled model's function `embed`. */

import { EdgeRelaxError } from '../errors.ts';
import type { LanguageInfo } from '../manifest.ts';
import type { Backend, Model } from '../model.ts';
import {
  type Check,
  anything,
  count,
  either,
  first,
  isRecord,
  listOf,
  oneOf,
  orNull,
  text,
} from '../schema.ts';
import { tensor } from './drawing.ts';
import { Reviving } from './reviving.ts';

const BATCH = 16; // texts that one run takes: they are padded to the longest

export interface EmbeddingRequest {
  /** Texts, or their token ids. */
  readonly input: string | readonly string[] | readonly number[] | readonly (readonly number[])[];
  /** Numbers, or the bytes of f32 numbers in base64. */
  readonly encoding_format?: 'float' | 'base64' | null;
  /** The first so many numbers, of length 1 again. */
  readonly dimensions?: number | null;
  readonly model?: string;
  readonly user?: unknown;
  readonly signal?: AbortSignal;
}

export interface Embedding {
  readonly object: 'embedding';
  readonly index: number;
  readonly embedding: readonly number[] | string;
}

export interface Embeddings {
  readonly object: 'list';
  readonly data: readonly Embedding[];
  readonly model: string;
  readonly usage: { readonly prompt_tokens: number; readonly total_tokens: number };
}

export interface EmbedderParts {
  readonly model: Model;
  readonly language: LanguageInfo;
  /** The token ids of a text, with those that frame it. */
  readonly encode: (text: string) => number[];
  /** What answers call the model. */
  readonly name: string;
}

/** A model that gives vectors. Requests may overlap; a failed one leaves the others alone. */
export class Embedder {
  readonly name: string;
  readonly backend: Backend;
  /** The most tokens of a text. */
  readonly context: number;
  readonly embeddings: { readonly create: (request: EmbeddingRequest) => Promise<Embeddings> };
  readonly #parts: EmbedderParts;
  readonly #reviving: Reviving;

  constructor(parts: EmbedderParts) {
    const { model, language, name } = parts;
    this.#parts = parts;
    this.#reviving = new Reviving(model);
    this.name = name;
    this.backend = model.backend;
    this.context = language.context;
    this.embeddings = { create: (request) => this.#create(request) };
  }

  /** Vectors of length 1, in the order of the texts. */
  async embed(
    texts: readonly (string | readonly number[])[],
    signal?: AbortSignal,
  ): Promise<Float32Array[]> {
    return this.#vectors(this.#tokens(texts), signal);
  }

  dispose(): Promise<void> {
    return this.#parts.model.dispose();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  async #create(request: EmbeddingRequest): Promise<Embeddings> {
    const problem = checked(request);
    if (problem !== undefined) throw new EdgeRelaxError('input', problem);
    const { input, dimensions, encoding_format, signal } = request;
    const texts = this.#tokens(textsOf(input));
    const vectors = await this.#vectors(texts, signal);
    const data = vectors.map((vector, index): Embedding => {
      const cut = shortened(vector, dimensions ?? vector.length);
      const embedding = encoding_format === 'base64' ? base64(cut) : [...cut];
      return { object: 'embedding', index, embedding };
    });
    const tokens = texts.reduce((sum, one) => sum + one.length, 0);
    const usage = { prompt_tokens: tokens, total_tokens: tokens };
    return { object: 'list', data, model: this.name, usage };
  }

  #tokens(texts: readonly (string | readonly number[])[]): (readonly number[])[] {
    const { encode, language } = this.#parts;
    return texts.map((given, k) => {
      const tokens = typeof given === 'string' ? encode(given) : given;
      const bad = tokens.find((id) => !Number.isInteger(id) || id < 0 || id >= language.vocabulary);
      if (tokens.length > 0 && tokens.length <= this.context && bad === undefined) return tokens;
      const what =
        bad === undefined
          ? `${tokens.length} tokens; the model takes 1 to ${this.context}`
          : `token ${bad} of a vocabulary of ${language.vocabulary}`;
      const code = tokens.length > this.context ? 'context' : 'input';
      throw new EdgeRelaxError(code, `input[${k}]: ${what}`);
    });
  }

  /** In batches of texts of like lengths, so that little is padded. */
  async #vectors(
    texts: readonly (readonly number[])[],
    signal: AbortSignal | undefined,
  ): Promise<Float32Array[]> {
    const order = [...texts.keys()].sort((a, b) => texts[a]!.length - texts[b]!.length);
    const found = new Array<Float32Array>(texts.length);
    for (let start = 0; start < order.length; start += BATCH) {
      const some = order.slice(start, start + BATCH);
      const rows = await this.#batch(
        some.map((k) => texts[k]!),
        signal,
      );
      for (const [at, k] of some.entries()) found[k] = rows[at]!;
    }
    return found;
  }

  async #batch(
    texts: readonly (readonly number[])[],
    signal: AbortSignal | undefined,
  ): Promise<Float32Array[]> {
    const { language } = this.#parts;
    const width = Math.max(...texts.map(({ length }) => length));
    const tokens = new BigInt64Array(texts.length * width);
    for (const [k, text] of texts.entries()) tokens.set(text.map(BigInt), k * width);
    const lengths = BigInt64Array.from(texts, ({ length }) => BigInt(length));
    const inputs = {
      tokens: tensor(tokens, texts.length, width),
      lengths: tensor(lengths, texts.length),
    };
    const options = { function: language.functions['embed'] as string, ...(signal && { signal }) };
    await this.#reviving.revive();
    const all = (await this.#reviving.run(inputs, options))['embeddings']?.data as Float32Array;
    const size = all.length / texts.length;
    return texts.map((_, k) => all.slice(k * size, (k + 1) * size));
  }
}

const ids = listOf(count);
const some: Check = (value, at) =>
  Array.isArray(value) && value.length === 0 ? `${at} is empty` : undefined;
const width: Check = (value, at) =>
  Number.isSafeInteger(value) && (value as number) > 0 ? undefined : `${at} is no count above 0`;

const FIELDS: Readonly<Record<string, Check>> = {
  input: (value, at) => some(value, at) ?? either(text, listOf(text), ids, listOf(ids))(value, at),
  encoding_format: orNull(oneOf('float', 'base64')),
  dimensions: orNull(width),
  model: text,
  user: anything,
  signal: (value, at) => (value instanceof AbortSignal ? undefined : `${at} is no AbortSignal`),
};

function checked(request: unknown): string | undefined {
  if (!isRecord(request)) return 'the request is no object';
  if (request['input'] === undefined) return 'input is missing';
  const given = Object.entries(request).filter(([, value]) => value !== undefined);
  return first(given, ([name, value]) => {
    const check = Object.hasOwn(FIELDS, name) ? FIELDS[name] : undefined;
    if (check) return check(value, name);
    return `${name} is no field here; there are ${Object.keys(FIELDS).join(', ')}`;
  });
}

function textsOf(input: EmbeddingRequest['input']): readonly (string | readonly number[])[] {
  if (typeof input === 'string') return [input];
  const one = typeof input[0] === 'number';
  return (one ? [input] : input) as readonly (string | readonly number[])[];
}

function shortened(vector: Float32Array, length: number): Float32Array {
  if (length === vector.length) return vector;
  if (length > vector.length) {
    throw new EdgeRelaxError('input', `dimensions is ${length}, the model gives ${vector.length}`);
  }
  const cut = vector.slice(0, length);
  const norm = Math.hypot(...cut) || 1;
  return cut.map((value) => value / norm);
}

function base64(vector: Float32Array): string {
  const bytes = new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
}
