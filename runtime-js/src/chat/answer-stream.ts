/** What `stream: true` gives: chunks as they come, read by `for await`. */

/**
 * The answer is made whether or not anyone reads; leaving the loop, or `abort`, ends it. What fails
 * is thrown by the loop.
 */
export class AnswerStream<T> implements AsyncIterable<T> {
  readonly #controller = new AbortController();
  readonly #chunks: T[] = [];
  readonly #done: Promise<void>;
  #over = false;
  #failure: { readonly error: unknown } | undefined;
  #waiting: (() => void)[] = [];

  constructor(make: (signal: AbortSignal) => AsyncGenerator<T, unknown>) {
    this.#done = this.#read(make(this.#controller.signal));
  }

  abort(): void {
    this.#controller.abort();
  }

  [Symbol.asyncIterator](): AsyncIterator<T, undefined> {
    return {
      next: async () => {
        while (this.#chunks.length === 0 && !this.#over) {
          await new Promise<void>((resolve) => this.#waiting.push(resolve));
        }
        const chunk = this.#chunks.shift();
        if (chunk !== undefined) return { done: false, value: chunk };
        const failure = this.#failure;
        this.#failure = undefined;
        if (failure) throw failure.error;
        return { done: true, value: undefined };
      },
      return: async () => {
        this.abort();
        await this.#done;
        this.#chunks.length = 0;
        this.#failure = undefined;
        return { done: true, value: undefined };
      },
    };
  }

  async #read(chunks: AsyncGenerator<T, unknown>): Promise<void> {
    try {
      for await (const chunk of chunks) {
        this.#chunks.push(chunk);
        this.#wake();
      }
    } catch (error) {
      this.#failure = { error };
    }
    this.#over = true;
    this.#wake();
  }

  #wake(): void {
    for (const resume of this.#waiting.splice(0)) resume();
  }
}
