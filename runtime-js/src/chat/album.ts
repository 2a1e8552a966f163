/**
 * Images as a model sees them, kept for when they come again: a conversation is sent whole each turn.
 * Images are told apart by their bytes, so that those that are sent to a worker anew are found too.
 */

import { type ImagePlan, type Seen, seenOf } from './images.ts';
import { hasDigests, nameOf } from './names.ts';
import { decoded, opened } from './opening.ts';
import type { Pixels } from './resample.ts';
import type { ImageSource } from './types.ts';

const MOST_BYTES = 64 * 2 ** 20;

/** With what tells each tile from others. */
export interface Named extends Seen {
  readonly ids: readonly string[];
}

/** What an image is of, and its size where these are pixels. */
interface Original {
  readonly size: string;
  readonly bytes: Uint8Array;
}

interface Kept {
  readonly seen: Named;
  /** Where there are no digests: what is compared. */
  readonly original: Original | undefined;
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
  async seen(given: ImageSource | string, request: number, signal: AbortSignal): Promise<Named> {
    const image = await opened(given, signal);
    const original = await originalOf(image);
    const key = original && (await this.#keyOf(original));
    const known = this.#kept.get(key ?? '')?.seen;
    const seen = known ?? (await named(image, this.plan));
    if (key !== undefined) this.#keep(key, seen, request, hasDigests() ? undefined : original);
    return seen;
  }

  /** Drops all, and keeps nothing more. */
  close(): void {
    this.#closed = true;
    this.#kept.clear();
  }

  async #keyOf({ size, bytes }: Original): Promise<string> {
    const like = ({ original }: Kept): boolean =>
      original?.size === size && isSame(original.bytes, bytes);
    const found = hasDigests() ? undefined : [...this.#kept].find(([, kept]) => like(kept));
    return found?.[0] ?? `${size} ${await nameOf(bytes)}`;
  }

  #keep(key: string, seen: Named, request: number, original: Original | undefined): void {
    this.#drop(key);
    const tiles = seen.tiles.reduce((sum, tile) => sum + tile.data.length, 0);
    const bytes = tiles + (original?.bytes.length ?? 0);
    if (this.#closed || bytes > this.#most) return;
    for (const [other, kept] of this.#kept) {
      if (this.#bytes + bytes <= this.#most) break;
      if (kept.request < request) this.#drop(other);
    }
    if (this.#bytes + bytes > this.#most) return;
    this.#kept.set(key, { seen, original, bytes, request });
    this.#bytes += bytes;
  }

  #drop(key: string): void {
    this.#bytes -= this.#kept.get(key)?.bytes ?? 0;
    this.#kept.delete(key);
  }
}

/** The bytes of an image; undefined where they can't be read: decoding says what is wrong. */
async function originalOf(image: Blob | Pixels): Promise<Original | undefined> {
  if (!(image instanceof Blob)) {
    return { size: `${image.width}x${image.height}`, bytes: image.data.slice() };
  }
  const bytes = await image.arrayBuffer().catch(() => undefined);
  return bytes && { size: '', bytes: new Uint8Array(bytes) };
}

async function named(image: Blob | Pixels, plan: ImagePlan): Promise<Named> {
  const seen = seenOf(image instanceof Blob ? await decoded(image) : image, plan);
  return { ...seen, ids: await Promise.all(seen.tiles.map(({ data }) => nameOf(data))) };
}

function isSame(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((value, k) => value === b[k]);
}
