/** The chat page: a conversation between what was said and what is asked next. */

import { ToolError } from '../client.ts';
import { h } from '../view/dom.ts';
import { BACKENDS } from '../view/facts.ts';
import { takeFiles } from '../view/files.ts';
import { iconButton } from '../view/icons.ts';
import { bytes } from '../view/units.ts';
import type { ChatClient } from './chat-client.ts';
import { Composer } from './composer.ts';
import { AnswerView, userMessage } from './message-view.ts';
import { forget, type Picture } from './pictures.ts';
import type { ModelFacts, Turn } from './protocol.ts';
import { keep, restored } from './settings.ts';
import { SettingsView } from './settings-view.ts';

const SUGGESTIONS = [
  'What is the capital of France?',
  'Explain how a rainbow forms, in three sentences.',
  'Write a haiku about the sea.',
];
/** A turn with its images as this page shows them. */
type Said = Pick<Turn, 'role' | 'content'> & { readonly pictures: readonly Picture[] };

const NEAR = 60; // pixels from the end that count as being there

export class ChatPage {
  readonly elements: readonly HTMLElement[];
  readonly #client: ChatClient;
  readonly #settings: SettingsView;
  readonly #composer: Composer;
  readonly #list = h('ol', { class: 'log', role: 'log', 'aria-label': 'Conversation' });
  readonly #welcome: HTMLElement;
  readonly #scroller: HTMLElement;
  readonly #jump: HTMLButtonElement;
  readonly #model = h('p', { class: 'note model-facts', role: 'status' });
  readonly #status = h('p', { class: 'note status' }, 'Nothing you write leaves this browser.');
  #turns: Said[] = [];
  #controller: AbortController | undefined;
  #following = true;

  constructor(client: ChatClient) {
    this.#client = client;
    this.#settings = new SettingsView(restored(localStorage), (settings) =>
      keep(localStorage, settings),
    );
    this.#composer = new Composer({
      send: (text, pictures) => void this.#say(text, pictures),
      stop: () => this.#controller?.abort(),
    });
    this.#welcome = this.#greeting();
    this.#jump = iconButton('down', 'To the end', () => this.#toEnd());
    this.#jump.classList.add('jump');
    this.#jump.hidden = true;
    this.#scroller = h('main', { tabindex: -1 }, this.#welcome, this.#list);
    this.#scroller.addEventListener('scroll', () => this.#onScroll());
    const footer = h('footer', {}, this.#jump, this.#composer.element, this.#status);
    this.elements = [this.#header(), this.#scroller, footer, this.#settings.element];
    void client.adapter.then((adapter) => this.#settings.offer(adapter));
    void client.seesImages.then((offered) => (this.#composer.offersImages = offered));
    takeFiles(document.body, 'image', (files) => void this.#composer.attach(files));
    this.#composer.focus();
  }

  #header(): HTMLElement {
    const fresh = iconButton('fresh', 'New conversation', () => this.#clear());
    const settings = iconButton('settings', 'Settings', () => this.#settings.open());
    return h(
      'header',
      {},
      h('a', { class: 'name', href: './' }, 'edgerelax'),
      this.#model,
      fresh,
      settings,
    );
  }

  #greeting(): HTMLElement {
    const suggestions = SUGGESTIONS.map((text) => {
      const button = h('button', { type: 'button' }, text);
      button.addEventListener('click', () => void this.#say(text, []));
      return button;
    });
    return h(
      'section',
      { class: 'welcome' },
      h('h1', {}, 'A language model in this page'),
      h(
        'p',
        { class: 'lead' },
        'It is fetched with your first message and runs here, on your GPU where the browser gives one. A small model: quick, and often wrong.',
      ),
      h('div', { class: 'suggestions' }, ...suggestions),
    );
  }

  /** Takes the words, unless an answer is being made. */
  async #say(text: string, pictures: readonly Picture[]): Promise<void> {
    if (this.#controller) return;
    this.#turns.push({ role: 'user', content: text, pictures });
    this.#list.append(userMessage(text, pictures, () => this.#edit()));
    await this.#answer();
  }

  /** Takes the last message back, and its answer. */
  #edit(): void {
    if (this.#controller) return;
    if (this.#turns.at(-1)?.role === 'assistant') this.#turns.pop();
    const said = this.#turns.pop();
    if (!said) return;
    this.#list.lastElementChild?.remove(); // the answer
    this.#list.lastElementChild?.remove();
    this.#welcome.hidden = this.#turns.length > 0;
    this.#composer.restore(said.content, said.pictures);
  }

  async #again(): Promise<void> {
    if (this.#controller) return;
    if (this.#turns.at(-1)?.role === 'assistant') this.#turns.pop();
    this.#list.lastElementChild?.remove();
    await this.#answer();
  }

  async #answer(): Promise<void> {
    const controller = new AbortController();
    const view = new AnswerView(() => void this.#again());
    this.#begin(controller, view);
    try {
      const { answer, model } = await this.#client.ask({
        backend: this.#settings.backend,
        turns: this.#turns.map(({ pictures, ...turn }) => ({
          ...turn,
          images: pictures.map(({ file }) => file),
        })),
        settings: this.#settings.settings,
        signal: controller.signal,
        onProgress: (progress) => view.advance(progress),
        onText: (text) => view.add(text, () => this.#follow()),
      });
      view.finish(answer);
      this.#tell(model);
    } catch (error) {
      if (error instanceof ToolError && error.code === 'abort') view.finish(undefined);
      else view.fail(error);
    }
    if (this.#controller === controller) this.#end(view.text);
  }

  #begin(controller: AbortController, view: AnswerView): void {
    this.#controller = controller;
    this.#welcome.hidden = true;
    this.#composer.busy = true;
    this.#list.append(view.element);
    this.#toEnd();
  }

  #end(text: string): void {
    this.#controller = undefined;
    if (text !== '') this.#turns.push({ role: 'assistant', content: text, pictures: [] });
    this.#composer.busy = false;
    this.#follow();
    this.#composer.focus();
  }

  #clear(): void {
    this.#controller?.abort();
    this.#controller = undefined;
    for (const { pictures } of this.#turns) forget(pictures);
    this.#turns = [];
    this.#list.replaceChildren();
    this.#welcome.hidden = false;
    this.#composer.busy = false;
    this.#jump.hidden = true;
    this.#composer.focus();
  }

  #tell({ model, backend, kernels, memoryBytes, used, context, seesImages }: ModelFacts): void {
    this.#composer.offersImages = seesImages;
    this.#model.replaceChildren(
      h('span', { 'data-fact': 'model' }, model),
      h('span', { 'data-fact': 'backend' }, BACKENDS[backend]),
    );
    const [on, left] = [used, context].map((count) => count.toLocaleString('en'));
    this.#status.replaceChildren(
      h('span', { 'data-fact': 'context' }, `${on} of ${left} tokens`),
      h('span', { 'data-fact': 'memory' }, `${bytes(memoryBytes)} of memory`),
      h('span', { 'data-fact': 'kernels' }, `${kernels.toLocaleString('en')} kernels`),
      h('span', {}, 'nothing leaves this browser'),
    );
  }

  #onScroll(): void {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#following = scrollHeight - scrollTop - clientHeight < NEAR;
    this.#jump.hidden = this.#following;
  }

  /** Keeps the end in sight of those who look at it. */
  #follow(): void {
    if (this.#following) this.#toEnd();
  }

  #toEnd(): void {
    this.#following = true;
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}
