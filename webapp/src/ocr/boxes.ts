/** From the detector's map of probabilities to text boxes (differentiable binarisation). */

import { connectedParts } from './components.ts';
import { clockwise, contains, cornersOf, type Point, type Quad } from './geometry.ts';
import { smallestRectangle, unclip } from './geometry.ts';

const THRESHOLD = 0.3; // of a pixel to belong to text
const LEAST_SCORE = 0.5; // of a box's mean probability
const UNCLIP = 1.6;
const LEAST_SIDE = 3;
const MOST_BOXES = 1000;

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** Boxes in the coordinates of a picture of size `target`, in reading order. */
export function findBoxes(map: Float32Array, { width, height }: Size, target: Size): Quad[] {
  const found: Quad[] = [];
  for (const part of connectedParts(dilated(map, width, height), width, height)) {
    if (found.length === MOST_BOXES) break;
    const core = smallestRectangle(part);
    if (Math.min(core.width, core.height) < LEAST_SIDE) continue;
    if (meanInside(map, width, height, cornersOf(core)) < LEAST_SCORE) continue;
    const whole = unclip(core, UNCLIP);
    if (Math.min(whole.width, whole.height) < LEAST_SIDE + 2) continue;
    const scaled = cornersOf(whole).map(([x, y]): Point => [
      limited((x / width) * target.width, target.width),
      limited((y / height) * target.height, target.height),
    ]);
    const quad = clockwise(scaled as unknown as Quad);
    if (side(quad[0], quad[1]) > LEAST_SIDE && side(quad[0], quad[3]) > LEAST_SIDE) {
      found.push(quad);
    }
  }
  return inReadingOrder(found);
}

const limited = (value: number, size: number): number =>
  Math.min(Math.max(Math.round(value), 0), size - 1);

const side = (p: Point, q: Point): number => Math.trunc(Math.hypot(p[0] - q[0], p[1] - q[1]));

/** Where the map is over the threshold, or its neighbour to the left, above, or both is. */
function dilated(map: Float32Array, width: number, height: number): Uint8Array {
  const bitmap = new Uint8Array(width * height);
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at++) {
      if (!(map[at]! > THRESHOLD)) continue;
      const [right, below] = [x + 1 < width, y + 1 < height];
      bitmap[at] = 1;
      if (right) bitmap[at + 1] = 1;
      if (below) bitmap[at + width] = 1;
      if (right && below) bitmap[at + width + 1] = 1;
    }
  }
  return bitmap;
}

function meanInside(map: Float32Array, width: number, height: number, quad: Quad): number {
  const columns = quad.map(([x]) => x);
  const rows = quad.map(([, y]) => y);
  const [left, right] = [Math.max(0, Math.floor(Math.min(...columns))), Math.max(...columns)];
  const [top, bottom] = [Math.max(0, Math.floor(Math.min(...rows))), Math.max(...rows)];
  let sum = 0;
  let count = 0;
  for (let y = top; y <= Math.min(Math.ceil(bottom), height - 1); y++) {
    for (let x = left; x <= Math.min(Math.ceil(right), width - 1); x++) {
      if (!contains(quad, x, y)) continue;
      sum += map[y * width + x]!;
      count++;
    }
  }
  return count ? sum / count : 0;
}

const SAME_LINE = 10; // pixels between the tops of boxes

/** From top to bottom, and from left to right in a line. */
export function inReadingOrder(quads: readonly Quad[]): Quad[] {
  const sorted = [...quads].sort((p, q) => p[0][1] - q[0][1] || p[0][0] - q[0][0]);
  for (let k = 1; k < sorted.length; k++) {
    for (let n = k; n > 0; n--) {
      const [before, here] = [sorted[n - 1]!, sorted[n]!];
      const sameLine = Math.abs(before[0][1] - here[0][1]) < SAME_LINE;
      if (!sameLine || here[0][0] >= before[0][0]) break;
      [sorted[n - 1], sorted[n]] = [here, before];
    }
  }
  return sorted;
}
