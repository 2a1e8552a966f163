/** What is wanted of a transcript, and when a window's text is taken for wrong. */

import { EdgeRelaxError } from '../errors.ts';
import { type Check, first, isRecord, listOf, orNull, text } from '../schema.ts';
import type { SpeechInfo } from './info.ts';

export interface ListenOptions {
  /** Its code; null lets the model find out by the first window. */
  readonly language?: string | null;
  /** `translate` is to English. */
  readonly task?: 'transcribe' | 'translate';
  /**
   * Segments have times; windows follow one another where segments end. Without them a window is one
   * segment, and windows are cut wherever they end.
   */
  readonly timestamps?: boolean;
  /** What may have been said before: names and spellings that come up. */
  readonly prompt?: string;
  /** Whether each window is told the text of those before. */
  readonly follow?: boolean;
  /** To draw a window's text at, one after another until it looks right. */
  readonly temperatures?: readonly number[];
  /** How many times smaller text may become by zlib; null: any. */
  readonly compression?: number | null;
  /** Least mean log-probability of a token; null: any. */
  readonly logprob?: number | null;
  /** Probability of that beyond which unlikely text is none; null: text always is. */
  readonly noSpeech?: number | null;
  /** Of texts that are drawn at temperatures above 0. */
  readonly seed?: number;
  /** Samples a second of a Float32Array; by default the model's. */
  readonly rate?: number;
  /** Is told the text of the window under way as it grows; it may begin anew. */
  readonly onText?: (text: string) => void;
  readonly signal?: AbortSignal;
}

const DEFAULTS = {
  language: null,
  task: 'transcribe',
  timestamps: true,
  prompt: '',
  follow: false,
  temperatures: [0, 0.2, 0.4, 0.6, 0.8, 1],
  compression: 2.4,
  logprob: -1,
  noSpeech: 0.6,
  seed: 0,
} as const;

export type Settings = Required<Omit<ListenOptions, 'rate' | 'onText' | 'signal'>> &
  Pick<ListenOptions, 'rate' | 'onText' | 'signal'>;

const number: Check = (value, at) =>
  typeof value === 'number' && !Number.isNaN(value) ? undefined : `${at} is no number`;
const flag: Check = (value, at) =>
  typeof value === 'boolean' ? undefined : `${at} is neither true nor false`;
const heat: Check = (value, at) =>
  Number.isFinite(value) && (value as number) >= 0 ? undefined : `${at} is no number from 0`;
const heats: Check = (value, at) =>
  listOf(heat)(value, at) ?? ((value as readonly unknown[]).length ? undefined : `${at} is empty`);
const seed: Check = (value, at) =>
  Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 31
    ? undefined
    : `${at} is no count below 2³¹`;

const FIELDS: Readonly<Record<string, Check>> = {
  language: orNull(text),
  task: text,
  timestamps: flag,
  prompt: text,
  follow: flag,
  temperatures: heats,
  compression: orNull(number),
  logprob: orNull(number),
  noSpeech: orNull(number),
  seed,
  rate: number,
  onText: (value, at) => (typeof value === 'function' ? undefined : `${at} is no function`),
  signal: (value, at) => (value instanceof AbortSignal ? undefined : `${at} is no AbortSignal`),
};

/** Throws `input` for what is no option, and for what the model does not know. */
export function settingsOf(options: ListenOptions, info: SpeechInfo): Settings {
  const problem = isRecord(options) ? badField(options) : 'the options are no object';
  if (problem !== undefined) throw new EdgeRelaxError('input', problem);
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  const settings: Settings = { ...DEFAULTS, ...Object.fromEntries(given) };
  const unknown = notKnown(settings, info);
  if (unknown !== undefined) throw new EdgeRelaxError('input', unknown);
  return settings;
}

function badField(options: Readonly<Record<string, unknown>>): string | undefined {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return first(given, ([name, value]) => {
    const check = Object.hasOwn(FIELDS, name) ? FIELDS[name] : undefined;
    if (check) return check(value, name);
    return `${name} is no option here; there are ${Object.keys(FIELDS).join(', ')}`;
  });
}

function notKnown(settings: Settings, info: SpeechInfo): string | undefined {
  const { language, task, timestamps } = settings;
  const languages = Object.keys(info.languages);
  if (language !== null && !(languages.length ? languages : ['en']).includes(language)) {
    const known = languages.join(', ') || 'en: it knows no other';
    return `the model knows no language ${JSON.stringify(language)}; known are ${known}`;
  }
  const tasks = Object.keys(info.tasks).length ? Object.keys(info.tasks) : ['transcribe'];
  if (!tasks.includes(task)) {
    return `the model has no task ${JSON.stringify(task)}; known are ${tasks.join(', ')}`;
  }
  if (timestamps && info.first_timestamp === null) {
    return 'the model knows no timestamps; ask for text without them';
  }
  return undefined;
}
