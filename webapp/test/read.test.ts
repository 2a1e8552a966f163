import { describe, expect, it } from 'vitest';
import { alphabet, decode } from '../src/ocr/characters.ts';
import type { Picture } from '../src/ocr/picture.ts';
import { detectionSize, type Network, type Networks, readText } from '../src/ocr/read.ts';

const LETTERS = alphabet('a\nb\nc');

/** Probabilities in which a path of classes is the likeliest. */
function path(classes: readonly number[], p = 0.8): Float32Array {
  return Float32Array.from(
    classes.flatMap((best) =>
      LETTERS.map((_, k) => (k === best ? p : (1 - p) / (LETTERS.length - 1))),
    ),
  );
}

describe('decoding', () => {
  it('knows a blank first and a space last', () => {
    expect(LETTERS).toEqual(['', 'a', 'b', 'c', ' ']);
    expect(alphabet('a\r\nb\r\n')).toEqual(['', 'a', 'b', ' ']);
  });

  it.each([
    [[1, 1, 0, 1, 2, 2], 'aab'],
    [[0, 0, 0], ''],
    [[1, 0, 0, 4, 0, 3], 'a c'],
    [[], ''],
  ])('reads %j as %j', (classes, text) => {
    const reading = decode(path(classes), [1, classes.length, LETTERS.length], 0, LETTERS);
    expect(reading.text).toBe(text);
    expect(reading.confidence).toBeCloseTo(text ? 0.8 : 0);
  });

  it('reads each item of a batch', () => {
    const both = Float32Array.from([...path([1, 0]), ...path([2, 3])]);
    const shape = [2, 2, LETTERS.length];
    expect(decode(both, shape, 0, LETTERS).text).toBe('a');
    expect(decode(both, shape, 1, LETTERS).text).toBe('bc');
  });
});

describe('the size for detection', () => {
  it.each([
    [
      { width: 900, height: 520 },
      { width: 896, height: 512 },
    ],
    [
      { width: 4000, height: 3000 },
      { width: 960, height: 704 },
    ],
    [
      { width: 3, height: 2 },
      { width: 32, height: 32 },
    ],
    [
      { width: 960, height: 960 },
      { width: 960, height: 960 },
    ],
  ])('of %j is %j', (size, expected) => {
    expect(detectionSize(size)).toEqual(expected);
  });
});

const paper = (width: number, height: number): Picture => ({
  width,
  height,
  data: new Uint8ClampedArray(width * height * 4).fill(255),
});

/** Networks that see lines at rows of the map, and read how often they were asked. */
function networks(rows: readonly number[], p = 0.9, down = 0) {
  const shapes = {
    detect: [] as number[][],
    classify: [] as number[][],
    recognise: [] as number[][],
  };
  const detect: Network = async (_, shape) => {
    shapes.detect.push([...shape]);
    const [, , height = 0, width = 0] = shape;
    const data = Float32Array.from({ length: width * height }, (_, at) => {
      const [x, y] = [at % width, Math.floor(at / width)];
      return x > 8 && x < width - 8 && rows.some((row) => y >= row && y < row + 8) ? p : 0;
    });
    return { data, shape: [1, 1, height, width] };
  };
  const classify: Network = async (_, shape) => {
    shapes.classify.push([...shape]);
    const count = shape[0] ?? 0;
    return {
      data: new Float32Array(2 * count).map((_, k) => (k % 2 ? down : 1 - down)),
      shape: [count, 2],
    };
  };
  const recognise: Network = async (data, shape) => {
    shapes.recognise.push([...shape]);
    const [count = 0, , height = 0, width = 0] = shape;
    const lines = Array.from({ length: count }, (_, k) => {
      const first = data[k * 3 * height * width] ?? 0;
      return path([first > 0 ? 1 : 2], 0.9);
    });
    return {
      data: Float32Array.from(lines.flatMap((line) => [...line])),
      shape: [count, 1, LETTERS.length],
    };
  };
  const all: Networks = { detect, classify, recognise, characters: LETTERS };
  return { all, shapes };
}

describe('reading', () => {
  it('finds nothing on an empty page, and asks no further', async () => {
    const { all, shapes } = networks([]);
    expect(await readText(paper(128, 96), all, () => undefined)).toEqual([]);
    expect(shapes).toMatchObject({ classify: [], recognise: [] });
  });

  it('goes through all lines in batches, in reading order', async () => {
    const rows = Array.from({ length: 8 }, (_, k) => 10 + 30 * k);
    const { all, shapes } = networks(rows);
    const stages: number[][] = [];
    const lines = await readText(paper(256, 256), all, (...stage) => stages.push(stage));
    expect(lines.map((line) => line.text)).toEqual(rows.map(() => 'a'));
    const tops = lines.map((line) => line.box[0][1]);
    expect(tops).toEqual([...tops].sort((a, b) => a - b));
    expect(shapes.classify.map((shape) => shape[0])).toEqual([6, 2]);
    expect(shapes.classify[0]).toEqual([6, 3, 48, 192]);
    expect(shapes.recognise.every(([, c, h, w]) => c === 3 && h === 48 && w! >= 320)).toBe(true);
    expect(stages).toEqual([
      [0, 8],
      [6, 8],
      [8, 8],
    ]);
  });

  it('turns over what is surely upside down', async () => {
    const half = paper(256, 64);
    half.data.fill(0, 0, half.data.length / 2); // black above: read as b, turned over as a
    const rows = [28];
    const up = await readText(half, networks(rows, 0.9, 0.8).all, () => undefined);
    const over = await readText(half, networks(rows, 0.9, 0.95).all, () => undefined);
    expect([up[0]?.text, over[0]?.text]).toEqual(['b', 'a']);
  });

  it('puts bars around a strip, and takes them off the boxes', async () => {
    const { all, shapes } = networks([56]);
    const [line] = await readText(paper(640, 40), all, () => undefined);
    expect(shapes.detect).toEqual([[1, 3, 160, 640]]);
    const rows = line!.box.map(([, y]) => y);
    expect(Math.min(...rows)).toBeGreaterThanOrEqual(0);
    expect(Math.max(...rows)).toBeLessThanOrEqual(40);
  });
});
