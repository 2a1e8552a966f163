/** The models of a tool: fetched when it is first used, kept until the backend changes. */

import { type Backend, EdgeRelaxError, load, type Model } from 'edgerelax';
import type { Progress } from './protocol.ts';

export interface Loading {
  readonly backend: Backend;
  /** The folder that holds a folder for each model. */
  readonly folder: string;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
}

/** A file beside the models. */
export interface Extra {
  readonly path: string;
  read(bytes: ArrayBuffer): unknown;
}

/** Models by name, with what came beside them. */
export interface Loaded {
  readonly models: ReadonlyMap<string, Model>;
  readonly extras: readonly unknown[];
  readonly downloadBytes: number;
}

export class Shelf {
  readonly #names: readonly string[];
  readonly #extras: readonly Extra[];
  #backend: Backend | undefined;
  #loaded: Loaded | undefined;

  constructor(names: readonly string[], extras: readonly Extra[] = []) {
    this.#names = names;
    this.#extras = extras;
  }

  async take(loading: Loading): Promise<Loaded> {
    if (this.#loaded && this.#backend === loading.backend) return this.#loaded;
    await this.clear();
    this.#loaded = await loadAll(this.#names, this.#extras, loading);
    this.#backend = loading.backend;
    return this.#loaded;
  }

  async clear(): Promise<void> {
    const models = [...(this.#loaded?.models.values() ?? [])];
    this.#loaded = undefined;
    await Promise.all(models.map((model) => model.dispose()));
  }
}

/** All at once; if one fails, the others are given up. */
async function loadAll(
  names: readonly string[],
  extras: readonly Extra[],
  { backend, folder, signal, onProgress }: Loading,
): Promise<Loaded> {
  const failure = new AbortController();
  const either = AbortSignal.any([signal, failure.signal]);
  const sums = new Sums(names.length, onProgress);
  const loads = names.map((name) =>
    load(new URL(`${name}/`, folder), {
      backend,
      signal: either,
      onProgress: (progress) => sums.add(name, progress),
    }),
  );
  const fetches = extras.map((extra) => fetchExtra(new URL(extra.path, folder), extra, either));
  try {
    const models = await Promise.all(loads);
    const found = await Promise.all(fetches);
    return {
      models: new Map(models.map((model, k) => [names[k] ?? '', model])),
      extras: found.map((one) => one.value),
      downloadBytes: found.reduce((sum, one) => sum + one.bytes, sums.fetched()),
    };
  } catch (error) {
    failure.abort();
    const settled = await Promise.allSettled(loads);
    await Promise.allSettled(fetches);
    for (const load of settled) if (load.status === 'fulfilled') await load.value.dispose();
    throw error;
  }
}

async function fetchExtra(
  url: URL,
  extra: Extra,
  signal: AbortSignal,
): Promise<{ value: unknown; bytes: number }> {
  const response = await fetch(url, { signal }).catch((cause: unknown) => {
    signal.throwIfAborted();
    throw new EdgeRelaxError('network', `${url.href} could not be fetched`, { cause });
  });
  if (!response.ok) {
    throw new EdgeRelaxError('network', `${url.href}: the server answered ${response.status}`);
  }
  const bytes = await response.arrayBuffer();
  return { value: extra.read(bytes), bytes: bytes.byteLength };
}

/** Adds up the progress of several loads; bytes first, kernels when all bytes are there. */
class Sums {
  readonly #count: number;
  readonly #report: (progress: Progress) => void;
  readonly #phases = { fetch: new Map<string, Progress>(), compile: new Map<string, Progress>() };

  constructor(count: number, report: (progress: Progress) => void) {
    this.#count = count;
    this.#report = report;
  }

  add(name: string, { phase, loaded, total }: { phase: 'fetch' | 'compile' } & Progress): void {
    this.#phases[phase].set(name, { phase, loaded, total });
    const fetch = this.#sum('fetch');
    const fetching = fetch.loaded < fetch.total || this.#phases.fetch.size < this.#count;
    this.#report(fetching ? fetch : this.#sum(phase));
  }

  fetched(): number {
    return this.#sum('fetch').loaded;
  }

  #sum(phase: 'fetch' | 'compile'): Progress {
    const parts = [...this.#phases[phase].values()];
    const add = (key: 'loaded' | 'total'): number =>
      parts.reduce((sum, part) => sum + part[key], 0);
    return { phase, loaded: add('loaded'), total: add('total') };
  }
}

/** Kernels of the variant that a model runs, on its backend. */
export function kernelCount({ manifest, variant, backend }: Model): number {
  const program = manifest.programs.find((p) => p.name === variant);
  const kernels = backend === 'wasm' ? program?.cpu_kernels : program?.gpu_kernels;
  return kernels?.length ?? 0;
}
