/** What an artifact says of its speech model: the asset speech.json (frontends/speech/info.py). */

import { EdgeRelaxError } from '../errors.ts';
import { type LanguageInfo, SPEECH } from '../manifest.ts';
import { count, listOf, mapOf, object, orNull } from '../schema.ts';

/** Audio in samples, `rate` of them a second; tokens by their ids. */
export interface SpeechInfo {
  readonly rate: number;
  /** Samples that the encoder takes. */
  readonly window: number;
  /** Samples from one timestamp to the next. */
  readonly tick: number;
  /** Begins every text. */
  readonly start: number;
  /** Of each language's code; empty for a model of one language. */
  readonly languages: Readonly<Record<string, number>>;
  /** Of `transcribe` and `translate`; empty where the model has one. */
  readonly tasks: Readonly<Record<string, number>>;
  /** What follows `start` in a model without languages. */
  readonly forced: readonly number[];
  /** Says that a text has no timestamps. */
  readonly no_timestamps: number | null;
  /** That of the window's begin; those that follow are ticks later. */
  readonly first_timestamp: number | null;
  /** How likely it is after `start` says whether nobody speaks. */
  readonly no_speech: number | null;
  /** Begins what was said before the window. */
  readonly previous: number | null;
  /** Never come. */
  readonly suppress: readonly number[];
  /** Never come first. */
  readonly begin_suppress: readonly number[];
  /** Ticks after which no text begins. */
  readonly max_initial_timestamp: number | null;
}

const whole = object({
  rate: count,
  window: count,
  tick: count,
  start: count,
  languages: mapOf(count),
  tasks: mapOf(count),
  forced: listOf(count),
  no_timestamps: orNull(count),
  first_timestamp: orNull(count),
  no_speech: orNull(count),
  previous: orNull(count),
  suppress: listOf(count),
  begin_suppress: listOf(count),
  max_initial_timestamp: orNull(count),
});

/** Reads and checks the asset; throws `format` with what is wrong. */
export function readInfo(bytes: Uint8Array, language: LanguageInfo): SpeechInfo {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder().decode(bytes));
  } catch (cause) {
    throw new EdgeRelaxError('format', `${SPEECH} is not JSON`, { cause });
  }
  const problem = whole(value, '');
  if (problem) throw new EdgeRelaxError('format', `${SPEECH}: ${problem}; export the model again`);
  const info = value as SpeechInfo;
  const { rate, window, tick } = info;
  if (rate === 0 || window === 0 || tick === 0) {
    throw new EdgeRelaxError('format', `${SPEECH}: a rate, window or tick of 0`);
  }
  if (tokensOf(info).some((id) => id >= language.vocabulary) || language.eos.length === 0) {
    throw new EdgeRelaxError('format', `${SPEECH} names tokens that the model does not have`);
  }
  return info;
}

function tokensOf(info: SpeechInfo): readonly number[] {
  const { start, languages, tasks, forced, suppress, begin_suppress } = info;
  const maybe = [info.no_timestamps, info.first_timestamp, info.no_speech, info.previous];
  const named = [...Object.values(languages), ...Object.values(tasks), ...forced];
  const all = [start, ...named, ...suppress, ...begin_suppress, ...maybe];
  return all.filter((id) => id !== null);
}
