/** Images as requests give them, opened by the page: what is transparent becomes white. */

import { EdgeRelaxError, throwIfAborted } from '../errors.ts';
import { isRecord } from '../schema.ts';
import { MAX_PIXELS } from './images.ts';
import type { Pixels } from './resample.ts';
import type { ImageSource, RawImage } from './types.ts';

/** Of an image's file. */
export const MAX_BYTES = 32 * 2 ** 20;

/** Elements and bitmaps: what a canvas can draw. */
type Drawable = Exclude<ImageSource, Blob | RawImage>;

/** Whether this is an image of a kind that `opened` takes. */
export function isImage(value: unknown): value is ImageSource {
  return value instanceof Blob || isRaw(value) || isDrawable(value);
}

function isRaw(value: unknown): value is RawImage {
  return isRecord(value) && value['data'] instanceof Uint8ClampedArray;
}

/** Kinds that a page may lack: workers have no elements. */
const DRAWABLE = ['ImageBitmap', 'HTMLImageElement', 'HTMLCanvasElement', 'OffscreenCanvas'];

function isDrawable(value: unknown): value is Drawable {
  return DRAWABLE.some((name) => {
    const kind: unknown = (globalThis as Record<string, unknown>)[name];
    return typeof kind === 'function' && value instanceof kind;
  });
}

/**
 * An image's file, or its pixels where it is none. Throws `input` for what is no image or too large,
 * `network` for what cannot be fetched, and `abort`.
 */
export async function opened(
  given: ImageSource | string,
  signal: AbortSignal,
): Promise<Blob | Pixels> {
  throwIfAborted(signal);
  const file = typeof given === 'string' ? await fetched(given, signal) : given;
  if (file instanceof Blob) {
    if (file.size > MAX_BYTES) throw tooLarge();
    return file;
  }
  if (isRaw(file)) return ofRaw(file);
  const natural = 'naturalWidth' in file;
  const width = natural ? file.naturalWidth : file.width;
  return drawn(file, width, natural ? file.naturalHeight : file.height);
}

const refusal = (message: string, cause?: unknown): EdgeRelaxError =>
  new EdgeRelaxError('input', message, { cause });

const tooLarge = (): EdgeRelaxError => refusal(`an image has more than ${MAX_BYTES} bytes`);

function checkSize(width: number, height: number): void {
  if (width * height > 0 && width * height <= MAX_PIXELS) return;
  throw refusal(`an image of ${width}x${height} pixels; 1 to ${MAX_PIXELS} are taken`);
}

async function fetched(url: string, signal: AbortSignal): Promise<Blob> {
  const embedded = url.startsWith('data:');
  if (embedded && url.length > MAX_BYTES * 4) throw tooLarge(); // or percents would make it longer
  try {
    const response = await fetch(url, { signal });
    if (response.ok) return new Blob(await bytesOf(response));
    throw new EdgeRelaxError('network', `${url}: HTTP status ${response.status}`);
  } catch (cause) {
    throwIfAborted(signal);
    if (cause instanceof EdgeRelaxError) throw cause;
    if (embedded) throw refusal('a data: URL is damaged', cause);
    throw new EdgeRelaxError('network', `${url} could not be fetched`, { cause });
  }
}

/** What comes, up to where it is too much. */
async function bytesOf({ body }: Response): Promise<Uint8Array<ArrayBuffer>[]> {
  const reader = body?.getReader();
  const found: Uint8Array<ArrayBuffer>[] = [];
  for (let bytes = 0; reader;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes += value.length;
    if (bytes > MAX_BYTES) {
      await reader.cancel();
      throw tooLarge();
    }
    found.push(value);
  }
  return found;
}

/** The pixels of an image's file. Throws `input` for one that is damaged or too large. */
export async function decoded(file: Blob): Promise<Pixels> {
  if (typeof createImageBitmap !== 'function') {
    throw refusal('images cannot be decoded here; give { width, height, data } as ImageData has');
  }
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: 'none' }); // as Pillow has it
  } catch (cause) {
    throw refusal('the data is no image that can be read here, or it is damaged', cause);
  }
  try {
    return drawn(bitmap, bitmap.width, bitmap.height);
  } finally {
    bitmap.close();
  }
}

function drawn(image: Drawable, width: number, height: number): Pixels {
  checkSize(width, height);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  if (!context) throw new EdgeRelaxError('memory', `no canvas for ${width}x${height} pixels`);
  context.fillStyle = 'white';
  context.fillRect(0, 0, width, height);
  try {
    context.drawImage(image, 0, 0, width, height);
    return onWhite(context.getImageData(0, 0, width, height));
  } catch (cause) {
    throw refusal('an image cannot be read: it is broken, or of another origin', cause);
  }
}

function ofRaw(image: RawImage): Pixels {
  const { width, height, data } = image;
  checkSize(width, height);
  if (data.length === width * height * 4) return onWhite(image);
  throw refusal(`${data.length} bytes are no image of ${width}x${height} pixels of 4`);
}

function onWhite({ width, height, data }: RawImage): Pixels {
  const found = new Uint8Array(width * height * 3);
  for (let from = 0, to = 0; to < found.length; from += 4) {
    const alpha = data[from + 3] as number;
    for (let k = 0; k < 3; k++) {
      const value = data[from + k] as number;
      found[to++] = Math.round((value * alpha + 255 * (255 - alpha)) / 255);
    }
  }
  return { width, height, data: found };
}
