import { describe, expect, it } from 'vitest';
import { type CommandList, Gpu, type Place } from '../src/gpu.ts';
import { BINDING } from '../src/isa.ts';

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

Object.assign(globalThis, { GPUBufferUsage: {}, GPUShaderStage: {}, GPUMapMode: {} });

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

const ROOM = 1 << 19; // the largest buffer that there is memory for

/** A device that keeps the bytes of buffers, and says in which order it was asked for what. */
function recorder() {
  interface Made {
    readonly label: string;
    readonly size: number;
    readonly bytes: Uint8Array;
    readonly destroy: () => void;
    readonly mapAsync: () => Promise<void>;
    readonly getMappedRange: () => ArrayBuffer;
    readonly unmap: () => void;
  }
  interface Group {
    readonly entries: readonly { resource: { buffer: Made; offset: number; size: number } }[];
  }
  const log: string[] = [];
  const launched: Group[] = [];
  let group: Group | undefined;
  let lacks = false;
  const pass = {
    setPipeline: () => undefined,
    setBindGroup: (_: number, given: Group) => void (group = given),
    dispatchWorkgroups: (x: number, y: number) => {
      launched.push(group!);
      log.push(`launch ${x} ${y}`);
    },
    end: () => undefined,
  };
  const device = {
    limits: { maxBufferSize: 1 << 20, maxStorageBufferBindingSize: 1 << 20 },
    createBuffer: ({ size, label }: { size: number; label: string }): Made => {
      lacks = size > ROOM;
      const bytes = new Uint8Array(size);
      return {
        ...{ label, size, bytes },
        destroy: () => void log.push(`free ${label}`),
        mapAsync: async () => undefined,
        getMappedRange: () => bytes.buffer,
        unmap: () => undefined,
      };
    },
    pushErrorScope: () => void (lacks = false),
    popErrorScope: async () => (lacks ? { message: 'none left' } : null),
    createBindGroupLayout: () => ({}),
    createPipelineLayout: () => ({}),
    createShaderModule: () => ({}),
    createComputePipelineAsync: async () => ({}),
    createBindGroup: (given: Group) => given,
    createCommandEncoder: () => ({
      beginComputePass: () => pass,
      copyBufferToBuffer: () => undefined,
      finish: () => ({}),
    }),
    queue: {
      writeBuffer: (to: Made, at: number, from: Uint8Array | Int32Array, first = 0, count = 0) => {
        const size = from.BYTES_PER_ELEMENT;
        const length = count || from.length - first;
        const bytes = new Uint8Array(from.buffer, from.byteOffset + first * size, length * size);
        to.bytes.set(bytes, at);
        log.push(`write ${to.label}`);
      },
      submit: (buffers: unknown[]) => log.push(`submit ${buffers.length}`),
    },
  };
  const scalars = (at: number): number[] => {
    const { buffer, offset, size } = launched.at(at)!.entries.at(-1)!.resource;
    return [...new Int32Array(buffer.bytes.buffer, offset, size / 4)];
  };
  return { device: device as unknown as GPUDevice, log, launched, scalars };
}

async function ready() {
  const made = recorder();
  const kernel = {
    ...{ name: 'k', file: 'f', start: 0, end: 0, scalars: 2, features: [] },
    buffers: ['read_write' as const],
  };
  const gpu = new Gpu(made.device, [kernel]);
  await gpu.compile(
    async () => new Uint8Array(),
    () => undefined,
  );
  return { ...made, gpu };
}

const SLAB: Place = { kind: BINDING.slab, index: 0, offset: 0, bytes: 16 };
const list = (...all: number[][]): CommandList => ({
  steps: all.map((scalars) => ({ kernel: 0, places: [SLAB], scalars: Int32Array.from(scalars) })),
});

describe('launches that are alike', () => {
  it('share a bind group and uniforms over lists, which live as long as one of them', async () => {
    const { gpu, launched, scalars, log } = await ready();
    const lists = [list([1, 5], [2, 6]), list([1, 5], [3, 7]), list([1, 5])];
    lists.forEach((one, id) => {
      gpu.finish(one);
      gpu.remember(id, one);
      gpu.encode(one);
    });
    expect(gpu.stats.bindGroups).toBe(3);
    expect(log).not.toContain('write uniforms');
    gpu.submit();
    expect(log.slice(-2)).toEqual(['write uniforms', 'submit 1']); // all of them by one write
    expect([launched[0], launched[0]]).toEqual([launched[2], launched[4]]);
    expect(scalars(-1).slice(0, 2)).toEqual([1, 5]);
    gpu.forget(0);
    gpu.encode(lists[1]!);
    expect(scalars(-2).slice(0, 2)).toEqual([1, 5]);
    gpu.forget();
    gpu.finish(list([1, 5]));
    expect(gpu.stats.bindGroups).toBe(4);
  });

  it('part when the scalars of one list change', async () => {
    const { gpu, scalars, log } = await ready();
    const [one, other] = [list([1, 5], [2, 6]), list([1, 5])] as const;
    for (const each of [one, other]) gpu.finish(each);
    gpu.encode(one);
    gpu.submit();
    gpu.setScalars(one, Int32Array.of(0, 1, 5, 1, 1, 6)); // as they are
    expect(log.filter((line) => line.startsWith('write'))).toEqual(['write uniforms']);
    gpu.setScalars(one, Int32Array.of(0, 1, 50, 1, 1, 60));
    gpu.encode(one);
    expect([scalars(-2)[1], scalars(-1)[1]]).toEqual([50, 60]);
    gpu.setScalars(one, Int32Array.of(0, 1, 51, 1, 1, 60));
    expect(log.slice(-2)).toEqual(['submit 1', 'write own uniforms']); // a write overtakes
    expect([scalars(-2)[1], scalars(-1)[1]]).toEqual([51, 60]);
    gpu.encode(other);
    expect(scalars(-1)[1]).toBe(5);
  });

  it('take places that others gave up once these were submitted', async () => {
    const { gpu, scalars } = await ready();
    for (let k = 1; k <= 1000; k++) {
      gpu.encodeOnce(list([1, k]));
      gpu.submit();
      expect(scalars(-1).slice(0, 2)).toEqual([1, k]);
    }
    expect(gpu.stats.buffers).toBe(2); // the slab and one of uniforms
  });
});

describe('inputs', () => {
  const bytes = (...values: number[]): Uint8Array<ArrayBuffer> => Uint8Array.from(values);

  it('of a function are one write at the submission, and none where they are as before', async () => {
    const { gpu, log } = await ready();
    const run = (): void => {
      gpu.encodeOnce(list([1, 1]));
      log.length = 0;
      gpu.submit();
    };
    run();
    expect(gpu.give(0, new Map([[3, bytes(1, 2, 3, 4)], [4, bytes(5, 6, 7, 8)]]))).toBe(false); // prettier-ignore
    run();
    expect(log).toEqual(['write inputs', 'submit 1']);
    const [three, four] = [3, 4].map((index) => gpu.at({ kind: 0, index, offset: 4 }));
    expect([three?.offset, four?.offset]).toEqual([4, 260]);
    expect(three?.buffer).toBe(four?.buffer);
    gpu.give(0, new Map([[3, bytes(1, 2, 3, 4)], [4, bytes(5, 6, 7, 8)]])); // prettier-ignore
    run();
    expect(log).toEqual(['submit 1']);
    expect(gpu.give(1, new Map([[3, bytes(9)]]))).toBe(false); // another's are elsewhere
    expect(gpu.at({ kind: 0, index: 3, offset: 0 }).buffer).not.toBe(three?.buffer);
  });

  it('that are in use are written once that was submitted', async () => {
    const { gpu, log } = await ready();
    const run = (fn: number, value: number): void => {
      gpu.give(fn, new Map([[0, bytes(value)]]));
      gpu.encodeOnce(list([1, 1]));
      gpu.seal();
    };
    run(0, 1);
    run(1, 1);
    run(1, 1);
    expect(log.filter((line) => line.startsWith('submit'))).toEqual([]);
    log.length = 0;
    run(1, 2);
    const both = ['write inputs', 'write inputs']; // of two functions
    expect(log).toEqual(['write uniforms', ...both, 'submit 3', 'launch 1 1']);
    gpu.submit();
    expect(log.slice(-2)).toEqual(['write inputs', 'submit 1']);
  });

  it('of a call in two submissions are in use until the second', async () => {
    const { gpu, log } = await ready();
    gpu.give(0, new Map([[0, bytes(1)]]));
    gpu.encodeOnce(list([1, 1]));
    gpu.submit();
    gpu.encodeOnce(list([2, 1]));
    gpu.seal();
    const { buffer } = gpu.at({ kind: 0, index: 0, offset: 0 });
    const first = (): unknown => (buffer as unknown as { bytes: Uint8Array }).bytes[0];
    gpu.give(0, new Map([[0, bytes(2)]]));
    expect([log.at(-1), first()]).toEqual(['submit 1', 1]);
    gpu.encodeOnce(list([1, 1]));
    gpu.submit();
    expect([log.slice(-2), first()]).toEqual([['write inputs', 'submit 1'], 2]);
  });

  it('that outgrow their room are written where they were for what is encoded', async () => {
    const { gpu, log } = await ready();
    gpu.give(0, new Map([[0, bytes(7)]]));
    const { buffer } = gpu.at({ kind: 0, index: 0, offset: 0 });
    gpu.encodeOnce(list([1, 1]));
    gpu.seal();
    gpu.give(0, new Map([[0, new Uint8Array(300)]]));
    expect((buffer as unknown as { bytes: Uint8Array }).bytes[0]).toBe(7);
    expect(log.slice(-4)).toEqual(['write inputs', 'write uniforms', 'submit 1', 'free inputs']);
  });

  it('that outgrow their room have another place, and so may the others', async () => {
    const { gpu } = await ready();
    gpu.give(0, new Map([[0, bytes(1)], [1, bytes(2)]])); // prettier-ignore
    expect(gpu.give(0, new Map([[0, new Uint8Array(256)], [1, bytes(2)]]))).toBe(false); // prettier-ignore
    expect(gpu.give(0, new Map([[0, new Uint8Array(257)], [1, bytes(2)]]))).toBe(true); // prettier-ignore
    const one = gpu.at({ kind: 0, index: 1, offset: 0 });
    gpu.encodeOnce(list([1, 1]));
    gpu.submit();
    expect((one.buffer as unknown as { bytes: Uint8Array }).bytes[one.offset]).toBe(2);
    expect(gpu.give(0, new Map([[0, new Uint8Array(70000)], [1, bytes(2)]]))).toBe(true); // prettier-ignore
    expect(gpu.at({ kind: 0, index: 0, offset: 0 }).buffer.size).toBe(70000);
  });
});

describe('what a device has no buffer for', () => {
  it('leaves a slab to be made anew', async () => {
    const { gpu } = await ready();
    const slab = (): GPUBuffer => gpu.at({ kind: BINDING.slab, index: 0, offset: 0 }).buffer;
    gpu.ensure(0, 1 << 10, false);
    const first = slab();
    expect(() => gpu.ensure(0, 1 << 21, false)).toThrow('slab 0 needs 2097152 bytes');
    gpu.ensure(0, 1 << 10, false);
    expect(slab()).not.toBe(first);
    expect(slab().size).toBe(1 << 10);
  });

  it('leaves inputs to be given anew, each in a place of its own', async () => {
    const { gpu } = await ready();
    const of = (...lengths: number[]): Map<number, Uint8Array<ArrayBuffer>> =>
      new Map(lengths.map((length, k) => [k, new Uint8Array(length).fill(k + 1)]));
    gpu.give(0, of(4, 4, 70000));
    const large = gpu.at({ kind: BINDING.input, index: 2, offset: 0 }).buffer;
    expect(() => gpu.give(0, of(300, 300, 1 << 21))).toThrow('input 2 needs 2097152 bytes');
    gpu.give(0, of(300, 300, 70000));
    const places = [0, 1, 2].map((index) => gpu.at({ kind: BINDING.input, index, offset: 0 }));
    expect(places[2]!.buffer).not.toBe(large);
    expect(places[0]!.offset).not.toBe(places[1]!.offset);
    gpu.encodeOnce(list([1, 1]));
    gpu.submit();
    const { bytes } = places[0]!.buffer as unknown as { bytes: Uint8Array };
    expect(places.slice(0, 2).map(({ offset }) => bytes[offset])).toEqual([1, 2]);
  });
});

it('what failed is forgotten, and what was sealed before it is not', async () => {
  const { gpu, log } = await ready();
  gpu.encodeOnce(list([1, 1]));
  gpu.seal();
  gpu.encodeOnce(list([1, 2]));
  gpu.discard();
  gpu.submit();
  expect(log.at(-1)).toBe('submit 1');
});

describe('what there is no memory for', () => {
  const result: Place = { ...SLAB, bytes: 4 };

  it('fails what reads it, until it is made anew', async () => {
    const { gpu, log } = await ready();
    gpu.ensure(0, ROOM + 4, false);
    for (let k = 0; k < 2; k++) {
      gpu.encodeOnce(list([1, 1]));
      await expect(gpu.read([result])).rejects.toThrow(
        'the GPU has no memory: slab 0 needs 524292 bytes: none left',
      );
    }
    gpu.recover();
    expect(log.at(-1)).toBe('free slab 0');
    gpu.ensure(0, 64, false);
    gpu.encodeOnce(list([1, 1]));
    expect(await gpu.read([result])).toHaveLength(1);
  });

  it('may be an input', async () => {
    const { gpu } = await ready();
    gpu.give(0, new Map([[0, new Uint8Array(ROOM + 4)]]));
    gpu.encodeOnce(list([1, 1]));
    await expect(gpu.read([result])).rejects.toThrow('no memory: input 0 needs 524292 bytes');
    gpu.recover();
    expect(gpu.give(0, new Map([[0, new Uint8Array(4)]]))).toBe(false); // nothing binds it
    expect(await gpu.read([result])).toHaveLength(1);
  });
});
