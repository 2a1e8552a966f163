/** Read the text in a picture. */

import type { Client } from '../client.ts';
import { contextOf, pictureOf } from '../media.ts';
import type { Line } from '../ocr/read.ts';
import type { Tools } from '../protocol.ts';
import { h, svg } from './dom.ts';
import { fileButton, takeFile } from './files.ts';
import { samplePicture } from './sample-picture.ts';
import { Shell } from './shell.ts';
import { percent } from './units.ts';

type Picture = Tools['text']['input'];

export function textView(client: Client): HTMLElement {
  const sample = h('button', { type: 'button', class: 'primary' }, 'Try the sample');
  const result = h('div', { class: 'result' });
  const choose = fileButton('image', 'Choose a picture', (file) => read(pictureOf(file)));
  const drop = h(
    'div',
    { class: 'drop' },
    h('div', { class: 'controls' }, sample, choose),
    h('p', { class: 'note' }, 'or drop or paste one here'),
  );
  const shell = new Shell(
    client,
    {
      tool: 'text',
      title: 'Read the text in a picture',
      lead: 'A sign, a receipt, a screenshot. One network finds the lines, one turns them the right way up, one reads them.',
    },
    [drop, result],
    (lines, picture) => result.replaceChildren(...shown(picture, lines)),
  );
  const read = (picture: Picture | Promise<Picture>): void => void shell.run(picture);
  sample.addEventListener('click', () => read(samplePicture()));
  takeFile(drop, 'image', (file) => read(pictureOf(file)));
  return shell.element;
}

function shown(picture: Picture, lines: readonly Line[]): Node[] {
  const boxes = lines.map(({ box }) => svg('polygon', { points: box.join(' ') }));
  const items = lines.map(({ text, confidence }) =>
    h(
      'li',
      {},
      h('span', { class: 'text' }, text),
      h('span', { class: 'share' }, percent(confidence)),
    ),
  );
  items.forEach((item, k) => {
    const mark = (on: boolean) => () => boxes[k]?.classList.toggle('marked', on);
    item.addEventListener('pointerenter', mark(true));
    item.addEventListener('pointerleave', mark(false));
  });
  const figure = h(
    'figure',
    { class: 'picture' },
    canvasOf(picture, lines),
    overlay(picture, boxes),
  );
  if (!lines.length) return [figure, h('p', { class: 'empty' }, 'No text was found.')];
  return [figure, h('ol', { class: 'lines' }, ...items), copyButton(lines)];
}

function canvasOf({ width, height, data }: Picture, lines: readonly Line[]): HTMLCanvasElement {
  const context = contextOf(width, height);
  const pixels = data as Uint8ClampedArray<ArrayBuffer>;
  context.putImageData(new ImageData(pixels, width, height), 0, 0);
  context.canvas.setAttribute('role', 'img');
  context.canvas.setAttribute('aria-label', `The picture, with ${lines.length} lines of text`);
  return context.canvas;
}

function overlay({ width, height }: Picture, boxes: readonly SVGElement[]): SVGElement {
  return svg('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' }, ...boxes);
}

function copyButton(lines: readonly Line[]): HTMLElement {
  const button = h('button', { type: 'button', class: 'quiet' }, 'Copy the text');
  const text = lines.map((line) => line.text).join('\n');
  button.addEventListener('click', () => {
    navigator.clipboard.writeText(text).then(
      () => (button.textContent = 'Copied'),
      () => (button.textContent = 'The browser forbids copying'),
    );
  });
  return button;
}
