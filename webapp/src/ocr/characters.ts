/** From the recogniser's probabilities to text: greedy connectionist temporal classification. */

/** The characters by class; class 0 is the blank, the last one a space. */
export function alphabet(table: string): string[] {
  return ['', ...table.split(/\r?\n/).filter((line) => line !== ''), ' '];
}

export interface Reading {
  readonly text: string;
  /** The mean probability of the characters, 0 where there are none. */
  readonly confidence: number;
}

/** Reads item `k` of probabilities of shape [items, steps, classes]. */
export function decode(
  probabilities: Float32Array,
  [, steps = 0, classes = 0]: readonly number[],
  k: number,
  characters: readonly string[],
): Reading {
  let text = '';
  let sum = 0;
  let count = 0;
  let last = 0;
  for (let step = 0; step < steps; step++) {
    const start = (k * steps + step) * classes;
    const row = probabilities.subarray(start, start + classes);
    const best = largest(row);
    if (best !== 0 && best !== last) {
      text += characters[best] ?? '';
      sum += row[best]!;
      count++;
    }
    last = best;
  }
  return { text, confidence: count ? sum / count : 0 };
}

function largest(row: Float32Array): number {
  let best = 0;
  for (let k = 1; k < row.length; k++) if (row[k]! > row[best]!) best = k;
  return best;
}
