/** Progress of what is loaded in parts. */

import type { Progress } from '../source.ts';

/** Adds up the bytes of the text's files and of the model's. */
export class Sum {
  readonly #report: ((progress: Progress) => void) | undefined;
  readonly #fetched = new Map<string, Progress>();

  constructor(report: ((progress: Progress) => void) | undefined) {
    this.#report = report;
  }

  of(part: string): (progress: Progress) => void {
    return (progress) => {
      if (progress.phase !== 'fetch') return this.#report?.(progress);
      this.#fetched.set(part, progress);
      const all = [...this.#fetched.values()];
      const add = (key: 'loaded' | 'total'): number => all.reduce((sum, one) => sum + one[key], 0);
      this.#report?.({ ...progress, loaded: add('loaded'), total: add('total') });
    };
  }
}
