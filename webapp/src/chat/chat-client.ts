/** The page's side of the worker: a promise for each answer, whose text comes before it. */

import { ToolError } from '../client.ts';
import type { Adapter, Backend, Progress } from '../protocol.ts';
import type { AnswerFacts, Ask, ChatReply, ChatRequest, ModelFacts } from './protocol.ts';

export interface Asking extends Pick<Ask, 'turns' | 'settings'> {
  readonly backend: Backend;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
  readonly onText: (text: string) => void;
}

export interface Answered {
  readonly answer: AnswerFacts;
  readonly model: ModelFacts;
}

interface Pending extends Pick<Asking, 'onProgress' | 'onText'> {
  resolve(answered: Answered): void;
  reject(error: ToolError): void;
}

/** A worker, or what stands in for one. */
export interface ChatPort {
  postMessage(request: ChatRequest): void;
  addEventListener(type: 'message', listener: (event: MessageEvent<ChatReply>) => void): void;
  addEventListener(type: 'error', listener: (event: ErrorEvent) => void): void;
}

export class ChatClient {
  /** What the worker found this browser to offer. */
  readonly adapter: Promise<Adapter>;
  /** Whether the model sees images; never settles where that cannot be told before it is loaded. */
  readonly seesImages: Promise<boolean>;
  readonly #port: ChatPort;
  readonly #folder: string;
  readonly #pending = new Map<number, Pending>();
  #foundAdapter: (adapter: Adapter) => void = () => undefined;
  #foundSight: (images: boolean) => void = () => undefined;
  #last = 0;

  constructor(port: ChatPort, folder: string) {
    this.#port = port;
    this.#folder = folder;
    this.adapter = new Promise((resolve) => (this.#foundAdapter = resolve));
    this.seesImages = new Promise((resolve) => (this.#foundSight = resolve));
    port.addEventListener('message', ({ data }: MessageEvent<ChatReply>) => this.#receive(data));
    port.addEventListener('error', (event: ErrorEvent) => this.#fail(event.message));
    port.postMessage({ type: 'look', folder });
  }

  /** Fails with a ToolError, of code `abort` when the signal stopped it. */
  ask({ backend, turns, settings, signal, onProgress, onText }: Asking): Promise<Answered> {
    const id = ++this.#last;
    const answered = new Promise<Answered>((resolve, reject) =>
      this.#pending.set(id, { resolve, reject, onProgress, onText }),
    );
    const folder = this.#folder;
    this.#port.postMessage({ type: 'ask', id, backend, folder, turns, settings });
    signal.addEventListener('abort', () => this.#port.postMessage({ type: 'stop', id }));
    return answered;
  }

  #receive(reply: ChatReply): void {
    if (reply.type === 'adapter') return this.#foundAdapter(reply.adapter);
    if (reply.type === 'sees') return this.#foundSight(reply.images);
    const pending = this.#pending.get(reply.id);
    if (reply.type === 'progress') return pending?.onProgress(reply.progress);
    if (reply.type === 'text') return pending?.onText(reply.text);
    this.#pending.delete(reply.id);
    if (reply.type === 'done') pending?.resolve(reply);
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
