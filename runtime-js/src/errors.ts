/** Errors: one class, a code to branch on, a message that ends in what to do. */

export type ErrorCode =
  | 'input' // a wrong name, dtype, rank or size: of the caller
  | 'format' // a damaged, foreign or newer artifact
  | 'integrity' // a file whose size or hash is not the manifest's
  | 'network' // a file that could not be fetched
  | 'no-webgpu' // no adapter, and no CPU program to stand in
  | 'limit' // the adapter is too small
  | 'memory' // memory is exhausted
  | 'lost' // the GPU device was lost; load or reload again
  | 'context' // a prompt that is longer than the context
  | 'template' // a chat template that fails, or refuses the conversation
  | 'disposed' // the model was disposed of
  | 'abort' // the caller's signal
  | 'library' // a library function is missing, or failed
  | 'device' // WebGPU refused something
  | 'vm'; // the program failed for a reason that is not its inputs

export class EdgeRelaxError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'EdgeRelaxError';
    this.code = code;
  }
}

/** Throws an `abort` error if the signal says so. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new EdgeRelaxError('abort', 'aborted', { cause: signal.reason });
}

/** What comes of work, or the signal's reason once that is aborted: the work may go on unheard. */
export function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    const end = (): void => signal.removeEventListener('abort', abort); // signals outlive work
    if (signal.aborted) abort();
    signal.addEventListener('abort', abort);
    work.finally(end).then(resolve, reject);
  });
}
