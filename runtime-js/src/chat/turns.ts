/** Answers are made one after another. */

import { EdgeRelaxError, throwIfAborted } from '../errors.ts';

export class Turns {
  readonly #closing = new AbortController();
  #tail: Promise<void> = Promise.resolve();

  /** Runs `make` when its turn comes, with a signal that `dispose` gives too. */
  async *take<T, R>(
    signals: readonly (AbortSignal | undefined)[],
    make: (signal: AbortSignal) => AsyncGenerator<T, R>,
  ): AsyncGenerator<T, R> {
    const given = signals.filter((signal) => signal !== undefined);
    const signal = AbortSignal.any([...given, this.#closing.signal]);
    const before = this.#tail;
    let leave = (): void => undefined;
    const mine = new Promise<void>((resolve) => (leave = resolve));
    this.#tail = before.then(() => mine);
    try {
      await unlessAborted(before, signal);
      return yield* make(signal);
    } catch (error) {
      if (this.#closing.signal.aborted) {
        throw new EdgeRelaxError('disposed', 'the chat was disposed of', { cause: error });
      }
      if (!(error instanceof EdgeRelaxError)) throwIfAborted(signal);
      throw error;
    } finally {
      leave();
    }
  }

  /** Ends the answer that is being made and those that wait, and takes no more. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#tail;
  }
}

async function unlessAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  throwIfAborted(signal);
  let stop = (): void => undefined;
  const aborted = new Promise<void>((resolve) => (stop = resolve));
  signal.addEventListener('abort', stop, { once: true });
  await Promise.race([promise, aborted]);
  signal.removeEventListener('abort', stop);
  throwIfAborted(signal);
}
