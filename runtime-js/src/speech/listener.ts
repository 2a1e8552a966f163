/** The functions of a speech model's artifact, for one text at a time. */

import { tensor } from '../chat/drawing.ts';
import { bucket } from '../chat/pages.ts';
import { Reviving } from '../chat/reviving.ts';
import { EdgeRelaxError } from '../errors.ts';
import { kindOf, misfit } from '../kinds.ts';
import type { LanguageInfo, Manifest, SymbolInfo } from '../manifest.ts';
import type { Model, Outputs } from '../model.ts';
import type { TensorData } from '../tensors.ts';

/** Roles of functions, as the manifest names them. */
const ROLES = ['encode', 'step', 'read', 'timed'] as const;
type Role = (typeof ROLES)[number];

export interface Hearing extends LanguageInfo {
  readonly page_size: number;
  /** What sizes of audio it was made for. */
  readonly samples: SymbolInfo;
}

/** What the manifest says of a model that hears; throws `format` for one that does not. */
export function hearing(manifest: Manifest): Hearing {
  const { language } = manifest;
  if (!language || kindOf(manifest) !== 'hears') throw misfit(manifest);
  const { page_size, functions } = language;
  const lost = ROLES.find((role) => !Object.hasOwn(functions, role));
  if (page_size === null || lost !== undefined) {
    const what = page_size === null ? 'cache' : `function for ${lost}`;
    throw new EdgeRelaxError('format', `this speech model has no ${what}; export the model again`);
  }
  const samples = samplesOf(manifest, functions['encode'] as string);
  return { ...language, page_size, samples };
}

/** How a token is drawn. */
export interface Draw {
  /** The bits of what may come. */
  readonly allowed: Uint32Array;
  readonly temperature: number;
  readonly seed: number;
  /** How many tokens of the text were drawn before. */
  readonly step: number;
}

export interface Drawn {
  readonly token: number;
  /** The logarithm of its probability among those that are allowed. */
  readonly logprob: number;
}

export class Listener {
  readonly context: number;
  readonly vocabulary: number;
  /** How many samples `hear` takes at most; undefined: all of the model's window. */
  readonly window: number | undefined;
  readonly #model: Model;
  readonly #language: Hearing;
  /** Pages of a whole text. */
  readonly #most: number;
  readonly #reviving: Reviving;

  private constructor(model: Model, language: Hearing) {
    this.#model = model;
    this.#reviving = new Reviving(model);
    this.#language = language;
    this.context = language.context;
    this.vocabulary = language.vocabulary;
    this.#most = Math.ceil(language.context / language.page_size);
    const { hi, multiple_of } = language.samples;
    this.window = hi === null ? undefined : Math.floor(hi / multiple_of) * multiple_of;
  }

  static async open(model: Model, language: Hearing): Promise<Listener> {
    const listener = new Listener(model, language);
    await model.allocate({ slots: listener.#most * language.page_size, rows: 1 });
    return listener;
  }

  /** Takes a window's audio, or less; the text begins anew. */
  async hear(audio: Float32Array, signal: AbortSignal | undefined): Promise<void> {
    await this.#reviving.revive();
    const { lo, multiple_of } = this.#language.samples;
    const size = Math.ceil(Math.max(audio.length, lo) / multiple_of) * multiple_of;
    const padded = new Float32Array(size);
    padded.set(audio);
    await this.#run('encode', { audio: tensor(padded, 1, size) }, signal);
  }

  /** Takes tokens of the text, the first of them at a position that is not after the end. */
  async take(
    tokens: readonly number[],
    at: number,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const count = tokens.length;
    const places = Int32Array.from(tokens, (_, k) => at + k);
    const used = Math.ceil((at + count) / this.#language.page_size);
    const pages = Int32Array.from({ length: bucket(used, this.#most) }, (_, k) => k);
    const inputs = {
      tokens: tensor(Int32Array.from(tokens), 1, count),
      positions: tensor(places, 1, count),
      slots: tensor(places, 1, count),
      pages: tensor(pages, 1, pages.length),
      last: tensor(Int32Array.of(count - 1), 1),
    };
    await this.#run('step', inputs, signal);
  }

  /** Those after the last token that was taken. */
  async logits(signal: AbortSignal | undefined): Promise<Float32Array> {
    return (await this.#run('read', {}, signal))['logits']?.data as Float32Array;
  }

  /** The next token. */
  async draw(
    { allowed, temperature, seed, step }: Draw,
    signal: AbortSignal | undefined,
  ): Promise<Drawn> {
    const inputs = {
      numbers: tensor(Float32Array.of(temperature, 1, 0, 1, 0, 0), 1, 6),
      integers: tensor(Int32Array.of(0, seed), 1, 2),
      steps: tensor(Int32Array.of(step), 1),
      allowed: tensor(allowed, 1, allowed.length),
    };
    const { token, logprob } = await this.#run('timed', inputs, signal);
    return { token: Number(token?.data[0]), logprob: Number(logprob?.data[0]) };
  }

  dispose(): Promise<void> {
    return this.#model.dispose();
  }

  async #run(
    role: Role,
    inputs: Record<string, TensorData>,
    signal: AbortSignal | undefined,
  ): Promise<Outputs> {
    const rows = tensor(Int32Array.of(0), 1);
    const options = {
      function: this.#language.functions[role] as string,
      ...(signal && { signal }),
    };
    return this.#reviving.run({ ...inputs, rows }, options);
  }
}

/** What sizes of audio an artifact's function was made for. */
function samplesOf(manifest: Manifest, name: string): SymbolInfo {
  const inputs = manifest.functions.find((fn) => fn.name === name)?.inputs ?? [];
  const size = inputs.find((input) => input.name === 'audio')?.shape?.[1];
  if (typeof size === 'number') return { lo: size, hi: size, multiple_of: 1 };
  const symbol = size === undefined ? undefined : manifest.symbols[size];
  if (symbol) return symbol;
  throw new EdgeRelaxError('format', `the function ${name} takes no audio; export the model again`);
}
