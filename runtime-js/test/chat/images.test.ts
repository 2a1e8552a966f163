import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { Album } from '../../src/chat/album.ts';
import { type ImagePlan, imagePlan, seenOf, textOf } from '../../src/chat/images.ts';
import { opened } from '../../src/chat/opening.ts';
import { type Pixels, resized } from '../../src/chat/resample.ts';
import { Sights } from '../../src/chat/sights.ts';
import type { ContentPart } from '../../src/chat/types.ts';
import { bytes, chatOf, saying, told } from './fakes.ts';

interface Made {
  readonly from: readonly [number, number];
  readonly seed: number;
}

interface Table {
  readonly resized: readonly (Made & {
    readonly to: readonly [number, number];
    readonly resample: number;
    readonly pixels: string;
  })[];
  readonly seen: readonly (Made & {
    readonly name: string;
    readonly plan: ImagePlan;
    readonly rows: number;
    readonly columns: number;
    readonly tiles: readonly string[];
    readonly text: string;
  })[];
}

/** What Python makes of the same images. */
const TABLE = JSON.parse(
  readFileSync(new URL('../../../tests/chat/images.json', import.meta.url), 'utf8'),
) as Table;

function imageOf({ from: [width, height], seed }: Made): Pixels {
  const value = (k: number): number => ((k * 40503 + seed * 977) >> 4) ^ ((k * k) >> 7);
  const data = Uint8Array.from({ length: width * height * 3 }, (_, k) => value(k) & 255);
  return { width, height, data };
}

/** How much two images differ at most, in levels. */
function difference({ data }: Pixels, wanted: string): number {
  const other = Buffer.from(wanted, 'base64');
  expect(data.length).toBe(other.length);
  return data.reduce((most, value, k) => Math.max(most, Math.abs(value - (other[k] as number))), 0);
}

describe('images', () => {
  it.each(TABLE.resized)('of $from become $to by filter $resample as in Pillow', (made) => {
    const found = resized(imageOf(made), ...made.to, made.resample);
    expect([found.width, found.height]).toEqual(made.to);
    expect(difference(found, made.pixels)).toBeLessThanOrEqual(1);
  });

  it.each(TABLE.seen)('are seen as in Python: $name', (made) => {
    expect(imagePlan(made.plan, 'images')).toBe(undefined);
    const seen = seenOf(imageOf(made), made.plan);
    expect([seen.rows, seen.columns]).toEqual([made.rows, made.columns]);
    expect(seen.tiles.length).toBe(made.tiles.length);
    for (const [k, tile] of seen.tiles.entries()) {
      expect(difference(tile, made.tiles[k] as string)).toBeLessThanOrEqual(1);
    }
    expect(textOf(seen, made.plan)).toBe(made.text);
  });

  it('that are too long and narrow are refused', async () => {
    const line = { width: 1_000_000, height: 1, data: new Uint8Array(3_000_000) };
    for (const how of [{ resize: { shortest: 12 } }, { pad: [0, 0, 0] }]) {
      expect(await told(() => seenOf(line, { ...PLAN, ...how }))).toContain('long and narrow');
    }
  });

  it('have a plan that is checked', () => {
    for (const [change, problem] of [
      [{ token: 'x' }, 'images.token is no count'],
      [{ tokens: 0 }, 'images.tokens is 0'],
      [{ resample: 9 }, 'images.resample is none of'],
      [{ pad: [1] }, 'images.pad is no colour'],
      [{ resize: { area: 4 } }, 'images.resize is not known'],
      [{ tiles: { side: 4 } }, 'images.tiles.split is missing'],
    ] as const) {
      expect(imagePlan({ ...PLAN, ...change }, 'images')).toContain(problem);
    }
  });
});

const SIDE = 2;
const PLAN: ImagePlan = {
  placeholder: '<s>',
  token: 261,
  tokens: 3,
  side: SIDE,
  resample: 3,
  resize: { height: SIDE, width: SIDE },
};
const PARTS =
  "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<s>{% else %}" +
  '{{ p.text }}{% endif %}{% endfor %}{% endfor %}|';
const TEXTS = '{% for m in messages %}{{ m.content }}{% endfor %}|';

const raw = (...rgba: number[]) => ({
  width: rgba.length / 4,
  height: 1,
  data: Uint8ClampedArray.from(rgba),
});
const image = (...rgba: number[]) => ({ type: 'image', image: raw(...rgba) }) as const;
const text = (said: string) => ({ type: 'text', text: said }) as const;
const url = (where: string) => ({ type: 'image_url', image_url: { url: where } }) as const;

async function ask(template: string, parts: readonly ContentPart[], images?: ImagePlan) {
  const engine = saying('ok');
  const chat = chatOf(engine, { templates: { default: template }, names: {}, images });
  const messages = [{ role: 'user', content: parts }] as const;
  const failure = await told(() => chat.chat.completions.create({ messages, n: 2 }));
  return { failure, asked: engine.asked };
}

describe('a chat with images', () => {
  it.each([
    ['parts', PARTS, ''],
    ['texts', TEXTS, '\n'],
  ])('has a placeholder for each vector, in templates of %s', async (_, template, after) => {
    const parts = [text('a'), image(9, 8, 7, 255), text('b'), image(1, 2, 3, 0), text('c')];
    const { failure, asked } = await ask(template, parts, PLAN);
    expect(failure).toBe('nothing');
    const one = [261, 261, 261, ...bytes(after)];
    const prompt = [...bytes('a'), ...one, ...bytes('b'), ...one, ...bytes('c|')];
    expect(asked.map((each) => each.prompt)).toEqual([prompt, prompt]);
    const places = prompt.flatMap((id, k) => (id === 261 ? [k] : []));
    const pictures = asked[1]?.options.pictures;
    expect(pictures?.map((picture) => picture.places)).toEqual([
      places.slice(0, 3),
      places.slice(3),
    ]);
    const pixels = pictures?.map((picture) => [...picture.pixels.slice(0, 3)]);
    expect(pixels).toEqual([
      [9, 8, 7],
      [255, 255, 255], // what is transparent is white
    ]);
  });

  it.each<[string, readonly ContentPart[], string]>([
    ['a text', [text('a <s>')], 'input: messages[0].content[0]: a text has <s>, which stands'],
    ['no pixels', [image()], 'input: messages[0].content[0].image: an image of 0x1 pixels'],
    ['bytes', [text(''), url('data:,x')], 'input: messages[0].content[1].image_url.url: images'],
    ['a broken URL', [url('data:x')], 'input: messages[0].content[0].image_url.url: a data: URL'],
    ['no place', [url('http://127.0.0.1:1/')], 'network: messages[0].content[0].image_url.url'],
    ['another', [{ type: 'image', image: 'x' } as never], 'input: messages[0].content[0].image is'],
  ])('names the field of what is none: %s', async (_, parts, wanted) => {
    const { failure, asked } = await ask(PARTS, parts, PLAN);
    expect(failure).toContain(wanted);
    expect(asked).toEqual([]);
  });

  it('refuses images where the model sees none, or the template takes none', async () => {
    const blind = await ask(PARTS, [image(1, 2, 3, 4)]);
    expect(blind.failure).toBe('input: messages[0].content[0].image: this model sees no images');
    const left = await ask('{{ messages[0].role }}', [image(1, 2, 3, 4)], PLAN);
    expect(left.failure).toContain('template: the chat template wrote 0 of 1 images');
    const odd = await ask(PARTS, [image(1, 2, 3, 4)], { ...PLAN, token: 5 });
    expect(odd.failure).toContain('format: the tokenizer made 0 tokens 5 of 3');
  });
});

describe('an image that comes again', () => {
  afterEach(() => vi.unstubAllGlobals());

  /** Stands for the page's decoder: a file of bytes is a row of grey pixels. Counts what it decodes. */
  function decoder(): { decoded: number } {
    const counts = { decoded: 0 };
    vi.stubGlobal('createImageBitmap', async (file: Blob) => {
      counts.decoded++;
      const greys = new Uint8Array(await file.arrayBuffer());
      return { width: greys.length, height: 1, greys, close: () => undefined };
    });
    class Canvas {
      #greys = new Uint8Array();
      getContext = () => this;
      fillRect = () => undefined;
      drawImage = ({ greys }: { greys: Uint8Array<ArrayBuffer> }) => (this.#greys = greys);
      getImageData = () => raw(...[...this.#greys].flatMap((grey) => [grey, grey, grey, 255]));
    }
    vi.stubGlobal('OffscreenCanvas', Canvas);
    return counts;
  }

  /** What the engine is given of the images of turns, one after another. */
  async function turns(
    all: readonly (readonly ContentPart[])[],
  ): Promise<(readonly Uint8Array[])[]> {
    const engine = saying('ok');
    const chat = chatOf(engine, { templates: { default: PARTS }, names: {}, images: PLAN });
    for (const content of all) {
      await chat.chat.completions.create({ messages: [{ role: 'user', content }] });
    }
    await chat.dispose();
    return engine.asked.map(({ options }) => options.pictures!.map(({ pixels }) => pixels));
  }

  const file = (...greys: number[]) =>
    ({ type: 'image', image: new Blob([Uint8Array.from(greys)]) }) as const;
  const data = (text: string) => url(`data:;base64,${btoa(text)}`);

  it('is neither decoded nor resized again, whether it is the same or of the same bytes', async () => {
    const counts = decoder();
    const same = file(1, 2, 3);
    const [first, ...others] = await turns([[same], [same], [file(1, 2, 3)], [same, file(4, 5)]]);
    expect(counts.decoded).toBe(2);
    for (const [pixels] of others) expect(pixels).toBe(first![0]);
    expect(others.at(-1)![1]).not.toEqual(first![0]);
    const urls = await turns([[data('abc')], [data('abc'), data('abd')]]);
    expect(counts.decoded).toBe(4);
    expect(urls[1]![0]).toBe(urls[0]![0]);
  });

  it('of pixels is found by them, and is another once they change', async () => {
    const moving = image(1, 2, 3, 255);
    const [first, again] = await turns([[moving], [image(1, 2, 3, 255)]]);
    expect(again![0]).toBe(first![0]);
    const wide = { ...raw(9, 9, 9, 255, 9, 9, 9, 255), width: 1, height: 2 };
    const flat = image(9, 9, 9, 255, 9, 9, 9, 255);
    const [one, other] = await turns([[flat], [{ type: 'image', image: wide }]]);
    expect(other![0]).not.toBe(one![0]);
    const engine = saying('ok');
    const chat = chatOf(engine, { templates: { default: PARTS }, names: {}, images: PLAN });
    for (const grey of [5, 6]) {
      moving.image.data.fill(grey, 0, 3);
      await chat.chat.completions.create({ messages: [{ role: 'user', content: [moving] }] });
    }
    const greys = engine.asked.map(({ options }) => options.pictures![0]!.pixels[0]);
    expect(greys).toEqual([5, 6]);
  });

  it('is kept within bounds: no request takes the room of its own images', async () => {
    const counts = decoder();
    const bytes = SIDE ** 2 * 3;
    const album = new Album(PLAN, 2 * bytes);
    const signal = new AbortController().signal;
    const see = async (...greys: number[]) => {
      const request = album.request();
      for (const grey of greys) await album.seen(new Blob([Uint8Array.of(grey)]), request, signal);
      return counts.decoded;
    };
    expect(await see(1, 2, 3)).toBe(3); // 3 finds no room
    expect(await see(1, 2, 3)).toBe(4);
    expect(await see(4)).toBe(5); // 1 was used before 2 and goes
    expect(await see(2, 4)).toBe(5);
    expect(await see(1)).toBe(6);
    album.close();
    expect(await see(1, 1)).toBe(8);
  });

  it('is not kept where it is broken', async () => {
    const counts = decoder();
    vi.stubGlobal('createImageBitmap', async () => {
      counts.decoded++;
      throw new Error('broken');
    });
    const engine = saying('ok');
    const chat = chatOf(engine, { templates: { default: PARTS }, names: {}, images: PLAN });
    const messages = [{ role: 'user', content: [file(1)] }] as const;
    for (const count of [1, 2]) {
      expect(await told(() => chat.chat.completions.create({ messages }))).toContain('input: ');
      expect(counts.decoded).toBe(count);
    }
  });

  it('is kept where there are no digests too, and found by its bytes', async () => {
    const counts = decoder();
    vi.stubGlobal('crypto', { getRandomValues: crypto.getRandomValues.bind(crypto) });
    const [first, second] = await turns([
      [file(1), file(2)],
      [file(2), file(3, 4), file(1)],
    ]);
    expect(counts.decoded).toBe(3);
    expect([second![2], second![0]]).toEqual([first![0], first![1]]);
    expect(second![2]).toBe(first![0]);
    const wide = { ...raw(9, 9, 9, 255, 9, 9, 9, 255), width: 1, height: 2 };
    const flat = image(9, 9, 9, 255, 9, 9, 9, 255);
    const [one, other] = await turns([[flat], [{ type: 'image', image: wide }, flat]]);
    expect(other![0]).not.toBe(one![0]);
    expect(other![1]).toBe(one![0]);
  });

  it('is hashed once: its tiles have the same names in each turn, and others have others', async () => {
    decoder();
    for (const digests of [true, false]) {
      const digest = vi.spyOn(crypto.subtle, 'digest');
      if (!digests) {
        vi.stubGlobal('crypto', { getRandomValues: crypto.getRandomValues.bind(crypto) });
      }
      const engine = saying('ok');
      const chat = chatOf(engine, { templates: { default: PARTS }, names: {}, images: PLAN });
      const hashed: number[] = [];
      for (const content of [[file(1)], [file(1)], [file(2)]]) {
        await chat.chat.completions.create({ messages: [{ role: 'user', content }] });
        hashed.push(digest.mock.calls.length);
      }
      const [first, again, other] = engine.asked.map(({ options }) => options.pictures![0]!);
      expect(again!.id).toBe(first!.id);
      expect(other!.id).not.toBe(first!.id);
      // the file, and of one that is new its tile; the engine takes the names as they are
      expect(hashed).toEqual(digests ? [2, 3, 5] : [0, 0, 0]);
      digest.mockClear();
      expect((await Sights.of([again!])).marks(0, 1000)).toBe(first!.id);
      expect(digest).not.toHaveBeenCalled();
      vi.restoreAllMocks();
    }
  });
});

describe('what is fetched', () => {
  afterEach(() => vi.unstubAllGlobals());

  const { signal } = new AbortController();

  it('is stopped where it is too much, and fails with its status', async () => {
    let sent = 0;
    let stopped = false;
    const endless = new ReadableStream<Uint8Array>({
      pull: (controller) => controller.enqueue(new Uint8Array((sent++, 2 ** 20))),
      cancel: () => void (stopped = true),
    });
    vi.stubGlobal('fetch', async () => new Response(endless));
    expect(await told(() => opened('/a.png', signal))).toContain('input: an image has more than');
    expect([stopped, sent < 40]).toEqual([true, true]);
    vi.stubGlobal('fetch', async () => new Response('', { status: 404 }));
    expect(await told(() => opened('/a.png', signal))).toBe('network: /a.png: HTTP status 404');
  });

  it('ends with the signal', async () => {
    const controller = new AbortController();
    vi.stubGlobal('fetch', (_: string, { signal }: RequestInit) => {
      return new Promise((_, reject) => signal?.addEventListener('abort', reject));
    });
    const failure = told(() => opened('/a.png', controller.signal));
    controller.abort();
    expect(await failure).toContain('abort: ');
  });

  it('ends with the chat: who waits for it is told', async () => {
    let [begun, ended] = [false, false];
    vi.stubGlobal('fetch', (_: string, { signal }: RequestInit) => {
      begun = true;
      return new Promise((_, reject) =>
        signal?.addEventListener('abort', () => reject((ended = true))),
      );
    });
    const chat = chatOf(saying('ok'), { templates: { default: PARTS }, names: {}, images: PLAN });
    const messages = [{ role: 'user', content: [url('https://host/a.png')] }] as const;
    const failure = told(() => chat.chat.completions.create({ messages }));
    while (!begun) await new Promise((resolve) => setTimeout(resolve));
    await chat.dispose();
    expect(await failure).toContain('disposed: ');
    expect(ended).toBe(true);
  });
});
