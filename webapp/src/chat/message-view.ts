/** What was said: the user's words as they are, the model's as Markdown with their figures. */

import type { Progress } from '../protocol.ts';
import { h } from '../view/dom.ts';
import { iconButton } from '../view/icons.ts';
import { duration, rate } from '../view/units.ts';
import { failureText, progressText } from '../view/words.ts';
import { copy, MarkdownView } from './markdown.ts';
import type { Picture } from './pictures.ts';
import type { AnswerFacts } from './protocol.ts';

export function userMessage(
  text: string,
  pictures: readonly Picture[],
  onEdit: () => void,
): HTMLElement {
  const shown = pictures.map(({ url, name }) => h('img', { src: url, alt: name }));
  const edit = iconButton('edit', 'Edit', onEdit);
  edit.classList.add('edit');
  return h(
    'li',
    { class: 'said user' },
    shown.length > 0 ? h('div', { class: 'pictures' }, ...shown) : undefined,
    text === '' ? undefined : h('div', { class: 'bubble' }, text),
    h('div', { class: 'tools' }, edit),
  );
}

/** An answer that grows. */
export class AnswerView {
  readonly element: HTMLElement;
  readonly #markdown = new MarkdownView();
  readonly #waiting = h('div', { class: 'thinking', role: 'status' }, h('span', {}, 'Thinking'));
  readonly #bar = h('progress', { max: 1, 'aria-label': 'Progress of the model' });
  readonly #stage = h('span');
  readonly #progress = h('div', { class: 'progress', hidden: true });
  readonly #failure = h('div', { class: 'failure', role: 'alert', hidden: true });
  readonly #figures = h('span', { class: 'figures' });
  readonly #copy: HTMLButtonElement;
  readonly #tools: HTMLElement;
  #text = '';
  #drawing = 0;

  constructor(onAgain: () => void) {
    const again = iconButton('again', 'Answer again', onAgain);
    again.classList.add('again');
    this.#copy = iconButton('copy', 'Copy', () => void copy(this.#copy, this.#text));
    this.#tools = h('div', { class: 'tools', hidden: true }, this.#copy, again, this.#figures);
    this.#progress.append(this.#bar, h('div', { role: 'status' }, this.#stage));
    this.element = h(
      'li',
      { class: 'said model', 'aria-busy': 'true' },
      this.#markdown.element,
      this.#waiting,
      this.#progress,
      this.#failure,
      this.#tools,
    );
  }

  get text(): string {
    return this.#text;
  }

  advance(progress: Progress): void {
    this.#waiting.hidden = true;
    this.#progress.hidden = false;
    if (progress.total) this.#bar.value = progress.loaded / progress.total;
    else this.#bar.removeAttribute('value');
    this.#stage.textContent = progressText(progress);
  }

  /** More text; it is drawn with the next frame. */
  add(text: string, onDrawn: () => void): void {
    this.#text += text;
    this.#drawing ||= requestAnimationFrame(() => {
      this.#draw();
      onDrawn();
    });
  }

  /** `facts` are missing where the answer was stopped. */
  finish(facts: AnswerFacts | undefined): void {
    this.#end();
    this.#figures.textContent = facts ? figures(facts) : 'Stopped';
    this.#tools.hidden = false;
  }

  fail(error: unknown): void {
    this.#end();
    const { advice, detail } = failureText(error);
    this.#failure.replaceChildren(h('p', {}, advice), h('p', { class: 'note' }, detail));
    this.#failure.hidden = this.#tools.hidden = false;
  }

  #draw(): void {
    cancelAnimationFrame(this.#drawing);
    this.#drawing = 0;
    this.#markdown.show(this.#text);
    this.#waiting.hidden = this.#progress.hidden = this.#text !== '';
  }

  #end(): void {
    this.#draw();
    this.#waiting.hidden = this.#progress.hidden = true;
    this.element.removeAttribute('aria-busy');
    this.#copy.hidden = this.#text === '';
  }
}

function figures({ finish, tokens, tokensPerSecond, firstTokenMs }: AnswerFacts): string {
  const parts = [
    ...(tokensPerSecond > 0 ? [rate(tokensPerSecond)] : []),
    `${tokens.toLocaleString('en')} ${tokens === 1 ? 'token' : 'tokens'}`,
    `first after ${duration(firstTokenMs)}`,
    ...(finish === 'length' ? ['cut at the limit'] : []),
  ];
  return parts.join(' · ');
}
