/** Where an artifact's files come from: fetched, checked, counted. */

import { EdgeRelaxError, throwIfAborted } from './errors.ts';
import { type FileInfo, type Manifest, parseManifest } from './manifest.ts';

export interface Progress {
  /** What goes on: files are fetched, pipelines are made. */
  readonly phase: 'fetch' | 'compile';
  /** Bytes fetched or pipelines made, and how many there are in all. */
  readonly loaded: number;
  readonly total: number;
  /** The file or kernel that was finished last. */
  readonly item: string;
}

export interface SourceOptions {
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  readonly fetch?: typeof fetch | undefined;
}

/** Fetches the files of one artifact folder; each is checked against the manifest. */
export class Source {
  readonly manifest: Manifest;
  readonly #base: string;
  #options: SourceOptions;
  #loaded = 0;
  #total = 0;

  private constructor(base: string, manifest: Manifest, options: SourceOptions) {
    this.#base = base;
    this.manifest = manifest;
    this.#options = options;
  }

  /** Opens the folder at a URL, relative ones against the page. */
  static async open(url: string | URL, options: SourceOptions = {}): Promise<Source> {
    const page = globalThis.location?.href;
    const base = new URL(String(url).replace(/\/?$/, '/'), page).href;
    const where = new URL('manifest.json', base).href;
    const response = await get(where, options, 'no-cache');
    return new Source(base, parseManifest(await response.text(), where), options);
  }

  /** Says which files will be read, so that progress has a total. */
  expect(files: Iterable<string>): void {
    for (const name of new Set(files)) this.#total += this.#info(name).bytes;
  }

  /** Lets go of the signal: it was given for loading, and files may be read again later. */
  settle(): void {
    this.#options = { ...this.#options, signal: undefined };
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

  /** A file's bytes, checked. */
  async read(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const info = this.#info(name);
    const url = new URL(name, this.#base);
    url.searchParams.set('v', info.sha256.slice(0, 16)); // a cache can't give another export's file
    const response = await get(url.href, this.#options, 'default');
    const data = await this.#receive(name, info, response);
    await verify(name, info, data);
    return data;
  }

  async #receive(
    name: string,
    info: FileInfo,
    response: Response,
  ): Promise<Uint8Array<ArrayBuffer>> {
    const data = new Uint8Array(info.bytes);
    if (!response.body) throw new EdgeRelaxError('network', `${name}: an empty answer`);
    const reader = response.body.getReader();
    let at = 0;
    for (;;) {
      const { done, value } = await reader.read().catch((cause: unknown) => {
        throwIfAborted(this.#options.signal);
        throw new EdgeRelaxError('network', `${name}: the transfer broke off at byte ${at}`, {
          cause,
        });
      });
      if (done) break;
      if (at + value.length > data.length) {
        await reader.cancel();
        throw tooLong(name, info);
      }
      data.set(value, at);
      at += value.length;
      this.#loaded += value.length;
      const { onProgress } = this.#options;
      onProgress?.({ phase: 'fetch', loaded: this.#loaded, total: this.#total, item: name });
    }
    if (at !== data.length) {
      throw new EdgeRelaxError(
        'integrity',
        `${name}: ${at} bytes came, the manifest says ${info.bytes}; copy the folder again`,
      );
    }
    return data;
  }

  #info(name: string): FileInfo {
    const { files } = this.manifest;
    const info = Object.hasOwn(files, name) ? files[name] : undefined;
    if (!info) throw new EdgeRelaxError('format', `the manifest does not list ${name}`);
    return info;
  }
}

function tooLong(name: string, info: FileInfo): EdgeRelaxError {
  return new EdgeRelaxError(
    'integrity',
    `${name}: longer than the ${info.bytes} bytes of the manifest; copy the folder again`,
  );
}

async function get(url: string, options: SourceOptions, cache: RequestCache): Promise<Response> {
  throwIfAborted(options.signal);
  const call = options.fetch ?? fetch;
  let response: Response;
  try {
    response = await call(url, { signal: options.signal ?? null, cache });
  } catch (cause) {
    throwIfAborted(options.signal);
    throw new EdgeRelaxError('network', `${url} could not be fetched; check the address`, {
      cause,
    });
  }
  if (!response.ok) {
    throw new EdgeRelaxError('network', `${url}: the server answered ${response.status}`);
  }
  return response;
}

/** Checks the hash where the page may: outside a secure context there is no SubtleCrypto. */
async function verify(name: string, info: FileInfo, data: Uint8Array<ArrayBuffer>): Promise<void> {
  if (!globalThis.crypto?.subtle) return;
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', data));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
  if (hex !== info.sha256) {
    throw new EdgeRelaxError(
      'integrity',
      `${name}: its sha256 is not the manifest's; it is damaged or of another export`,
    );
  }
}
