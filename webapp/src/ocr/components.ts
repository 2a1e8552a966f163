/** Connected parts of a bitmap, found run by run (a run: neighbours in a row that are set). */

import type { Point } from './geometry.ts';

interface Run {
  readonly y: number;
  readonly start: number;
  readonly end: number; // of the last pixel
  parent: Run | undefined; // another run of the same part, nearer to its root
}

/** For each part the ends of its runs: enough for its hull. Pixels touch at corners too. */
export function connectedParts(bitmap: Uint8Array, width: number, height: number): Point[][] {
  const runs: Run[] = [];
  let above: Run[] = [];
  for (let y = 0; y < height; y++) {
    const row = runsOf(bitmap, width, y);
    let k = 0;
    for (const run of row) {
      while (k < above.length && above[k]!.end < run.start - 1) k++;
      for (let n = k; n < above.length && above[n]!.start <= run.end + 1; n++) join(above[n]!, run);
    }
    runs.push(...row);
    above = row;
  }
  const parts = new Map<Run, Point[]>();
  for (const run of runs) {
    const root = rootOf(run);
    const points = parts.get(root) ?? [];
    points.push([run.start, run.y], [run.end, run.y]);
    parts.set(root, points);
  }
  return [...parts.values()];
}

function runsOf(bitmap: Uint8Array, width: number, y: number): Run[] {
  const runs: Run[] = [];
  for (let x = 0, at = y * width; x < width; x++) {
    if (!bitmap[at + x]) continue;
    const start = x;
    while (x < width && bitmap[at + x]) x++;
    runs.push({ y, start, end: x - 1, parent: undefined });
  }
  return runs;
}

function rootOf(run: Run): Run {
  let root = run;
  while (root.parent) root = root.parent;
  while (run.parent) [run.parent, run] = [root, run.parent];
  return root;
}

function join(one: Run, other: Run): void {
  const [a, b] = [rootOf(one), rootOf(other)];
  if (a !== b) b.parent = a;
}
