/** edgerelax in the browser: `load` an artifact folder, `run` it. */

import { findAdapter, isSoftware } from './adapter.ts';
import { EdgeRelaxError } from './errors.ts';
import { type Backend, Model } from './model.ts';
import { type Progress, Source } from './source.ts';

export interface LoadOptions {
  /** `auto` takes WebGPU on hardware, else WebAssembly: a CPU that plays GPU is slower. */
  readonly backend?: Backend | 'auto';
  /** A device of the caller's; it is not destroyed by dispose(). */
  readonly device?: GPUDevice;
  readonly powerPreference?: GPUPowerPreference;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
  readonly fetch?: typeof fetch;
}

/** Loads the artifact folder at a URL. Loads may overlap. */
export async function load(url: string | URL, options: LoadOptions = {}): Promise<Model> {
  const { signal, onProgress } = options;
  const source = await Source.open(url, { signal, onProgress, fetch: options.fetch });
  const { backend, adapter } = await choose(source, options);
  const kernels = source.manifest.programs.find((p) => p.device === 'gpu')?.gpu_kernels.length ?? 0;
  let made = 0;
  const onPipeline = (name: string): void =>
    onProgress?.({ phase: 'compile', loaded: ++made, total: kernels, item: name });
  const { device, powerPreference } = options;
  return Model.open(source, backend, { device, adapter, powerPreference, signal, onPipeline });
}

async function choose(
  source: Source,
  options: LoadOptions,
): Promise<{ backend: Backend; adapter: GPUAdapter | undefined }> {
  const wanted = options.backend ?? 'auto';
  const offered = new Set(source.manifest.programs.map((p) => p.device));
  if (wanted === 'wasm') return { backend: 'wasm', adapter: undefined };
  if (options.device) return { backend: 'webgpu', adapter: undefined };
  const adapter = await findAdapter(options.powerPreference);
  if (wanted === 'webgpu' || !offered.has('cpu')) {
    if (adapter) return { backend: 'webgpu', adapter };
    const hint = offered.has('cpu') ? "use backend 'wasm'" : 'export it with the CPU fallback';
    throw new EdgeRelaxError('no-webgpu', `this browser offers no GPU adapter; ${hint}`);
  }
  const fits = adapter && offered.has('gpu') && !isSoftware(adapter);
  return fits ? { backend: 'webgpu', adapter } : { backend: 'wasm', adapter: undefined };
}

export { capabilities, type Capabilities } from './adapter.ts';
export { EdgeRelaxError, type ErrorCode } from './errors.ts';
export type { Dim, FunctionInfo, Manifest, TensorInfo } from './manifest.ts';
export { type Backend, Model, type ModelStats, type Output, type RunOptions } from './model.ts';
export type { Progress } from './source.ts';
export type { Input, TensorData, TypedArray } from './tensors.ts';
