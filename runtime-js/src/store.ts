/** Files kept in the browser, by the hash of their bytes: what is found is never of another export. */

import { EdgeRelaxError } from './errors.ts';

/** Where files are kept: `auto` is the Cache API, else the origin's private file system, else nowhere. */
export type CacheOption = 'auto' | 'cache' | 'opfs' | 'none';

/** A place for files; `put` leaves a whole file or none. */
interface Shelf {
  get(key: string): Promise<ReadableStream<Uint8Array> | undefined>;
  put(key: string, file: Blob): Promise<void>;
  drop(key: string): Promise<void>;
}

const NAME = 'edgerelax';
const ORDER = { auto: ['cache', 'opfs'], cache: ['cache'], opfs: ['opfs'], none: [] } as const;
const OPENERS = { cache: openCache, opfs: openFolder };

/** A shelf whose failures never end a load: it is then done without, and said once. */
export class Store {
  #shelf: Shelf | undefined;
  #full = false;
  #writing: Promise<void> = Promise.resolve();

  private constructor(shelf: Shelf | undefined) {
    this.#shelf = shelf;
  }

  static async open(option: CacheOption = 'auto'): Promise<Store> {
    if (!Object.hasOwn(ORDER, option)) {
      const known = Object.keys(ORDER).join(', ');
      throw new EdgeRelaxError('input', `cache is ${String(option)}: one of ${known} is expected`);
    }
    let problem: unknown;
    for (const place of ORDER[option]) {
      try {
        return new Store(await OPENERS[place]());
      } catch (error) {
        problem = error; // also where the page has no such place, as those that are not secure
      }
    }
    if (problem !== undefined && option !== 'auto') warn(problem);
    return new Store(undefined);
  }

  /** Whether it would keep a file. */
  get keeps(): boolean {
    return this.#shelf !== undefined && !this.#full;
  }

  /** The bytes under a key, to be checked. */
  async get(key: string): Promise<ReadableStream<Uint8Array> | undefined> {
    try {
      return await this.#shelf?.get(key);
    } catch (error) {
      this.#shelf = undefined;
      warn(error);
      return undefined;
    }
  }

  /**
   * Keeps a file, until the first that there is no room for. It is copied at once and written after
   * those before it, for which this waits: each caller holds one file here, beside that being written.
   */
  put(key: string, data: Uint8Array<ArrayBuffer>): Promise<void> {
    const before = this.#writing;
    if (!this.keeps) return before;
    const file = new Blob([data]);
    this.#writing = before.then(() => {
      if (!this.#full) return this.#change((shelf) => shelf.put(key, file));
    });
    return before;
  }

  /** Resolves once all that was put is written, or there is no room for it. */
  written(): Promise<void> {
    return this.#writing;
  }

  /** Throws away what turned out to be broken. */
  async drop(key: string): Promise<void> {
    await this.#change((shelf) => shelf.drop(key));
  }

  async #change(work: (shelf: Shelf) => Promise<void>): Promise<void> {
    try {
      if (this.#shelf) await work(this.#shelf);
    } catch (error) {
      if (!this.#full) warn(error);
      this.#full = true;
    }
  }
}

/** Throws away all files that loads kept for this origin, of every model. */
export async function clearCache(): Promise<void> {
  await globalThis.caches?.delete(NAME);
  const root = await globalThis.navigator?.storage?.getDirectory?.();
  await root?.removeEntry(NAME, { recursive: true }).catch(unlessMissing);
}

async function openCache(): Promise<Shelf> {
  const cache = await caches.open(NAME);
  const address = (key: string): string => `https://edgerelax.invalid/${key}`; // never fetched
  return {
    get: async (key) => (await cache.match(address(key)))?.body ?? undefined,
    put: (key, file) => cache.put(address(key), new Response(file)),
    drop: async (key) => void (await cache.delete(address(key))),
  };
}

async function openFolder(): Promise<Shelf> {
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle(NAME, { create: true });
  const drop = (key: string): Promise<void> => folder.removeEntry(key).catch(unlessMissing);
  return {
    drop,
    get: async (key) => {
      const handle = await folder.getFileHandle(key).catch(unlessMissing);
      const file = await handle?.getFile();
      return file?.size ? file.stream() : undefined; // empty until what writes it closes it
    },
    put: async (key, file) => {
      const handle = await folder.getFileHandle(key, { create: true });
      try {
        const writable = await handle.createWritable(); // replaces the file when it is closed
        await writable.write(file);
        await writable.close();
      } catch (error) {
        await drop(key).catch(() => undefined); // the empty file; what failed first is told
        throw error;
      }
    },
  };
}

function unlessMissing(error: unknown): undefined {
  if ((error as Error | undefined)?.name !== 'NotFoundError') throw error;
}

function warn(cause: unknown): void {
  console.warn(`edgerelax: files are not kept for the next load: ${String(cause)}`);
}
