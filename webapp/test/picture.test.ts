import { describe, expect, it } from 'vitest';
import {
  cutOut,
  letterbox,
  type Picture,
  resize,
  turnLeft,
  turnOver,
  writePlanes,
} from '../src/ocr/picture.ts';
import { random } from './random.ts';

/** A picture of grey values. */
function grey(rows: readonly (readonly number[])[]): Picture {
  const data = rows.flat().flatMap((value) => [value, value, value, 255]);
  return { width: rows[0]?.length ?? 0, height: rows.length, data: Uint8ClampedArray.from(data) };
}

function greys({ width, height, data }: Picture): number[][] {
  return Array.from({ length: height }, (_, y) =>
    Array.from({ length: width }, (_, x) => data[(y * width + x) * 4]!),
  );
}

function scattered(width: number, height: number): Picture {
  const next = random(3);
  const data = Uint8ClampedArray.from({ length: width * height * 4 }, () => next() * 256);
  return { width, height, data };
}

describe('resize', () => {
  it('leaves a picture of the size alone', () => {
    const picture = scattered(5, 4);
    expect(resize(picture, 5, 4)).toBe(picture);
  });

  // the values of OpenCV's INTER_LINEAR
  it('interpolates between pixel centres', () => {
    expect(greys(resize(grey([[0, 100]]), 4, 1))).toEqual([[0, 25, 75, 100]]);
    expect(greys(resize(grey([[0, 10, 20, 30]]), 2, 1))).toEqual([[5, 25]]);
    expect(greys(resize(grey([[0], [90]]), 1, 3))).toEqual([[0], [45], [90]]);
    expect(greys(resize(grey([[7]]), 3, 2))).toEqual([
      [7, 7, 7],
      [7, 7, 7],
    ]);
  });

  it('keeps channels apart', () => {
    const picture: Picture = { width: 1, height: 1, data: Uint8ClampedArray.of(1, 2, 3, 4) };
    expect([...resize(picture, 2, 1).data]).toEqual([1, 2, 3, 4, 1, 2, 3, 4]);
  });
});

describe('turning', () => {
  it('by a quarter and by half', () => {
    const picture = grey([
      [1, 2, 3],
      [4, 5, 6],
    ]);
    expect(greys(turnLeft(picture))).toEqual([
      [3, 6],
      [2, 5],
      [1, 4],
    ]);
    expect(greys(turnOver(picture))).toEqual([
      [6, 5, 4],
      [3, 2, 1],
    ]);
    expect(turnOver(turnLeft(turnLeft(picture)))).toEqual(picture);
  });
});

describe('letterbox', () => {
  it('puts black above and below', () => {
    expect(greys(letterbox(grey([[9, 9]]), 1))).toEqual([
      [0, 0],
      [9, 9],
      [0, 0],
    ]);
  });
});

describe('cutting out', () => {
  it('gives an upright rectangle as it is', () => {
    const picture = scattered(12, 9);
    const cut = cutOut(picture, [
      [2, 3],
      [8, 3],
      [8, 7],
      [2, 7],
    ]);
    expect([cut.width, cut.height]).toEqual([6, 4]);
    const expected = greys(picture)
      .slice(3, 7)
      .map((row) => row.slice(2, 8));
    expect(greys(cut)).toEqual(expected);
  });

  it('lays a tall one on its side', () => {
    const picture = scattered(6, 12);
    const cut = cutOut(picture, [
      [1, 1],
      [4, 1],
      [4, 10],
      [1, 10],
    ]);
    expect([cut.width, cut.height]).toEqual([9, 3]);
    const upright = greys(picture)
      .slice(1, 10)
      .map((row) => row.slice(1, 4));
    expect(greys(cut)[0]).toEqual(upright.map((row) => row[2]));
  });

  it('straightens a slanted one', () => {
    const [width, height] = [60, 60];
    const stripes = Array.from({ length: height }, (_, y) =>
      Array.from({ length: width }, (_, x) => (Math.floor((x + y) / 14) % 2 ? 255 : 0)),
    );
    const cut = greys(
      cutOut(grey(stripes), [
        [20, 20],
        [40, 40],
        [33, 47],
        [13, 27],
      ]),
    );
    for (const row of cut) expect(row).toHaveLength(cut[0]!.length);
    const middle = cut.map((row) => row[14]!);
    expect(Math.max(...middle) - Math.min(...middle)).toBeLessThan(130);
  });

  it('repeats the edge beyond it and bears a quadrilateral of no size', () => {
    const cut = cutOut(
      grey([
        [5, 5],
        [5, 5],
      ]),
      [
        [-4, -4],
        [4, -4],
        [4, 4],
        [-4, 4],
      ],
    );
    expect(new Set(greys(cut).flat())).toEqual(new Set([5]));
    const none = cutOut(grey([[5]]), [
      [0, 0],
      [0, 0],
      [0, 0],
      [0, 0],
    ]);
    expect([none.width, none.height]).toEqual([1, 1]);
  });
});

describe('planes', () => {
  const half = { mean: [0.5, 0.5, 0.5], deviation: [0.5, 0.5, 0.5] } as const;

  it('are blue, green, red', () => {
    const picture: Picture = { width: 1, height: 1, data: Uint8ClampedArray.of(255, 0, 51, 9) };
    const target = new Float32Array(3);
    writePlanes(picture, half, target);
    expect(Array.from(target, (x) => Number(x.toFixed(5)))).toEqual([-0.6, -1, 1]);
  });

  it('take mean and deviation by channel', () => {
    const picture: Picture = { width: 1, height: 1, data: Uint8ClampedArray.of(255, 255, 255, 9) };
    const target = new Float32Array(3);
    writePlanes(picture, { mean: [0.5, 0, 1], deviation: [0.25, 1, 1] }, target);
    expect([...target]).toEqual([2, 1, 0]);
  });

  it('leave the rest of a wider input at zero', () => {
    const target = new Float32Array(3 * 2 * 4);
    writePlanes(
      grey([
        [255, 255],
        [255, 255],
      ]),
      half,
      target,
      4,
    );
    expect([...target.subarray(0, 8)]).toEqual([1, 1, 0, 0, 1, 1, 0, 0]);
  });
});
