/** edgerelax in the browser: `load` an artifact folder, `run` it. */

import type { Chat } from './chat/chat.ts';
import type { Embedder } from './chat/embedder.ts';
import type { Engine } from './chat/engine.ts';
import type { LoadChatOptions } from './chat/load.ts';
import type { EngineOptions } from './chat/paged.ts';
import { loadModel, type LoadOptions, openSource } from './load.ts';
import type { Model } from './model.ts';
import { Source } from './source.ts';
import type { Audio } from './speech/audio.ts';
import type { Transcriber } from './speech/transcriber.ts';

/** Loads the artifact folder at a URL. Loads may overlap. */
export async function load(url: string | URL, options: LoadOptions = {}): Promise<Model> {
  return loadModel(await openSource(url, options), options);
}

/** Loads a language model's folder, to chat with. What only chat needs is fetched here first. */
export async function loadChat(url: string | URL, options: LoadChatOptions = {}): Promise<Chat> {
  const { openChat } = await import('./chat/load.ts');
  return openChat(url, options);
}

/**
 * Whether the language model in the folder at a URL sees images, by its manifest: nothing else is
 * fetched. `chat.seesImages` tells it of one that is loaded.
 */
export async function seesImages(
  url: string | URL,
  options: Pick<LoadOptions, 'signal' | 'fetch' | 'cache'> = {},
): Promise<boolean> {
  const { manifest } = await Source.open(url, options);
  return Object.hasOwn(manifest.language?.functions ?? {}, 'see');
}

/** Loads a language model's folder, to have tokens after tokens; loadChat is for texts. */
export async function loadEngine(url: string | URL, options: EngineOptions = {}): Promise<Engine> {
  const { openEngine } = await import('./chat/load.ts');
  return openEngine(url, options);
}

/** Loads the folder of a model that gives vectors of texts. */
export async function loadEmbedder(
  url: string | URL,
  options: LoadOptions = {},
): Promise<Embedder> {
  const { openEmbedder } = await import('./chat/load.ts');
  return openEmbedder(url, options);
}

/** Loads a speech model's folder, to transcribe. What only speech needs is fetched here first. */
export async function loadTranscriber(
  url: string | URL,
  options: LoadOptions = {},
): Promise<Transcriber> {
  const { openTranscriber } = await import('./speech/load.ts');
  return openTranscriber(url, options);
}

/**
 * Samples of one channel at `rate` a second, for a worker's Transcriber: only pages decode sound
 * files and change rates. Throws `input` for audio that is none.
 */
export async function decodeAudio(audio: Audio, rate: number): Promise<Float32Array> {
  const { readAudio } = await import('./speech/load.ts');
  return readAudio(audio, rate);
}

export type { AnswerStream } from './chat/answer-stream.ts';
export type { Chat } from './chat/chat.ts';
export type { Embedder, Embedding, EmbeddingRequest, Embeddings } from './chat/embedder.ts';
export type * from './chat/engine.ts';
export type { LoadChatOptions } from './chat/load.ts';
export type { EngineOptions } from './chat/paged.ts';
export type * from './chat/types.ts';
export { capabilities, type Capabilities } from './adapter.ts';
export { EdgeRelaxError, type ErrorCode } from './errors.ts';
export type {
  CpuCall,
  CpuOperand,
  GpuCall,
  GpuOperand,
  Libraries,
  LibraryFunction,
} from './library.ts';
export type { LoadOptions } from './load.ts';
export type { Dim, FunctionInfo, Manifest, ProgramInfo, TensorInfo } from './manifest.ts';
export { type Backend, Model, type ModelStats, type Output, type RunOptions } from './model.ts';
export type { Progress } from './source.ts';
export { type CacheOption, clearCache } from './store.ts';
export type { Audio } from './speech/audio.ts';
export type { ListenOptions } from './speech/options.ts';
export type { Segment, Transcriber, Transcript, Transcription } from './speech/transcriber.ts';
export type { Input, TensorData, TypedArray } from './tensors.ts';
