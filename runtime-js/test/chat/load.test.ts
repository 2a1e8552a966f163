import { describe, expect, it } from 'vitest';
import {
  loadChat,
  loadEmbedder,
  loadEngine,
  loadTranscriber,
  seesImages,
} from '../../src/index.ts';
import type { Engine } from '../../src/chat/engine.ts';
import type { EngineOptions } from '../../src/chat/paged.ts';
import { sound } from '../manifests.ts';
import { description, FakeEngine, saying, TEMPLATE, told } from './fakes.ts';

const FILES = {
  'tokenizer.json': JSON.stringify(description()),
  'chat.json': JSON.stringify({
    templates: { default: TEMPLATE },
    special_tokens: { bos_token: '<s>' },
  }),
};

const utf8 = new TextEncoder();

async function hash(text: string): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', utf8.encode(text)));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** A folder of these files; `change` is of the manifest's section on language, `more` of all. */
async function folder(
  files: Record<string, string> = FILES,
  change: object | null = {},
  more: object = {},
): Promise<typeof fetch> {
  const raw = sound();
  const listed = raw['files'] as Record<string, object>;
  for (const [name, text] of Object.entries(files)) {
    listed[name] = { bytes: utf8.encode(text).length, sha256: await hash(text) };
  }
  const language = { ...(raw['language'] as object), eos: [260], ...change };
  const manifest = JSON.stringify({ ...raw, language: change && language, ...more });
  return (async (url: string | URL | Request) => {
    const name = new URL(String(url)).pathname.split('/').at(-1) ?? '';
    const text = name === 'manifest.json' ? manifest : files[name];
    return text === undefined ? new Response('', { status: 404 }) : new Response(text);
  }) as typeof fetch;
}

const URL_ = 'https://host/models/tiny/';
const MESSAGES = [{ role: 'user', content: 'hi' }] as const;

describe('a folder', () => {
  it('becomes a chat, with progress of all its bytes', async () => {
    const seen: [number, number][] = [];
    const chat = await loadChat(URL_, {
      fetch: await folder(),
      onProgress: ({ loaded, total }) => seen.push([loaded, total]),
      sampling: { temperature: 0.3 },
      engine: async (url, { onProgress }) => {
        expect(url).toBe(URL_);
        onProgress?.({ phase: 'fetch', loaded: 5, total: 10, item: 'weights' });
        onProgress?.({ phase: 'fetch', loaded: 10, total: 10, item: 'weights' });
        return engine;
      },
    });
    const bytes = Object.values(FILES).reduce((sum, text) => sum + utf8.encode(text).length, 10);
    expect(seen.at(-1)).toEqual([bytes, bytes]);
    const { choices, model } = await chat.chat.completions.create({ messages: MESSAGES });
    expect(choices[0].message.content).toBe('hello');
    expect(model).toBe('tiny');
    expect(engine.asked[0]?.sampling.temperature).toBe(0.3);
    await chat.dispose();
    expect(engine.disposed).toBe(1);
  });

  const engine = saying('hello');

  it('says by its manifest whether the model sees images', async () => {
    const functions = { step: 'main', see: 'main' };
    const seeing = await folder({}, { functions });
    expect(await seesImages(URL_, { fetch: seeing })).toBe(true);
    for (const change of [{}, null]) {
      expect(await seesImages(URL_, { fetch: await folder({}, change) })).toBe(false);
    }
    const plan = { placeholder: '<i>', token: 3, tokens: 1, side: 8, resample: 3 };
    const file = JSON.stringify({ ...JSON.parse(FILES['chat.json']), images: plan });
    for (const [files, sees] of [
      [FILES, false],
      [{ ...FILES, 'chat.json': file }, true],
    ] as const) {
      const chat = await loadChat(URL_, { fetch: await folder(files), engine: async () => engine });
      expect(chat.seesImages).toBe(sees);
    }
  });

  it('may be given another template', async () => {
    const asked = saying('a');
    const template = '{{ bos_token }}{{ messages[0].content }}';
    const chat = await loadChat(URL_, {
      fetch: await folder(),
      template,
      engine: async () => asked,
    });
    await chat.chat.completions.create({ messages: MESSAGES });
    expect(asked.asked[0]?.prompt).toEqual(chat.encode('<s>hi'));
  });

  it('without a chat file completes texts', async () => {
    const chat = await loadChat(URL_, {
      fetch: await folder(FILES, { chat: null }),
      engine: async () => saying('b'),
    });
    expect((await chat.completions.create({ prompt: 'a' })).choices[0]?.text).toBe('b');
    expect(await told(() => chat.chat.completions.create({ messages: MESSAGES }))).toContain(
      'template',
    );
  });
});

describe('a folder is refused', () => {
  const refusal = async (files: Record<string, string>, change: object | null = {}) => {
    const engine = new FakeEngine([]);
    const fetch = await folder(files, change);
    const said = await told(() => loadChat(URL_, { fetch, engine: async () => engine }));
    return [said, engine.disposed] as const;
  };

  it('that is of no language', async () => {
    expect((await refusal(FILES, null))[0]).toContain('format: this artifact is of no language');
  });

  it.each<[string, Record<string, string>, object, string]>([
    ['a tokenizer', FILES, { tokenizer: null }, 'format: this language model came without a tok'],
    ['a sound tokenizer', { ...FILES, 'tokenizer.json': '{}' }, {}, 'format: the tokenizer is no'],
    ['a sound chat file', { ...FILES, 'chat.json': '[' }, {}, 'format: the chat file is not JSON'],
    [
      'a plan for images',
      { ...FILES, 'chat.json': '{"templates": {}, "special_tokens": {}, "images": {}}' },
      {},
      'format: chat.images.placeholder is missing; export the model again',
    ],
    [
      'templates',
      { ...FILES, 'chat.json': '{"templates": {"default": 1}, "special_tokens": {}}' },
      {},
      'format: chat.templates.default is no text',
    ],
    [
      'templates without faults',
      { ...FILES, 'chat.json': '{"templates": {"default": "{% if %}"}, "special_tokens": {}}' },
      {},
      'template: the chat template has a fault',
    ],
  ])('without %s, and the engine is let go', async (_, files, change, message) => {
    const [said, disposed] = await refusal(files, change);
    expect(said).toContain(message);
    expect(disposed).toBe(1);
  });

  it('for its template before the weights are there', async () => {
    const engine = (_: unknown, { signal }: EngineOptions) =>
      new Promise<Engine>((_, end) => signal?.addEventListener('abort', () => end(signal.reason)));
    const said = await told(async () =>
      loadChat(URL_, { fetch: await folder(), engine, template: '{% if %}' }),
    );
    expect(said).toContain('template: the chat template has a fault');
  });

  it('whose files are missing or of another export', async () => {
    const { 'chat.json': _, ...rest } = FILES;
    expect((await refusal(rest))[0]).toContain('network: ');
    const sound = await folder();
    const other = FILES['chat.json'].replace('role', 'ROLE');
    const fetch = (async (url: string | URL | Request) =>
      String(url).includes('chat.json') ? new Response(other) : sound(url)) as typeof sound;
    const said = await told(() => loadChat(URL_, { fetch, engine: async () => engine }));
    expect(said).toContain('integrity: chat.json');
  });

  const engine = new FakeEngine([]);

  it('that cannot generate', async () => {
    const said = async (change: object) => {
      const fetch = await folder(FILES, change);
      return told(() => loadChat(URL_, { fetch }));
    };
    expect(await said({})).toContain('format: this language model has no function for greedy');
    const roles = ['step', 'greedy', 'sample', 'adjusted', 'top', 'count', 'clear'];
    const functions = Object.fromEntries(roles.map((role) => [role, 'main']));
    expect(await said({ functions, page_size: null })).toContain('has no cache');
  });

  it('with what the engine says', async () => {
    const fetch = await folder();
    const open = () => Promise.reject(new Error('too big'));
    expect(await told(() => loadChat(URL_, { fetch, engine: open }))).toContain('too big');
  });

  it('when it is no longer wanted', async () => {
    const controller = new AbortController();
    const fetch = await folder();
    const said = await told(() =>
      loadChat(URL_, {
        fetch,
        signal: controller.signal,
        engine: (_, { signal }) =>
          new Promise((_, reject) => {
            signal?.addEventListener('abort', () => reject(new Error('aborted by signal')));
            controller.abort();
          }),
      }),
    );
    expect(said).toMatch(/abort/);
  });
});

const ROLES = ['step', 'greedy', 'sample', 'adjusted', 'top', 'count', 'clear'];
const named = (...roles: string[]) => Object.fromEntries(roles.map((role) => [role, 'main']));

describe('a folder is refused by its manifest, and what loads it is said', () => {
  const LOADERS = { loadChat, loadEngine, loadEmbedder, loadTranscriber };
  type Name = keyof typeof LOADERS;

  /** What a loader says of a folder, and what it fetched of it. */
  async function refusal(
    loader: Name,
    change: object | null,
    more: object = {},
    options: object = {},
  ): Promise<{ said: string; fetched: string[] }> {
    const inner = await folder(FILES, change, more);
    const fetched: string[] = [];
    const fetch = ((url: string | URL | Request, init?: RequestInit) => {
      fetched.push(new URL(String(url)).pathname.split('/').at(-1) ?? '');
      return inner(url, init);
    }) as typeof inner;
    const said = await told(() => LOADERS[loader](URL_, { fetch, ...options }));
    return { said, fetched };
  }

  const assets = ['tokenizer.json', 'chat.json', 'speech.json'];
  const files = {
    ...(sound()['files'] as object),
    'speech.json': { bytes: 1, sha256: 'ab'.repeat(32) },
  };
  const SPEECH = [{ functions: named(...ROLES, 'read', 'encode', 'timed') }, { assets, files }];
  const VECTORS = [{ functions: named('embed') }];
  const WRITES = [{ functions: named(...ROLES) }];
  const NONE = [null];

  it.each<[Name, string, readonly (object | null)[], string]>([
    ['loadChat', 'speech', SPEECH, 'a speech model; use loadTranscriber for it'],
    ['loadEngine', 'speech', SPEECH, 'a speech model; use loadTranscriber for it'],
    ['loadEmbedder', 'speech', SPEECH, 'a speech model; use loadTranscriber for it'],
    ['loadChat', 'vectors', VECTORS, 'a model that gives vectors; use loadEmbedder for it'],
    ['loadEngine', 'vectors', VECTORS, 'a model that gives vectors; use loadEmbedder for it'],
    ['loadTranscriber', 'vectors', VECTORS, 'a model that gives vectors; use loadEmbedder for it'],
    ['loadEmbedder', 'texts', WRITES, 'a language model that writes; use loadChat or loadEngine'],
    ['loadTranscriber', 'texts', WRITES, 'a language model that writes; use loadChat or load'],
    ['loadChat', 'neither', NONE, 'no language model; use load for it'],
    ['loadEngine', 'neither', NONE, 'no language model; use load for it'],
    ['loadEmbedder', 'neither', NONE, 'no language model; use load for it'],
    ['loadTranscriber', 'neither', NONE, 'no language model; use load for it'],
  ])('%s of one of %s', async (loader, _, [change, more], wanted) => {
    const { said, fetched } = await refusal(loader, change ?? null, more ?? {});
    expect(said).toContain(`format: this artifact is of ${wanted}`);
    expect(fetched).toEqual(['manifest.json']);
  });

  it.each<[Name, string, readonly (object | null)[], object, string]>([
    ['loadEngine', 'no draws', [{}], {}, 'has no function for greedy'],
    ['loadEngine', 'a window too wide', WRITES, { window: 65 }, 'input: a window of 65 tokens'],
    ['loadChat', 'a window too wide', WRITES, { window: 65 }, 'input: a window of 65 tokens'],
    ['loadTranscriber', 'no audio', SPEECH, {}, 'format: the function main takes no audio'],
    [
      'loadEmbedder',
      'no tokenizer',
      [{ functions: named('embed'), tokenizer: null }],
      {},
      'format: this model came without a tokenizer; use load for it',
    ],
  ])('%s with %s', async (loader, _, [change, more], options, wanted) => {
    const { said, fetched } = await refusal(loader, change ?? null, more ?? {}, options);
    expect(said).toContain(wanted);
    expect(fetched).toEqual(['manifest.json']);
  });

  it.each<[Name, readonly (object | null)[]]>([
    ['loadChat', WRITES],
    ['loadEngine', WRITES],
    ['loadEmbedder', VECTORS],
  ])('%s for want of a GPU, and asked for the manifest once', async (loader, [change, more]) => {
    const { said, fetched } = await refusal(loader, change ?? null, more ?? {});
    expect(said).toContain('no-webgpu: no variant of the model fits');
    expect(fetched.filter((name) => name === 'manifest.json')).toHaveLength(1);
  });
});
