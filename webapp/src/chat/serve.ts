/** The worker's side: a model is loaded when it is first asked, and answers one after another. */

import type { Chat, Message } from 'edgerelax';
import { codeOf } from '../failure.ts';
import type { Backend, Progress } from '../protocol.ts';
import type { AnswerFacts, Ask, ChatReply, ChatRequest, ModelFacts, Turn } from './protocol.ts';

export interface Loading {
  readonly backend: Backend;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
}

export type LoadModel = (folder: string, loading: Loading) => Promise<Chat>;

/** Whether the model in a folder sees images. */
export type Look = (folder: string) => Promise<boolean>;

/** A worker's global scope, or a port. */
export interface Port {
  postMessage(reply: ChatReply): void;
  addEventListener(type: 'message', listener: (event: MessageEvent<ChatRequest>) => void): void;
}

export function serve(port: Port, load: LoadModel, look: Look): void {
  const running = new Map<number, AbortController>();
  const host = new ModelHost(load);
  let turn: Promise<void> = Promise.resolve();
  port.addEventListener('message', ({ data }) => {
    if (data.type === 'stop') {
      running.get(data.id)?.abort();
      return;
    }
    if (data.type === 'look') {
      look(data.folder).then(
        (images) => port.postMessage({ type: 'sees', images }),
        () => undefined, // what is wrong with the folder is said when it is loaded
      );
      return;
    }
    const controller = new AbortController();
    running.set(data.id, controller);
    turn = turn.then(async () => {
      await answer(port, host, data, controller.signal);
      running.delete(data.id);
    });
  });
}

async function answer(port: Port, host: ModelHost, ask: Ask, signal: AbortSignal): Promise<void> {
  const { id } = ask;
  try {
    signal.throwIfAborted();
    const onProgress = (progress: Progress): void =>
      port.postMessage({ type: 'progress', id, progress });
    const chat = await host.take(ask.folder, { backend: ask.backend, signal, onProgress });
    const onText = (text: string): void => port.postMessage({ type: 'text', id, text });
    port.postMessage({ type: 'done', id, ...(await reply(chat, ask, signal, onText)) });
  } catch (error) {
    const code = codeOf(error);
    if (code === 'lost' || code === 'vm') await host.clear(); // the next answer loads anew
    const message = error instanceof Error ? error.message : String(error);
    port.postMessage({ type: 'error', id, code, message });
  }
}

async function reply(
  chat: Chat,
  { turns, settings }: Ask,
  signal: AbortSignal,
  onText: (text: string) => void,
): Promise<{ answer: AnswerFacts; model: ModelFacts }> {
  const { system, temperature, topP, maxTokens, seed } = settings;
  const stream = chat.chat.completions.create({
    messages: [
      ...(system ? [{ role: 'system' as const, content: system }] : []),
      ...turns.map(said),
    ],
    temperature,
    top_p: topP,
    max_tokens: maxTokens,
    seed,
    stream: true,
    stream_options: { include_usage: true },
    signal,
  });
  let finish: AnswerFacts['finish'] = 'stop';
  for await (const { choices, usage, timings } of stream) {
    const [choice] = choices;
    if (choice?.delta.content) onText(choice.delta.content);
    if (choice?.finish_reason === 'length') finish = 'length';
    if (!usage || !timings) continue;
    const { memoryBytes, kernels } = chat.stats();
    return {
      answer: {
        finish,
        tokens: usage.completion_tokens,
        tokensPerSecond: timings.tokens_per_second,
        firstTokenMs: 1000 * timings.first_token,
      },
      model: {
        model: chat.model,
        backend: chat.backend,
        kernels,
        memoryBytes,
        used: usage.total_tokens,
        context: chat.context,
        seesImages: chat.seesImages,
      },
    };
  }
  throw new Error('the answer ended without its figures');
}

/** A turn as the model takes it: images come before the words about them. */
function said({ role, content, images = [] }: Turn): Message {
  if (role === 'assistant' || images.length === 0) return { role, content };
  const shown = images.map((image) => ({ type: 'image' as const, image }));
  const words = content === '' ? [] : [{ type: 'text' as const, text: content }];
  return { role, content: [...shown, ...words] };
}

/** One model at a time, on one backend. */
class ModelHost {
  readonly #load: LoadModel;
  #key = '';
  #chat: Chat | undefined;

  constructor(load: LoadModel) {
    this.#load = load;
  }

  async take(folder: string, loading: Loading): Promise<Chat> {
    const key = `${loading.backend} ${folder}`;
    if (this.#chat && this.#key === key) return this.#chat;
    await this.clear();
    this.#chat = await this.#load(folder, loading);
    this.#key = key;
    return this.#chat;
  }

  async clear(): Promise<void> {
    const chat = this.#chat;
    this.#chat = undefined;
    await chat?.dispose();
  }
}
