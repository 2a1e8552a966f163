import { expect, it } from 'vitest';
import { threadCount } from '../src/threads.ts';

it('whole threads, as many as asked for', () => {
  expect([0.5, 2.9, 256].map(threadCount)).toEqual([1, 2, 256]);
});

it.each([0, -1, NaN, Infinity, 257])('%s threads are refused', (asked) => {
  expect(() => threadCount(asked)).toThrow(`threads is ${asked}: 1 to 256 are expected`);
});
