import { expect, it } from 'vitest';
import { Reads } from '../src/reads.ts';

Object.assign(globalThis, { GPUMapMode: {} });

/** Buffers whose maps end when they are told to. */
function ready() {
  const log: string[] = [];
  const ends: ((failure?: Error) => void)[] = [];
  let made = 0;
  const make = (size: number): GPUBuffer => {
    const number = made++;
    const buffer = {
      size,
      mapAsync: () => {
        log.push(`ask ${number}`);
        return new Promise<void>((resolve, reject) => {
          ends[number] = (failure) => (failure ? reject(failure) : resolve());
        });
      },
      getMappedRange: () => Uint8Array.of(number).buffer,
      unmap: () => undefined,
    };
    return buffer as unknown as GPUBuffer;
  };
  const free = (): unknown => log.push('free');
  const reads = new Reads({ make, free, checked: async () => undefined });
  const read = (): Promise<number | undefined> => {
    const staging = reads.take(4);
    return reads.read(staging, 4, (bytes) => new Uint8Array(bytes)[0]);
  };
  return { reads, read, log, end: (k: number, failure?: Error) => ends[k]!(failure) };
}

it('one beyond two under way is asked for with the next submission', async () => {
  const { reads, read, log, end } = ready();
  const found = [read(), read(), read()];
  expect(log).toEqual(['ask 0', 'ask 1']);
  reads.ask();
  found.push(read());
  expect(log).toEqual(['ask 0', 'ask 1', 'ask 2']);
  end(0);
  expect(await found[0]).toBe(0);
  expect(log).toHaveLength(3); // two are under way yet
  reads.ask();
  expect(log.at(-1)).toBe('ask 3');
  for (const k of [1, 2, 3]) end(k);
  expect(await Promise.all(found)).toEqual([0, 1, 2, 3]);
});

it('none waits for a submission that does not come, whatever becomes of those before', async () => {
  const { read, log, end } = ready();
  const found = [read(), read(), read(), read()].map((one) => one.catch(String));
  end(0, new Error('lost'));
  expect(await found[0]).toBe('Error: lost');
  expect(log).toEqual(['ask 0', 'ask 1', 'free', 'ask 2', 'ask 3']);
  for (const k of [1, 2, 3]) end(k);
  expect(await Promise.all(found)).toEqual(['Error: lost', 1, 2, 3]);
});

it('what was read through serves again', async () => {
  const { read, log, end } = ready();
  for (let k = 0; k < 3; k++) {
    const found = read();
    end(0);
    expect(await found).toBe(0);
  }
  expect(log).toEqual(['ask 0', 'ask 0', 'ask 0']);
});
