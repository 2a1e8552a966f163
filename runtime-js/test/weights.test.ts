import { expect, it } from 'vitest';
import type { Gpu } from '../src/gpu.ts';
import type { ProgramInfo } from '../src/manifest.ts';
import type { Source } from '../src/source.ts';
import type { Vm } from '../src/vm.ts';
import { loadWeights } from '../src/weights.ts';

const HALVES = (3 << 20) + 4; // bytes: no whole number of the pieces that are widened

/** Two shards whose weights take turns; `split` lies in both, `half` as f16. */
function source() {
  const files: Record<string, Uint8Array<ArrayBuffer>> = {
    a: new Uint8Array(HALVES + 16).map((_, k) => k % 61),
    b: new Uint8Array(40).map((_, k) => 100 + k),
  };
  const weights = [
    { name: 'first', bytes: 8, stored: null, parts: [{ file: 'a', offset: 0, bytes: 8 }] },
    { name: 'second', bytes: 8, stored: null, parts: [{ file: 'b', offset: 32, bytes: 8 }] },
    {
      name: 'split',
      bytes: 16,
      stored: null,
      parts: [
        { file: 'a', offset: 8, bytes: 8 },
        { file: 'b', offset: 0, bytes: 8 },
      ],
    },
    {
      name: 'half',
      bytes: 2 * HALVES,
      stored: 'f16',
      parts: [{ file: 'a', offset: 16, bytes: HALVES }],
    },
    { name: 'unused', bytes: 8, stored: null, parts: [{ file: 'c', offset: 0, bytes: 8 }] },
    { name: 'nothing', bytes: 0, stored: null, parts: [] },
  ];
  const reads: string[] = [];
  const memories = new Set<ArrayBuffer>();
  const infos = Object.entries(files).map(([name, data]) => [name, { bytes: data.length }]);
  const fake = {
    manifest: { weights, files: Object.fromEntries(infos) },
    read: async (name: string, memory: ArrayBuffer) => {
      const data = files[name]!;
      reads.push(name);
      memories.add(memory);
      const given = new Uint8Array(memory, 0, data.length);
      given.set(data);
      return given;
    },
  };
  return { fake: fake as unknown as Source, files, reads, memories };
}

/** Both devices as plain memory. */
function devices() {
  const memory = new Uint8Array(2 * HALVES + 256);
  const pointers = new Map<number, number>();
  const buffers = new Map<number, Uint8Array>();
  let largest = 0;
  let end = 0;
  const vm = {
    makeWeight: (k: number, bytes: number) => {
      pointers.set(k, end);
      end += bytes;
      return end - bytes;
    },
    bytes: (pointer: number, length: number) => memory.subarray(pointer, pointer + length),
  };
  const gpu = {
    roomFor: async (make: () => void) => make(),
    makeWeight: (k: number, bytes: number) => {
      const buffer = new Uint8Array(bytes);
      buffers.set(k, buffer);
      return buffer;
    },
    write: (buffer: Uint8Array, at: number, data: Uint8Array) => {
      largest = Math.max(largest, data.length);
      buffer.set(data, at);
    },
  };
  const onCpu = (k: number, bytes: number): Uint8Array =>
    memory.slice(pointers.get(k), pointers.get(k)! + bytes);
  const found = { vm: vm as unknown as Vm, gpu: gpu as unknown as Gpu, pointers, buffers };
  return { ...found, onCpu, largest: () => largest };
}

const program = (gpu: number[], cpu: number[]): ProgramInfo =>
  ({ weights_on_gpu: gpu, weights_on_cpu: cpu }) as unknown as ProgramInfo;

it('each shard is read once, into one of two memories as large as the largest', async () => {
  const { fake, files, reads, memories } = source();
  const { vm, gpu, buffers, pointers, onCpu } = devices();
  await loadWeights(fake, program([0, 1, 2, 5], [2, 5]), vm, gpu);
  expect(reads).toEqual(['a', 'b']);
  const largest = files['a']!.length;
  expect([...memories].map((memory) => memory.byteLength)).toEqual([largest, largest]);
  expect(buffers.get(0)).toEqual(files['a']!.slice(0, 8));
  expect(buffers.get(1)).toEqual(files['b']!.slice(32, 40));
  const split = Uint8Array.of(...files['a']!.slice(8, 16), ...files['b']!.slice(0, 8));
  expect(buffers.get(2)).toEqual(split);
  expect(onCpu(2, 16)).toEqual(split);
  expect([...buffers.keys()]).toEqual([0, 1, 2, 5]);
  expect([...pointers.keys()]).toEqual([2, 5]);
});

it('no more than two shards are under way, each in memory of its own', async () => {
  const names = ['a', 'b', 'c', 'd', 'e'];
  const weights = names.map((file) => {
    return { bytes: 4, stored: null, parts: [{ file, offset: 0, bytes: 4 }] };
  });
  const busy = new Set<ArrayBuffer>();
  let most = 0;
  const read = async (name: string, memory: ArrayBuffer): Promise<Uint8Array> => {
    expect(busy.has(memory)).toBe(false);
    busy.add(memory);
    most = Math.max(most, busy.size);
    for (let k = names.length; k > names.indexOf(name); k--) await Promise.resolve();
    busy.delete(memory);
    return new Uint8Array(memory).fill(names.indexOf(name));
  };
  const files = Object.fromEntries(names.map((name) => [name, { bytes: 4 }]));
  const source = { manifest: { weights, files }, read } as unknown as Source;
  const { gpu, vm, buffers } = devices();
  await loadWeights(source, program([0, 1, 2, 3, 4], []), vm, gpu);
  expect(most).toBe(2);
  expect([...buffers.values()].map((buffer) => buffer[3])).toEqual([0, 1, 2, 3, 4]);
});

it('a shard that fails ends the others: none is taken or asked for after it', async () => {
  const { fake, files } = source();
  const { gpu, vm, buffers } = devices();
  const reads: string[] = [];
  let arrive = (): void => undefined;
  const arrived = new Promise<void>((resolve) => (arrive = resolve));
  const read = async (name: string): Promise<Uint8Array> => {
    reads.push(name);
    if (name === 'b') throw new Error('b is broken');
    await arrived;
    return files[name]!;
  };
  const broken = { manifest: fake.manifest, read } as unknown as Source;
  await expect(loadWeights(broken, program([0, 1], []), vm, gpu)).rejects.toThrow('b is broken');
  arrive();
  await new Promise((resolve) => setTimeout(resolve));
  expect(reads).toEqual(['a', 'b']);
  expect(buffers.get(0)).toEqual(new Uint8Array(8));
});

it('halves are widened in small pieces', async () => {
  const { fake, files } = source();
  const { vm, gpu, buffers, onCpu, largest } = devices();
  await loadWeights(fake, program([3], [3]), vm, gpu);
  const bits = new Uint16Array(files['a']!.slice(16, 16 + HALVES).buffer);
  const small = (half: number): number => {
    const size = half & 0x7fff;
    const power = size >> 10;
    return power ? (1 + (size & 1023) / 1024) * 2 ** (power - 15) : size * 2 ** -24;
  };
  const wide = new Float32Array(buffers.get(3)!.buffer);
  expect(wide.every((value, k) => value === small(bits[k]!))).toBe(true);
  expect(Buffer.compare(onCpu(3, 2 * HALVES), buffers.get(3)!)).toBe(0);
  expect(largest()).toBeLessThanOrEqual(2 << 20);
});

it('a model of the CPU alone has no buffers', async () => {
  const { fake, files } = source();
  const { vm, onCpu } = devices();
  await loadWeights(fake, program([], [0]), vm, undefined);
  expect(onCpu(0, 8)).toEqual(files['a']!.slice(0, 8));
});
