/**
 * Audio of any length as text: window by window, each tried again where its text looks wrong.
 *
 * A window's text is drawn greedily first. Text that repeats itself (it compresses well) or that the
 * model itself finds unlikely is drawn again at higher temperatures; where the model says that
 * nobody speaks, and finds its text unlikely, there is none (arXiv 2212.04356, section 4.5).
 */

import { Detokenizer } from '../chat/stream.ts';
import type { Tokenizer } from '../chat/tokenizer.ts';
import { throwIfAborted, unlessAborted } from '../errors.ts';
import type { Backend } from '../model.ts';
import { type Audio, readAudio } from './audio.ts';
import type { SpeechInfo } from './info.ts';
import type { Listener } from './listener.ts';
import { type ListenOptions, type Settings, settingsOf } from './options.ts';
import { Rules } from './rules.ts';
import { type Part, partsOf } from './segments.ts';

const CALM = 0.5; // the highest temperature whose text is told to the next window

/**
 * What was said from `start` to `end`, in seconds. The rest is of the whole window: the temperature
 * it was drawn at, the mean log-probability of a token, how likely nobody speaks, and how many times
 * smaller its text becomes by zlib.
 */
export interface Segment {
  readonly start: number;
  readonly end: number;
  readonly text: string;
  readonly tokens: readonly number[];
  readonly temperature: number;
  readonly logprob: number;
  readonly noSpeech: number;
  readonly compression: number;
}

/** All that was said. `language` is null where the model knows one alone. */
export interface Transcript {
  readonly text: string;
  readonly segments: readonly Segment[];
  readonly language: string | null;
  /** Of the audio, in seconds. */
  readonly duration: number;
}

export interface TranscriberParts {
  readonly listener: Listener;
  readonly tokenizer: Tokenizer;
  readonly info: SpeechInfo;
  /** The id of each token that ends a text. */
  readonly eos: readonly number[];
  readonly backend: Backend;
}

/** A window's text, drawn once. */
interface Try {
  readonly temperature: number;
  readonly tokens: readonly number[];
  readonly logprob: number;
  readonly compression: number;
}

interface Heard extends Try {
  readonly noSpeech: number;
}

/** A speech model at work. Audios may overlap: their windows are done one at a time. */
export class Transcriber {
  readonly backend: Backend;
  /** Samples a second that the model takes. */
  readonly rate: number;
  /** Codes of all that can be asked for; none where the model knows one alone. */
  readonly languages: readonly string[];
  readonly #parts: TranscriberParts;
  #tail: Promise<unknown> = Promise.resolve();

  constructor(parts: TranscriberParts) {
    this.#parts = parts;
    this.backend = parts.backend;
    this.rate = parts.info.rate;
    this.languages = Object.keys(parts.info.languages);
  }

  /** The text of audio. Options and errors are as `listen`'s. */
  async transcribe(audio: Audio, options: ListenOptions = {}): Promise<Transcript> {
    const work = this.listen(audio, options);
    const segments: Segment[] = [];
    for await (const segment of work) segments.push(segment);
    const text = segments.map((segment) => segment.text).join('');
    const { language, duration = 0 } = work;
    return { text: text.trim(), segments, language, duration };
  }

  /**
   * The segments of audio as they become final. Throws `input` for options that are none or that the
   * model does not know; the iterator does for audio that is none.
   */
  listen(audio: Audio, options: ListenOptions = {}): Transcription {
    const { info } = this.#parts;
    const settings = settingsOf(options, info);
    const size = this.#parts.listener.window ?? info.window;
    return new Transcription(this.#parts, settings, {
      read: () => readAudio(audio, info.rate, settings.rate),
      size,
      next: (task) => this.#next(task),
    });
  }

  /** Frees the model. What is under way fails with `disposed`. */
  dispose(): Promise<void> {
    return this.#parts.listener.dispose();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  #next<T>(task: () => Promise<T>): Promise<T> {
    const turn = this.#tail.then(task);
    this.#tail = turn.catch(() => undefined);
    return turn;
  }
}

interface Sound {
  readonly read: () => Promise<Float32Array>;
  /** Samples of a window: the model's, or fewer where the artifact was made for fewer. */
  readonly size: number;
  /** Runs a task when those before it are done. */
  readonly next: <T>(task: () => Promise<T>) => Promise<T>;
}

/** The segments of one audio, found as they are asked for. */
export class Transcription implements AsyncIterable<Segment> {
  /** What was asked for, else what the first window was taken for. */
  language: string | null;
  /** Seconds of the audio, once it is read. */
  duration: number | undefined;
  /** Seconds that are done. */
  progress = 0;
  readonly #parts: TranscriberParts;
  readonly #settings: Settings;
  readonly #found: AsyncGenerator<Segment, void>;

  constructor(parts: TranscriberParts, settings: Settings, sound: Sound) {
    this.#parts = parts;
    this.#settings = settings;
    this.language = settings.language;
    this.#found = this.#segments(sound);
  }

  [Symbol.asyncIterator](): AsyncGenerator<Segment, void> {
    return this.#found;
  }

  async *#segments({ read, size, next }: Sound): AsyncGenerator<Segment, void> {
    const { info, tokenizer } = this.#parts;
    const { follow, signal } = this.#settings;
    throwIfAborted(signal);
    const audio = await this.#heeding(read());
    this.duration = audio.length / info.rate;
    const prompt = this.#settings.prompt.trim();
    let said = prompt ? tokenizer.encode(` ${prompt}`, false) : [];
    for (let at = 0; at < audio.length;) {
      const window = audio.subarray(at, at + size);
      const before = this.#history(said);
      const heard = await this.#heeding(next(() => this.#window(window, before)));
      const { tokens, temperature } = heard;
      const { parts, reached } = tokens.length
        ? partsOf(tokens, info, window.length)
        : { parts: [], reached: window.length };
      const kept = parts.filter(({ start, end, tokens }) => end > start && this.#words(tokens));
      for (const part of kept) yield this.#segment(part, at, heard);
      const told = follow && temperature <= CALM;
      said = told ? [...said, ...kept.flatMap((part) => part.tokens)] : [];
      at += reached;
      this.progress = at / info.rate;
    }
  }

  /** What comes of work; who aborts does not wait for it, nor for others' windows before it. */
  async #heeding<T>(work: Promise<T>): Promise<T> {
    const { signal } = this.#settings;
    try {
      return await (signal ? unlessAborted(work, signal) : work);
    } catch (error) {
      throwIfAborted(signal);
      throw error;
    }
  }

  #segment(part: Part, at: number, heard: Heard): Segment {
    const { rate } = this.#parts.info;
    const { temperature, logprob, noSpeech, compression } = heard;
    const { tokens } = part;
    const [start, end] = [(at + part.start) / rate, (at + part.end) / rate];
    const text = this.#words(tokens);
    return { start, end, text, tokens, temperature, logprob, noSpeech, compression };
  }

  async #window(audio: Float32Array, before: readonly number[]): Promise<Heard> {
    const { listener, info } = this.#parts;
    const { signal, temperatures, ...settings } = this.#settings;
    throwIfAborted(signal);
    await listener.hear(audio, signal);
    const begin = [...before, info.start];
    await listener.take(begin, 0, signal);
    const logits = await listener.logits(signal);
    const noSpeech = info.no_speech === null ? 0 : share(logits, info.no_speech);
    this.language ??= likeliest(info.languages, logits);
    const prompt = [...begin, ...this.#asked()];
    let heard: Heard | undefined;
    for (const temperature of temperatures) {
      heard = { ...(await this.#text(prompt, begin.length, temperature)), noSpeech };
      const unlikely = settings.logprob !== null && heard.logprob < settings.logprob;
      const silent = settings.noSpeech !== null && noSpeech > settings.noSpeech;
      if (silent && unlikely) return { ...heard, tokens: [] };
      const most = settings.compression;
      if (!unlikely && (most === null || heard.compression <= most)) break;
    }
    return heard!; // there is one temperature at least
  }

  /** What follows the first token: the language, the task, whether times are wanted. */
  #asked(): number[] {
    const { languages, tasks, forced, no_timestamps } = this.#parts.info;
    const { task, timestamps } = this.#settings;
    const language = this.language === null ? undefined : languages[this.language];
    const chosen = language === undefined ? forced : [language];
    const doing = language === undefined ? undefined : tasks[task];
    const silent = timestamps ? null : no_timestamps;
    return [...chosen, doing, silent].filter((id) => id !== undefined && id !== null);
  }

  /** Draws a text after a prompt, the first tokens of which were taken. */
  async #text(prompt: readonly number[], taken: number, temperature: number): Promise<Try> {
    const { listener, info, eos, tokenizer } = this.#parts;
    const { timestamps, seed, signal, onText } = this.#settings;
    const { vocabulary, context } = listener;
    const rules = new Rules(info, { vocabulary, end: eos[0]!, timestamps });
    const letters = new Detokenizer(tokenizer, { begins: false });
    const begin = Math.min(taken, prompt.length - 1);
    const tokens: number[] = [];
    let total = 0;
    let shown = '';
    let fresh = prompt.slice(begin);
    while (prompt.length + tokens.length < context) {
      const step = tokens.length;
      const at = prompt.length + step - fresh.length;
      const draw = { allowed: rules.allowed(tokens), temperature, seed, step };
      const begun = [listener.take(fresh, at, signal), listener.draw(draw, signal)] as const;
      const [, { token, logprob }] = await Promise.all(begun);
      throwIfAborted(signal); // nobody listens any more
      total += logprob;
      if (eos.includes(token)) break;
      tokens.push(token);
      fresh = [token];
      if (!onText || !this.#isText(token)) continue;
      shown += letters.push(token);
      onText(shown);
    }
    const compression = await shrinkage(this.#words(tokens));
    return { temperature, tokens, logprob: total / (tokens.length + 1), compression };
  }

  /** Whether it is no timestamp. */
  #isText(id: number): boolean {
    const first = this.#parts.info.first_timestamp;
    return first === null || id < first;
  }

  /** The text of tokens, without times and signs for the model. */
  #words(tokens: readonly number[]): string {
    const letters = new Detokenizer(this.#parts.tokenizer, { begins: false });
    const text = tokens.filter((id) => this.#isText(id)).map((id) => letters.push(id));
    return text.join('') + letters.flush();
  }

  /** What is said before a window's text of what was said so far. */
  #history(said: readonly number[]): readonly number[] {
    const { listener, info } = this.#parts;
    const most = Math.floor(listener.context / 2) - 1;
    if (said.length === 0 || info.previous === null || most < 1) return [];
    return [info.previous, ...said.slice(-most)];
  }
}

/** The probability of a token. */
function share(logits: Float32Array, id: number): number {
  const most = logits.reduce((a, b) => Math.max(a, b));
  const sum = logits.reduce((all, logit) => all + Math.exp(logit - most), 0);
  return Math.exp(logits[id]! - most) / sum;
}

/** The key of the likeliest token. */
function likeliest(ids: Readonly<Record<string, number>>, logits: Float32Array): string | null {
  const keys = Object.keys(ids);
  const logit = (key: string): number => logits[ids[key]!]!;
  return keys.reduce<string | null>(
    (best, key) => (best === null || logit(key) > logit(best) ? key : best),
    null,
  );
}

/** How many times smaller a text becomes by zlib. */
async function shrinkage(text: string): Promise<number> {
  const whole = new Blob([text]);
  const small = whole.stream().pipeThrough(new CompressionStream('deflate'));
  return whole.size / (await new Response(small).arrayBuffer()).byteLength;
}
