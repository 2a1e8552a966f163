/**
 * Generates with a compiled language model whose keys and values are in pages of a cache.
 *
 * What a step draws feeds the next one on the device, so several are under way before the first
 * token is known; what they draw past the end of a text is dropped, and their places in the cache
 * are taken by what comes next.
 */

import { EdgeRelaxError, throwIfAborted } from '../errors.ts';
import { load, type LoadOptions } from '../index.ts';
import type { LanguageInfo, ProgramInfo } from '../manifest.ts';
import type { Model, Outputs } from '../model.ts';
import type { TensorData } from '../tensors.ts';
import { Drawing, type Role, ROLES, ROW, tensor } from './drawing.ts';
import type { Engine, EngineStats, GenerateOptions, Sampling, Token } from './engine.ts';
import { bucket, PagePool, type Text } from './pages.ts';

export interface EngineOptions extends LoadOptions {
  /** Tokens that the cache has room for; by default as many as the context, at most 4096. */
  readonly cacheTokens?: number;
  /** Steps under way at once; 1 waits for each token. By default 4 on a GPU, else 1. */
  readonly inFlight?: number;
}

const DEFAULT_TOKENS = 4096;
const DEFAULT_IN_FLIGHT = { webgpu: 4, wasm: 1 } as const;
const CHUNK = 256; // tokens of a prompt that one step takes
const SHORT_CHUNK = 64; // on a CPU: a chunk can't be interrupted
const DRAWN = -1; // stands for what was drawn in row 0

/** Loads a language model to generate with. Throws `format` for a model that cannot. */
export async function openEngine(url: string | URL, options: EngineOptions = {}): Promise<Engine> {
  const { cacheTokens, inFlight, ...loading } = options;
  checkCount('cacheTokens', cacheTokens);
  checkCount('inFlight', inFlight);
  const model = await load(url, loading);
  try {
    const engine = new PagedEngine(model, generating(model.manifest.language), options);
    await engine.allocate();
    return engine;
  } catch (error) {
    await model.dispose();
    throw error;
  }
}

interface Generating extends LanguageInfo {
  readonly page_size: number;
}

/** What the manifest says of a model that generates. */
export function generating(language: LanguageInfo | null): Generating {
  if (!language) {
    throw new EdgeRelaxError('format', 'this artifact is of no language model; use load for it');
  }
  const { page_size, functions } = language;
  const lost = ROLES.find((role) => !Object.hasOwn(functions, role));
  if (page_size === null || lost !== undefined) {
    const what = page_size === null ? 'cache' : `function for ${lost}`;
    throw new EdgeRelaxError(
      'format',
      `this language model has no ${what}, it cannot generate; export the model again`,
    );
  }
  return { ...language, page_size };
}

function checkCount(name: string, value: number | undefined): void {
  if (value === undefined || (Number.isSafeInteger(value) && value > 0)) return;
  throw new EdgeRelaxError('input', `${name} is ${value}: a whole number above 0 is expected`);
}

/** The text that is being made. */
interface Sequence {
  /** Of the prompt, and then those that are known. */
  readonly tokens: number[];
  readonly pages: number[];
  /** The pages as the model takes them; made anew when there are more. */
  table: TensorData;
  /** How many of the pages are whole and known by their text. */
  kept: number;
  text: Text;
}

class PagedEngine implements Engine {
  readonly backend: Engine['backend'];
  readonly context: number;
  readonly vocabulary: number;
  readonly #model: Model;
  readonly #language: Generating;
  readonly #program: ProgramInfo | undefined;
  readonly #chunk: number;
  readonly #inFlight: number;
  readonly #mostPages: number;
  #pool: PagePool;
  #lost = false;
  #busy = false;

  constructor(model: Model, language: Generating, { cacheTokens, inFlight }: EngineOptions) {
    const { context, page_size: size } = language;
    this.#model = model;
    this.#language = language;
    this.backend = model.backend;
    this.vocabulary = language.vocabulary;
    const room = cacheTokens ?? Math.min(context, DEFAULT_TOKENS);
    this.#pool = new PagePool(Math.ceil(room / size), size);
    this.context = Math.min(context, this.#pool.count * size);
    this.#mostPages = Math.ceil(context / size);
    this.#inFlight = inFlight ?? DEFAULT_IN_FLIGHT[model.backend];
    this.#program = model.manifest.programs.find(({ name }) => name === model.variant);
    this.#chunk = this.#program?.adapter === 'gpu' ? CHUNK : SHORT_CHUNK;
  }

  /** Makes the cache. Throws where there is no room for it. */
  async allocate(): Promise<void> {
    const slots = this.#pool.count * this.#pool.size;
    try {
      await this.#model.allocate({ slots, rows: 1 });
    } catch (cause) {
      if (!(cause instanceof EdgeRelaxError)) throw cause;
      throw new EdgeRelaxError(
        cause.code,
        `no cache for ${slots} tokens: ${cause.message}; give a smaller cacheTokens`,
        { cause },
      );
    }
  }

  stats(): EngineStats {
    const { bufferBytes, vmBytes } = this.#model.stats();
    const { gpu_kernels = [], cpu_kernels = [] } = this.#program ?? {};
    const kernels = gpu_kernels.length + cpu_kernels.length;
    return { memoryBytes: bufferBytes + vmBytes, kernels };
  }

  dispose(): Promise<void> {
    return this.#model.dispose();
  }

  async *generate(
    prompt: readonly number[],
    sampling: Sampling,
    options: GenerateOptions,
  ): AsyncGenerator<Token, void> {
    this.#check(prompt);
    this.#busy = true;
    let sequence: Sequence | undefined;
    try {
      throwIfAborted(options.signal);
      await this.#revive();
      sequence = this.#begin(prompt);
      options.onPrompt(sequence.pages.length * this.#pool.size);
      await this.#prefill(sequence, options.signal);
      yield* this.#decode(sequence, sampling, options);
    } catch (error) {
      this.#lost ||= error instanceof EdgeRelaxError && error.code === 'lost';
      throw error;
    } finally {
      if (sequence) this.#pool.release(sequence.pages);
      this.#busy = false;
    }
  }

  #check(prompt: readonly number[]): void {
    if (this.#busy) throw new EdgeRelaxError('input', 'another text is being generated');
    if (prompt.length === 0) throw new EdgeRelaxError('input', 'the prompt has no tokens');
    const { vocabulary, context } = this;
    const bad = prompt.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabulary);
    if (bad !== undefined) {
      throw new EdgeRelaxError('input', `token ${bad} of a vocabulary of ${vocabulary}`);
    }
    if (prompt.length < context) return;
    throw new EdgeRelaxError(
      'context',
      `a prompt of ${prompt.length} tokens; the model's context has ${this.#language.context} and ` +
        `its cache room for ${this.#pool.count * this.#pool.size}, what is generated included; ` +
        'shorten the prompt, or give a larger cacheTokens',
    );
  }

  /** After its device was lost the model is loaded anew, with an empty cache. */
  async #revive(): Promise<void> {
    if (!this.#lost) return;
    await this.#model.reload();
    this.#pool = new PagePool(this.#pool.count, this.#pool.size);
    this.#lost = false;
  }

  /** Finds what the cache has of a prompt; one token at least is computed anew. */
  #begin(prompt: readonly number[]): Sequence {
    const { pages, text } = this.#pool.find(prompt.slice(0, -1));
    const table = tensor(new Int32Array(0), 1, 0);
    return { tokens: [...prompt], pages, table, kept: pages.length, text };
  }

  /** Chunk after chunk, with one that waits while one is computed. */
  async #prefill(sequence: Sequence, signal: AbortSignal): Promise<void> {
    const { tokens, pages } = sequence;
    let before = Promise.resolve();
    for (let at = pages.length * this.#pool.size; at < tokens.length;) {
      const chunk = tokens.slice(at, at + this.#chunk);
      await this.#step(sequence, chunk, at);
      at += chunk.length;
      this.#keep(sequence, at);
      await before;
      throwIfAborted(signal);
      before = this.#model.settled();
      await this.#pause();
    }
  }

  async *#decode(
    sequence: Sequence,
    sampling: Sampling,
    options: GenerateOptions,
  ): AsyncGenerator<Token, void> {
    const { mask, signal } = options;
    const drawing = new Drawing(sampling, options, this.vocabulary);
    const length = sequence.tokens.length;
    const most = Math.min(options.limit, this.context - length);
    const atOnce = mask ? 1 : (options.inFlight ?? this.#inFlight); // a mask needs the token before
    const flying: Promise<Token>[] = [];
    if (drawing.role === 'adjusted') await this.#count(sequence.tokens);
    for (let known = 0; known < most; known++) {
      for (let k = known + flying.length; k < Math.min(known + atOnce, most); k++) {
        const stepped = k > 0 ? this.#step(sequence, [DRAWN], length + k - 1) : undefined;
        const previous = sequence.tokens[length + k - 1];
        const allowed = mask && this.#allowed(stepped, mask(k > 0 ? previous : undefined));
        const token = this.#draw(drawing, k, stepped, await allowed);
        token.catch(() => undefined); // told when its turn comes, or dropped
        flying.push(token);
      }
      const token = (await flying.shift()) as Token;
      sequence.tokens.push(token.id);
      this.#keep(sequence, length + known);
      await this.#pause();
      throwIfAborted(signal);
      yield token;
    }
  }

  /** The mask, which is made while the step is computed; a step that fails is told of first. */
  async #allowed(
    stepped: Promise<unknown> | undefined,
    mask: Promise<Int32Array>,
  ): Promise<Int32Array> {
    mask.catch(() => undefined);
    await stepped;
    return mask;
  }

  /** Draws a token from the logits that are there when what was started before is done. */
  async #draw(
    drawing: Drawing,
    step: number,
    stepped: Promise<unknown> | undefined,
    allowed: Int32Array | undefined,
  ): Promise<Token> {
    const top = drawing.logprobs ? this.#start('top', { rows: ROW }) : undefined;
    const drawn = this.#start(drawing.role, drawing.inputs(step, allowed));
    const [, best, found] = await Promise.all([stepped, top, drawn]);
    return drawing.token(found, best);
  }

  /** Takes tokens into the cache, and leaves the logits after the last. */
  #step(sequence: Sequence, tokens: readonly number[], at: number): Promise<Outputs> {
    const { length } = tokens;
    const { size } = this.#pool;
    this.#reserve(sequence, at + length);
    const positions = Int32Array.from({ length }, (_, k) => at + k);
    const { pages } = sequence;
    const slots = positions.map((p) => (pages[Math.floor(p / size)] ?? 0) * size + (p % size));
    return this.#start('step', {
      tokens: tensor(Int32Array.from(tokens), 1, length),
      positions: tensor(positions, 1, length),
      slots: tensor(slots, 1, length),
      pages: sequence.table,
      last: tensor(Int32Array.of(length - 1), 1),
      rows: ROW,
    });
  }

  /** Pages for so many tokens; what was decoded before in the next ones counts for nothing. */
  #reserve(sequence: Sequence, count: number): void {
    const { pages, table } = sequence;
    const needed = Math.ceil(count / this.#pool.size);
    while (pages.length < needed) pages.push(this.#pool.take());
    const width = bucket(pages.length, this.#mostPages);
    if (table.data[pages.length - 1] === pages.at(-1) && table.data.length === width) return;
    const padded = new Int32Array(width);
    padded.set(pages);
    sequence.table = tensor(padded, 1, width);
  }

  /** The first `cached` tokens are in the cache: pages that are whole can be found from now on. */
  #keep(sequence: Sequence, cached: number): void {
    const { size } = this.#pool;
    for (; (sequence.kept + 1) * size <= cached; sequence.kept++) {
      const page = sequence.pages[sequence.kept] as number;
      const first = sequence.kept * size;
      const tokens = sequence.tokens.slice(first, first + size);
      sequence.text = this.#pool.keep(page, sequence.text, tokens);
    }
  }

  /** Counts the prompt's tokens, for penalties. */
  async #count(prompt: readonly number[]): Promise<void> {
    await this.#start('clear', { rows: ROW });
    await this.#start('count', Drawing.counts(prompt));
  }

  #start(role: Role, inputs: Record<string, TensorData>): Promise<Outputs> {
    return this.#model.start(inputs, { function: this.#language.functions[role] ?? role });
  }

  /** A CPU that computes lets others have their turn, such as who wants to abort. */
  #pause(): Promise<void> | undefined {
    return this.backend === 'wasm' ? turn() : undefined;
  }
}

/** Until what waits in the event loop was served; timers wait longer than they say. */
function turn(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
