import { getEventListeners } from 'node:events';
import { afterEach, expect, it, vi } from 'vitest';
import { Patience } from '../src/patience.ts';

afterEach(() => vi.useRealTimers());

it('ends what waits once nothing comes, whether it heeds the signal or not', async () => {
  vi.useFakeTimers();
  const patience = new Patience(undefined);
  const ends = patience.of(new Promise(() => undefined));
  vi.advanceTimersByTime(29_000);
  patience.renew();
  vi.advanceTimersByTime(29_000);
  expect(patience.lost).toBe(undefined);
  vi.advanceTimersByTime(1_000);
  expect(patience.lost).toBe('nothing came for 30 s');
  await expect(ends).rejects.toThrow('nothing came for 30 s');
});

it('ends what waits with the signal that it was given', async () => {
  const stop = new AbortController();
  const patience = new Patience(stop.signal);
  const ends = patience.of(new Promise(() => undefined));
  stop.abort(new Error('enough'));
  await expect(ends).rejects.toThrow('enough');
  await expect(patience.of(new Promise(() => undefined))).rejects.toThrow('enough');
  patience.end();
});

it('leaves nothing behind of work that is done', async () => {
  const patience = new Patience(undefined);
  const { then } = Promise.prototype;
  const times = new Map<unknown, number>();
  Promise.prototype.then = function (this: unknown, ...heard: Parameters<typeof then>) {
    times.set(this, (times.get(this) ?? 0) + 1);
    return then.apply(this as Promise<unknown>, heard);
  } as typeof then;
  try {
    for (let k = 0; k < 50; k++) expect(await patience.of(Promise.resolve(k))).toBe(k);
  } finally {
    Promise.prototype.then = then;
  }
  expect(times.size).toBeGreaterThanOrEqual(50);
  expect(Math.max(...times.values())).toBeLessThan(5); // none of them gathers reactions
  expect(getEventListeners(patience.signal, 'abort')).toEqual([]);
  patience.end();
});
