/**
 * Images as a model sees them, kept for when they come again: a conversation is sent whole each turn.
 * Images are told apart by their bytes, so that those that are sent to a worker anew are found too.
 */

import { hash } from '../source.ts';
import { type ImagePlan, type Seen, seenOf } from './images.ts';
import { decoded, opened } from './opening.ts';
import type { Pixels } from './resample.ts';
import type { ImageSource } from './types.ts';

const MOST_BYTES = 64 * 2 ** 20;

interface Kept {
  readonly seen: Seen;
  readonly bytes: number;
  /** The number of the request that had it last. */
  readonly request: number;
}

export class Album {
  readonly plan: ImagePlan;
  readonly #most: number;
  readonly #kept = new Map<string, Kept>(); // the least recently used first
  #bytes = 0;
  #requests = 0;
  #closed = false;

  /** Keeps up to `most` bytes of pixels. */
  constructor(plan: ImagePlan, most = MOST_BYTES) {
    this.plan = plan;
    this.#most = most;
  }

  /** A number for a request: room for its images is not taken from one another. */
  request(): number {
    return ++this.#requests;
  }

  /** What the model sees of an image. Throws as `opened`, `decoded` and `seenOf` do. */
  async seen(given: ImageSource | string, request: number, signal: AbortSignal): Promise<Seen> {
    const image = await opened(given, signal);
    const key = await keyOf(image);
    const known = this.#kept.get(key ?? '')?.seen;
    const seen = known ?? seenOf(image instanceof Blob ? await decoded(image) : image, this.plan);
    if (key !== undefined) this.#keep(key, seen, request);
    return seen;
  }

  /** Drops all, and keeps nothing more. */
  close(): void {
    this.#closed = true;
    this.#kept.clear();
  }

  #keep(key: string, seen: Seen, request: number): void {
    this.#drop(key);
    const bytes = seen.tiles.reduce((sum, tile) => sum + tile.data.length, 0);
    if (this.#closed || bytes > this.#most) return;
    for (const [other, kept] of this.#kept) {
      if (this.#bytes + bytes <= this.#most) break;
      if (kept.request < request) this.#drop(other);
    }
    if (this.#bytes + bytes > this.#most) return;
    this.#kept.set(key, { seen, bytes, request });
    this.#bytes += bytes;
  }

  #drop(key: string): void {
    this.#bytes -= this.#kept.get(key)?.bytes ?? 0;
    this.#kept.delete(key);
  }
}

/** What tells an image from others; outside a secure context there are no digests, nothing is kept. */
async function keyOf(image: Blob | Pixels): Promise<string | undefined> {
  if (!globalThis.crypto?.subtle) return undefined;
  if (image instanceof Blob) {
    const bytes = await image.arrayBuffer().catch(() => undefined); // decoding says what is wrong
    return bytes && hash(new Uint8Array(bytes));
  }
  return `${image.width}x${image.height} ${await hash(image.data.slice())}`;
}
