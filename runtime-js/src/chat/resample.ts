/**
 * Images made larger or smaller as Pillow does it: filters as wide as the scale asks for, along rows
 * and along columns, in fixed point, with each pass rounded to bytes. Canvases scale otherwise,
 * and models were trained on what processors in Python make.
 */

/** Red, green and blue of each pixel, row by row. */
export interface Pixels {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8Array;
}

interface Filter {
  /** How far it reaches to each side, in pixels of the smaller image. */
  readonly reach: number;
  weight(distance: number): number;
}

const sinc = (x: number): number => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

const hamming = (x: number): number => sinc(x) * (0.54 + 0.46 * Math.cos(Math.PI * x));

function bicubic(distance: number): number {
  const x = Math.abs(distance);
  if (x >= 2) return 0;
  return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : -0.5 * (((x - 5) * x + 8) * x - 4);
}

export const NEAREST = 0;

/** By Pillow's numbers. */
const FILTERS: Readonly<Record<number, Filter>> = {
  1: { reach: 3, weight: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
  2: { reach: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  3: { reach: 2, weight: bicubic },
  4: { reach: 0.5, weight: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) },
  5: { reach: 1, weight: (x) => (Math.abs(x) < 1 ? hamming(x) : 0) },
};

/** The numbers of the filters that there are. */
export const RESAMPLES: readonly number[] = [NEAREST, ...Object.keys(FILTERS).map(Number)];

/** An image of another size; `resample` is one of RESAMPLES. */
export function resized(image: Pixels, width: number, height: number, resample: number): Pixels {
  const filter = FILTERS[resample];
  if (!filter) return nearest(image, width, height);
  const rows = (from: Pixels): Pixels =>
    width === from.width ? from : alongRows(from, width, filter);
  const columns = (from: Pixels): Pixels =>
    height === from.height ? from : alongColumns(from, height, filter);
  return columnsFirst(image, width, height) ? rows(columns(image)) : columns(rows(image));
}

/**
 * Which pass comes first shows where filters overshoot. Measured of Pillow 13; earlier ones mostly
 * take rows first.
 */
function columnsFirst(from: Pixels, width: number, height: number): boolean {
  return height < from.height && from.height - height > 2 * (from.width - width);
}

function nearest(image: Pixels, width: number, height: number): Pixels {
  const [columns, rows] = [taken(image.width, width), taken(image.height, height)];
  const data = new Uint8Array(width * height * 3);
  let at = 0;
  for (const row of rows) {
    for (const column of columns) {
      const from = (row * image.width + column) * 3;
      data.set(image.data.subarray(from, from + 3), at);
      at += 3;
    }
  }
  return { width, height, data };
}

/** The pixel that each is, of a side. */
function taken(from: number, to: number): number[] {
  const step = from / to;
  let at = step / 2;
  return Array.from({ length: to }, () => {
    const found = Math.min(Math.floor(at), from - 1);
    at += step; // added up, as Pillow does
    return found;
  });
}

const BITS = 22; // of fractions of weights: sums of weighted bytes stay below 31
const HALF = 2 ** (BITS - 1);

/** Of one pixel: the first that it is made of, and their weights. */
interface Window {
  readonly first: number;
  readonly weights: Int32Array;
}

function windowsOf(from: number, to: number, filter: Filter): Window[] {
  const scale = from / to;
  const stretch = Math.max(scale, 1);
  const reach = filter.reach * stretch;
  return Array.from({ length: to }, (_, k) => {
    const centre = (k + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const stop = Math.min(from, Math.trunc(centre + reach + 0.5));
    const raw = Array.from({ length: stop - first }, (_, j) =>
      filter.weight((first + j - centre + 0.5) * (1 / stretch)),
    );
    const sum = raw.reduce((all, weight) => all + weight, 0);
    const fixed = raw.map((weight) => {
      const share = (sum === 0 ? weight : weight / sum) * 2 ** BITS;
      return Math.trunc(share + (share < 0 ? -0.5 : 0.5));
    });
    return { first, weights: Int32Array.from(fixed) };
  });
}

const byte = (sum: number): number => Math.min(255, Math.max(0, sum >> BITS));

function alongRows({ data, width, height }: Pixels, to: number, filter: Filter): Pixels {
  const windows = windowsOf(width, to, filter);
  const found = new Uint8Array(to * height * 3);
  let at = 0;
  for (let row = 0; row < height; row++) {
    for (const { first, weights } of windows) {
      let from = (row * width + first) * 3;
      let [red, green, blue] = [HALF, HALF, HALF];
      for (const weight of weights) {
        red += weight * (data[from++] as number);
        green += weight * (data[from++] as number);
        blue += weight * (data[from++] as number);
      }
      found[at++] = byte(red);
      found[at++] = byte(green);
      found[at++] = byte(blue);
    }
  }
  return { width: to, height, data: found };
}

function alongColumns({ data, width }: Pixels, to: number, filter: Filter): Pixels {
  const windows = windowsOf(data.length / (width * 3), to, filter);
  const bytes = width * 3; // of a row
  const found = new Uint8Array(to * bytes);
  const sums = new Int32Array(bytes);
  let at = 0;
  for (const { first, weights } of windows) {
    sums.fill(HALF);
    let from = first * bytes;
    for (const weight of weights) {
      for (let k = 0; k < bytes; k++)
        sums[k] = (sums[k] as number) + weight * (data[from++] as number);
    }
    for (const sum of sums) found[at++] = byte(sum);
  }
  return { width, height: to, data: found };
}
