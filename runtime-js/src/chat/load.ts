/** From an artifact's folder to a chat. */

import { EdgeRelaxError } from '../errors.ts';
import { kindOf, misfit } from '../kinds.ts';
import { loadModel, type LoadOptions, openSource } from '../load.ts';
import type { LanguageInfo, Manifest } from '../manifest.ts';
import { type Check, isRecord, mapOf, object, text } from '../schema.ts';
import type { Source } from '../source.ts';
import { Chat } from './chat.ts';
import type { Engine, Sampling } from './engine.ts';
import { Embedder } from './embedder.ts';
import { type ImagePlan, imagePlan } from './images.ts';
import { generating, languageOf } from './generating.ts';
import { type EngineOptions, PagedEngine } from './paged.ts';
import { Sum } from './progress.ts';
import { rollingOf } from './rolling.ts';
import { Templates } from './template.ts';
import { encoding, Tokenizer } from './tokenizer.ts';

export interface LoadChatOptions extends EngineOptions {
  /** Makes what gives tokens, in place of the engine for models that edgerelax compiled. */
  readonly engine?: (url: string | URL, options: EngineOptions) => Promise<Engine>;
  /** A chat template, in place of the model's. */
  readonly template?: string;
  /** Sampling for requests that do not tell. */
  readonly sampling?: Partial<Omit<Sampling, 'logitBias' | 'seed'>>;
  /** `() => import('@mlc-ai/web-xgrammar')`: for answers that keep to a schema or a grammar. */
  readonly grammar?: () => Promise<unknown>;
}

interface ChatFile {
  readonly templates: Readonly<Record<string, string>>;
  readonly special_tokens: Readonly<Record<string, string>>;
  /** How images become tokens, of a model that sees any. */
  readonly images?: ImagePlan | null;
}

/** Loads a language model's folder. Throws `format` for a model that is of no language. */
export async function openChat(url: string | URL, options: LoadChatOptions): Promise<Chat> {
  const { engine: open, template, sampling, grammar, ...loading } = options;
  const { signal } = loading;
  const progress = new Sum(loading.onProgress);
  const source = await openSource(url, { ...loading, onProgress: progress.of('text') });
  const language = languageOf(source.manifest);
  if (!open) checkOptions(loading, source.manifest);
  const failure = new AbortController();
  const either = AbortSignal.any([failure.signal, ...(signal ? [signal] : [])]);
  const own = { ...loading, signal: either, onProgress: progress.of('model') };
  const opening = open ? open(url, own) : engineOf(source.also(own), own);
  opening.catch(() => undefined); // awaited below; until then its failure must not be unheard
  try {
    const { tokenizer, chat } = await readText(source, language);
    const sources = template === undefined ? chat.templates : { default: template };
    const { special_tokens: names, images } = chat;
    const templates = new Templates(sources, names, images?.placeholder);
    return new Chat({
      engine: await opening,
      tokenizer,
      templates,
      names,
      images: images ?? undefined,
      eos: language.eos,
      model: folderName(url),
      defaults: sampling ?? {},
      grammar,
    });
  } catch (error) {
    failure.abort();
    const engine = await opening.catch(() => undefined);
    await engine?.dispose();
    throw error;
  }
}

/** Loads a language model to generate with. Throws `format` for a model that cannot. */
export async function openEngine(url: string | URL, options: EngineOptions = {}): Promise<Engine> {
  const source = await openSource(url, options);
  checkOptions(options, source.manifest); // before anything else is fetched
  return engineOf(source, options);
}

async function engineOf(source: Source, options: EngineOptions): Promise<Engine> {
  const model = await loadModel(source, options);
  try {
    const engine = new PagedEngine(model, generating(model.manifest), options);
    await engine.allocate();
    return engine;
  } catch (error) {
    await model.dispose();
    throw error;
  }
}

/** Throws what can be known without the weights: a model that cannot, options that do not fit it. */
function checkOptions(options: EngineOptions, manifest: Manifest): void {
  const { cacheTokens, inFlight, texts } = options;
  checkCount('cacheTokens', cacheTokens);
  checkCount('inFlight', inFlight);
  checkCount('texts', texts);
  rollingOf(options, generating(manifest));
}

function checkCount(name: string, value: number | undefined): void {
  if (value === undefined || (Number.isSafeInteger(value) && value > 0)) return;
  throw new EdgeRelaxError('input', `${name} is ${value}: a whole number above 0 is expected`);
}

/** Loads a model that gives vectors. Throws `format` for one that gives none. */
export async function openEmbedder(url: string | URL, options: LoadOptions): Promise<Embedder> {
  const progress = new Sum(options.onProgress);
  const source = await openSource(url, { ...options, onProgress: progress.of('text') });
  const { language, tokenizer } = embedding(source.manifest);
  source.expect([tokenizer]);
  const encode = encoding(await source.asset(tokenizer));
  const own = { ...options, onProgress: progress.of('model') };
  const model = await loadModel(source.also(own), own);
  return new Embedder({ model, language, encode, name: folderName(url) });
}

function embedding(manifest: Manifest): { language: LanguageInfo; tokenizer: string } {
  const { language } = manifest;
  const embeds = language && Object.hasOwn(language.functions, 'embed');
  if (!embeds || kindOf(manifest) === 'hears') throw misfit(manifest);
  const { tokenizer } = language;
  if (tokenizer !== null) return { language, tokenizer };
  throw new EdgeRelaxError('format', 'this model came without a tokenizer; use load for it');
}

/** What answers call the model. */
export function folderName(url: string | URL): string {
  const path = String(url).replace(/[?#].*$/s, '');
  return path.split('/').findLast((part) => part !== '') ?? 'model';
}

async function readText(
  source: Source,
  { tokenizer, chat }: LanguageInfo,
): Promise<{ readonly tokenizer: Tokenizer; readonly chat: ChatFile }> {
  if (tokenizer === null) {
    throw new EdgeRelaxError('format', 'this language model came without a tokenizer');
  }
  source.expect([tokenizer, ...(chat === null ? [] : [chat])]);
  const [tokens, file] = await Promise.all([
    source.asset(tokenizer),
    chat === null ? undefined : source.asset(chat),
  ]);
  const read = file ? chatFile(file) : { templates: {}, special_tokens: {} };
  return { tokenizer: new Tokenizer(tokens), chat: read };
}

const whole: Check = object({ templates: mapOf(text), special_tokens: mapOf(text) });

function chatFile(bytes: Uint8Array): ChatFile {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder().decode(bytes));
  } catch (cause) {
    throw new EdgeRelaxError('format', 'the chat file is not JSON', { cause });
  }
  const images = isRecord(value) ? (value['images'] ?? undefined) : undefined;
  const plan = images === undefined ? undefined : imagePlan(images, 'chat.images');
  const problem = whole(value, 'chat') ?? plan;
  if (problem !== undefined)
    throw new EdgeRelaxError('format', `${problem}; export the model again`);
  return value as ChatFile;
}
