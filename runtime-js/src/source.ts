/** Where an artifact's files come from: kept or fetched, checked, counted. */

import { type Connection, download, receive, refusal, request } from './download.ts';
import { EdgeRelaxError, throwIfAborted } from './errors.ts';
import { type FileInfo, type Manifest, parseManifest } from './manifest.ts';
import { Patience } from './patience.ts';
import { type CacheOption, Store } from './store.ts';

export interface Progress {
  /** What goes on: files come, fetched or kept from an earlier load; pipelines are made. */
  readonly phase: 'fetch' | 'compile';
  /** Bytes that came or pipelines made, and how many there are in all. */
  readonly loaded: number;
  readonly total: number;
  /** The file or kernel that was finished last. */
  readonly item: string;
}

export interface SourceOptions extends Connection {
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  readonly cache?: CacheOption | undefined;
}

/** A folder's address. Throws `input` for what is none, such as a path where there is no page. */
function addressOf(url: string | URL): string {
  const page = globalThis.location?.href;
  try {
    return new URL(String(url).replace(/\/?$/, '/'), page).href;
  } catch (cause) {
    const hint = 'outside of pages give all of it, such as http://localhost:8000/model';
    throw new EdgeRelaxError('input', `${url} is no URL of a folder; ${hint}`, { cause });
  }
}

/** Fetches the files of one artifact folder; each is checked against the manifest. */
export class Source {
  readonly manifest: Manifest;
  readonly #base: string;
  readonly #store: Store;
  readonly #kept: Kept;
  #options: SourceOptions;
  #loaded = 0;
  #total = 0;

  private constructor(base: string, kept: Kept, store: Store, options: SourceOptions) {
    this.#base = base;
    this.#store = store;
    this.#kept = kept;
    this.manifest = parseManifest(kept.text, new URL('manifest.json', base).href);
    this.#options = options;
  }

  /**
   * Opens the folder at a URL, relative ones against the page. Where nothing answers, it is as it was
   * when it was last loaded.
   */
  static async open(url: string | URL, options: SourceOptions = {}): Promise<Source> {
    const base = addressOf(url);
    const where = new URL('manifest.json', base).href;
    const store = await Store.open(options.cache);
    const key = await keyOf(where);
    try {
      const text = await readText(where, options);
      return new Source(base, { key, text, isNew: true }, store, options);
    } catch (error) {
      const silent = error instanceof EdgeRelaxError && error.code === 'network' && error.cause;
      const kept = silent && key !== undefined ? await store.get(key) : undefined;
      if (!kept) throw error;
      const text = await new Response(kept).text();
      return new Source(base, { key, text, isNew: false }, store, options);
    }
  }

  /** The same folder with a signal and progress of its own; nothing is fetched. */
  also(options: Pick<SourceOptions, 'signal' | 'onProgress'>): Source {
    return new Source(this.#base, this.#kept, this.#store, { ...this.#options, ...options });
  }

  /** Says which files will be read, so that progress has a total. */
  expect(files: Iterable<string>): void {
    for (const name of new Set(files)) this.#total += this.#info(name).bytes;
  }

  /**
   * Says that all is loaded: the manifest is kept, after its files, for when nothing answers, and the
   * signal, which was given for loading, has no part in what is read later.
   */
  settle(): void {
    this.#options = { ...this.#options, signal: undefined };
    const { key, text, isNew } = this.#kept;
    if (isNew && key !== undefined) void this.#store.put(key, new TextEncoder().encode(text));
  }

  /** Resolves once the files that came are written to the browser's cache, or it has no room. */
  kept(): Promise<void> {
    return this.#store.written();
  }

  /** A file that came with the model, checked. */
  async asset(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const { assets } = this.manifest;
    if (!assets.includes(name)) {
      const known = assets.join(', ') || 'none';
      throw new EdgeRelaxError('input', `this artifact has no asset ${name}; it has ${known}`);
    }
    return this.read(name);
  }

  /** A file's bytes, checked: in `memory` if given, which must have room for them. */
  async read(name: string, memory?: ArrayBuffer): Promise<Uint8Array<ArrayBuffer>> {
    const info = this.#info(name);
    throwIfAborted(this.#options.signal);
    const data = new Uint8Array(memory ?? new ArrayBuffer(info.bytes), 0, info.bytes);
    const onBytes = this.#counter(name);
    if (!(await this.#restore(info, data, onBytes))) {
      await this.#fetch(name, info, data, onBytes);
      await this.#store.put(info.sha256, data);
    }
    throwIfAborted(this.#options.signal);
    return data;
  }

  /** Tells of each byte once, however often it comes. */
  #counter(item: string): (at: number) => void {
    let most = 0;
    return (at) => {
      if (at <= most) return;
      this.#loaded += at - most;
      most = at;
      const { onProgress } = this.#options;
      onProgress?.({ phase: 'fetch', loaded: this.#loaded, total: this.#total, item });
    };
  }

  /** Takes a file that an earlier load kept; false where there is none that is sound. */
  async #restore(
    info: FileInfo,
    data: Uint8Array<ArrayBuffer>,
    onBytes: (at: number) => void,
  ): Promise<boolean> {
    const kept = await this.#store.get(info.sha256);
    if (!kept) return false;
    const { at, broke } = await receive(kept, data, 0, this.#options.signal, onBytes);
    if (broke === undefined && at === data.length && (await intact(info, data))) return true;
    await this.#store.drop(info.sha256);
    return false;
  }

  async #fetch(
    name: string,
    info: FileInfo,
    data: Uint8Array<ArrayBuffer>,
    onBytes: (at: number) => void,
  ): Promise<void> {
    const url = new URL(name, this.#base);
    url.searchParams.set('v', info.sha256.slice(0, 16)); // a cache can't give another export's file
    const { href } = url;
    const { signal, fetch } = this.#options;
    const once = async (cache: RequestCache): Promise<void> => {
      await download({ url: href, name, cache, signal, fetch, onBytes }, data);
      if (!(await intact(info, data))) throw damaged(name);
    };
    try {
      await once(this.#store.keeps ? 'no-store' : 'default'); // the browser would keep it twice
    } catch (error) {
      throwIfAborted(signal);
      if (!(error instanceof EdgeRelaxError && error.code === 'integrity')) throw error;
      await once('reload'); // a cache on the way, or the seam of two parts, may be at fault
    }
  }

  #info(name: string): FileInfo {
    const { files } = this.manifest;
    const info = Object.hasOwn(files, name) ? files[name] : undefined;
    if (!info) throw new EdgeRelaxError('format', `the manifest does not list ${name}`);
    return info;
  }
}

/** A manifest's text, and what it is kept under. */
interface Kept {
  readonly key: string | undefined;
  readonly text: string;
  readonly isNew: boolean;
}

/** What an address is kept under; nothing is kept where a page has no hashes. */
async function keyOf(address: string): Promise<string | undefined> {
  if (!globalThis.crypto?.subtle) return undefined;
  return `manifest-${await hash(new TextEncoder().encode(address))}`;
}

/** A whole text. Throws `network`, with a cause where nothing answered. */
async function readText(where: string, options: SourceOptions): Promise<string> {
  const patience = new Patience(options.signal);
  const read = async (): Promise<string> => {
    const connection = { ...options, signal: patience.signal };
    const response = await request(where, connection, { cache: 'no-cache' });
    if (!response.ok) throw refusal(where, response.status);
    return response.text();
  };
  try {
    return await patience.of(read());
  } catch (cause) {
    throwIfAborted(options.signal);
    if (cause instanceof EdgeRelaxError && !patience.lost) throw cause;
    const why = patience.lost ?? 'the transfer broke off';
    throw new EdgeRelaxError('network', `${where}: ${why}; check the connection`, { cause });
  } finally {
    patience.end();
  }
}

function damaged(name: string): EdgeRelaxError {
  return new EdgeRelaxError(
    'integrity',
    `${name}: its sha256 is not the manifest's; it is damaged or of another export`,
  );
}

/** Checks the hash where the page may: outside a secure context there is no SubtleCrypto. */
async function intact(info: FileInfo, data: Uint8Array<ArrayBuffer>): Promise<boolean> {
  if (!globalThis.crypto?.subtle) return true;
  return (await hash(data)) === info.sha256;
}

/** SHA-256 in hexadecimal; only secure contexts have it. */
export async function hash(data: Uint8Array<ArrayBuffer>): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
