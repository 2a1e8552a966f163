import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Progress, Source, type SourceOptions } from '../src/source.ts';
import { clearCache } from '../src/store.ts';
import { sound } from './manifests.ts';

const BASE = 'https://host/net/';
const DATA = new Uint8Array(10).map((_, k) => 3 * k);
const WRONG = DATA.map((byte) => byte ^ 1);
const HASH = Buffer.from(await crypto.subtle.digest('SHA-256', DATA)).toString('hex');

/** A server of vm.wasm, whose bytes a test may change; counts requests for it. */
function server(bytes: readonly Uint8Array[] = [DATA]) {
  const calls: (RequestCache | undefined)[] = [];
  const whole = sound() as { files: Record<string, { sha256: string }> };
  whole.files['vm.wasm']!.sha256 = HASH;
  const fetch = (async (url: RequestInfo | URL, init?: RequestInit) => {
    if (String(url).endsWith('manifest.json')) return Response.json(whole);
    const data = bytes[Math.min(calls.length, bytes.length - 1)]!;
    calls.push(init?.cache);
    return new Response(data.slice());
  }) as typeof globalThis.fetch;
  return { fetch, calls };
}

/** Both places of a browser, over maps; `fail` makes what writes throw. */
function places() {
  const kept = { cache: new Map<string, Uint8Array>(), opfs: new Map<string, Uint8Array>() };
  const state: { fail?: DOMException; unreadable?: boolean } = {};
  let [gate, held] = [Promise.resolve(), 0];
  const write = async (where: Map<string, Uint8Array>, name: string, data: ArrayBuffer) => {
    held += 1;
    await gate;
    held -= 1;
    if (state.fail) throw state.fail;
    where.set(name, new Uint8Array(data));
  };
  /** What writes waits until the function that this gives is called. */
  const hold = (): (() => void) => {
    let free = (): void => undefined;
    gate = new Promise((resolve) => (free = resolve));
    return free;
  };
  const missing = (): DOMException => new DOMException('nothing there', 'NotFoundError');
  const key = (url: string): string => url.replace(/^.*\//, '');
  const caches = {
    open: async () => ({
      match: async (url: string) => {
        if (state.unreadable) throw new Error('the disk is broken');
        const data = kept.cache.get(key(url));
        return data && new Response(data.slice());
      },
      put: async (url: string, response: Response) => {
        await write(kept.cache, key(url), await response.arrayBuffer());
      },
      delete: async (url: string) => kept.cache.delete(key(url)),
    }),
    delete: async () => kept.cache.clear(),
  };
  const file = (name: string) => ({
    getFile: async () => new Blob([kept.opfs.get(name)!.slice()]),
    createWritable: async () => {
      let text = new ArrayBuffer();
      return {
        write: async (data: Blob) => void (text = await data.arrayBuffer()),
        close: () => write(kept.opfs, name, text),
      };
    },
  });
  const folder = {
    getFileHandle: async (name: string, options?: { create: boolean }) => {
      if (!kept.opfs.has(name) && !options?.create) throw missing();
      if (!kept.opfs.has(name)) kept.opfs.set(name, new Uint8Array());
      return file(name);
    },
    removeEntry: async (name: string) => {
      if (!kept.opfs.delete(name)) throw missing();
    },
  };
  const root = {
    getDirectoryHandle: async () => folder,
    removeEntry: async () => kept.opfs.clear(),
  };
  const navigator = { storage: { getDirectory: async () => root } };
  return { kept, state, hold, held: () => held, caches, navigator };
}

let here = places();
let told: string[] = [];

beforeEach(() => {
  here = places();
  told = [];
  vi.stubGlobal('caches', here.caches);
  vi.stubGlobal('navigator', here.navigator);
  vi.spyOn(console, 'warn').mockImplementation((text: string) => void told.push(text));
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

async function read(fetch: typeof globalThis.fetch, options: SourceOptions = {}) {
  const source = await Source.open(BASE, { fetch, ...options });
  source.expect(['vm.wasm']);
  const data = await source.read('vm.wasm');
  await source.kept();
  return data;
}

describe.each(['cache', 'opfs'] as const)('files kept by %s', (cache) => {
  it('are not fetched again, and count as progress', async () => {
    const { fetch, calls } = server();
    const seen: Progress[] = [];
    expect(await read(fetch, { cache })).toEqual(DATA);
    expect([...here.kept[cache].keys()]).toEqual([HASH]);
    expect(await read(fetch, { cache, onProgress: (p) => seen.push(p) })).toEqual(DATA);
    expect(calls).toHaveLength(1);
    expect(seen.at(-1)).toEqual({ phase: 'fetch', loaded: 10, total: 10, item: 'vm.wasm' });
    expect(told).toEqual([]);
  });

  it.each([
    ['changed', WRONG],
    ['cut off', DATA.slice(0, 4)],
    ['empty', new Uint8Array()],
    ['too long', new Uint8Array(11)],
  ])('are thrown away where they are %s', async (_, broken) => {
    const { fetch, calls } = server();
    here.kept[cache].set(HASH, broken);
    const seen: number[] = [];
    const onProgress = ({ loaded }: Progress): void => void seen.push(loaded);
    expect(await read(fetch, { cache, onProgress })).toEqual(DATA);
    expect(calls).toHaveLength(1);
    expect(here.kept[cache].get(HASH)).toEqual(DATA);
    expect(seen.at(-1)).toBe(10);
    expect(seen).toEqual([...new Set(seen)].sort((a, b) => a - b));
  });

  it('are none where there is no room, which is said once', async () => {
    const { fetch } = server();
    here.state.fail = new DOMException('full', 'QuotaExceededError');
    const source = await Source.open(BASE, { fetch, cache });
    expect(await source.read('vm.wasm')).toEqual(DATA);
    expect(await source.read('vm.wasm')).toEqual(DATA);
    source.settle();
    await source.kept();
    expect(here.kept[cache].size).toBe(0);
    expect(told).toEqual([expect.stringContaining('QuotaExceededError')]);
  });

  it('are never wrong ones', async () => {
    const { fetch, calls } = server([WRONG]);
    await expect(read(fetch, { cache })).rejects.toMatchObject({ code: 'integrity' });
    expect(calls).toEqual(['no-store', 'reload']);
    expect(here.kept[cache].size).toBe(0);
    const repaired = server([WRONG, DATA]);
    expect(await read(repaired.fetch, { cache })).toEqual(DATA);
    expect(here.kept[cache].get(HASH)).toEqual(DATA);
  });

  it('are none after an abort in the middle', async () => {
    const { fetch } = server();
    const stop = new AbortController();
    const onProgress = (): void => stop.abort();
    const reading = read(fetch, { cache, signal: stop.signal, onProgress });
    await expect(reading).rejects.toMatchObject({ code: 'abort' });
    expect(here.kept[cache].size).toBe(0);
  });

  it('are written behind the load, one after another, the manifest last', async () => {
    const { fetch } = server();
    const free = here.hold();
    const source = await Source.open(BASE, { fetch, cache });
    const memory = new ArrayBuffer(DATA.length);
    expect(await source.read('vm.wasm', memory)).toEqual(DATA);
    new Uint8Array(memory).fill(0); // taken for the next file
    source.settle();
    let isKept = false;
    const kept = source.kept().then(() => (isKept = true));
    const second = source.read('vm.wasm');
    await vi.waitFor(() => expect(here.held()).toBe(1), 25_000);
    expect(isKept).toBe(false);
    free();
    expect(await second).toEqual(DATA);
    await kept;
    expect([...here.kept[cache].keys()]).toEqual([HASH, expect.stringMatching(/^manifest-/)]);
    expect(here.kept[cache].get(HASH)).toEqual(DATA);
  });

  it('go when the cache is cleared', async () => {
    const { fetch } = server();
    await read(fetch, { cache });
    await clearCache();
    expect(here.kept[cache].size).toBe(0);
  });
});

describe('the option', () => {
  it('auto takes the Cache API, else the private file system, else goes without', async () => {
    const { fetch } = server();
    await read(fetch);
    expect([here.kept.cache.size, here.kept.opfs.size]).toEqual([1, 0]);
    vi.stubGlobal('caches', undefined);
    await read(fetch);
    expect(here.kept.opfs.size).toBe(1);
    vi.stubGlobal('navigator', {});
    expect(await read(fetch)).toEqual(DATA);
    expect(told).toEqual([]);
  });

  it('none keeps nothing', async () => {
    const { fetch, calls } = server();
    await read(fetch, { cache: 'none' });
    await read(fetch, { cache: 'none' });
    expect(calls).toEqual(['default', 'default']); // what the browser's own cache has is taken
    expect([here.kept.cache.size, here.kept.opfs.size]).toEqual([0, 0]);
  });

  it('says that what was asked for is not there', async () => {
    vi.stubGlobal('caches', undefined);
    expect(await read(server().fetch, { cache: 'cache' })).toEqual(DATA);
    expect(told).toHaveLength(1);
  });

  it('is one of those that there are', async () => {
    const reading = read(server().fetch, { cache: 'toString' as 'none' });
    await expect(reading).rejects.toMatchObject({ code: 'input' });
  });
});

describe.each(['cache', 'opfs'] as const)('without a network (%s)', (cache) => {
  const offline = (async () => {
    throw new TypeError('Failed to fetch');
  }) as typeof globalThis.fetch;
  const load = async (fetch: typeof globalThis.fetch): Promise<Source> => {
    const source = await Source.open(BASE, { fetch, cache });
    await source.read('vm.wasm');
    source.settle();
    await source.kept();
    return source;
  };

  it('a model is as it was when it was last loaded', async () => {
    const { fetch, calls } = server();
    const { manifest } = await load(fetch);
    expect((await load(offline)).manifest).toEqual(manifest);
    expect(calls).toHaveLength(1);
    const other = Source.open('https://host/other/', { fetch: offline, cache });
    await expect(other).rejects.toMatchObject({ code: 'network' });
  });

  it('nothing is told of by a load that did not come to its end', async () => {
    const { fetch } = server();
    const source = await Source.open(BASE, { fetch, cache });
    await source.read('vm.wasm');
    await source.kept();
    await expect(load(offline)).rejects.toMatchObject({ code: 'network' });
  });

  it('is not what a server says that is there', async () => {
    await load(server().fetch);
    const gone = (async () => new Response('', { status: 404 })) as typeof globalThis.fetch;
    await expect(load(gone)).rejects.toThrow('the server answered 404');
    const changed = { ...(sound() as object), version: 99 };
    const newer = (async () => Response.json(changed)) as typeof globalThis.fetch;
    await expect(load(newer)).rejects.toMatchObject({ code: 'format' });
  });
});

it('a place that cannot be read is done without', async () => {
  here.state.unreadable = true;
  const { fetch, calls } = server();
  const source = await Source.open(BASE, { fetch });
  expect(await source.read('vm.wasm')).toEqual(DATA);
  expect(await source.read('vm.wasm')).toEqual(DATA);
  expect(calls).toHaveLength(2);
  expect(told).toEqual([expect.stringContaining('the disk is broken')]);
});
