/**
 * Images of a chat as a model sees them: resized, cut into tiles, and the text around them. The
 * steps are those of the model's own preprocessor, which chat.json tells (docs/chat.md).
 */

import { EdgeRelaxError } from '../errors.ts';
import { type Check, count, first, isRecord, listOf, mapOf } from '../schema.ts';
import { object, oneOf, text } from '../schema.ts';
import { type Pixels, RESAMPLES, resized } from './resample.ts';

/** Of an image, as it comes and as it is resized. */
export const MAX_PIXELS = 64_000_000;
const LONGEST = 4096; // the longest side that preprocessors make for models that take tiles

/** Squares that an image is cut into, and then the whole of it in one, if `split`. */
interface TilePlan {
  readonly side: number;
  readonly split: boolean;
  /** Texts before tiles; `part` has {row} and {column}, from 1. */
  readonly around: string;
  readonly whole: string;
  readonly part: string;
}

/**
 * How images become tokens: `images` of a chat.json. An image is padded to a square of a colour,
 * resized, cropped and tiled, so far as these are given.
 */
export interface ImagePlan {
  /** Stands for an image in templates; in the vocabulary it is `token`. */
  readonly placeholder: string;
  readonly token: number;
  /** Tokens of a tile, whose side has `side` pixels. */
  readonly tokens: number;
  readonly side: number;
  /** The filter by Pillow's number. */
  readonly resample: number;
  readonly pad?: readonly number[] | null;
  readonly resize?: Readonly<Record<string, number>> | null;
  readonly crop?: { readonly width: number; readonly height: number } | null;
  readonly tiles?: TilePlan | null;
}

/** What a model sees of an image: squares, of which so many lie in rows and columns, if any do. */
export interface Seen {
  readonly tiles: readonly Pixels[];
  readonly rows: number;
  readonly columns: number;
}

const side: Check = (value, at) => count(value, at) ?? (value === 0 ? `${at} is 0` : undefined);

const OPTIONAL: Readonly<Record<string, Check>> = {
  pad: (value, at) =>
    listOf(count)(value, at) ??
    ((value as readonly unknown[]).length === 3 ? undefined : `${at} is no colour`),
  resize: (value, at) =>
    mapOf(side)(value, at) ??
    (['width,height', 'height,width', 'shortest', 'longest'].includes(
      `${Object.keys(value as object)}`,
    )
      ? undefined
      : `${at} is not known to this version`),
  crop: object({ width: side, height: side }),
  tiles: object({ side, split: oneOf(true, false), around: text, whole: text, part: text }),
};

const REQUIRED = object({
  placeholder: (value, at) => text(value, at) ?? (value === '' ? `${at} is empty` : undefined),
  token: count,
  tokens: side,
  side,
  resample: oneOf(...RESAMPLES),
});

/** Checks an image plan. */
export const imagePlan: Check = (value, at) =>
  REQUIRED(value, at) ??
  first(Object.entries(OPTIONAL), ([name, check]) => {
    const item = isRecord(value) ? (value[name] ?? undefined) : undefined;
    return item === undefined ? undefined : check(item, `${at}.${name}`);
  });

/** What a model sees of an image. Throws `input` for one that cannot be made so. */
export function seenOf(image: Pixels, plan: ImagePlan): Seen {
  let made = plan.pad ? padded(image, plan.pad) : image;
  if (plan.resize) made = bounded(made, targetOf(made, plan.resize), plan);
  if (plan.crop) made = cropped(made, plan.crop.width, plan.crop.height);
  if (plan.tiles) return tiled(made, plan.tiles, plan);
  if (made.width !== plan.side || made.height !== plan.side) {
    const fits = `${plan.side}x${plan.side}`;
    throw refusal(`an image of ${made.width}x${made.height}; this model takes ${fits}`);
  }
  return { tiles: [made], rows: 0, columns: 0 };
}

/** What stands for an image in the prompt, with a placeholder for each of its tokens. */
export function textOf({ rows, columns }: Seen, { placeholder, tokens, tiles }: ImagePlan): string {
  const one = placeholder.repeat(tokens);
  if (!tiles) return one;
  const { around, part } = tiles;
  const whole = around + tiles.whole + one + around;
  if (rows === 0) return whole;
  const name = (row: number, column: number): string =>
    part.replaceAll('{row}', String(row)).replaceAll('{column}', String(column));
  const lines = Array.from({ length: rows }, (_, row) =>
    Array.from({ length: columns }, (_, column) => around + name(row + 1, column + 1) + one).join(
      '',
    ),
  );
  return [...lines, '', whole].join('\n');
}

type Size = readonly [width: number, height: number];

const refusal = (message: string): EdgeRelaxError => new EdgeRelaxError('input', message);

function bounded(image: Pixels, [width, height]: Size, { resample }: ImagePlan): Pixels {
  if (width * height > MAX_PIXELS) {
    const from = `${image.width}x${image.height}`;
    throw refusal(
      `an image of ${from} would be resized to ${width}x${height}: it is too long and narrow`,
    );
  }
  return resized(image, width, height, resample);
}

function tiled(image: Pixels, { side, split }: TilePlan, plan: ImagePlan): Seen {
  if (!split) return { tiles: [bounded(image, [side, side], plan)], rows: 0, columns: 0 };
  const fitting = bounded(image, wholeTiles(image, side), plan);
  const [columns, rows] = [fitting.width / side, fitting.height / side];
  if (rows === 1 && columns === 1) return { tiles: [fitting], rows: 0, columns: 0 };
  const tiles = Array.from({ length: rows * columns }, (_, k) => {
    const [row, column] = [Math.floor(k / columns), k % columns];
    return placed(fitting, blank(side, side), -column * side, -row * side);
  });
  return { tiles: [...tiles, bounded(fitting, [side, side], plan)], rows, columns };
}

function blank(width: number, height: number, colour: readonly number[] = [0, 0, 0]): Pixels {
  const data = new Uint8Array(width * height * 3);
  if (colour.some((value) => value !== 0)) {
    for (let k = 0; k < data.length; k += 3) data.set(colour, k);
  }
  return { width, height, data };
}

/** An image on a ground, with its upper left corner at a place that may lie outside. */
function placed(image: Pixels, ground: Pixels, left: number, top: number): Pixels {
  const [start, stop] = [Math.max(0, left), Math.min(ground.width, left + image.width)];
  const bottom = Math.min(ground.height, top + image.height);
  for (let row = Math.max(0, top); row < bottom && start < stop; row++) {
    const from = ((row - top) * image.width + (start - left)) * 3;
    const part = image.data.subarray(from, from + (stop - start) * 3);
    ground.data.set(part, (row * ground.width + start) * 3);
  }
  return ground;
}

/** In the middle of a square. */
function padded(image: Pixels, colour: readonly number[]): Pixels {
  const { width, height } = image;
  const side = Math.max(width, height);
  if (side * side > MAX_PIXELS) {
    throw refusal(`an image of ${width}x${height} is too long and narrow`);
  }
  const [left, top] = [Math.floor((side - width) / 2), Math.floor((side - height) / 2)];
  return placed(image, blank(side, side, colour), left, top);
}

/** The middle; black where the image is smaller. */
function cropped(image: Pixels, width: number, height: number): Pixels {
  const left = -Math.floor((image.width - width) / 2);
  const top = -Math.floor((image.height - height) / 2);
  return placed(image, blank(width, height), left, top);
}

function targetOf({ width, height }: Pixels, how: Readonly<Record<string, number>>): Size {
  const { shortest, longest } = how;
  if (shortest !== undefined) {
    const [short, long] = [Math.min(width, height), Math.max(width, height)];
    const other = Math.trunc((shortest * long) / short);
    return width <= height ? [shortest, other] : [other, shortest];
  }
  if (longest !== undefined) return within(...longestOf(width, height, longest), LONGEST);
  return [how['width'] as number, how['height'] as number];
}

/** The longer side so long, the other even. */
function longestOf(width: number, height: number, most: number): Size {
  const ratio = width / height;
  const even = (side: number): number => side + (side % 2);
  if (width >= height) return [most, Math.max(1, even(Math.trunc(most / ratio)))];
  return [Math.max(1, even(Math.trunc(most * ratio))), most];
}

function within(width: number, height: number, most: number): Size {
  const ratio = width / height;
  if (width >= height && width > most) return [most, Math.max(1, Math.trunc(most / ratio))];
  if (height > width && height > most) return [Math.max(1, Math.trunc(most * ratio)), most];
  return [width, height];
}

/** As many whole tiles as hold it, of its shape as far as they can be. */
function wholeTiles({ width, height }: Pixels, side: number): Size {
  const ratio = width / height;
  const whole = (length: number): number => Math.ceil(length / side) * side;
  if (width >= height) return [whole(width), whole(Math.trunc(whole(width) / ratio))];
  return [whole(Math.trunc(whole(height) * ratio)), whole(height)];
}
