import { describe, expect, it } from 'vitest';
import { bytes, chatOf, END, FakeEngine, saying } from '../../runtime-js/test/chat/fakes.ts';
import { MAX_PIXELS } from '../../runtime-js/src/chat/images.ts';
import { MAX_BYTES } from '../../runtime-js/src/chat/opening.ts';
import { EdgeRelaxError } from 'edgerelax';
import { ChatClient, type ChatPort } from '../src/chat/chat-client.ts';
import { MOST_BYTES, MOST_PIXELS } from '../src/chat/pictures.ts';
import type { ChatReply, ChatRequest } from '../src/chat/protocol.ts';
import { type LoadModel, type Loading, type Look, type Port, serve } from '../src/chat/serve.ts';
import { DEFAULTS, keep, restored, settingsFrom } from '../src/chat/settings.ts';

const TURNS = [{ role: 'user', content: 'hi' }] as const;

/** The page's client and the worker's side, with a channel between. */
function connected(load: LoadModel, look: Look = async () => false): ChatClient {
  const { port1, port2 } = new MessageChannel();
  serve(port1 as never as Port, load, look);
  const client = new ChatClient(port2 as never as ChatPort, 'https://host/models/tiny/');
  for (const port of [port1, port2]) port.start();
  return client;
}

function asking(client: ChatClient, more: object = {}) {
  const texts: string[] = [];
  const controller = new AbortController();
  const answered = client.ask({
    backend: 'wasm',
    turns: TURNS,
    settings: DEFAULTS,
    signal: controller.signal,
    onProgress: () => undefined,
    onText: (text) => texts.push(text),
    ...more,
  });
  return { answered, texts, controller };
}

describe('an answer', () => {
  it('comes as text, then with its figures', async () => {
    const engine = saying('hello');
    const client = connected(async () => chatOf(engine));
    const settings = { ...DEFAULTS, system: 'be kind', temperature: 0.1, seed: 7, maxTokens: 99 };
    const { answered, texts } = asking(client, { settings });
    const { answer, model } = await answered;
    expect(texts.join('')).toBe('hello');
    expect(answer).toMatchObject({ finish: 'stop', tokens: 6 });
    expect(answer.tokensPerSecond).toBeGreaterThan(0);
    expect(model).toMatchObject({ model: 'fake', backend: 'wasm', kernels: 3, memoryBytes: 1000 });
    expect(model.context).toBe(256);
    const [asked] = engine.asked;
    expect(asked?.sampling).toMatchObject({ temperature: 0.1, topP: DEFAULTS.topP, seed: 7 });
    expect(asked?.options.limit).toBe(99);
    const prompt = '<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n';
    const begin = chatOf(engine).encode(prompt);
    expect(asked?.prompt.slice(0, begin.length)).toEqual(begin);
    expect(model.used).toBe((asked?.prompt.length ?? 0) + 6);
  });

  it('says that it was cut', async () => {
    const client = connected(async () => chatOf(saying('hello')));
    const { answered } = asking(client, { settings: { ...DEFAULTS, maxTokens: 2 } });
    expect((await answered).answer).toMatchObject({ finish: 'length', tokens: 2 });
  });

  it('that is stopped keeps what came, and the next one works', async () => {
    const engine = new FakeEngine(
      function* () {
        for (;;) yield { id: 97 };
      },
      [...bytes('next'), END],
    );
    engine.context = 1e6;
    const client = connected(async () => chatOf(engine));
    const seen: string[] = [];
    const settings = { ...DEFAULTS, maxTokens: 1e5 };
    const first = asking(client, {
      settings,
      onText: (text: string) => seen.push(text) === 3 && first.controller.abort(),
    });
    await expect(first.answered).rejects.toMatchObject({ code: 'abort' });
    expect(seen.length).toBeGreaterThanOrEqual(3);
    const { answered, texts } = asking(client);
    await answered;
    expect(texts.join('')).toBe('next');
  });
});

describe('the model', () => {
  it('is loaded once for each backend, with progress', async () => {
    const loads: string[] = [];
    const chats: ReturnType<typeof saying>[] = [];
    const client = connected(async (folder, { backend, onProgress }: Loading) => {
      loads.push(`${backend} ${folder}`);
      onProgress({ phase: 'fetch', loaded: 1, total: 2 });
      chats.push(saying('a'));
      return chatOf(chats.at(-1) as FakeEngine);
    });
    const progress: unknown[] = [];
    const onProgress = (one: unknown) => progress.push(one);
    await asking(client, { onProgress }).answered;
    await asking(client, { onProgress }).answered;
    expect(loads).toEqual(['wasm https://host/models/tiny/']);
    expect(progress).toEqual([{ phase: 'fetch', loaded: 1, total: 2 }]);
    await asking(client, { backend: 'webgpu' }).answered;
    expect(loads.at(-1)).toBe('webgpu https://host/models/tiny/');
    expect(chats.map((engine) => engine.disposed)).toEqual([1, 0]);
  });

  it('that cannot be loaded is tried again with the next message', async () => {
    let tries = 0;
    const client = connected(async () => {
      if (tries++ === 0) throw new EdgeRelaxError('network', 'no such file');
      return chatOf(saying('a'));
    });
    await expect(asking(client).answered).rejects.toMatchObject({
      code: 'network',
      message: 'no such file',
    });
    await asking(client).answered;
  });

  it('is loaded anew after its device was lost, and only then', async () => {
    let loads = 0;
    const codes = ['lost', 'input'] as const;
    const client = connected(async () => {
      const code = codes[loads++];
      return chatOf(
        new FakeEngine(
          function* () {
            if (code) throw new EdgeRelaxError(code, 'a test');
            yield { id: END };
          },
          [END],
        ),
      );
    });
    await expect(asking(client).answered).rejects.toMatchObject({ code: 'lost' });
    await expect(asking(client).answered).rejects.toMatchObject({ code: 'input' });
    await asking(client).answered;
    expect(loads).toBe(2);
  });

  it('that is not wanted any more is given up', async () => {
    const client = connected(
      (_, { signal, onProgress }) =>
        new Promise((_, reject) => {
          signal.addEventListener('abort', () => reject(new EdgeRelaxError('abort', 'aborted')));
          onProgress({ phase: 'fetch', loaded: 0, total: 1 });
        }),
    );
    const first = asking(client, { onProgress: () => first.controller.abort() });
    await expect(first.answered).rejects.toMatchObject({ code: 'abort' });
  });

  it('whose worker breaks leaves no one waiting', async () => {
    const listeners: Record<string, (event: never) => void> = {};
    const port = {
      postMessage: (_: ChatRequest) => undefined,
      addEventListener: (type: string, listener: (event: never) => void) => {
        listeners[type] = listener;
      },
    };
    const client = new ChatClient(port as ChatPort, 'https://host/');
    const { answered } = asking(client);
    listeners['message']?.({ data: { type: 'text', id: 99, text: 'late' } as ChatReply } as never);
    listeners['error']?.({ message: '' } as never);
    await expect(answered).rejects.toMatchObject({ code: 'worker' });
  });
});

describe('images', () => {
  it('are offered where the folder says that the model sees them', async () => {
    const looked: string[] = [];
    const load = async () => chatOf(saying('a'));
    const client = connected(load, async (folder) => looked.push(folder) === 1);
    expect(await client.seesImages).toBe(true);
    expect(looked).toEqual(['https://host/models/tiny/']);
    const { model } = await asking(client).answered;
    expect(model.seesImages).toBe(false); // the model itself knows better
    const broken = connected(load, () => Promise.reject(new Error('no manifest')));
    await asking(broken).answered;
    const told = await Promise.race([broken.seesImages, Promise.resolve('nothing')]);
    expect(told).toBe('nothing');
  });

  it('go to the model before the words, with every turn', async () => {
    const asked: ChatRequest[] = [];
    const chat = chatOf(saying('a'));
    const { completions } = chat.chat;
    const create = (request: never) => {
      asked.push(request);
      return completions.create({ ...(request as object), messages: TURNS, stream: true });
    };
    const spied = { ...chat.chat, completions: { create } };
    const client = connected(async () => Object.defineProperty(chat, 'chat', { value: spied }));
    const blob = new Blob(['x'], { type: 'image/png' });
    const turns = [
      { role: 'user', content: 'what?', images: [blob, blob] },
      { role: 'assistant', content: 'a', images: [] },
      { role: 'user', content: '', images: [blob] },
    ];
    await asking(client, { turns }).answered;
    const image = { type: 'image', image: expect.any(Blob) };
    expect(asked[0]).toMatchObject({
      messages: [
        { role: 'user', content: [image, image, { type: 'text', text: 'what?' }] },
        { role: 'assistant', content: 'a' },
        { role: 'user', content: [image] },
      ],
    });
  });

  it('have the limits of the runtime', () => {
    expect([MOST_BYTES, MOST_PIXELS]).toEqual([MAX_BYTES, MAX_PIXELS]);
  });
});

describe('settings', () => {
  it('come back as they were kept', () => {
    const stored = new Map<string, string>();
    const storage = {
      getItem: (key: string) => stored.get(key) ?? null,
      setItem: (key: string, value: string) => void stored.set(key, value),
    };
    expect(restored(storage)).toEqual(DEFAULTS);
    const mine = { system: 'x', temperature: 0, topP: 0.5, maxTokens: 3, seed: 0 };
    keep(storage, mine);
    expect(restored(storage)).toEqual(mine);
  });

  it.each([
    [null],
    ['text'],
    [{ temperature: 3, topP: -1, maxTokens: 0, seed: 1.5, system: 4 }],
    [{ temperature: NaN, topP: '1', maxTokens: Infinity, seed: -1 }],
  ])('of %j are as by default', (value) => {
    expect(settingsFrom(value)).toEqual(DEFAULTS);
  });

  it('last where storage is forbidden or holds anything', () => {
    const forbidden = (): never => {
      throw new DOMException('no', 'SecurityError');
    };
    expect(restored({ getItem: forbidden })).toEqual(DEFAULTS);
    expect(restored({ getItem: () => '{' })).toEqual(DEFAULTS);
    keep({ setItem: forbidden }, DEFAULTS);
  });
});
