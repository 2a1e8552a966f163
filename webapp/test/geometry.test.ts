import { describe, expect, it } from 'vitest';
import {
  clockwise,
  contains,
  convexHull,
  cornersOf,
  type Point,
  type Quad,
  smallestRectangle,
  unclip,
} from '../src/ocr/geometry.ts';
import { random } from './random.ts';

const scattered = (seed: number, count = 30): Point[] => {
  const next = random(seed);
  return Array.from({ length: count }, () => [Math.floor(next() * 100), Math.floor(next() * 40)]);
};

/** Width times height of the bounding box after turning by an angle. */
function turnedArea(points: readonly Point[], angle: number): number {
  const extent = (values: number[]): number => Math.max(...values) - Math.min(...values);
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return (
    extent(points.map(([x, y]) => x * c + y * s)) * extent(points.map(([x, y]) => y * c - x * s))
  );
}

describe('convex hull', () => {
  it('leaves out what lies inside or on a side', () => {
    const points: Point[] = [
      [0, 0],
      [4, 0],
      [4, 4],
      [0, 4],
      [2, 2],
      [2, 0],
      [4, 1],
      [0, 0],
    ];
    expect(new Set(convexHull(points).map(String))).toEqual(new Set(['0,0', '4,0', '4,4', '0,4']));
  });

  it('of nothing, a point, a line', () => {
    expect(convexHull([])).toEqual([]);
    expect(convexHull([[3, 4]])).toEqual([[3, 4]]);
    expect(
      convexHull([
        [0, 0],
        [1, 1],
        [2, 2],
      ]),
    ).toHaveLength(2);
  });
});

describe('smallest rectangle', () => {
  it.each([1, 2, 3, 4, 5])('is no larger than that of any angle (%i)', (seed) => {
    const points = scattered(seed);
    const { width, height } = smallestRectangle(points);
    const angles = Array.from({ length: 1800 }, (_, k) => (k * Math.PI) / 1800);
    const least = Math.min(...angles.map((angle) => turnedArea(points, angle)));
    expect(width * height).toBeLessThanOrEqual(least + 1e-6);
    expect(width * height).toBeGreaterThan(least * 0.99);
  });

  it.each([1, 2, 3])('holds all points (%i)', (seed) => {
    const points = scattered(seed);
    const quad = cornersOf(smallestRectangle(points));
    for (const [x, y] of points) expect(contains(quad, x, y)).toBe(true);
  });

  it('finds a turned rectangle again', () => {
    const turned = { centre: [50, 30] as Point, along: [0.8, 0.6] as Point, width: 40, height: 10 };
    const { centre, width, height } = smallestRectangle(cornersOf(turned));
    expect(centre[0]).toBeCloseTo(50);
    expect(centre[1]).toBeCloseTo(30);
    expect([width, height].sort((a, b) => a - b).map(Math.round)).toEqual([10, 40]);
  });

  it('of one point has no size', () => {
    expect(smallestRectangle([[5, 6]])).toMatchObject({ centre: [5, 6], width: 0, height: 0 });
    expect(smallestRectangle([])).toMatchObject({ width: 0, height: 0 });
  });
});

describe('unclip', () => {
  it('grows by area × ratio / perimeter on every side', () => {
    const grown = unclip({ centre: [0, 0], along: [1, 0], width: 30, height: 10 }, 1.6);
    expect(grown.width).toBeCloseTo(30 + 2 * ((300 * 1.6) / 80));
    expect(grown.height).toBeCloseTo(10 + 2 * ((300 * 1.6) / 80));
  });

  it('leaves nothing as it is', () => {
    const nothing = { centre: [1, 2] as Point, along: [1, 0] as Point, width: 0, height: 0 };
    expect(unclip(nothing, 2)).toEqual(nothing);
  });
});

describe('corners', () => {
  it('start at the top left, whatever they started with', () => {
    const quad: Quad = [
      [0, 1],
      [10, 0],
      [10, 5],
      [0, 6],
    ];
    for (let k = 0; k < 4; k++) {
      const shifted = [...quad.slice(k), ...quad.slice(0, k)] as unknown as Quad;
      expect(clockwise(shifted)).toEqual(quad);
      expect(clockwise([...shifted].reverse() as unknown as Quad)).toEqual(quad);
    }
  });

  it('hold what is inside and half a pixel around', () => {
    const quad: Quad = [
      [0, 0],
      [10, 0],
      [10, 4],
      [0, 4],
    ];
    expect(contains(quad, 5, 2)).toBe(true);
    expect(contains(quad, 10, 4)).toBe(true);
    expect(contains(quad, 10.5, 2)).toBe(true);
    expect(contains(quad, 11, 2)).toBe(false);
    expect(contains([...quad].reverse() as unknown as Quad, 5, 2)).toBe(true);
  });
});
