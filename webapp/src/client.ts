/** The page's side of the worker: a promise for each run. */

import type { Adapter, Backend, Facts, Progress, Reply, Request } from './protocol.ts';
import type { ToolName, Tools } from './protocol.ts';

/** A run that failed; `abort` is the code of one that was cancelled. */
export class ToolError extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

export interface RunOptions {
  readonly backend: Backend;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
}

interface Pending {
  resolve(answer: { result: Tools[ToolName]['result']; facts: Facts }): void;
  reject(error: ToolError): void;
  onProgress(progress: Progress): void;
}

export class Client {
  /** What the worker found this browser to offer. */
  readonly adapter: Promise<Adapter>;
  readonly #worker: Worker;
  readonly #models: string;
  readonly #pending = new Map<number, Pending>();
  #foundAdapter: (adapter: Adapter) => void = () => undefined;
  #last = 0;

  constructor(worker: Worker, models: string) {
    this.#worker = worker;
    this.#models = models;
    this.adapter = new Promise((resolve) => (this.#foundAdapter = resolve));
    worker.addEventListener('message', ({ data }: MessageEvent<Reply>) => this.#receive(data));
    worker.addEventListener('error', (event) => this.#fail(event.message));
  }

  run<T extends ToolName>(
    tool: T,
    input: Tools[T]['input'],
    { backend, signal, onProgress }: RunOptions,
  ): Promise<{ result: Tools[T]['result']; facts: Facts }> {
    const id = ++this.#last;
    const send = (request: Request): void => this.#worker.postMessage(request);
    signal.addEventListener('abort', () => send({ type: 'cancel', id }));
    const answer = new Promise<{ result: Tools[ToolName]['result']; facts: Facts }>(
      (resolve, reject) => this.#pending.set(id, { resolve, reject, onProgress }),
    );
    send({ type: 'run', id, tool, backend, input, models: this.#models } as Request);
    return answer;
  }

  #receive(reply: Reply): void {
    if (reply.type === 'adapter') return this.#foundAdapter(reply.adapter);
    const pending = this.#pending.get(reply.id);
    if (reply.type === 'progress') return pending?.onProgress(reply.progress);
    this.#pending.delete(reply.id);
    if (reply.type === 'result') pending?.resolve(reply);
    else pending?.reject(new ToolError(reply.code, reply.message));
  }

  /** The worker itself broke: nothing that waits will be answered. */
  #fail(why: string): void {
    for (const pending of this.#pending.values()) {
      pending.reject(new ToolError('worker', why || 'its script could not be loaded'));
    }
    this.#pending.clear();
  }
}
