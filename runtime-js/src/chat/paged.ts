/**
 * Generates with a compiled language model whose keys and values are in pages of a cache: several
 * texts in one step.
 *
 * While a caller wants tokens, round follows round: it takes a chunk of prompts, one step for all
 * texts that go on, and one draw for all that draw alike. What is drawn feeds the next step on the
 * device, so several rounds are under way before the first token is known; what they draw past the
 * end of a text is dropped, and its places in the cache are taken by what comes next. A text that
 * finds no page takes those of the newest other one, which begins again when there is room.
 */

import { EdgeRelaxError, throwIfAborted } from '../errors.ts';
import type { LoadOptions } from '../load.ts';
import type { ProgramInfo } from '../manifest.ts';
import type { Model, Outputs } from '../model.ts';
import type { TensorData } from '../tensors.ts';
import {
  countInputs,
  type Draw,
  drawInputs,
  DRAWS,
  type Role,
  rowsOf,
  tensor,
  tokenOf,
} from './drawing.ts';
import type { Engine, EngineStats, GenerateOptions, Picture, Sampling, Token } from './engine.ts';
import type { Generating } from './generating.ts';
import { bucket, PagePool } from './pages.ts';
import { type Rolling, rollingOf, type RollingOptions } from './rolling.ts';
import { Sequence } from './sequence.ts';
import { Eyes, Sights } from './sights.ts';
import { turn } from './turn.ts';

export interface EngineOptions extends LoadOptions, RollingOptions {
  /** Tokens that the cache has room for; by default as many as the context, at most 4096. */
  readonly cacheTokens?: number;
  /** Steps under way at once; 1 waits for each token. By default 4 on a GPU, else 1. */
  readonly inFlight?: number;
  /** Texts that are generated at once, others wait; 8 by default. */
  readonly texts?: number;
}

const DEFAULT_TEXTS = 8;
const DEFAULT_TOKENS = 4096;
const DEFAULT_IN_FLIGHT = { webgpu: 4, wasm: 1 } as const;
const CHUNK = 256; // tokens of prompts that one round takes
const SHORT_CHUNK = 64; // on a CPU: a chunk can't be interrupted
const ENDLESS = 2 ** 31; // the context of texts that drop what is old
const CHUNKS = 2; // rounds under way at once that take prompts only

export class PagedEngine implements Engine {
  readonly backend: Engine['backend'];
  readonly context: number;
  readonly answer: number | undefined;
  readonly vocabulary: number;
  readonly #rolling: Rolling | undefined;
  /** How many tokens of a text pages are held for, at most. */
  readonly #span: number;
  readonly #model: Model;
  readonly #language: Generating;
  readonly #program: ProgramInfo | undefined;
  readonly #chunk: number;
  readonly #inFlight: number;
  readonly #mostPages: number;
  readonly #texts: number;
  readonly #eyes: Eyes | undefined;
  #pool: PagePool;
  #lost = false;
  /** Whether what failed has left the cache in doubt: it is made anew before the next round. */
  #doubtful = false;
  #rows: number[];
  #waiting: Sequence[] = [];
  #active: Sequence[] = [];
  readonly #flying = new Set<Promise<void>>();
  #landed: Promise<void> = Promise.resolve();
  #working = false;
  #wanted = false;

  constructor(model: Model, language: Generating, options: EngineOptions) {
    const { context, page_size: size } = language;
    const { cacheTokens, inFlight, texts = DEFAULT_TEXTS } = options;
    this.#model = model;
    this.#language = language;
    this.backend = model.backend;
    this.vocabulary = language.vocabulary;
    this.#rolling = rollingOf(options, language);
    const held = language.window === null ? context : language.window + CHUNK + 2 * size;
    this.#span = this.#rolling ? this.#rolling.window * size : Math.min(context, held);
    const bounded = this.#rolling !== undefined || language.window !== null;
    const wanted = bounded ? Math.max(DEFAULT_TOKENS, this.#span) : DEFAULT_TOKENS;
    const room = cacheTokens ?? Math.min(context, wanted);
    this.#pool = new PagePool(Math.ceil(room / size), size);
    this.context = this.#contextOf(context);
    this.answer = this.#rolling && this.#span;
    this.#mostPages = Math.ceil(context / size);
    this.#inFlight = inFlight ?? DEFAULT_IN_FLIGHT[model.backend];
    this.#program = model.manifest.programs.find(({ name }) => name === model.variant);
    this.#chunk = this.#program?.adapter === 'gpu' ? CHUNK : SHORT_CHUNK;
    this.#texts = texts;
    this.#eyes = Eyes.of(model.manifest, language, this.#chunk, texts);
    this.#rows = this.#allRows();
  }

  #contextOf(context: number): number {
    const room = this.#pool.count * this.#pool.size;
    if (!this.#rolling) return room >= this.#span ? context : Math.min(context, room);
    if (room >= this.#span) return ENDLESS;
    throw new EdgeRelaxError(
      'input',
      `a window of ${this.#span} tokens; the cache has room for ${room}: give a larger cacheTokens`,
    );
  }

  /** Makes the cache. Throws where there is no room for it. */
  async allocate(): Promise<void> {
    const slots = this.#pool.count * this.#pool.size;
    try {
      await this.#model.allocate({ slots, rows: this.#texts, ...this.#eyes?.sizes });
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
    const { bufferBytes, vmBytes, launches } = this.#model.stats();
    const { gpu_kernels = [], cpu_kernels = [] } = this.#program ?? {};
    const kernels = gpu_kernels.length + cpu_kernels.length;
    return { memoryBytes: bufferBytes + vmBytes, kernels, launches };
  }

  dispose(): Promise<void> {
    const done = this.#model.dispose();
    const disposed = new EdgeRelaxError('disposed', 'the engine was disposed of');
    this.#fail(disposed, [...this.#active, ...this.#waiting]); // also those that wait for a mask
    return done;
  }

  async *generate(
    prompt: readonly number[],
    sampling: Sampling,
    options: GenerateOptions,
  ): AsyncGenerator<Token, void> {
    this.#check(prompt);
    const { signal, pictures = [] } = options;
    this.#checkPictures(pictures);
    const sights = pictures.length > 0 ? await Sights.of(pictures) : undefined;
    throwIfAborted(signal);
    const bounds = { room: this.context - prompt.length, flight: this.#inFlight };
    const sequence = new Sequence(prompt, sampling, options, bounds, sights);
    const wake = (): void => sequence.wake();
    signal.addEventListener('abort', wake);
    this.#waiting.push(sequence);
    try {
      for (;;) {
        const token = await this.#next(sequence);
        if (!token) return;
        yield token;
      }
    } finally {
      signal.removeEventListener('abort', wake);
      sequence.ended = true;
      this.#want(); // what it holds goes
    }
  }

  /** The text's next token; none at its end. */
  async #next(sequence: Sequence): Promise<Token | undefined> {
    const { options, ready, flight } = sequence;
    for (;;) {
      throwIfAborted(options.signal);
      const token = ready.shift();
      if (token) {
        sequence.taken++;
        if (flight > 1) this.#want(); // one of those under way less
        return token;
      }
      if (sequence.failure) throw sequence.failure.error;
      if (sequence.ended) return undefined;
      this.#want();
      await sequence.changed;
    }
  }

  #check(prompt: readonly number[]): void {
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

  #checkPictures(pictures: readonly Picture[]): void {
    if (this.#eyes) this.#eyes.check(pictures);
    else if (pictures.length > 0) throw new EdgeRelaxError('input', 'this model sees no images');
  }

  /** Has rounds go on until there is nothing to begin. */
  #want(): void {
    this.#wanted = true;
    if (this.#working) return;
    this.#working = true;
    void this.#work();
  }

  async #work(): Promise<void> {
    while (this.#wanted) {
      this.#wanted = false;
      try {
        await this.#pause();
        if (this.#doubtful) this.#forget();
        await this.#revive();
        await this.#round();
      } catch (error) {
        this.#fail(error, this.#active.length > 0 ? this.#active : this.#waiting);
      }
    }
    this.#working = false;
  }

  /** What others ask for meanwhile goes into the same round; a CPU that computes lets them ask. */
  #pause(): Promise<void> | undefined {
    const several = this.#active.length + this.#waiting.length > 1;
    return this.backend === 'wasm' || several ? turn() : undefined;
  }

  /** After its device was lost the model is loaded anew, with an empty cache. */
  async #revive(): Promise<void> {
    if (!this.#lost) return;
    await this.#model.reload();
    this.#lost = false;
  }

  /** Begins what can be; waits where enough is under way. */
  async #round(): Promise<void> {
    this.#reap();
    const begun: Promise<unknown>[] = [];
    await this.#prefill(begun);
    await this.#stepAll(begun);
    const draws = DRAWS.map((draw) => this.#drawAll(draw, begun)).filter((d) => d !== undefined);
    if (begun.length === 0) return;
    this.#wanted = true;
    const pool = this.#pool;
    const before = this.#landed; // a text's tokens come in order, whichever results are there first
    const done = Promise.all(begun).then(async () => {
      if (draws.length === 0) return this.#model.settled();
      await before;
      for (const deliver of draws) await deliver();
    });
    const landed: Promise<void> = done
      .catch((error: unknown) => {
        // of a cache that was forgotten it was told before, and those that go on have no part in it
        if (this.#pool === pool) this.#fail(error, this.#active);
      })
      .finally(() => this.#flying.delete(landed));
    this.#landed = landed;
    this.#flying.add(landed);
    const flights = this.#active.map((sequence) => sequence.flight);
    const most = draws.length > 0 ? Math.max(1, ...flights) : CHUNKS;
    while (this.#flying.size >= most) await Promise.race(this.#flying);
  }

  /** Takes back what texts hold that are over. */
  #reap(): void {
    const over = [...this.#active, ...this.#waiting].filter((sequence) => sequence.over);
    if (over.length === 0) return;
    for (const sequence of over) {
      sequence.leave(this.#pool);
      if (sequence.row >= 0) this.#rows.push(sequence.row);
    }
    this.#active = this.#active.filter((sequence) => !sequence.over);
    this.#waiting = this.#waiting.filter((sequence) => !sequence.over);
  }

  /** Ends texts. What the cache has is in doubt: it may never have come there. */
  #fail(error: unknown, texts: readonly Sequence[]): void {
    this.#lost ||= error instanceof EdgeRelaxError && error.code === 'lost';
    this.#doubtful = true; // a round may be in the middle: it goes on with the cache that it knows
    for (const sequence of texts) sequence.fail(error);
    this.#want();
  }

  /** Begins with an empty cache. Texts that wait have computed nothing that they need. */
  #forget(): void {
    this.#doubtful = false;
    this.#pool = new PagePool(this.#pool.count, this.#pool.size);
    this.#eyes?.forget();
    this.#active = [];
    this.#waiting = this.#waiting.filter((sequence) => !sequence.over);
    for (const sequence of this.#waiting) {
      sequence.row = -1;
      sequence.counted = false;
    }
    this.#rows = this.#allRows();
  }

  #allRows(): number[] {
    return Array.from({ length: this.#texts }, (_, k) => this.#texts - 1 - k);
  }

  /** Up to a chunk of prompts, the oldest first. Texts begin when those before are through. */
  async #prefill(begun: Promise<unknown>[]): Promise<void> {
    let left = this.#chunk;
    for (const sequence of [...this.#active]) left -= await this.#take(sequence, left, begun);
    while (left > 0) {
      const sequence = this.#admit();
      if (!sequence) return;
      left -= await this.#take(sequence, left, begun);
    }
  }

  /** Takes up to `most` of a prompt; gives how many it took. */
  async #take(sequence: Sequence, most: number, begun: Promise<unknown>[]): Promise<number> {
    if (sequence.pending <= 1 || most === 0 || sequence.over) return 0;
    if (!this.#active.includes(sequence)) return 0; // it gave way to one before it
    if (!(await this.#roll(sequence, begun))) return 0;
    const left = this.#rolling ? this.#span - sequence.length : Infinity;
    const count = Math.min(sequence.pending, most, left);
    if (!(await this.#reserve(sequence, count)) || sequence.over) return 0;
    this.#step([sequence], count, begun);
    return count;
  }

  /** The text that waits the longest, if there is a row for it, and pages for what it has. */
  #admit(): Sequence | undefined {
    const sequence = this.#waiting[0];
    if (this.#doubtful || !sequence || (sequence.row < 0 && this.#rows.length === 0))
      return undefined;
    sequence.begin(this.#pool, this.#rolling && this.#span);
    const most = Math.min(sequence.tokens.length + 1, this.#span);
    const pages = Math.ceil(most / this.#pool.size);
    if (pages - sequence.pages.length > this.#pool.available && this.#active.length > 0) {
      sequence.leave(this.#pool);
      return undefined;
    }
    sequence.tell();
    if (sequence.row < 0) sequence.row = this.#rows.pop() as number;
    this.#waiting.shift();
    this.#active.push(sequence);
    return sequence;
  }

  /** Pages for a text's next tokens, of the newest other one if need be; false if it is over by then. */
  #reserve(sequence: Sequence, count: number): Promise<boolean> {
    return this.#makingRoom(sequence, () => sequence.reserve(this.#pool, count));
  }

  /** What takes pages for a text, again after another has given up its own. */
  async #makingRoom(sequence: Sequence, take: () => void): Promise<boolean> {
    for (;;) {
      if (!this.#active.includes(sequence)) return false; // it ended, or gave way to another
      try {
        take();
        return true;
      } catch (error) {
        if (!this.#active.some((other) => other !== sequence && other.pages.length > 0)) {
          sequence.fail(error); // others have no part in it
          return false;
        }
      }
      while (this.#flying.size > 0) await Promise.all(this.#flying); // tokens that come are kept
      this.#reap();
      if (!this.#active.includes(sequence)) continue;
      const newest = this.#active.findLast((other) => other !== sequence && other.pages.length > 0);
      if (!newest) continue;
      newest.leave(this.#pool);
      this.#active = this.#active.filter((other) => other !== newest);
      this.#waiting.unshift(newest);
    }
  }

  /** Drops a full text's oldest pages but the sinks; false if it is over before there is room. */
  async #roll(sequence: Sequence, begun: Promise<unknown>[]): Promise<boolean> {
    const rolling = this.#rolling;
    if (!rolling || sequence.length < this.#span) return true;
    const { sinks, dropped } = rolling;
    const source = sequence.pages.slice(sinks + dropped);
    const tokens = dropped * this.#pool.size;
    this.#pool.release(sequence.pages.splice(sinks, dropped));
    sequence.dropped += tokens; // tokens that come meanwhile find no pages to keep
    for (const [k, page] of source.entries()) {
      // another text's, or to be found by this one: it stays, and becomes another page
      const pool = this.#pool;
      if (!pool.isShared(page) && !(pool.isKept(page) && pool.available > 0)) {
        pool.forget(page);
        continue;
      }
      const moved = await this.#makingRoom(sequence, () => {
        sequence.pages[sinks + k] = pool.take();
      });
      if (!moved) return false;
      pool.release([page]);
    }
    const { length } = source;
    begun.push(
      this.#start('shift', {
        source: tensor(Int32Array.from(source), length),
        target: tensor(Int32Array.from(sequence.pages.slice(sinks)), length),
        by: tensor(new Int32Array(length).fill(-tokens), length),
      }),
    );
    return true;
  }

  /** One step for all that go on from one token. */
  async #stepAll(begun: Promise<unknown>[]): Promise<void> {
    const ready = (sequence: Sequence): boolean =>
      this.#active.includes(sequence) && sequence.pending === 1 && sequence.goesOn;
    const housed = new Set<Sequence>(); // others may become ready while these wait for room
    for (const sequence of this.#active.filter(ready)) {
      if (!ready(sequence) || !(await this.#roll(sequence, begun))) continue;
      if (await this.#reserve(sequence, 1)) housed.add(sequence);
    }
    const going = this.#active.filter((sequence) => housed.has(sequence) && ready(sequence));
    if (going.length > 0) this.#step(going, 1, begun);
  }

  /** Takes the next tokens of texts into the cache, and leaves the logits after the last. */
  #step(texts: readonly Sequence[], count: number, begun: Promise<unknown>[]): void {
    const { size } = this.#pool;
    const { length } = texts;
    const width = bucket(Math.max(...texts.map(({ pages }) => pages.length)), this.#mostPages);
    const make = (): Int32Array<ArrayBuffer> => new Int32Array(length * count);
    const [tokens, positions, slots] = [make(), make(), make()];
    const tables = new Int32Array(length * width);
    this.#see(texts, count, begun);
    for (const [k, sequence] of texts.entries()) {
      const { length: first, pages } = sequence;
      const at = Array.from({ length: count }, (_, j) => first + j);
      tables.set(pages, k * width);
      tokens.set(sequence.next(count, this.#eyes), k * count);
      positions.set(at, k * count);
      slots.set(
        at.map((p) => (pages[Math.floor(p / size)] ?? 0) * size + (p % size)),
        k * count,
      );
    }
    begun.push(
      this.#start('step', {
        tokens: tensor(tokens, length, count),
        positions: tensor(positions, length, count),
        slots: tensor(slots, length, count),
        pages: tensor(tables, length, width),
        last: tensor(new Int32Array(length).fill(count - 1), length),
        rows: rowsOf(texts),
      }),
    );
    for (const sequence of texts) {
      sequence.advance(this.#pool, count);
      const { window } = this.#language;
      if (window !== null && !this.#rolling) sequence.passBy(this.#pool, window);
      if (sequence.fresh) this.#ask(sequence);
    }
  }

  /** Has the vectors of what the next tokens of texts stand for. */
  #see(texts: readonly Sequence[], count: number, begun: Promise<unknown>[]): void {
    if (!this.#eyes) return;
    const tiles = texts.flatMap(({ sights, cached }) => sights.of(cached, cached + count));
    const inputs = this.#eyes.see(tiles);
    if (inputs) begun.push(this.#start('see', inputs));
  }

  /** Asks for what may come next, while the step is computed. A mask that fails fails its own text. */
  #ask(sequence: Sequence): void {
    const { mask } = sequence.options;
    if (!mask || sequence.asked === sequence.drawn) return;
    sequence.asked = sequence.drawn;
    const previous = sequence.drawn > 0 ? sequence.tokens.at(-1) : undefined;
    const asked = Promise.resolve(previous).then(mask);
    asked.then(
      (allowed) => {
        sequence.allowed = allowed;
        this.#want();
      },
      (error: unknown) => {
        sequence.fail(error);
        this.#want();
      },
    );
  }

  /** A token for all whose logits are there and that draw alike; gives what delivers them. */
  #drawAll(draw: Draw, begun: Promise<unknown>[]): (() => Promise<void>) | undefined {
    const texts = this.#active.filter(
      (sequence) =>
        sequence.draw === draw &&
        sequence.fresh &&
        sequence.goesOn &&
        (!sequence.options.mask || sequence.allowed),
    );
    if (texts.length === 0) return undefined;
    if (draw === 'adjusted') for (const sequence of texts) this.#count(sequence, begun);
    const scored = texts.some(({ logprobs }) => logprobs);
    const top = scored ? this.#start('top', { rows: rowsOf(texts) }) : undefined;
    const drawn = this.#start(draw, drawInputs(draw, texts, this.vocabulary));
    for (const sequence of texts) {
      sequence.drawn++;
      sequence.fresh = false;
      sequence.allowed = undefined;
    }
    begun.push(drawn, ...(top ? [top] : []));
    return async () => {
      const [results, best] = [await drawn, await top];
      for (const [k, sequence] of texts.entries()) {
        sequence.add(tokenOf(k, sequence.logprobs, results, best), this.#pool);
      }
    };
  }

  /** Sets the counts of a text's row, for penalties. */
  #count(sequence: Sequence, begun: Promise<unknown>[]): void {
    if (sequence.counted) return;
    sequence.counted = true;
    const { row, prompt, tokens } = sequence;
    begun.push(this.#start('clear', { rows: rowsOf([sequence]) }));
    begun.push(this.#start('count', countInputs(row, prompt, tokens.slice(prompt.length))));
  }

  #start(role: Role | 'shift' | 'see', inputs: Record<string, TensorData>): Promise<Outputs> {
    const name = this.#language.functions[role] ?? role;
    const started = this.#model.start(inputs, { function: name });
    started.catch(() => undefined); // a round awaits it at its end, unless it fails before
    return started;
  }
}
