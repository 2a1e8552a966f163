/** Answers that are being made, several at once. */

import { EdgeRelaxError, throwIfAborted } from '../errors.ts';

export class Pending {
  readonly #closing = new AbortController();
  readonly #under = new Set<Promise<void>>();

  /** Runs `make`, with a signal that `close` gives too. */
  async *take<T, R>(
    signals: readonly (AbortSignal | undefined)[],
    make: (signal: AbortSignal) => AsyncGenerator<T, R>,
  ): AsyncGenerator<T, R> {
    const given = signals.filter((signal) => signal !== undefined);
    const signal = AbortSignal.any([...given, this.#closing.signal]);
    let leave = (): void => undefined;
    const mine = new Promise<void>((resolve) => (leave = resolve));
    this.#under.add(mine);
    try {
      throwIfAborted(signal);
      return yield* make(signal);
    } catch (error) {
      if (this.#closing.signal.aborted) {
        throw new EdgeRelaxError('disposed', 'the chat was disposed of', { cause: error });
      }
      if (!(error instanceof EdgeRelaxError)) throwIfAborted(signal);
      throw error;
    } finally {
      this.#under.delete(mine);
      leave();
    }
  }

  /** Ends all answers, and takes no more. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#under);
  }
}
