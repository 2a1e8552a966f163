import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { download } from '../src/download.ts';

const URL = 'https://host/file';
const SOUND = new Uint8Array(1000).map((_, k) => k * 7);

/** What one request is answered with: bytes until `end`, and there it ends or breaks. */
interface Answer {
  readonly status?: number;
  readonly end?: number;
  readonly breaks?: boolean;
  /** The server knows no ranges. */
  readonly whole?: boolean;
  /** The answer says where it begins; other origins hide that. */
  readonly told?: boolean;
  /** Where it begins, if not where it was asked to. */
  readonly start?: number;
  readonly refuses?: boolean;
}

/** A server that answers in this order; the last answer is for all that comes after. */
function server(...answers: Answer[]) {
  const calls: { range: string | null; cache: RequestCache | undefined }[] = [];
  const fetch = (async (_: RequestInfo | URL, init: RequestInit = {}) => {
    const range = new Headers(init.headers).get('Range');
    const answer = answers[Math.min(calls.length, answers.length - 1)]!;
    calls.push({ range, cache: init.cache });
    init.signal?.throwIfAborted();
    if (answer.refuses) throw new TypeError('Failed to fetch');
    if (answer.status) return new Response('no', { status: answer.status });
    const part = range !== null && !answer.whole;
    const start = part ? (answer.start ?? Number(/\d+/.exec(range)![0])) : 0;
    const headers: Record<string, string> =
      part && (answer.told ?? true) ? { 'Content-Range': `bytes ${start}-999/1000` } : {};
    const body = stream(start, answer, init.signal);
    return new Response(body, { status: part ? 206 : 200, headers });
  }) as typeof globalThis.fetch;
  return { fetch, calls };
}

function stream(
  from: number,
  { end = SOUND.length, breaks }: Answer,
  signal: AbortSignal | null | undefined,
): ReadableStream {
  let at = from;
  return new ReadableStream(
    {
      pull(controller) {
        const next = Math.min(end, at + 100);
        if (signal?.aborted) controller.error(signal.reason);
        else if (next > at) controller.enqueue(SOUND.slice(at, next));
        else if (breaks) controller.error(new TypeError('network error'));
        else controller.close();
        at = Math.max(at, next);
      },
    },
    { highWaterMark: 0 },
  );
}

let pauses: number[] = [];
let impatient: (() => void)[] = []; // timers of connections, in the order in which they were set

beforeEach(() => {
  pauses = [];
  impatient = [];
  vi.stubGlobal('setTimeout', (wake: () => void, milliseconds: number) => {
    if (milliseconds === 30_000) return impatient.push(wake);
    pauses.push(milliseconds);
    queueMicrotask(wake);
  });
  vi.stubGlobal('clearTimeout', (timer: number | undefined) => {
    if (timer !== undefined) impatient[timer - 1] = () => undefined;
  });
});
afterEach(() => vi.unstubAllGlobals());

function get(fetch: typeof globalThis.fetch, more: Partial<Parameters<typeof download>[0]> = {}) {
  const into = new Uint8Array(SOUND.length);
  const file = { url: URL, name: 'file', cache: 'default', onBytes: () => undefined } as const;
  return download({ ...file, fetch, ...more }, into).then(() => into);
}

describe('a broken transfer', () => {
  it.each([true, false])('goes on from where it broke (told of where: %s)', async (told) => {
    const { fetch, calls } = server(
      { end: 350, breaks: true },
      { told, end: 800, breaks: true },
      { told },
    );
    expect(await get(fetch)).toEqual(SOUND);
    expect(calls).toEqual([
      { range: null, cache: 'default' },
      { range: 'bytes=350-', cache: 'no-store' },
      { range: 'bytes=800-', cache: 'no-store' },
    ]);
    expect(pauses).toEqual([500, 500]); // bytes came in between
  });

  it('goes on after an answer that ends too early', async () => {
    const { fetch, calls } = server({ end: 350 }, {});
    expect(await get(fetch)).toEqual(SOUND);
    expect(calls.map((call) => call.range)).toEqual([null, 'bytes=350-']);
  });

  it('is read anew from a server that knows no ranges', async () => {
    const { fetch, calls } = server({ end: 350, breaks: true }, { whole: true });
    const seen: number[] = [];
    expect(await get(fetch, { onBytes: (at) => seen.push(at) })).toEqual(SOUND);
    expect(calls).toHaveLength(2);
    expect(seen.slice(0, 5)).toEqual([100, 200, 300, 350, 100]);
  });

  it('takes a part that begins earlier, and refuses one that leaves a hole', async () => {
    const earlier = server({ end: 350, breaks: true }, { start: 300 });
    expect(await get(earlier.fetch)).toEqual(SOUND);
    const later = server({ end: 350, breaks: true }, { start: 400 });
    await expect(get(later.fetch)).rejects.toMatchObject({ code: 'network' });
  });

  it('is enough if all bytes came before it broke', async () => {
    const { fetch, calls } = server({ breaks: true });
    expect(await get(fetch)).toEqual(SOUND);
    expect(calls).toHaveLength(1);
  });

  it('is given up where tries bring nothing more', async () => {
    const { fetch, calls } = server({ end: 350, breaks: true });
    await expect(get(fetch)).rejects.toMatchObject({
      code: 'network',
      message: 'file: the transfer broke off at byte 350',
    });
    expect(calls).toHaveLength(4);
    expect(pauses).toEqual([500, 1000, 2000]);
  });
});

describe('a server', () => {
  it.each<[string, Answer]>([
    ['cannot be reached', { refuses: true }],
    ['is busy', { status: 503 }],
    ['asks for patience', { status: 429 }],
  ])('that %s for a while is asked again', async (_, answer) => {
    const { fetch, calls } = server(answer, answer, { end: 100, breaks: true }, answer, {});
    expect(await get(fetch)).toEqual(SOUND);
    expect(calls.map((call) => call.range)).toEqual([null, null, null, 'bytes=100-', 'bytes=100-']);
    const never = server(answer);
    await expect(get(never.fetch)).rejects.toMatchObject({ code: 'network' });
    expect(never.calls).toHaveLength(4);
  });

  it('that refuses is not asked again', async () => {
    const { fetch, calls } = server({ status: 404 });
    await expect(get(fetch)).rejects.toMatchObject({ code: 'network' });
    expect(calls).toHaveLength(1);
  });

  it.each<[string, Answer]>([
    ['has no such range', { status: 416 }],
    ['has no more', { end: 350 }],
    ['has no more and no ranges', { end: 350, whole: true }],
  ])('that %s has another file', async (_, answer) => {
    const { fetch, calls } = server({ end: 350 }, answer);
    await expect(get(fetch)).rejects.toMatchObject({
      code: 'integrity',
      message: expect.stringContaining('350 bytes came, the manifest says 1000') as string,
    });
    expect(calls).toHaveLength(2);
    expect(pauses).toEqual([]);
  });
});

describe('a connection over which nothing comes any more', () => {
  /** Answers whose bytes come to a halt, until the caller gives up or, where it is deaf, for ever. */
  function halting(deaf: boolean, ...ends: number[]) {
    const ranges: (string | null)[] = [];
    const fetch = (async (_: RequestInfo | URL, init: RequestInit = {}) => {
      const range = new Headers(init.headers).get('Range');
      const end = ends[Math.min(ranges.length, ends.length - 1)]!;
      ranges.push(range);
      if (end === 0) await new Promise(() => undefined); // not even headers
      const start = Number(/\d+/.exec(range ?? '0')![0]);
      const body = new ReadableStream({
        start(controller) {
          if (end > start) controller.enqueue(SOUND.slice(start, end));
          if (end === SOUND.length) controller.close();
          if (!deaf) init.signal!.addEventListener('abort', () => controller.error(new Error()));
        },
      });
      const headers = { 'Content-Range': `bytes ${start}-999/1000` };
      return new Response(body, range === null ? {} : { status: 206, headers });
    }) as typeof globalThis.fetch;
    return { fetch, ranges };
  }

  /** Lets all time pass whenever nothing goes on. */
  async function late<T>(work: Promise<T>): Promise<T> {
    let over = false;
    const end = (): void => void (over = true);
    work.then(end, end);
    while (!over) {
      await new Promise((resolve) => setImmediate(resolve));
      for (const wake of impatient) wake();
    }
    return work;
  }

  it.each([false, true])('is given up and made anew (deaf to aborts: %s)', async (deaf) => {
    const { fetch, ranges } = halting(deaf, 0, 300, 700, SOUND.length);
    expect(await late(get(fetch))).toEqual(SOUND);
    expect(ranges).toEqual([null, null, 'bytes=300-', 'bytes=700-']);
  });

  it('is told of where none brings more', async () => {
    const { fetch, ranges } = halting(true, 300);
    await expect(late(get(fetch))).rejects.toMatchObject({
      code: 'network',
      message: 'file: nothing came for 30 s behind byte 300; check the connection',
    });
    expect(ranges).toHaveLength(4);
  });

  it('waits as long as bytes come', async () => {
    const { fetch } = server({});
    await get(fetch);
    const set = impatient.length;
    expect(set).toBe(SOUND.length / 100 + 1);
    for (const wake of impatient) wake(); // all of them are cleared
  });
});

describe('an abort', () => {
  it('ends a pause', async () => {
    const stop = new AbortController();
    vi.stubGlobal('setTimeout', (_: unknown, milliseconds: number) => {
      if (milliseconds < 30_000) queueMicrotask(() => stop.abort(new Error('enough')));
    });
    const { fetch, calls } = server({ end: 350, breaks: true });
    await expect(get(fetch, { signal: stop.signal })).rejects.toMatchObject({
      code: 'abort',
      cause: { message: 'enough' },
    });
    expect(calls).toHaveLength(1);
  });

  it('between two pieces ends the transfer, whatever the server does', async () => {
    const stop = new AbortController();
    let cancelled = false;
    const body = new ReadableStream({
      pull: (controller) => controller.enqueue(new Uint8Array(10)),
      cancel: () => void (cancelled = true),
    });
    const fetch = (async () => new Response(body)) as typeof globalThis.fetch;
    const onBytes = (at: number): void => {
      if (at === 50) stop.abort();
    };
    await expect(get(fetch, { signal: stop.signal, onBytes })).rejects.toMatchObject({
      code: 'abort',
    });
    expect(cancelled).toBe(true);
  });
});
