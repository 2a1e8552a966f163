/** The manifest as the loader uses it. `edgerelax/artifact/manifest.py` is the schema. */

import { EdgeRelaxError } from './errors.ts';
import {
  anything,
  type Check,
  count,
  either,
  first,
  integer,
  isRecord,
  listOf,
  mapOf,
  matching,
  object,
  oneOf,
  orNull,
  text,
} from './schema.ts';

export const ARTIFACT_VERSION = 7;

/** The asset that tells a speech model from others. */
export const SPEECH = 'speech.json';

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
  /** Names of the states that it uses. */
  readonly states: readonly string[];
}

export interface FileInfo {
  readonly bytes: number;
  readonly sha256: string;
}

export interface Weight {
  readonly name: string;
  readonly dtype: string;
  /** The dtype in the files, where it is another. */
  readonly stored: 'f16' | null;
  readonly shape: readonly number[];
  readonly bytes: number;
  readonly parts: readonly { file: string; offset: number; bytes: number }[];
}

export interface GpuKernel {
  readonly name: string;
  readonly file: string;
  readonly start: number;
  readonly end: number;
  readonly buffers: readonly ('read' | 'read_write')[];
  readonly scalars: number;
  readonly features: readonly string[];
}

/** A way of calling a library function, which the caller of `load` brings along. */
export interface LibraryInfo {
  readonly function: string;
  readonly device: 'gpu' | 'cpu';
  readonly inputs: readonly { readonly dtype: string; readonly rank: number }[];
  readonly outputs: readonly { readonly dtype: string; readonly rank: number }[];
  readonly attrs: Readonly<Record<string, unknown>>;
}

/** A variant: one compiled form of the model, made for a device and a class of adapter. */
export interface ProgramInfo {
  readonly name: string;
  readonly device: 'gpu' | 'cpu';
  readonly adapter: 'gpu' | 'software' | null;
  readonly needs: {
    readonly features: readonly string[];
    readonly limits: Record<string, number>;
  };
  readonly program: string;
  readonly gpu_kernels: readonly GpuKernel[];
  readonly cpu_kernels: readonly string[];
  readonly cpu_kernels_file: string | null;
  readonly libraries: readonly LibraryInfo[];
  readonly weights_on_gpu: readonly number[];
  readonly weights_on_cpu: readonly number[];
  readonly memory: { readonly planned: number | null };
}

export interface SymbolInfo {
  readonly lo: number;
  readonly hi: number | null;
  readonly multiple_of: number;
}

/** What turns the functions of a language model into text and back; counts are of tokens. */
export interface LanguageInfo {
  readonly architecture: string;
  readonly vocabulary: number;
  readonly context: number;
  /** Entry points by what they do. */
  readonly functions: Readonly<Record<string, string>>;
  readonly page_size: number | null;
  /** How many tokens a token sees, itself included; null: all before it. */
  readonly window: number | null;
  /** Assets: a tokenizer.json; templates and special tokens. */
  readonly tokenizer: string | null;
  readonly chat: string | null;
  readonly bos: number | null;
  /** All ids that end a text. */
  readonly eos: readonly number[];
}

export interface Manifest {
  readonly format: string;
  readonly version: number;
  readonly producer: string;
  readonly source: { readonly file: string; readonly metadata: Record<string, string> };
  readonly symbols: Record<string, SymbolInfo>;
  readonly functions: readonly FunctionInfo[];
  /** What lives on between calls: the program's first inputs. A dim is a number or a symbol. */
  readonly states: readonly TensorInfo[];
  /** In the order in which loaders prefer them. */
  readonly programs: readonly ProgramInfo[];
  readonly vm: string;
  readonly weights: readonly Weight[];
  readonly files: Record<string, FileInfo>;
  /** Files that came with the model, by the names they had. */
  readonly assets: readonly string[];
  readonly language: LanguageInfo | null;
}

/** Reads and checks a manifest; throws `format` with what is wrong. */
export function parseManifest(json: string, where: string): Manifest {
  let raw: unknown;
  try {
    raw = JSON.parse(json);
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
  const problem = whole(raw, '') ?? badReference(raw as unknown as Manifest);
  if (problem) throw new EdgeRelaxError('format', `${where}: ${problem}; export the model again`);
  return raw as unknown as Manifest;
}

const fileName = matching(/^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$/, 'file name');
const dim: Check = either(count, text);
const tensors = listOf(object({ name: text, dtype: text, shape: orNull(listOf(dim)) }));

const kernel = object({
  name: text,
  file: fileName,
  start: count,
  end: count,
  buffers: listOf(oneOf('read', 'read_write')),
  scalars: count,
  features: listOf(text),
});

const libraryOperands = listOf(object({ dtype: text, rank: count }));

const library = object({
  function: text,
  device: oneOf('gpu', 'cpu'),
  inputs: libraryOperands,
  outputs: libraryOperands,
  attrs: mapOf(anything),
});

const program = object({
  name: matching(/^[a-z][a-z0-9-]{0,29}$/, 'name of a variant'),
  device: oneOf('gpu', 'cpu'),
  adapter: oneOf('gpu', 'software', null),
  needs: object({ features: listOf(text), limits: mapOf(count) }),
  program: fileName,
  gpu_kernels: listOf(kernel),
  cpu_kernels: listOf(text),
  cpu_kernels_file: orNull(fileName),
  libraries: listOf(library),
  weights_on_gpu: listOf(count),
  weights_on_cpu: listOf(count),
  memory: object({ planned: orNull(count) }),
});

const weight = object({
  name: text,
  dtype: text,
  stored: oneOf('f16', null),
  shape: listOf(count),
  bytes: count,
  parts: listOf(object({ file: fileName, offset: count, bytes: count })),
});

const language = object({
  architecture: text,
  vocabulary: count,
  context: count,
  functions: mapOf(text),
  page_size: orNull(count),
  window: orNull(count),
  tokenizer: orNull(fileName),
  chat: orNull(fileName),
  bos: orNull(count),
  eos: listOf(count),
});

const whole = object({
  producer: text,
  source: object({ file: text, metadata: mapOf(text) }),
  symbols: mapOf(object({ lo: integer, hi: orNull(integer), multiple_of: count })),
  functions: listOf(
    object({ name: text, inputs: tensors, outputs: tensors, states: listOf(text) }),
  ),
  states: tensors,
  programs: listOf(program),
  vm: fileName,
  weights: listOf(weight),
  files: mapOf(object({ bytes: count, sha256: matching(/^[0-9a-f]{64}$/, 'sha256') }), fileName),
  assets: listOf(fileName),
  language: orNull(language),
});

/** The files that running a variant takes, the manifest aside. */
export function filesOf(manifest: Manifest, program: ProgramInfo): string[] {
  const names = [manifest.vm, program.program, ...program.gpu_kernels.map((k) => k.file)];
  if (program.cpu_kernels_file !== null) names.push(program.cpu_kernels_file);
  for (const k of [...program.weights_on_gpu, ...program.weights_on_cpu]) {
    names.push(...(manifest.weights[k]?.parts.map((part) => part.file) ?? []));
  }
  return [...new Set(names)];
}

/** What no part shows by itself: names and numbers that point to nothing. */
function badReference(manifest: Manifest): string | undefined {
  const { files, weights, programs } = manifest;
  const names = programs.map((p) => p.name);
  if (new Set(names).size < names.length) return `two variants of one name: ${names.join(', ')}`;
  return (
    first(weights, (weight) => badWeight(weight, files)) ??
    first([manifest.vm, ...manifest.assets], (name) => unlisted(name, files)) ??
    first(manifest.states, (state) => badState(state, manifest)) ??
    first(manifest.functions, (fn) => badStates(fn, manifest)) ??
    (manifest.language === null ? undefined : badLanguage(manifest.language, manifest)) ??
    first(programs, (program) => badProgram(program, manifest))
  );
}

function badState({ name, shape }: TensorInfo, manifest: Manifest): string | undefined {
  const dims: readonly (Dim | null)[] = shape ?? [null];
  const bad = dims.find(
    (dim) => typeof dim !== 'number' && (dim === null || !Object.hasOwn(manifest.symbols, dim)),
  );
  return bad === undefined ? undefined : `state ${name} has the dim ${String(bad)}`;
}

function badStates({ name, states }: FunctionInfo, manifest: Manifest): string | undefined {
  const lost = states.find((used) => !manifest.states.some((state) => state.name === used));
  return lost === undefined ? undefined : `function ${name} uses no known state: ${lost}`;
}

function badLanguage(language: LanguageInfo, manifest: Manifest): string | undefined {
  const { tokenizer, chat, functions, vocabulary, eos, bos } = language;
  const names = [tokenizer, chat].filter((name) => name !== null);
  const lost = names.find((name) => !manifest.assets.includes(name));
  if (lost !== undefined) return `language names ${lost}, which is not among the assets`;
  const known = new Set(manifest.functions.map((f) => f.name));
  const missing = Object.values(functions).find((name) => !known.has(name));
  if (missing !== undefined) return `language names ${missing}, which is no function`;
  const outside = [...eos, ...(bos === null ? [] : [bos])].find((id) => id >= vocabulary);
  return outside === undefined
    ? undefined
    : `language names token ${outside} of a vocabulary of ${vocabulary}`;
}

function badProgram(program: ProgramInfo, manifest: Manifest): string | undefined {
  const { files, weights } = manifest;
  const indices = [...program.weights_on_gpu, ...program.weights_on_cpu];
  const unknown = indices.find((index) => index >= weights.length);
  if (unknown !== undefined) return `there is no weight ${unknown}`;
  if ((program.device === 'gpu') !== (program.adapter !== null)) {
    return `variant ${program.name}: only those of a GPU have an adapter`;
  }
  if (program.cpu_kernels.length > 0 && program.cpu_kernels_file === null) {
    return `variant ${program.name}: its CPU kernels have no file`;
  }
  const missing = first(filesOf(manifest, program), (name) => unlisted(name, files));
  if (missing) return missing;
  const outside = program.gpu_kernels.find(
    ({ file, start, end }) => start > end || end > (files[file]?.bytes ?? 0),
  );
  return outside && `kernel ${outside.name} lies outside ${outside.file}`;
}

function unlisted(name: string, files: Manifest['files']): string | undefined {
  return Object.hasOwn(files, name) ? undefined : `${name} is not listed under files`;
}

function badWeight(weight: Weight, files: Manifest['files']): string | undefined {
  let total = 0;
  for (const { file, offset, bytes } of weight.parts) {
    const size = Object.hasOwn(files, file) ? files[file]?.bytes : undefined;
    if (size === undefined || offset + bytes > size) {
      return `weight ${weight.name} lies outside its file`;
    }
    if (weight.stored !== null && bytes % 2) return `weight ${weight.name} is cut within a number`;
    total += bytes;
  }
  if (weight.stored !== null && weight.dtype !== 'f32') {
    return `weight ${weight.name} of ${weight.dtype} is stored as f16`;
  }
  return (weight.stored === null ? total : 2 * total) === weight.bytes
    ? undefined
    : `the parts of weight ${weight.name} do not add up to its ${weight.bytes} bytes`;
}
