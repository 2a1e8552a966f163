/** Pictures as plain pixels: enlarging, cutting out, turning, and becoming a network's input. */

import type { Point, Quad } from './geometry.ts';

/** RGBA bytes, row by row; an ImageData is one. */
export interface Picture {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8ClampedArray;
}

const blank = (width: number, height: number): Picture => ({
  width,
  height,
  data: new Uint8ClampedArray(width * height * 4),
});

const clamp = (value: number, last: number): number => Math.min(Math.max(value, 0), last);

/** Bilinear, by pixel centres, without blurring when it shrinks: as the networks were trained. */
export function resize(source: Picture, width: number, height: number): Picture {
  if (source.width === width && source.height === height) return source;
  const target = blank(width, height);
  const columns = taps(width, source.width);
  const rows = taps(height, source.height);
  let at = 0;
  for (const [y0, y1, fy] of rows) {
    for (const [x0, x1, fx] of columns) {
      const a = (y0 * source.width + x0) * 4;
      const b = (y0 * source.width + x1) * 4;
      const c = (y1 * source.width + x0) * 4;
      const d = (y1 * source.width + x1) * 4;
      for (let channel = 0; channel < 4; channel++) {
        const top = mix(source.data[a + channel]!, source.data[b + channel]!, fx);
        const bottom = mix(source.data[c + channel]!, source.data[d + channel]!, fx);
        target.data[at++] = Math.round(mix(top, bottom, fy));
      }
    }
  }
  return target;
}

const mix = (a: number, b: number, t: number): number => a + (b - a) * t;

/** For each target position the two source positions and the share of the second. */
function taps(target: number, source: number): [number, number, number][] {
  return Array.from({ length: target }, (_, k) => {
    const at = clamp(((k + 0.5) * source) / target - 0.5, source - 1);
    const low = Math.floor(at);
    return [low, Math.min(low + 1, source - 1), at - low];
  });
}

/** The picture between black bars above and below: strips of text are hard to find without. */
export function letterbox(source: Picture, bar: number): Picture {
  const target = blank(source.width, source.height + 2 * bar);
  for (let k = 3; k < target.data.length; k += 4) target.data[k] = 255;
  target.data.set(source.data, bar * source.width * 4);
  return target;
}

/** The quadrilateral's inside as an upright rectangle; a tall one is laid on its side. */
export function cutOut(source: Picture, quad: Quad): Picture {
  const [a, b, c, d] = quad;
  const width = Math.max(1, Math.trunc(Math.max(distance(a, b), distance(d, c))));
  const height = Math.max(1, Math.trunc(Math.max(distance(a, d), distance(b, c))));
  const map = homography(width, height, quad);
  const target = blank(width, height);
  const pixel = [0, 0, 0, 0];
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const w = map[6] * x + map[7] * y + 1;
      const u = (map[0] * x + map[1] * y + map[2]) / w;
      const v = (map[3] * x + map[4] * y + map[5]) / w;
      bicubic(source, u, v, pixel);
      for (const value of pixel) target.data[at++] = Math.round(value);
    }
  }
  return height >= 1.5 * width ? turnLeft(target) : target;
}

const distance = (p: Point, q: Point): number => Math.hypot(p[0] - q[0], p[1] - q[1]);

type Homography = [number, number, number, number, number, number, number, number];

/** The projective map from a width × height rectangle to a quadrilateral. */
function homography(width: number, height: number, quad: Quad): Homography {
  const [[x0, y0], [x1, y1], [x2, y2], [x3, y3]] = quad;
  const [sx, sy] = [x0 - x1 + x2 - x3, y0 - y1 + y2 - y3];
  const [dx1, dy1, dx2, dy2] = [x1 - x2, y1 - y2, x3 - x2, y3 - y2];
  const area = dx1 * dy2 - dx2 * dy1;
  const g = area ? (sx * dy2 - dx2 * sy) / area : 0;
  const h = area ? (dx1 * sy - sx * dy1) / area : 0;
  return [
    (x1 - x0 + g * x1) / width,
    (x3 - x0 + h * x3) / height,
    x0,
    (y1 - y0 + g * y1) / width,
    (y3 - y0 + h * y3) / height,
    y0,
    g / width,
    h / height,
  ];
}

/** Interpolates all channels at a point; what lies outside repeats the edge. */
function bicubic({ width, height, data }: Picture, x: number, y: number, out: number[]): void {
  const [left, top] = [Math.floor(x), Math.floor(y)];
  const across = cubicWeights(x - left);
  const down = cubicWeights(y - top);
  out.fill(0);
  for (let row = 0; row < 4; row++) {
    const start = clamp(top + row - 1, height - 1) * width;
    for (let column = 0; column < 4; column++) {
      const at = (start + clamp(left + column - 1, width - 1)) * 4;
      const weight = down[row]! * across[column]!;
      for (let channel = 0; channel < 4; channel++) out[channel]! += weight * data[at + channel]!;
    }
  }
}

function cubicWeights(t: number): [number, number, number, number] {
  const a = -0.75;
  const outer = (d: number): number => ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  const inner = (d: number): number => ((a + 2) * d - (a + 3)) * d * d + 1;
  return [outer(t + 1), inner(t), inner(1 - t), outer(2 - t)];
}

/** Turned by a quarter, against the clock. */
export function turnLeft(source: Picture): Picture {
  const { width, height } = source;
  return rearranged(source, height, width, (x, y) => [width - 1 - y, x]);
}

/** Turned upside down. */
export function turnOver(source: Picture): Picture {
  const { width, height } = source;
  return rearranged(source, width, height, (x, y) => [width - 1 - x, height - 1 - y]);
}

function rearranged(
  source: Picture,
  width: number,
  height: number,
  from: (x: number, y: number) => Point,
): Picture {
  const target = blank(width, height);
  const [pixels, into] = [source.data, target.data];
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at += 4) {
      const [u, v] = from(x, y);
      const start = (v * source.width + u) * 4;
      into.set(pixels.subarray(start, start + 4), at);
    }
  }
  return target;
}

/** What is subtracted from values of 0 to 1, and what they are then divided by; blue, green, red. */
export interface Normalisation {
  readonly mean: readonly [number, number, number];
  readonly deviation: readonly [number, number, number];
}

/** Writes a picture as planes of blue, green, red, each `width` wide; the rest stays zero. */
export function writePlanes(
  picture: Picture,
  { mean, deviation }: Normalisation,
  target: Float32Array,
  width = picture.width,
): void {
  const plane = width * picture.height;
  for (let channel = 0; channel < 3; channel++) {
    const scale = 1 / (255 * deviation[channel]!);
    const shift = mean[channel]! / deviation[channel]!;
    for (let y = 0; y < picture.height; y++) {
      const row = y * picture.width * 4 + 2 - channel;
      const out = channel * plane + y * width;
      for (let x = 0; x < picture.width; x++) {
        target[out + x] = picture.data[row + 4 * x]! * scale - shift;
      }
    }
  }
}
