import { describe, expect, it } from 'vitest';
import { Gpu } from '../src/gpu.ts';

/** A device that makes nothing; `failure` is what its error scopes find. */
function device(failure: { message: string } | null = null): GPUDevice {
  const made = {
    limits: { maxBufferSize: 1 << 20, maxStorageBufferBindingSize: 1 << 10 },
    createBuffer: ({ size }: { size: number }) => ({ size, destroy: () => undefined }),
    pushErrorScope: () => undefined,
    popErrorScope: async () => failure,
  };
  return made as unknown as GPUDevice;
}

Object.assign(globalThis, { GPUBufferUsage: {} });

describe('states that a device has no room for', () => {
  it('are larger than what a kernel reads, and leave no buffer', () => {
    const gpu = new Gpu(device(), []);
    gpu.makeState(0, 1 << 10, 'state keys');
    expect(() => gpu.makeState(0, (1 << 10) + 4, 'state keys')).toThrow(
      'state keys needs 1028 bytes, a kernel of this device reads at most 1024',
    );
    expect(gpu.stats.buffers).toBe(0);
  });

  it('are told of when the device was asked', async () => {
    const gpu = new Gpu(device({ message: 'none left' }), []);
    const code = gpu.roomFor(() => undefined).catch((error) => `${error.code}: ${error.message}`);
    expect(await code).toBe('memory: the GPU has no memory: none left');
    await new Gpu(device(), []).roomFor(() => undefined);
  });

  it('throw what making them throws', async () => {
    const make = (): void => {
      throw new Error('too large');
    };
    await expect(new Gpu(device(), []).roomFor(make)).rejects.toThrow('too large');
  });
});
