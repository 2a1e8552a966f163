/** From an artifact's folder to a model that runs. */

import { cpuOffer, findAdapter, gpuOffer } from './adapter.ts';
import { candidates, choose } from './choose.ts';
import { type Libraries, requireLibraries } from './library.ts';
import type { ProgramInfo } from './manifest.ts';
import { type Backend, Model } from './model.ts';
import { type Progress, Source } from './source.ts';
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

/** The folder at a URL, for `loadModel`. */
export function openSource(url: string | URL, options: LoadOptions): Promise<Source> {
  const { signal, onProgress, cache, fetch } = options;
  return Source.open(url, { signal, onProgress, cache, fetch });
}

/** The model of a folder that was opened with the same options. */
export async function loadModel(source: Source, options: LoadOptions): Promise<Model> {
  const { program, adapter } = await fit(source, options);
  const { device, powerPreference, libraries = {}, threads, signal, onProgress } = options;
  requireLibraries(program, libraries);
  let made = 0;
  const total = program.gpu_kernels.length;
  const onPipeline = (name: string): void =>
    onProgress?.({ phase: 'compile', loaded: ++made, total, item: name });
  const own = { device, adapter, powerPreference, libraries, threads, signal, onPipeline };
  return Model.open(source, program, own);
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
