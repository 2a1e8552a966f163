/**
 * What tokens of a prompt stand for where it has images, and which of it the device has. A tile's
 * vectors are made when the prompt gets to it and may go when others need their place: keys and
 * values of its tokens are in the cache then. So few places are enough, however many tiles there are.
 */

import { EdgeRelaxError } from '../errors.ts';
import type { LanguageInfo, Manifest } from '../manifest.ts';
import type { TensorData } from '../tensors.ts';
import { tensor } from './drawing.ts';
import type { Picture } from './engine.ts';
import { nameOf } from './names.ts';

const STATE = 'images';

/** Red, green and blue of its pixels, row by row, and what tells it from others. */
interface Tile {
  readonly pixels: Uint8Array;
  readonly id: string;
}

async function tileOf({ pixels, id }: Picture): Promise<Tile> {
  return { pixels, id: id ?? (await nameOf(pixels)) };
}

/** The tiles of a prompt by the places of their tokens. */
export class Sights {
  static readonly none = new Sights([], []);
  readonly #at = new Map<number, readonly [tile: Tile, number: number]>();

  private constructor(tiles: readonly Tile[], pictures: readonly Picture[]) {
    for (const [k, tile] of tiles.entries()) {
      for (const [number, place] of (pictures[k]?.places ?? []).entries()) {
        this.#at.set(place, [tile, number]);
      }
    }
  }

  static async of(pictures: readonly Picture[]): Promise<Sights> {
    return new Sights(await Promise.all(pictures.map(tileOf)), pictures);
  }

  /** The tiles that tokens from one place to before another stand for. */
  of(start: number, stop: number): readonly Tile[] {
    if (this.#at.size === 0) return [];
    const places = Array.from({ length: stop - start }, (_, k) => this.#at.get(start + k)?.[0]);
    return [...new Set(places)].filter((tile) => tile !== undefined);
  }

  /** What tells the images in a range from others. */
  marks(start: number, stop: number): string {
    return this.of(start, stop)
      .map(({ id }) => id)
      .join();
  }

  /** The row of vectors that the token in a place stands for, if it does. */
  token(place: number, eyes: Eyes): number | undefined {
    const found = this.#at.get(place);
    return found && eyes.token(...found);
  }
}

/** Vectors of tiles in a state of the device. The least recently used go first. */
export class Eyes {
  readonly #language: LanguageInfo;
  readonly #state: string;
  /** Tokens of a tile; how many tiles there is room for; pixels of a tile's side. */
  readonly #tokens: number;
  readonly #count: number;
  readonly #side: number;
  readonly #places = new Map<string, number>(); // the least recently used first
  #free: number[] = [];

  private constructor(manifest: Manifest, language: LanguageInfo, most: readonly number[]) {
    const [chunk = 0, texts = 0] = most;
    const see = manifest.functions.find(({ name }) => name === language.functions['see']);
    const rows = manifest.states.find(({ name }) => name === STATE)?.shape?.[0];
    const side = see?.inputs.find(({ name }) => name === 'pixels')?.shape?.[1];
    if (typeof rows !== 'string' || typeof side !== 'number') {
      const what = 'this model sees images in a way that this version does not know';
      throw new EdgeRelaxError('format', `${what}; export it again`);
    }
    this.#language = language;
    this.#state = rows;
    this.#tokens = manifest.symbols[rows]?.multiple_of ?? 1;
    this.#count = Math.max(Math.floor(chunk / this.#tokens) + 2, texts);
    this.#side = side;
    this.forget();
  }

  /**
   * Room for all tiles that a step of so many tokens, or of so many texts, may need; none for a model
   * that sees nothing.
   */
  static of(
    manifest: Manifest,
    language: LanguageInfo,
    chunk: number,
    texts: number,
  ): Eyes | undefined {
    if (!Object.hasOwn(language.functions, 'see')) return undefined;
    return new Eyes(manifest, language, [chunk, texts]);
  }

  /** The size of the state. */
  get sizes(): Record<string, number> {
    return { [this.#state]: this.#count * this.#tokens };
  }

  /** Throws `input` for tiles that the model does not take. */
  check(pictures: readonly Picture[]): void {
    const bytes = this.#side ** 2 * 3;
    const odd = pictures.find((p) => p.pixels.length !== bytes || p.places.length !== this.#tokens);
    if (!odd) return;
    const found = `${odd.pixels.length} bytes and ${odd.places.length} tokens`;
    const wanted = `${bytes} bytes and ${this.#tokens} tokens`;
    throw new EdgeRelaxError('input', `a tile of ${found}; this model takes ${wanted}`);
  }

  /** Gives tiles places; gives what makes the vectors of those that had none, if there are any. */
  see(tiles: readonly Tile[]): Record<string, TensorData> | undefined {
    const wanted = new Map(tiles.map((tile) => [tile.id, tile]));
    const missing = [...wanted.values()].filter(({ id }) => !this.#use(id));
    if (missing.length === 0) return undefined;
    for (const [id, place] of this.#places) {
      if (this.#free.length >= missing.length) break;
      this.#places.delete(id);
      this.#free.push(place);
    }
    const places = this.#free.splice(-missing.length);
    const pixels = new Uint8Array(missing.length * this.#side ** 2 * 3);
    for (const [k, tile] of missing.entries()) {
      this.#places.set(tile.id, places[k] as number);
      pixels.set(tile.pixels, k * this.#side ** 2 * 3);
    }
    return {
      pixels: tensor(pixels, missing.length, this.#side, this.#side, 3),
      places: tensor(Int32Array.from(places), missing.length),
    };
  }

  /** Whether a tile has a place, which is the most recently used one then. */
  #use(id: string): boolean {
    const place = this.#places.get(id);
    if (place === undefined) return false;
    this.#places.delete(id);
    this.#places.set(id, place);
    return true;
  }

  /** The token that stands for a vector of a tile that has a place. */
  token({ id }: Tile, number: number): number {
    const place = this.#places.get(id) as number;
    return this.#language.vocabulary + place * this.#tokens + number;
  }

  /** What the device has is not known any more. */
  forget(): void {
    this.#places.clear();
    this.#free = Array.from({ length: this.#count }, (_, k) => this.#count - 1 - k);
  }
}
