/** The images that go with the next message, and what was wrong with those that do not. */

import { h } from '../view/dom.ts';
import { iconButton } from '../view/icons.ts';
import { forget, opened, type Picture } from './pictures.ts';

export class Attachments {
  readonly list = h('ul', { class: 'attached', 'aria-label': 'Images to send', hidden: true });
  readonly note = h('p', { class: 'note refused', role: 'alert', hidden: true });
  readonly #onChange: () => void;
  #pictures: Picture[] = [];
  #opening = 0;

  /** `onChange` is told after each change. */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  get count(): number {
    return this.#pictures.length;
  }

  /** Whether files are being opened that may become more of them. */
  get opening(): boolean {
    return this.#opening > 0;
  }

  async add(files: readonly File[]): Promise<void> {
    this.say();
    this.#opening++;
    this.#onChange();
    const found = await Promise.allSettled(files.map(opened));
    this.#opening--;
    const fine = found.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
    const wrong = found.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []));
    if (wrong.length > 0) this.say(wrong.map(({ message }: Error) => message).join(' '));
    this.put(fine);
  }

  /** Adds them behind the others. */
  put(pictures: readonly Picture[]): void {
    this.#pictures.push(...pictures);
    this.list.append(...pictures.map((picture) => this.#thumbnail(picture)));
    this.#changed();
  }

  /** Gives them away. */
  take(): readonly Picture[] {
    const taken = this.#pictures;
    this.#pictures = [];
    this.list.replaceChildren();
    this.say();
    this.#changed();
    return taken;
  }

  /** Says what is wrong; without words, that nothing is. */
  say(words = ''): void {
    this.note.textContent = words;
    this.note.hidden = words === '';
  }

  #thumbnail(picture: Picture): HTMLElement {
    const { url, name } = picture;
    const remove = iconButton('close', `Remove ${name}`, () => {
      const next = item.nextElementSibling ?? item.previousElementSibling;
      item.remove();
      this.#pictures = this.#pictures.filter((one) => one !== picture);
      forget([picture]);
      this.say();
      next?.querySelector('button')?.focus(); // who uses keys goes on from there
      this.#changed();
    });
    remove.classList.add('remove');
    const item = h('li', {}, h('img', { src: url, alt: name, title: name }), remove);
    return item;
  }

  #changed(): void {
    this.list.hidden = this.#pictures.length === 0;
    this.#onChange();
  }
}
