import { describe, expect, it } from 'vitest';
import { EdgeRelaxError } from '../src/errors.ts';
import { ARTIFACT_VERSION, filesOf, parseManifest } from '../src/manifest.ts';
import { HASH, sound } from './manifests.ts';

const WHERE = 'https://host/model/manifest.json';

function refusal(value: unknown): string {
  try {
    parseManifest(typeof value === 'string' ? value : JSON.stringify(value), WHERE);
  } catch (error) {
    expect(error).toBeInstanceOf(EdgeRelaxError);
    expect((error as EdgeRelaxError).code).toBe('format');
    expect((error as Error).message).toContain(WHERE);
    return (error as Error).message;
  }
  throw new Error(`it was accepted: ${JSON.stringify(value)}`);
}

type Path = readonly (string | number)[];
type Node = Record<string | number, unknown>;

function pathsOf(value: unknown, path: Path = []): Path[] {
  if (typeof value !== 'object' || value === null) return [path];
  const inner = Object.entries(value).flatMap(([key, item]) =>
    pathsOf(item, [...path, Array.isArray(value) ? Number(key) : key]),
  );
  return path.length ? [path, ...inner] : inner;
}

/** The sound manifest after a change at a path. */
function damaged(path: Path, change: (parent: Node, key: string | number) => void): Node {
  const whole = sound();
  let parent: Node = whole;
  for (const key of path.slice(0, -1)) parent = parent[key] as Node;
  change(parent, path.at(-1) ?? '');
  return whole;
}

const set = (path: Path, value: unknown): Node =>
  damaged(path, (parent, key) => (parent[key] = value));

it('reads a sound manifest', () => {
  expect(parseManifest(JSON.stringify(sound()), WHERE)).toEqual(sound());
});

it('lets fields pass that it does not know', () => {
  expect(parseManifest(JSON.stringify({ ...sound(), comment: 1 }), WHERE)).toBeTruthy();
});

it('takes symbols that can be negative, as bounds of slices that data give', () => {
  const start = { lo: -(2 ** 63), hi: -1, multiple_of: 1 };
  const read = parseManifest(JSON.stringify(set(['symbols', 'start'], start)), WHERE);
  expect(read.symbols['start']).toEqual(start);
});

describe('other files', () => {
  it.each([
    ['', 'not JSON'],
    ['<!doctype html>', 'not JSON'],
    [JSON.stringify(sound()).slice(0, -30), 'not JSON'],
    ['null', 'not an edgerelax manifest'],
    ['[]', 'not an edgerelax manifest'],
    ['{}', 'not an edgerelax manifest'],
    ['{"format": "onnx"}', 'not an edgerelax manifest'],
  ])('refuses %j', (text, message) => {
    expect(refusal(text)).toContain(message);
  });
});

describe('versions', () => {
  it.each([
    [ARTIFACT_VERSION + 1, 'update edgerelax.js'],
    [1e9, 'update edgerelax.js'],
    [2, 'export the model again'],
    [0, 'export the model again'],
    ['1', 'export the model again'],
    [null, 'export the model again'],
    [undefined, 'export the model again'],
  ])('refuses %s', (version, hint) => {
    const message = refusal({ ...sound(), version });
    expect(message).toContain(`this loader reads ${ARTIFACT_VERSION};`);
    expect(message).toContain(hint);
  });
});

/** What the loader can do without, and attributes, which are a library function's to check. */
const UNREAD = [
  /^source\.(kind|sha256)/,
  /^programs\.0\.memory\.(slabs|lower_bound|unplanned)/,
  /\.attrs\.\w+$/,
];
/** What may be missing: entries of maps, and of lists where nothing counts them. */
const ENTRY =
  /^(symbols(?!\.m$)|programs\.0\.needs\.limits|source\.metadata|language\.functions)\.\w+$|^language\.eos\.\d+$|\.(shape|buffers|features)\.\d+$|^programs\.\d+$|^functions\.0\.states\.\d+$|\.(inputs|outputs|cpu_kernels|gpu_kernels|libraries|weights_on_gpu)\.\d+$/;
const VALUES = [null, -1, 1.5, 2 ** 60, 'x', '../x', [], {}, true, [null], { x: null }];

describe('every field', () => {
  const paths = pathsOf(sound()).filter((path) => !UNREAD.some((p) => p.test(path.join('.'))));

  it.each(paths.map((path) => [path.join('.'), path] as const))('misses %s', (name, path) => {
    const without = damaged(path, (parent, key) =>
      Array.isArray(parent) ? parent.splice(Number(key), 1) : delete parent[key],
    );
    if (!ENTRY.test(name)) refusal(without);
    else parseManifest(JSON.stringify(without), WHERE);
  });

  it.each(paths.map((path) => [path.join('.'), path] as const))('changes %s', (_, path) => {
    let refused = 0;
    for (const value of VALUES) {
      try {
        parseManifest(JSON.stringify(set(path, value)), WHERE);
      } catch (error) {
        expect((error as EdgeRelaxError).code, String(error)).toBe('format');
        refused++;
      }
    }
    expect(refused).toBeGreaterThanOrEqual(VALUES.length - 4);
  });
});

describe('references', () => {
  it.each<[Path, unknown, string]>([
    [['vm'], '../vm.wasm', 'vm is no file name'],
    [['vm'], '.hidden', 'vm is no file name'],
    [['vm'], 'other.wasm', 'other.wasm is not listed under files'],
    [['vm'], 'toString', 'toString is not listed under files'],
    [['weights', 0, 'parts', 0, 'file'], 'constructor', 'weight w lies outside its file'],
    [['files', '../evil'], { bytes: 1, sha256: HASH }, 'is no file name'],
    [['files', 'http://evil/x'], { bytes: 1, sha256: HASH }, 'is no file name'],
    [['files', 'vm.wasm', 'sha256'], 'AB'.repeat(32), 'files.vm.wasm.sha256 is no sha256'],
    [['programs', 0, 'weights_on_gpu'], [0, 1], 'there is no weight 1'],
    [['programs', 0, 'gpu_kernels', 0, 'end'], 101, 'kernel add lies outside kernels-gpu.wgsl'],
    [['programs', 0, 'gpu_kernels', 0, 'start'], 101, 'kernel add lies outside kernels-gpu.wgsl'],
    [['programs', 0, 'gpu_kernels', 0, 'file'], 'vm.wasm', 'kernel add lies outside vm.wasm'],
    [['programs', 0, 'gpu_kernels', 0, 'file'], 'toString', 'toString is not listed under files'],
    [['programs', 0, 'cpu_kernels_file'], null, 'variant gpu: its CPU kernels have no file'],
    [['programs', 0, 'adapter'], null, 'variant gpu: only those of a GPU have an adapter'],
    [['programs', 0, 'adapter'], 'quantum', 'programs[0].adapter is none of gpu, software'],
    [['programs', 0, 'name'], 'a/b', 'programs[0].name is no name of a variant'],
    [['programs', 0, 'device'], 'tpu', 'programs[0].device is none of gpu, cpu'],
    [['assets', 0], 'other.json', 'other.json is not listed under files'],
    [['language', 'chat'], 'vm.wasm', 'language names vm.wasm, which is not among the assets'],
    [
      ['language', 'functions', 'step'],
      'toString',
      'language names toString, which is no function',
    ],
    [['language', 'eos', 1], 512, 'language names token 512 of a vocabulary of 512'],
    [['language', 'bos'], 512, 'language names token 512 of a vocabulary of 512'],
    [['weights', 0, 'parts', 1, 'offset'], 81, 'weight w lies outside its file'],
    [['weights', 0, 'stored'], 'f16', 'do not add up to its 16 bytes'],
    [['weights', 0, 'stored'], 'i8', 'weights[0].stored is none of f16'],
    [['weights', 0, 'bytes'], 17, 'do not add up to its 17 bytes'],
    [['weights', 0, 'parts', 0, 'bytes'], 7, 'do not add up to its 16 bytes'],
  ])('refuses %j = %j', (path, value, message) => {
    expect(refusal(set(path, value))).toContain(message);
  });
});

it('refuses two variants of one name', () => {
  const manifest = sound();
  const programs = manifest['programs'] as unknown[];
  expect(refusal({ ...manifest, programs: [...programs, ...programs] })).toContain(
    'two variants of one name: gpu, gpu',
  );
});

it('reads models that are of no language', () => {
  const raw = { ...sound(), assets: [], language: null };
  expect(parseManifest(JSON.stringify(raw), WHERE).language).toBeNull();
});

it('knows the files of a variant', () => {
  const manifest = parseManifest(JSON.stringify(sound()), WHERE);
  const [program] = manifest.programs;
  expect(program && filesOf(manifest, program)).toEqual([
    'vm.wasm',
    'program-gpu.bin',
    'kernels-gpu.wgsl',
    'kernels-gpu.wasm',
    'weights.safetensors',
  ]);
});
