/** Reads the text in a picture: a network finds lines, one turns them, one reads them. */

import { findBoxes, type Size } from './boxes.ts';
import { decode, type Reading } from './characters.ts';
import type { Point, Quad } from './geometry.ts';
import { cutOut, letterbox, type Normalisation, type Picture } from './picture.ts';
import { resize, turnOver, writePlanes } from './picture.ts';

/** One network of one input and one output, both f32. */
export type Network = (
  data: Float32Array,
  shape: readonly number[],
) => Promise<{ data: Float32Array; shape: readonly number[] }>;

export interface Networks {
  readonly detect: Network;
  readonly classify: Network;
  readonly recognise: Network;
  readonly characters: readonly string[];
}

export interface Line extends Reading {
  readonly box: Quad;
}

const DETECTION: Normalisation = { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };
const LINES: Normalisation = { mean: [0.5, 0.5, 0.5], deviation: [0.5, 0.5, 0.5] };
const MOST_SIDE = 960;
const GRAIN = 32; // sides of the detector's input are multiples of it
const LINE_HEIGHT = 48;
const LINE_WIDTH = 320; // at least
const CLASSIFIED_WIDTH = 192;
const BATCH = 6;
const SURELY_UPSIDE_DOWN = 0.9;
const LEAST_CONFIDENCE = 0.5;
const MOST_ASPECT = 8; // of a picture without bars
const LEAST_HEIGHT = 30;

/** All lines of text, in reading order. `onStage` hears of lines done and lines found. */
export async function readText(
  picture: Picture,
  networks: Networks,
  onStage: (done: number, found: number) => void,
): Promise<Line[]> {
  const bar = barHeight(picture);
  const framed = bar ? letterbox(picture, bar) : picture;
  const boxes = await detect(framed, networks.detect);
  onStage(0, boxes.length);
  const cuttings = await upright(
    boxes.map((box) => cutOut(framed, box)),
    networks.classify,
  );
  const readings = await recognise(cuttings, networks, (done) => onStage(done, boxes.length));
  return boxes
    .map((box, k): Line => ({ ...readings[k]!, box: lifted(box, bar, picture) }))
    .filter((line) => line.text && line.confidence >= LEAST_CONFIDENCE);
}

function barHeight({ width, height }: Size): number {
  if (height > LEAST_HEIGHT && width / height <= MOST_ASPECT) return 0;
  const wanted = Math.max(Math.trunc(width / MOST_ASPECT), LEAST_HEIGHT) * 2;
  return Math.trunc(Math.abs(wanted - height) / 2);
}

function lifted(box: Quad, bar: number, { height }: Size): Quad {
  const corner = ([x, y]: Point): Point => [x, Math.min(Math.max(y - bar, 0), height)];
  return box.map(corner) as unknown as Quad;
}

/** The size at which lines are looked for. */
export function detectionSize({ width, height }: Size): Size {
  const ratio = Math.min(1, MOST_SIDE / Math.max(width, height));
  const side = (size: number): number =>
    Math.max(GRAIN, roundHalfToEven(Math.trunc(size * ratio) / GRAIN) * GRAIN);
  return { width: side(width), height: side(height) };
}

/** As Python does: pictures of 4:3 often fall in the middle. */
function roundHalfToEven(value: number): number {
  const low = Math.floor(value);
  return value - low === 0.5 ? low + (low % 2) : Math.round(value);
}

async function detect(picture: Picture, network: Network): Promise<Quad[]> {
  const { width, height } = detectionSize(picture);
  const input = new Float32Array(3 * width * height);
  writePlanes(resize(picture, width, height), DETECTION, input);
  const map = await network(input, [1, 3, height, width]);
  return findBoxes(map.data, { width, height }, picture);
}

async function upright(cuttings: readonly Picture[], network: Network): Promise<Picture[]> {
  const result = [...cuttings];
  for (const batch of batches(cuttings)) {
    const pictures = batch.map((k) => cuttings[k]!);
    const { data } = await network(...planes(pictures, CLASSIFIED_WIDTH));
    batch.forEach((k, n) => {
      const [up = 0, down = 0] = data.subarray(2 * n, 2 * n + 2);
      if (down > up && down > SURELY_UPSIDE_DOWN) result[k] = turnOver(cuttings[k]!);
    });
  }
  return result;
}

async function recognise(
  cuttings: readonly Picture[],
  { recognise: network, characters }: Networks,
  onDone: (done: number) => void,
): Promise<Reading[]> {
  const result: Reading[] = [];
  let done = 0;
  for (const batch of batches(cuttings)) {
    const pictures = batch.map((k) => cuttings[k]!);
    const widest = Math.max(...pictures.map(({ width, height }) => width / height));
    const width = Math.max(LINE_WIDTH, Math.trunc(LINE_HEIGHT * widest));
    const { data, shape } = await network(...planes(pictures, width));
    batch.forEach((k, n) => (result[k] = decode(data, shape, n, characters)));
    onDone((done += batch.length));
  }
  return result;
}

/** Indices of pictures in groups of like aspect, so that little is padding. */
function batches(pictures: readonly Picture[]): number[][] {
  const aspect = (k: number): number => pictures[k]!.width / pictures[k]!.height;
  const order = pictures.map((_, k) => k).sort((a, b) => aspect(a) - aspect(b));
  return Array.from({ length: Math.ceil(order.length / BATCH) }, (_, k) =>
    order.slice(k * BATCH, (k + 1) * BATCH),
  );
}

/** Lines as one input, each as high as the networks want and at most `width` wide. */
function planes(pictures: readonly Picture[], width: number): [Float32Array, number[]] {
  const size = 3 * LINE_HEIGHT * width;
  const data = new Float32Array(pictures.length * size);
  pictures.forEach((picture, k) => {
    const natural = Math.ceil((LINE_HEIGHT * picture.width) / picture.height);
    const line = resize(picture, Math.min(width, natural), LINE_HEIGHT);
    writePlanes(line, LINES, data.subarray(k * size, (k + 1) * size), width);
  });
  return [data, [pictures.length, 3, LINE_HEIGHT, width]];
}
