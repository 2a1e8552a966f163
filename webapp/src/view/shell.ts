/** What all tools have: title, body, progress, failure, figures, and the choice of a backend. */

import { type Client, ToolError } from '../client.ts';
import type { Progress, ToolName, Tools } from '../protocol.ts';
import { h } from './dom.ts';
import { factsList } from './facts.ts';
import { BackendSwitch } from './switch.ts';
import { failureText, progressText } from './words.ts';

export interface Description<T extends ToolName> {
  readonly tool: T;
  readonly title: string;
  readonly lead: string;
}

/** One run after another: a new one waits for none, since controls are off while one goes on. */
export class Shell<T extends ToolName> {
  readonly element: HTMLElement;
  readonly #client: Client;
  readonly #tool: T;
  readonly #show: (result: Tools[T]['result'], input: Tools[T]['input']) => void;
  readonly #body: HTMLFieldSetElement;
  readonly #switch: BackendSwitch;
  readonly #bar = h('progress', { max: 1 });
  readonly #stage = h('span');
  readonly #progress: HTMLElement;
  readonly #failure = h('div', { class: 'failure', role: 'alert', hidden: true });
  readonly #facts = h('div');
  #controller: AbortController | undefined;
  #last: Tools[T]['input'] | undefined;

  constructor(
    client: Client,
    { tool, title, lead }: Description<T>,
    body: readonly Node[],
    show: (result: Tools[T]['result'], input: Tools[T]['input']) => void,
  ) {
    this.#client = client;
    this.#tool = tool;
    this.#show = show;
    this.#body = h('fieldset', { class: 'body', 'aria-labelledby': `${tool}-title` }, ...body);
    this.#switch = new BackendSwitch(tool, () => this.#last && void this.run(this.#last));
    const cancel = h('button', { type: 'button', class: 'quiet' }, 'Cancel');
    cancel.addEventListener('click', () => this.#controller?.abort());
    this.#bar.setAttribute('aria-label', `Progress: ${title}`);
    this.#progress = h(
      'div',
      { class: 'progress', hidden: true },
      this.#bar,
      h('div', {}, h('span', { role: 'status' }, this.#stage), cancel),
    );
    this.element = h(
      'section',
      { class: 'tool', id: tool, 'aria-labelledby': `${tool}-title` },
      h('h2', { id: `${tool}-title` }, title),
      h('p', { class: 'lead' }, lead),
      this.#body,
      this.#progress,
      this.#failure,
      h('footer', {}, this.#switch.element, this.#facts),
    );
    void client.adapter.then((adapter) => this.#switch.offer(adapter));
  }

  /** Runs on what `input` gives; all that fails is shown. */
  async run(input: Tools[T]['input'] | Promise<Tools[T]['input']>): Promise<void> {
    if (this.#controller) return;
    const controller = new AbortController();
    this.#controller = controller;
    this.#begin();
    try {
      this.#last = await input;
      const { result, facts } = await this.#client.run(this.#tool, this.#last, {
        backend: this.#switch.value,
        signal: controller.signal,
        onProgress: (progress) => this.#advance(progress),
      });
      this.#show(result, this.#last);
      this.#facts.replaceChildren(factsList(facts));
    } catch (error) {
      this.fail(error);
    } finally {
      this.#controller = undefined;
      this.#end();
    }
  }

  /** Says what went wrong, unless the user did it. */
  fail(error: unknown): void {
    if (error instanceof ToolError && error.code === 'abort') return;
    const { advice, detail } = failureText(error);
    this.#failure.replaceChildren(h('p', {}, advice), h('p', { class: 'note' }, detail));
    this.#failure.hidden = false;
  }

  #begin(): void {
    this.#failure.hidden = true;
    this.#progress.hidden = false;
    this.#bar.removeAttribute('value');
    this.#stage.textContent = 'Working';
    this.element.setAttribute('aria-busy', 'true');
    this.#body.disabled = this.#switch.disabled = true;
  }

  #advance(progress: Progress): void {
    if (progress.total) this.#bar.value = progress.loaded / progress.total;
    else this.#bar.removeAttribute('value');
    this.#stage.textContent = progressText(progress);
  }

  #end(): void {
    this.#progress.hidden = true;
    this.element.removeAttribute('aria-busy');
    this.#body.disabled = this.#switch.disabled = false;
  }
}
