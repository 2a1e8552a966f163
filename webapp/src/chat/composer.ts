/** Where one writes: Enter sends, Shift and Enter breaks the line, Escape stops the answer. */

import { h } from '../view/dom.ts';
import { icon, iconButton } from '../view/icons.ts';

export interface ComposerActions {
  readonly send: (text: string) => void;
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
  readonly #actions: ComposerActions;
  #busy = false;

  constructor(actions: ComposerActions) {
    this.#actions = actions;
    this.#send.append(icon('send'));
    this.#stop = iconButton('stop', 'Stop', actions.stop);
    this.#stop.classList.add('primary', 'filled');
    this.element = h('form', { class: 'composer' }, this.#input, this.#send, this.#stop);
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

  focus(): void {
    if (matchMedia('(pointer: fine)').matches) this.#input.focus(); // no keyboard over a phone
  }

  #onKey(event: KeyboardEvent): void {
    if (event.key === 'Escape' && this.#busy) this.#actions.stop();
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  #submit(): void {
    const text = this.#input.value.trim();
    if (text === '' || this.#busy) return;
    this.#input.value = '';
    this.#update();
    this.#actions.send(text);
  }

  #update(): void {
    this.#send.hidden = this.#busy;
    this.#stop.hidden = !this.#busy;
    this.#send.disabled = this.#input.value.trim() === '';
    this.#input.style.height = ''; // one row, and more where the text needs them
    const { value, scrollHeight } = this.#input;
    if (value !== '') this.#input.style.height = `${scrollHeight}px`;
  }
}
