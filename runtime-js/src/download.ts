/** One file over HTTP: a transfer that breaks off or stands still goes on from where it was. */

import { EdgeRelaxError, throwIfAborted } from './errors.ts';
import { Patience } from './patience.ts';

export interface Connection {
  readonly signal?: AbortSignal | undefined;
  readonly fetch?: typeof fetch | undefined;
}

export interface Transfer extends Connection {
  readonly url: string;
  /** What errors call the file. */
  readonly name: string;
  readonly cache: RequestCache;
  /** Told how many of the file's bytes are there: fewer than before where it is read anew. */
  readonly onBytes: (at: number) => void;
}

/** How many bytes are there, and what broke the transfer off, if it did not come to an end. */
interface Step {
  readonly at: number;
  readonly broke?: unknown;
}

const PIECE = 1 << 18; // bytes
const PAUSES = [500, 1000, 2000]; // ms before each try since bytes last came

/**
 * Fills `into` with a file of just that size. Throws `network` where the server refuses or no try
 * brings more, `integrity` where the file has another size.
 */
export async function download(file: Transfer, into: Uint8Array<ArrayBuffer>): Promise<void> {
  let at = 0;
  let most = 0;
  for (let failures = 0; ;) {
    const step = await advance(file, into, at);
    at = step.at;
    if (at === into.length && (at > 0 || step.broke === undefined)) return;
    if (at > most) failures = 0;
    else if (step.broke === undefined) throw tooShort(file.name, at, into.length);
    most = Math.max(most, at);
    if (step.broke === undefined) continue;
    const pause = PAUSES[failures++];
    if (pause === undefined) throw step.broke;
    await sleep(pause, file.signal);
  }
}

/** One request, from the byte `from` on where the server can; given up where no bytes come. */
async function advance(file: Transfer, into: Uint8Array<ArrayBuffer>, from: number): Promise<Step> {
  const patience = new Patience(file.signal);
  let at = from;
  const onBytes = (reached: number): void => {
    patience.renew();
    at = reached;
    file.onBytes(reached);
  };
  try {
    return await patience.of(transfer({ ...file, signal: patience.signal, onBytes }, into, from));
  } catch (error) {
    throwIfAborted(file.signal);
    if (!patience.lost) throw error;
    const message = `${file.name}: ${patience.lost} behind byte ${at}; check the connection`;
    return { at, broke: new EdgeRelaxError('network', message) };
  } finally {
    patience.end();
  }
}

async function transfer(
  file: Transfer,
  into: Uint8Array<ArrayBuffer>,
  from: number,
): Promise<Step> {
  const { url, name, signal, onBytes } = file;
  const init: RequestInit =
    from > 0 ? { headers: { Range: `bytes=${from}-` }, cache: 'no-store' } : { cache: file.cache };
  let response: Response;
  try {
    response = await request(url, file, init);
  } catch (broke) {
    throwIfAborted(signal);
    return { at: from, broke };
  }
  const { status } = response;
  if (!response.ok) {
    await response.body?.cancel();
    if (status === 416 && from > 0) throw tooShort(name, from, into.length);
    const broke = refusal(url, status);
    if (status >= 500 || status === 408 || status === 429) return { at: from, broke };
    throw broke;
  }
  const start = status === 206 ? startOf(response, from) : 0;
  if (!response.body || start > from) {
    throw new EdgeRelaxError('network', `${name}: an empty answer, or of other bytes`);
  }
  const step = await receive(response.body, into, start, signal, onBytes);
  if (step.at > into.length) throw tooLong(name, into.length);
  if (step.broke === undefined) return step;
  const message = `${name}: the transfer broke off at byte ${step.at}`;
  return { at: step.at, broke: new EdgeRelaxError('network', message, { cause: step.broke }) };
}

/** Where an answer of a part begins. Other origins may hide it: then where it was asked to. */
function startOf(response: Response, asked: number): number {
  const found = /^bytes (\d+)-/.exec(response.headers.get('Content-Range') ?? '');
  return found ? Number(found[1]) : asked;
}

/** Puts a stream's bytes into `into` from `at` on; `at` is beyond its end where there are too many. */
export async function receive(
  stream: ReadableStream<Uint8Array>,
  into: Uint8Array<ArrayBuffer>,
  at: number,
  signal: AbortSignal | undefined,
  onBytes: (at: number) => void,
): Promise<Step> {
  const reader = pieces(stream);
  let ended = false;
  try {
    for (;;) {
      throwIfAborted(signal);
      let got: ReadableStreamReadResult<Uint8Array>;
      try {
        got = await reader.read();
      } catch (broke) {
        ended = true;
        throwIfAborted(signal);
        return { at, broke: broke ?? 'no reason given' };
      }
      ended = got.done;
      throwIfAborted(signal); // the memory may be another's by now
      if (got.done) return { at };
      if (at + got.value.length > into.length) return { at: at + got.value.length };
      into.set(got.value, at);
      at += got.value.length;
      onBytes(at);
    }
  } finally {
    if (!ended) await reader.cancel().catch(() => undefined);
  }
}

interface Pieces {
  read(): Promise<ReadableStreamReadResult<Uint8Array>>;
  cancel(): Promise<void>;
}

/** A stream's pieces, each valid until the next; in the same memory again where the stream can. */
function pieces(stream: ReadableStream<Uint8Array>): Pieces {
  let reader: ReadableStreamBYOBReader;
  try {
    reader = stream.getReader({ mode: 'byob' });
  } catch {
    return stream.getReader(); // of a kind, or in a browser, that brings memory of its own
  }
  let memory = new ArrayBuffer(PIECE);
  return {
    cancel: () => reader.cancel(),
    read: async () => {
      const got = await reader.read(new Uint8Array(memory));
      if (got.done) return { done: true, value: undefined };
      memory = got.value.buffer as ArrayBuffer;
      return got;
    },
  };
}

/** An answer, whatever it says; throws `network` where there is none. */
export async function request(
  url: string,
  { signal, fetch: call = fetch }: Connection,
  init: RequestInit,
): Promise<Response> {
  throwIfAborted(signal);
  try {
    return await call(url, { ...init, signal: signal ?? null });
  } catch (cause) {
    throwIfAborted(signal);
    throw new EdgeRelaxError('network', `${url} could not be fetched; check the address`, {
      cause,
    });
  }
}

export function refusal(url: string, status: number): EdgeRelaxError {
  return new EdgeRelaxError('network', `${url}: the server answered ${status}`);
}

function tooShort(name: string, at: number, bytes: number): EdgeRelaxError {
  return new EdgeRelaxError(
    'integrity',
    `${name}: ${at} bytes came, the manifest says ${bytes}; copy the folder again`,
  );
}

function tooLong(name: string, bytes: number): EdgeRelaxError {
  return new EdgeRelaxError(
    'integrity',
    `${name}: longer than the ${bytes} bytes of the manifest; copy the folder again`,
  );
}

/** Waits, but not past an abort. */
async function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  throwIfAborted(signal);
  await new Promise<void>((resolve) => {
    const wake = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', wake);
      resolve();
    };
    const timer = setTimeout(wake, milliseconds);
    signal?.addEventListener('abort', wake);
  });
  throwIfAborted(signal);
}
