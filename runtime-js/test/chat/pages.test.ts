import { describe, expect, it } from 'vitest';
import { bucket, PagePool, START } from '../../src/chat/pages.ts';

describe('a pool of pages', () => {
  it('finds texts by their beginnings, and forgets their ends first', () => {
    const pool = new PagePool(3, 2);
    const [a, b] = [pool.take(), pool.take()];
    const text = pool.keep(a, START, [5, 6]);
    pool.keep(b, text, [7, 8]);
    expect(pool.find([5, 6, 7, 8]).pages).toEqual([a, b]); // held by two texts now
    pool.release([a, b]);
    expect(pool.available).toBe(1);
    pool.release([a, b]);
    expect(pool.available).toBe(3);
    expect(pool.find([5, 6, 7, 8, 9]).pages).toEqual([a, b]);
    const c = pool.take();
    expect(() => pool.take()).toThrow('all 3 pages of 2 tokens of the cache are in use');
    pool.release([a, b]);
    pool.release([c]);
    expect([pool.take(), pool.take()]).toEqual([c, b]);
    expect(pool.find([5, 6, 7, 8]).pages).toEqual([a]);
  });

  it('does not take a page for one with the same tokens behind another beginning', () => {
    const pool = new PagePool(4, 1);
    const pages = [pool.take(), pool.take()];
    pool.keep(pages[1] as number, pool.keep(pages[0] as number, START, [1]), [2]);
    pool.release(pages);
    expect(pool.find([2]).pages).toEqual([]);
    expect(pool.find([1, 3]).pages).toEqual([pages[0]]);
  });

  it('does not take a page for one whose tokens stand for something else', () => {
    const pool = new PagePool(2, 1);
    const page = pool.take();
    pool.keep(page, START, [1], 'an image');
    const found = (mark: string): number[] => pool.find([1], () => mark).pages;
    expect([found('another'), pool.find([1]).pages, found('an image')]).toEqual([[], [], [page]]);
  });

  it('keeps the first of two pages of one text', () => {
    const pool = new PagePool(2, 1);
    const [a, b] = [pool.take(), pool.take()];
    expect(pool.keep(b, START, [1])).toBe(pool.keep(a, START, [1]));
    pool.release([a, b]);
    expect(pool.find([1]).pages).toEqual([b]);
  });
});

describe('numbers of pages', () => {
  it('are few, and no more than there are', () => {
    const sizes = Array.from({ length: 600 }, (_, k) => bucket(k + 1, 600));
    sizes.forEach((size, k) => expect(size).toBeGreaterThan(k));
    expect(new Set(sizes).size).toBeLessThan(40);
    expect(bucket(63, 63)).toBe(63);
  });
});
