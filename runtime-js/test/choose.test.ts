import { describe, expect, it, vi } from 'vitest';
import { cpuOffer, gpuOffer, isSoftware } from '../src/adapter.ts';
import { candidates, choose, type Offer } from '../src/choose.ts';
import { EdgeRelaxError } from '../src/errors.ts';
import type { ProgramInfo } from '../src/manifest.ts';

interface Wish {
  readonly device?: 'gpu' | 'cpu';
  readonly adapter?: 'gpu' | 'software' | null;
  readonly features?: readonly string[];
  readonly limits?: Record<string, number>;
}

function program(name: string, wish: Wish): ProgramInfo {
  const { device = 'gpu', features = [], limits = {} } = wish;
  return {
    name,
    device,
    adapter: wish.adapter ?? (device === 'gpu' ? 'gpu' : null),
    needs: { features, limits },
    program: 'program.bin',
    gpu_kernels: [],
    cpu_kernels: [],
    cpu_kernels_file: null,
    libraries: [],
    weights_on_gpu: [],
    weights_on_cpu: [],
    memory: { planned: null },
  };
}

const F16 = program('gpu-f16', { features: ['shader-f16'] });
const GPU = program('gpu', { limits: { maxBufferSize: 1 << 28 } });
const RELAXED = program('cpu-relaxed', { device: 'cpu', features: ['relaxed-simd'] });
const CPU = program('cpu', { device: 'cpu' });
const SOFTWARE = program('software', { adapter: 'software' });
const ALL = [F16, GPU, RELAXED, CPU, SOFTWARE];

const gpu = (adapter: 'gpu' | 'software', features: string[] = [], size = 1 << 28): Offer => ({
  device: 'gpu',
  adapter,
  features: new Set(features),
  limits: { maxBufferSize: size },
});
const cpu = (...features: string[]): Offer => ({
  device: 'cpu',
  adapter: null,
  features: new Set(features),
  limits: {},
});

function refusal(work: () => unknown): EdgeRelaxError {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(EdgeRelaxError);
    return error as EdgeRelaxError;
  }
  throw new Error('it was accepted');
}

describe('choose', () => {
  it.each<[string, readonly ProgramInfo[], readonly Offer[], ProgramInfo]>([
    ['the first that has all', ALL, [gpu('gpu', ['shader-f16']), cpu()], F16],
    ['the next where a feature is missing', ALL, [gpu('gpu'), cpu()], GPU],
    ['the next where a limit is too small', ALL, [gpu('gpu', [], 1), cpu()], CPU],
    ['the CPU where a CPU plays GPU', ALL, [gpu('software', ['shader-f16']), cpu()], CPU],
    ['relaxed SIMD where there is some', ALL, [cpu('relaxed-simd')], RELAXED],
    ['the CPU where there is no GPU', ALL, [cpu()], CPU],
    ['the class of the adapter', [GPU, SOFTWARE], [gpu('software')], SOFTWARE],
    ['another class rather than none', [GPU], [gpu('software')], GPU],
    ['another class of both', [SOFTWARE], [gpu('gpu')], SOFTWARE],
  ])('takes %s', (_, programs, offers, wanted) => {
    expect(choose(programs, offers).name).toBe(wanted.name);
  });

  it('says of each why it does not fit', () => {
    const error = refusal(() => choose([F16, GPU], [gpu('gpu', [], 7), cpu()]));
    expect(error.code).toBe('limit');
    expect(error.message).toContain('gpu-f16: there is no shader-f16 here');
    expect(error.message).toContain('gpu: maxBufferSize is 7 here, it needs 268435456');
  });

  it('says that there is no GPU', () => {
    const error = refusal(() => choose([F16, GPU], [cpu()]));
    expect(error.code).toBe('no-webgpu');
  });
});

describe('candidates', () => {
  it.each<[ProgramInfo['device'] | undefined, string | undefined, string[]]>([
    [undefined, undefined, ['gpu-f16', 'gpu', 'cpu-relaxed', 'cpu', 'software']],
    ['gpu', undefined, ['gpu-f16', 'gpu', 'software']],
    ['cpu', undefined, ['cpu-relaxed', 'cpu']],
    [undefined, 'software', ['software']],
    ['gpu', 'software', ['software']],
  ])('of %s and %s', (device, variant, names) => {
    expect(candidates(ALL, device, variant).map((p) => p.name)).toEqual(names);
  });

  it.each<[ProgramInfo['device'] | undefined, string | undefined, string]>([
    ['gpu', undefined, 'no program for the gpu, only cpu (cpu)'],
    [undefined, 'gpu', "no variant 'gpu', only cpu (cpu)"],
    ['gpu', 'cpu', "no variant 'cpu' that is a program for the gpu, only cpu (cpu)"],
  ])('refuses %s and %s', (device, variant, message) => {
    const error = refusal(() => candidates([CPU], device, variant));
    expect(error.code).toBe('input');
    expect(error.message).toContain(message);
  });
});

describe('offers', () => {
  const adapter = (info: Record<string, unknown>, more: Record<string, unknown> = {}) =>
    ({ features: new Set(['shader-f16']), limits: { maxBufferSize: 5 }, info, ...more }) as never;

  it.each<[string, never, boolean]>([
    ['hardware', adapter({ vendor: 'intel', architecture: 'gen-12lp' }), false],
    ['SwiftShader', adapter({ vendor: 'google', architecture: 'swiftshader' }), true],
    ['lavapipe', adapter({ vendor: 'mesa', description: 'llvmpipe (LLVM 15.0.6)' }), true],
    ['a fallback by its info', adapter({ vendor: 'x', isFallbackAdapter: true }), true],
    ['a fallback of older browsers', adapter({}, { isFallbackAdapter: true }), true],
    ['a device', adapter(undefined as never, { adapterInfo: { vendor: 'llvmpipe' } }), true],
    ['nobody knows what', adapter(undefined as never), false],
  ])('class of %s', (_, holder, software) => {
    expect(isSoftware(holder)).toBe(software);
    expect(gpuOffer(holder).adapter).toBe(software ? 'software' : 'gpu');
  });

  it.each([
    [true, ['relaxed-simd']],
    [false, []],
  ])('relaxed SIMD where the engine takes it: %s', (taken, features) => {
    vi.spyOn(WebAssembly, 'validate').mockReturnValueOnce(taken).mockReturnValueOnce(taken);
    expect([...cpuOffer().features]).toEqual(features);
    expect(gpuOffer(adapter({})).features).toEqual(new Set(['shader-f16', ...features]));
  });
});
