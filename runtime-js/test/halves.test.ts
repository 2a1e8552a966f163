import { expect, it } from 'vitest';
import { widened } from '../src/halves.ts';

/** What the bits of an f16 stand for, by the definition. */
function meaning(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = (half & 1023) / 1024;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14);
}

it('gives the number of each of the 65,536 halves', () => {
  const all = Uint16Array.from({ length: 1 << 16 }, (_, k) => k);
  const numbers = new Float32Array(widened(new Uint8Array(all.buffer)).buffer);
  expect(numbers).toEqual(Float32Array.from(all, meaning));
});

it('reads from within a file, at odd places too', () => {
  const file = new Uint8Array([9, 0x00, 0x3c, 0x00, 0xc0, 9]);
  const numbers = new Float32Array(widened(file.subarray(1, 5)).buffer);
  expect([...numbers]).toEqual([1, -2]);
});
