/** A limit to how long nothing comes over a connection. */

import { unlessAborted } from './errors.ts';

const SECONDS = 30;

export class Patience {
  /** Aborts what waits, when it is lost and when the caller gives up. */
  readonly signal: AbortSignal;
  /** What to say, once it is lost. */
  lost: string | undefined;
  readonly #giveUp = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(signal: AbortSignal | undefined) {
    this.signal = AbortSignal.any([this.#giveUp.signal, ...(signal ? [signal] : [])]);
    this.renew();
  }

  /** Something came. */
  renew(): void {
    if (this.lost) return;
    this.end();
    this.#timer = setTimeout(() => {
      this.lost = `nothing came for ${SECONDS} s`;
      this.#giveUp.abort(new Error(this.lost));
    }, SECONDS * 1000);
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  /** What comes of it, but no later than the signal: not all that waits heeds it. */
  of<T>(work: Promise<T>): Promise<T> {
    return unlessAborted(work, this.signal);
  }
}
