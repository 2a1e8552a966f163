/** A limit to how long nothing comes over a connection. */

const SECONDS = 30;

export class Patience {
  /** Aborts what waits, when it is lost and when the caller gives up. */
  readonly signal: AbortSignal;
  /** What to say, once it is lost. */
  lost: string | undefined;
  readonly #giveUp = new AbortController();
  readonly #losing: Promise<never>;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(signal: AbortSignal | undefined) {
    this.signal = AbortSignal.any([this.#giveUp.signal, ...(signal ? [signal] : [])]);
    this.#losing = new Promise((_, fail) => {
      this.#giveUp.signal.addEventListener('abort', () => fail(this.#giveUp.signal.reason));
    });
    this.#losing.catch(() => undefined);
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

  /** What comes of it, but no later than patience ends: not all that waits heeds the signal. */
  of<T>(work: Promise<T>): Promise<T> {
    work.catch(() => undefined);
    return Promise.race([work, this.#losing]);
  }
}
