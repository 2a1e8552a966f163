import { describe, expect, it } from 'vitest';
import { findBoxes, inReadingOrder } from '../src/ocr/boxes.ts';
import { connectedParts } from '../src/ocr/components.ts';
import { contains, cornersOf, type Point, type Quad } from '../src/ocr/geometry.ts';
import { random } from './random.ts';

/** The parts of a bitmap by flooding, as sorted lists of pixels. */
function flooded(bitmap: Uint8Array, width: number, height: number): string[][] {
  const left = new Set(Array.from(bitmap.keys()).filter((at) => bitmap[at]));
  const parts: string[][] = [];
  for (const seed of left) {
    const part: string[] = [];
    const queue = [seed];
    left.delete(seed);
    for (let at = queue.pop(); at !== undefined; at = queue.pop()) {
      const [x, y] = [at % width, Math.floor(at / width)];
      part.push(`${x},${y}`);
      for (let v = Math.max(0, y - 1); v <= Math.min(height - 1, y + 1); v++) {
        for (let u = Math.max(0, x - 1); u <= Math.min(width - 1, x + 1); u++) {
          if (left.delete(v * width + u)) queue.push(v * width + u);
        }
      }
    }
    parts.push(part);
  }
  return parts;
}

const corner = (points: readonly (readonly [number, number])[]): string =>
  [0, 1]
    .flatMap((k) => [Math.min(...points.map((p) => p[k]!)), Math.max(...points.map((p) => p[k]!))])
    .join();

describe('connected parts', () => {
  it.each([0.1, 0.3, 0.45, 0.6])('are those that flooding finds at density %f', (density) => {
    const next = random(9);
    const [width, height] = [37, 29];
    const bitmap = Uint8Array.from({ length: width * height }, () => Number(next() < density));
    const parts = connectedParts(bitmap, width, height);
    const expected = flooded(bitmap, width, height).map((part) =>
      corner(part.map((text) => text.split(',').map(Number) as [number, number])),
    );
    expect(parts.map(corner).sort()).toEqual(expected.sort());
  });

  it('are none in an empty bitmap and one in a full one', () => {
    expect(connectedParts(new Uint8Array(12), 4, 3)).toEqual([]);
    expect(connectedParts(new Uint8Array(0), 0, 0)).toEqual([]);
    expect(connectedParts(new Uint8Array(12).fill(1), 4, 3)).toHaveLength(1);
  });
});

const SIZE = { width: 160, height: 96 };

/** A map with probability `p` inside quadrilaterals. */
function mapOf(quads: readonly Quad[], p = 0.9): Float32Array {
  return Float32Array.from({ length: SIZE.width * SIZE.height }, (_, at) => {
    const [x, y] = [at % SIZE.width, Math.floor(at / SIZE.width)];
    return quads.some((quad) => contains(quad, x, y)) ? p : 0.02;
  });
}

const upright = (x: number, y: number, w: number, h: number): Quad => [
  [x, y],
  [x + w, y],
  [x + w, y + h],
  [x, y + h],
];

describe('boxes', () => {
  it('grow back around an upright line', () => {
    const [box, ...more] = findBoxes(mapOf([upright(20, 30, 80, 10)]), SIZE, SIZE);
    expect(more).toEqual([]);
    // the bitmap is dilated by one to the right and below: 81 × 11, margin 81·11·1.6 / 184
    const margin = (81 * 11 * 1.6) / 184;
    expect(box?.[0]).toEqual([Math.round(20 - margin), Math.round(30 - margin)]);
    expect(box?.[2]).toEqual([Math.round(101 + margin), Math.round(41 + margin)]);
  });

  it('are scaled to the picture', () => {
    const [box] = findBoxes(mapOf([upright(20, 30, 80, 10)]), SIZE, { width: 320, height: 288 });
    const [same] = findBoxes(mapOf([upright(20, 30, 80, 10)]), SIZE, SIZE);
    expect(Math.abs(box![0][0] - 2 * same![0][0])).toBeLessThanOrEqual(1);
    expect(Math.abs(box![0][1] - 3 * same![0][1])).toBeLessThanOrEqual(2);
  });

  it('follow a slanted line', () => {
    const angle = 0.2;
    const along: Point = [Math.cos(angle), Math.sin(angle)];
    const line = cornersOf({ centre: [80, 48], along, width: 90, height: 12 });
    const [box] = findBoxes(mapOf([line]), SIZE, SIZE);
    const [a, b, , d] = box!;
    expect(Math.atan2(b[1] - a[1], b[0] - a[0])).toBeCloseTo(angle, 1);
    expect(Math.hypot(d[0] - a[0], d[1] - a[1])).toBeLessThan(40);
  });

  it('leave out what is faint, thin, or nothing', () => {
    expect(findBoxes(mapOf([upright(20, 30, 80, 10)], 0.4), SIZE, SIZE)).toEqual([]);
    expect(findBoxes(mapOf([upright(20, 30, 80, 1)]), SIZE, SIZE)).toEqual([]);
    expect(findBoxes(mapOf([]), SIZE, SIZE)).toEqual([]);
    expect(findBoxes(new Float32Array(SIZE.width * SIZE.height).fill(NaN), SIZE, SIZE)).toEqual([]);
  });

  it('stay inside the picture', () => {
    const whole = findBoxes(mapOf([upright(-1, -1, 200, 200)]), SIZE, SIZE);
    expect(whole).toEqual([upright(0, 0, SIZE.width - 1, SIZE.height - 1)]);
  });

  it('come line by line, from the left', () => {
    const quads = [upright(90, 52, 40, 8), upright(10, 55, 40, 8), upright(30, 10, 60, 8)];
    expect(inReadingOrder(quads)).toEqual([quads[2], quads[1], quads[0]]);
    const found = findBoxes(mapOf(quads), SIZE, SIZE);
    expect(found.map((box) => box[0][0] < 60)).toEqual([true, true, false]);
    expect(found[0]![0][1]).toBeLessThan(20);
  });
});
