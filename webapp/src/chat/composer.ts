/** Where one writes: Enter sends, Shift and Enter breaks the line, Escape stops the answer. */

import { h } from '../view/dom.ts';
import { icon, iconButton } from '../view/icons.ts';
import { Attachments } from './attachments.ts';
import type { Picture } from './pictures.ts';

export interface ComposerActions {
  readonly send: (text: string, pictures: readonly Picture[]) => void;
  readonly stop: () => void;
}

export class Composer {
  readonly element: HTMLFormElement;
  readonly #input = h('textarea', {
    rows: 1,
    maxlength: 200000,
    'aria-label': 'Message',
    placeholder: 'Message',
    enterkeyhint: 'send',
  });
  readonly #send = h('button', { class: 'round primary', 'aria-label': 'Send', title: 'Send' });
  readonly #stop: HTMLButtonElement;
  readonly #attach: HTMLButtonElement;
  readonly #files = h('input', {
    type: 'file',
    accept: 'image/*',
    multiple: true,
    hidden: true,
    'aria-label': 'Images',
  });
  readonly #attachments = new Attachments(() => this.#update());
  readonly #actions: ComposerActions;
  #busy = false;

  constructor(actions: ComposerActions) {
    this.#actions = actions;
    this.#send.append(icon('send'));
    this.#stop = iconButton('stop', 'Stop', actions.stop);
    this.#stop.classList.add('primary', 'filled');
    this.#attach = iconButton('image', 'Add images', () => this.#files.click());
    this.#attach.classList.add('attach');
    this.#attach.hidden = true;
    this.#files.addEventListener('change', () => {
      const files = [...(this.#files.files ?? [])];
      this.#files.value = ''; // so that the same file can be chosen again
      if (files.length > 0) void this.attach(files);
    });
    const { list, note } = this.#attachments;
    const line = [this.#attach, this.#files, this.#input, this.#send, this.#stop];
    this.element = h('form', { class: 'composer' }, note, list, ...line);
    this.element.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#input.addEventListener('input', () => this.#update());
    this.#input.addEventListener('keydown', (event) => this.#onKey(event));
    this.#update();
  }

  set busy(busy: boolean) {
    this.#busy = busy;
    this.#update();
  }

  set offersImages(offered: boolean) {
    this.#attach.hidden = !offered;
  }

  /** Adds images to the message, or says why not. */
  async attach(files: readonly File[]): Promise<void> {
    if (this.#attach.hidden) {
      this.#attachments.say('This model sees no images, or is not known yet to see any.');
      return;
    }
    await this.#attachments.add(files);
    this.focus();
  }

  /** Puts a message back, before what is being written. */
  restore(text: string, pictures: readonly Picture[]): void {
    const written = this.#input.value;
    this.#input.value = text === '' || written === '' ? text + written : `${text}\n${written}`;
    const attached = this.#attachments.take();
    this.#attachments.put([...pictures, ...attached]);
    this.#input.focus();
  }

  focus(): void {
    if (matchMedia('(pointer: fine)').matches) this.#input.focus(); // no keyboard over a phone
  }

  #onKey(event: KeyboardEvent): void {
    if (event.key === 'Escape' && this.#busy) this.#actions.stop();
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  get #ready(): boolean {
    if (this.#attachments.opening) return false;
    return this.#input.value.trim() !== '' || this.#attachments.count > 0;
  }

  #submit(): void {
    if (this.#busy || !this.#ready) return;
    const text = this.#input.value.trim();
    this.#input.value = '';
    this.#actions.send(text, this.#attachments.take());
  }

  #update(): void {
    this.#send.hidden = this.#busy;
    this.#stop.hidden = !this.#busy;
    this.#send.disabled = !this.#ready;
    this.#input.style.height = ''; // one row, and more where the text needs them
    const { value, scrollHeight } = this.#input;
    if (value !== '') this.#input.style.height = `${scrollHeight}px`;
  }
}
