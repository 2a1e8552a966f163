/** The manifest as the loader uses it. `edgerelax/artifact/manifest.py` is the schema. */

import { EdgeRelaxError } from './errors.ts';

export const ARTIFACT_VERSION = 1;

/** A constant, or an expression over the symbols. */
export type Dim = number | string;

export interface TensorInfo {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly Dim[] | null;
}

export interface FunctionInfo {
  readonly name: string;
  readonly inputs: readonly TensorInfo[];
  readonly outputs: readonly TensorInfo[];
}

export interface FileInfo {
  readonly bytes: number;
  readonly sha256: string;
}

export interface Weight {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: number;
  readonly parts: readonly { file: string; offset: number; bytes: number }[];
}

export interface GpuKernel {
  readonly name: string;
  readonly start: number;
  readonly end: number;
  readonly buffers: readonly ('read' | 'read_write')[];
  readonly scalars: number;
  readonly features: readonly string[];
}

export interface ProgramInfo {
  readonly device: 'gpu' | 'cpu';
  readonly program: string;
  readonly kernels: string | null;
  readonly gpu_kernels: readonly GpuKernel[];
  readonly weights_on_gpu: readonly number[];
  readonly weights_on_cpu: readonly number[];
  readonly memory: { readonly planned: number | null };
}

export interface SymbolInfo {
  readonly lo: number;
  readonly hi: number | null;
  readonly multiple_of: number;
}

export interface Manifest {
  readonly format: string;
  readonly version: number;
  readonly producer: string;
  readonly source: { readonly file: string; readonly metadata: Record<string, string> };
  readonly symbols: Record<string, SymbolInfo>;
  readonly functions: readonly FunctionInfo[];
  readonly programs: readonly ProgramInfo[];
  readonly cpu_kernels: readonly string[];
  readonly cpu_kernels_file: string | null;
  readonly vm: string;
  readonly weights: readonly Weight[];
  readonly needs: {
    readonly features: readonly string[];
    readonly limits: Record<string, number>;
  };
  readonly files: Record<string, FileInfo>;
}

/** Reads and checks a manifest; throws `format` with what is wrong. */
export function parseManifest(text: string, where: string): Manifest {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (cause) {
    throw new EdgeRelaxError('format', `${where}: not JSON; is this an artifact folder?`, {
      cause,
    });
  }
  if (!isRecord(raw) || raw['format'] !== 'edgerelax') {
    throw new EdgeRelaxError('format', `${where}: not an edgerelax manifest`);
  }
  const version = raw['version'];
  if (version !== ARTIFACT_VERSION) {
    const hint =
      Number(version) > ARTIFACT_VERSION ? 'update edgerelax.js' : 'export the model again';
    throw new EdgeRelaxError(
      'format',
      `${where}: artifact version ${String(version)}, this loader reads ${ARTIFACT_VERSION}; ${hint}`,
    );
  }
  const problem = firstProblem(raw);
  if (problem) throw new EdgeRelaxError('format', `${where}: ${problem}; export the model again`);
  return raw as unknown as Manifest;
}

const FILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

function firstProblem(raw: Record<string, unknown>): string | undefined {
  for (const key of ['functions', 'programs', 'weights', 'cpu_kernels']) {
    if (!Array.isArray(raw[key])) return `${key} is no list`;
  }
  for (const key of ['files', 'symbols', 'needs', 'source']) {
    if (!isRecord(raw[key])) return `${key} is no object`;
  }
  const files = raw['files'] as Record<string, unknown>;
  for (const [name, info] of Object.entries(files)) {
    if (!FILE_NAME.test(name)) return `the file name ${JSON.stringify(name)} is not allowed`;
    if (!isRecord(info) || !isCount(info['bytes']) || typeof info['sha256'] !== 'string') {
      return `the size or hash of ${name} is missing`;
    }
  }
  const manifest = raw as unknown as Manifest;
  return badReference(manifest) ?? badWeight(manifest);
}

function badReference(manifest: Manifest): string | undefined {
  const named = [manifest.vm, manifest.cpu_kernels_file];
  for (const program of manifest.programs) {
    if (!isRecord(program) || !Array.isArray(program.gpu_kernels)) return 'a program is damaged';
    named.push(program.program, program.kernels);
    for (const kernel of program.gpu_kernels) {
      const inside = isCount(kernel.start) && isCount(kernel.end) && kernel.start <= kernel.end;
      if (!inside || !Array.isArray(kernel.buffers)) return `kernel ${kernel.name} is damaged`;
    }
    for (const index of [...program.weights_on_gpu, ...program.weights_on_cpu]) {
      if (!manifest.weights[index]) return `there is no weight ${index}`;
    }
  }
  const missing = named.find((name) => name !== null && !Object.hasOwn(manifest.files, name));
  return missing === undefined ? undefined : `${String(missing)} is not listed under files`;
}

function badWeight(manifest: Manifest): string | undefined {
  for (const weight of manifest.weights) {
    let total = 0;
    for (const part of weight.parts) {
      const file = manifest.files[part.file];
      if (!file || part.offset < 0 || part.offset + part.bytes > file.bytes) {
        return `weight ${weight.name} lies outside its file`;
      }
      total += part.bytes;
    }
    if (total !== weight.bytes) return `the parts of weight ${weight.name} do not add up`;
  }
  return undefined;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;
}
