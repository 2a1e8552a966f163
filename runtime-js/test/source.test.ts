import { afterEach, describe, expect, it, vi } from 'vitest';
import { EdgeRelaxError, type ErrorCode } from '../src/errors.ts';
import { ARTIFACT_VERSION } from '../src/manifest.ts';
import { type Progress, Source } from '../src/source.ts';
import { sound } from './manifests.ts';

const BASE = 'https://host/models/net/';
const vmBytes = new Uint8Array(10).map((_, k) => k);
const shardBytes = new Uint8Array(88).map((_, k) => 255 - k);
const manifestBytes = new TextEncoder().encode(JSON.stringify(await manifest()));

/** The test manifest with the hashes of the files above. */
async function manifest(): Promise<Record<string, unknown>> {
  const whole = sound() as { files: Record<string, { sha256: string }> } & Record<string, unknown>;
  for (const [name, bytes] of [
    ['vm.wasm', vmBytes],
    ['weights.safetensors', shardBytes],
  ] as const) {
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
    whole.files[name]!.sha256 = hex;
  }
  return whole;
}

interface Served {
  readonly chunks?: readonly Uint8Array[];
  readonly status?: number;
  /** Fails after the chunks, as a lost connection does. */
  readonly breaks?: boolean;
}

/** A server of one folder; `files` replaces or adds to the sound ones. */
function server(files: Record<string, Served> = {}) {
  const calls: { url: string; cache: RequestCache | undefined }[] = [];
  const sources: Record<string, Served> = {
    'manifest.json': { chunks: [manifestBytes] },
    'vm.wasm': { chunks: [vmBytes.slice(0, 3), vmBytes.slice(3)] },
    'weights.safetensors': { chunks: [shardBytes] },
    ...files,
  };
  const fetch = (async (input: RequestInfo | URL, init?: RequestInit) => {
    const url = new URL(String(input));
    calls.push({ url: url.href, cache: init?.cache });
    init?.signal?.throwIfAborted();
    if (!url.href.startsWith(BASE)) throw new TypeError('Failed to fetch');
    const served = sources[url.pathname.slice(new URL(BASE).pathname.length)];
    if (!served) return new Response('not here', { status: 404 });
    return new Response(stream(served, init?.signal), { status: served.status ?? 200 });
  }) as typeof globalThis.fetch;
  return { fetch, calls };
}

function stream({ chunks = [], breaks }: Served, signal?: AbortSignal | null): ReadableStream {
  let k = 0;
  return new ReadableStream({
    pull(controller) {
      if (signal?.aborted) controller.error(signal.reason);
      else if (k < chunks.length) controller.enqueue(chunks[k++]);
      else if (breaks) controller.error(new TypeError('network error'));
      else controller.close();
    },
  });
}

async function refusal(work: Promise<unknown>, code: ErrorCode): Promise<string> {
  const error = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(EdgeRelaxError);
  expect((error as EdgeRelaxError).code).toBe(code);
  return (error as Error).message;
}

const open = (files?: Record<string, Served>, options = {}): Promise<Source> =>
  Source.open(BASE, { fetch: server(files).fetch, ...options });

afterEach(() => vi.unstubAllGlobals());

describe('opening', () => {
  it.each([BASE, BASE.slice(0, -1), new URL(BASE)])('takes the folder %s', async (url) => {
    const { fetch, calls } = server();
    const source = await Source.open(url, { fetch });
    expect(source.manifest.vm).toBe('vm.wasm');
    expect(calls).toEqual([{ url: `${BASE}manifest.json`, cache: 'no-cache' }]);
  });

  it('resolves a relative folder against the page', async () => {
    vi.stubGlobal('location', { href: 'https://host/models/page.html' });
    const source = await Source.open('net', { fetch: server().fetch });
    expect(source.manifest.version).toBe(ARTIFACT_VERSION);
  });

  it('takes no path where there is no page', async () => {
    const opened = Source.open('dist/net', { fetch: server().fetch });
    expect(await refusal(opened, 'input')).toContain('dist/net is no URL of a folder');
  });

  it('says what could not be fetched', async () => {
    const elsewhere = Source.open('https://other/', { fetch: server().fetch });
    expect(await refusal(elsewhere, 'network')).toContain('https://other/manifest.json');
    const missing = Source.open(`${BASE}typo`, { fetch: server().fetch });
    expect(await refusal(missing, 'network')).toContain('the server answered 404');
  });

  it('says that another page is no manifest', async () => {
    const html = new TextEncoder().encode('<!doctype html><title>Home</title>');
    expect(await refusal(open({ 'manifest.json': { chunks: [html] } }), 'format')).toContain(
      'is this an artifact folder?',
    );
  });
});

describe('the signal', () => {
  it('ends reading until loading is over, and not after', async () => {
    const stop = new AbortController();
    const source = await open({}, { signal: stop.signal });
    const other = await open({}, { signal: stop.signal });
    source.settle();
    stop.abort();
    expect(await source.read('vm.wasm')).toEqual(vmBytes);
    await refusal(other.read('vm.wasm'), 'abort');
  });
});

describe('reading', () => {
  it('gives the bytes, addressed by their hash', async () => {
    const { fetch, calls } = server();
    const source = await Source.open(BASE, { fetch });
    expect(await source.read('vm.wasm')).toEqual(vmBytes);
    expect(calls[1]?.url).toMatch(/vm\.wasm\?v=[0-9a-f]{16}$/);
    expect(calls[1]?.cache).toBe('default');
  });

  it('gives what came with the model, and nothing else by that way', async () => {
    const bytes = new TextEncoder().encode('{"a": "ü"}');
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
    const whole = (await manifest()) as { files: Record<string, unknown> };
    whole.files['chat.json'] = { bytes: bytes.length, sha256 };
    const text = new TextEncoder().encode(JSON.stringify(whole));
    const source = await open({
      'manifest.json': { chunks: [text] },
      'chat.json': { chunks: [bytes] },
    });
    expect(await source.asset('chat.json')).toEqual(bytes);
    expect(await refusal(source.asset('vm.wasm'), 'input')).toContain(
      'no asset vm.wasm; it has tokenizer.json, chat.json',
    );
  });

  it('refuses files that the manifest does not list', async () => {
    const { fetch, calls } = server();
    const source = await Source.open(BASE, { fetch });
    for (const name of ['other.bin', '../secret', 'toString', 'https://evil/x']) {
      expect(await refusal(source.read(name), 'format')).toContain(`does not list ${name}`);
    }
    expect(calls).toHaveLength(1);
  });

  it.each<[string, Served, ErrorCode, string]>([
    ['missing', { status: 404 }, 'network', 'the server answered 404'],
    ['on a broken server', { status: 500 }, 'network', 'the server answered 500'],
    ['empty', {}, 'integrity', 'vm.wasm: 0 bytes came, the manifest says 10'],
    ['truncated', { chunks: [vmBytes.slice(0, 7)] }, 'integrity', '7 bytes came'],
    ['too long', { chunks: [vmBytes, Uint8Array.of(1)] }, 'integrity', 'longer than the 10 bytes'],
    ['changed', { chunks: [vmBytes.map((b, k) => (k === 4 ? b ^ 1 : b))] }, 'integrity', 'sha256'],
    ['cut off', { chunks: [vmBytes.slice(0, 3)], breaks: true }, 'network', 'off at byte 3'],
  ])('tells of a file that is %s', async (_, served, code, message) => {
    vi.stubGlobal('setTimeout', (wake: () => void, milliseconds: number) => {
      if (milliseconds < 30_000) queueMicrotask(wake); // pauses before tries
    });
    const source = await open({ 'vm.wasm': served });
    expect(await refusal(source.read('vm.wasm'), code)).toContain(message);
    expect(await source.read('weights.safetensors')).toEqual(shardBytes);
  });

  it('goes without the hash where the page has no SubtleCrypto, but not without the size', async () => {
    vi.stubGlobal('crypto', {});
    const changed = vmBytes.map((byte) => byte ^ 1);
    const source = await open({ 'vm.wasm': { chunks: [changed] } });
    expect(await source.read('vm.wasm')).toEqual(changed);
    const short = await open({ 'vm.wasm': { chunks: [changed.slice(1)] } });
    expect(await refusal(short.read('vm.wasm'), 'integrity')).toContain('9 bytes came');
  });
});

describe('abort', () => {
  it('before anything is fetched', async () => {
    const { fetch, calls } = server();
    const opening = Source.open(BASE, { fetch, signal: AbortSignal.abort() });
    await refusal(opening, 'abort');
    expect(calls).toHaveLength(0);
  });

  it('between two files', async () => {
    const controller = new AbortController();
    const source = await open({}, { signal: controller.signal });
    controller.abort();
    await refusal(source.read('vm.wasm'), 'abort');
  });

  it('in the middle of a file, with the reason as the cause', async () => {
    const controller = new AbortController();
    const onProgress = (): void => controller.abort(new Error('the user left'));
    const source = await open({}, { signal: controller.signal, onProgress });
    const error = await source.read('vm.wasm').catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'abort', cause: { message: 'the user left' } });
  });
});

describe('progress', () => {
  it('counts up to a total that is known before', async () => {
    const seen: Progress[] = [];
    const source = await open({}, { onProgress: (progress: Progress) => seen.push(progress) });
    source.expect(['vm.wasm', 'weights.safetensors', 'vm.wasm']);
    await source.read('vm.wasm');
    await source.read('weights.safetensors');
    expect(seen).toEqual([
      { phase: 'fetch', loaded: 3, total: 98, item: 'vm.wasm' },
      { phase: 'fetch', loaded: 10, total: 98, item: 'vm.wasm' },
      { phase: 'fetch', loaded: 98, total: 98, item: 'weights.safetensors' },
    ]);
  });

  it('expects only what the manifest lists', async () => {
    const source = await open();
    expect(() => source.expect(['nothing.bin'])).toThrow('does not list nothing.bin');
  });
});
