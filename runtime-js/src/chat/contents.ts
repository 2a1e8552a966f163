/** Images of messages: opened, and their places in what a template has made of the messages. */

import { EdgeRelaxError } from '../errors.ts';
import type { Album, Named } from './album.ts';
import type { Picture } from './engine.ts';
import { type ImagePlan, textOf } from './images.ts';
import type { ContentPart, Message } from './types.ts';

/** A part and the place that errors name. */
type Placed = readonly [part: ContentPart, at: string];

/** All images of a conversation as a model sees them. Throws `input` with the field of a wrong one. */
export async function seenIn(
  messages: readonly Message[],
  album: Album | undefined,
  signal: AbortSignal,
): Promise<Named[]> {
  const seen: Named[] = [];
  const plan = album?.plan;
  const request = album?.request() ?? 0;
  for (const [part, at] of messages.flatMap(partsOf)) {
    if (part.type === 'text') {
      if (!plan || !part.text.includes(plan.placeholder)) continue;
      const what = `a text has ${plan.placeholder}, which stands for an image`;
      throw new EdgeRelaxError('input', `${at}: ${what}`);
    }
    const field = part.type === 'image' ? `${at}.image` : `${at}.image_url.url`;
    if (!album) throw new EdgeRelaxError('input', `${field}: this model sees no images`);
    const image = part.type === 'image' ? part.image : part.image_url.url;
    seen.push(await blaming(field, () => album.seen(image, request, signal)));
  }
  return seen;
}

function partsOf({ content }: Message, k: number): Placed[] {
  const at = `messages[${k}].content`;
  if (typeof content === 'string') return [[{ type: 'text', text: content }, at]];
  return (content ?? []).map((part, j) => [part, `${at}[${j}]`]);
}

async function blaming<T>(field: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (cause) {
    if (!(cause instanceof EdgeRelaxError) || cause.code === 'abort') throw cause;
    throw new EdgeRelaxError(cause.code, `${field}: ${cause.message}`, { cause });
  }
}

export interface Prompt {
  readonly tokens: readonly number[];
  readonly pictures: readonly Picture[];
}

/**
 * The tokens of what a template has made, and what of them stands for images. Throws `template` for
 * one that leaves images out, `format` for a tokenizer that does not know the placeholder.
 */
export function promptOf(
  text: string,
  seen: readonly Named[],
  plan: ImagePlan,
  encode: (text: string) => number[],
): Prompt {
  const between = text.split(plan.placeholder);
  if (between.length - 1 !== seen.length) {
    const wrote = `${between.length - 1} of ${seen.length} images`;
    throw new EdgeRelaxError(
      'template',
      `the chat template wrote ${wrote}: it may take none in messages of this role`,
    );
  }
  const parts = seen.map((one, k) => textOf(one, plan) + (between[k + 1] as string));
  const tokens = encode((between[0] as string) + parts.join(''));
  const places = tokens.flatMap((token, k) => (token === plan.token ? [k] : []));
  const tiles = seen.flatMap((one) => one.tiles);
  const wanted = tiles.length * plan.tokens;
  if (places.length !== wanted) {
    throw new EdgeRelaxError(
      'format',
      `the tokenizer made ${places.length} tokens ${plan.token} of ${wanted} that images need`,
    );
  }
  const ids = seen.flatMap((one) => one.ids);
  const pictures = tiles.map(({ data }, k) => ({
    pixels: data,
    id: ids[k] as string,
    places: places.slice(k * plan.tokens, (k + 1) * plan.tokens),
  }));
  return { tokens, pictures };
}
