/** edgerelax in the browser: `load` an artifact folder, `run` it. */

import { cpuOffer, findAdapter, gpuOffer } from './adapter.ts';
import type { Chat } from './chat/chat.ts';
import type { Embedder } from './chat/embedder.ts';
import type { Engine } from './chat/engine.ts';
import type { LoadChatOptions } from './chat/load.ts';
import type { EngineOptions } from './chat/paged.ts';
import { candidates, choose } from './choose.ts';
import { type Libraries, requireLibraries } from './library.ts';
import type { ProgramInfo } from './manifest.ts';
import { type Backend, Model } from './model.ts';
import { type Progress, Source } from './source.ts';
import type { Audio } from './speech/audio.ts';
import type { Transcriber } from './speech/transcriber.ts';
import type { CacheOption } from './store.ts';

export interface LoadOptions {
  /** `auto` takes WebGPU on hardware, else WebAssembly: a CPU that plays GPU is slower. */
  readonly backend?: Backend | 'auto';
  /** Runs this variant of the artifact, by its name in the manifest. */
  readonly variant?: string;
  /** A device of the caller's; it is not destroyed by dispose(). */
  readonly device?: GPUDevice;
  readonly powerPreference?: GPUPowerPreference;
  /** The library functions that the artifact was compiled to call, by name. */
  readonly libraries?: Libraries;
  /**
   * Threads for kernels that run as WebAssembly, where the page is cross-origin isolated; by default
   * one for each core, at most 4. Elsewhere there is one.
   */
  readonly threads?: number;
  /**
   * Where files are kept for later loads, by the hash of their bytes. By default `auto`: the Cache API,
   * else the origin's private file system, where the page has one of them.
   */
  readonly cache?: CacheOption;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
  readonly fetch?: typeof fetch;
}

/** Loads the artifact folder at a URL. Loads may overlap. */
export async function load(url: string | URL, options: LoadOptions = {}): Promise<Model> {
  const { signal, onProgress, cache } = options;
  const source = await Source.open(url, { signal, onProgress, cache, fetch: options.fetch });
  const { program, adapter } = await fit(source, options);
  const { device, powerPreference, libraries = {}, threads } = options;
  requireLibraries(program, libraries);
  let made = 0;
  const total = program.gpu_kernels.length;
  const onPipeline = (name: string): void =>
    onProgress?.({ phase: 'compile', loaded: ++made, total, item: name });
  const own = { device, adapter, powerPreference, libraries, threads, signal, onPipeline };
  return Model.open(source, program, own);
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

const DEVICES = { webgpu: 'gpu', wasm: 'cpu' } as const;

/** The variant to run; a device that the caller brings asks for one of the GPU's. */
async function fit(
  source: Source,
  { backend = 'auto', variant, device, powerPreference }: LoadOptions,
): Promise<{ program: ProgramInfo; adapter: GPUAdapter | undefined }> {
  const wanted = backend === 'auto' ? device && 'gpu' : DEVICES[backend];
  const programs = candidates(source.manifest.programs, wanted, variant);
  const asks = programs.some((p) => p.device === 'gpu') && !device;
  const adapter = asks ? await findAdapter(powerPreference) : undefined;
  const holder = device ?? adapter;
  const program = choose(programs, holder ? [gpuOffer(holder), cpuOffer()] : [cpuOffer()]);
  return { program, adapter };
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
export type { Dim, FunctionInfo, Manifest, ProgramInfo, TensorInfo } from './manifest.ts';
export { type Backend, Model, type ModelStats, type Output, type RunOptions } from './model.ts';
export type { Progress } from './source.ts';
export { type CacheOption, clearCache } from './store.ts';
export type { Audio } from './speech/audio.ts';
export type { ListenOptions } from './speech/options.ts';
export type { Segment, Transcriber, Transcript, Transcription } from './speech/transcriber.ts';
export type { Input, TensorData, TypedArray } from './tensors.ts';
