/** Files as images that a message may have. */

import { ToolError } from '../client.ts';

/** The runtime's limits (docs/chat-js.md). */
export const MOST_BYTES = 32 * 2 ** 20;
export const MOST_PIXELS = 64_000_000;

export interface Picture {
  /** A copy in memory: the file may change or go. */
  readonly file: Blob;
  /** Shows it in this page, until `forget`. */
  readonly url: string;
  readonly name: string;
}

/** Throws a ToolError that says what is wrong with a file that the model cannot be shown. */
export async function opened(file: File): Promise<Picture> {
  const refused = (why: string): ToolError => new ToolError('image', `“${file.name}” ${why}.`);
  if (file.size > MOST_BYTES) throw refused('is too large: images have at most 32 MiB');
  const none = 'is no image that this browser can open';
  const bytes = await file.arrayBuffer().catch(() => undefined);
  if (!bytes) throw refused('cannot be read');
  const copy = new Blob([bytes], { type: file.type });
  const url = URL.createObjectURL(copy);
  try {
    const image = new Image();
    image.src = url;
    const { naturalWidth: width, naturalHeight: height } = await loaded(image).catch(() => {
      throw refused(none);
    });
    if (width * height > MOST_PIXELS) {
      throw refused(`has ${width} × ${height} pixels: 64 million are the most`);
    }
    const pixels = await createImageBitmap(copy).catch(() => {
      throw refused(none); // elements show more than the runtime takes: parts, drawings
    });
    pixels.close();
  } catch (error) {
    URL.revokeObjectURL(url);
    throw error;
  }
  return { file: copy, url, name: file.name };
}

/** Waits until the size is known, which takes no memory yet. */
const loaded = (image: HTMLImageElement): Promise<HTMLImageElement> =>
  new Promise((resolve, reject) => {
    image.addEventListener('load', () => resolve(image));
    image.addEventListener('error', reject);
  });

export function forget(pictures: readonly Picture[]): void {
  for (const { url } of pictures) URL.revokeObjectURL(url);
}
