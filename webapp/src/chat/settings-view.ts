/** The sheet of settings. What is changed counts from the next answer on. */

import type { Adapter, Backend } from '../protocol.ts';
import { h } from '../view/dom.ts';
import { iconButton } from '../view/icons.ts';
import { BackendSwitch } from '../view/switch.ts';
import type { Settings } from './protocol.ts';
import { DEFAULTS, settingsFrom } from './settings.ts';

export class SettingsView {
  readonly element = h('dialog', { class: 'settings', 'aria-labelledby': 'settings-title' });
  readonly #switch = new BackendSwitch('chat', () => undefined);
  readonly #system = h('textarea', { id: 'system', rows: 3, maxlength: 20000 });
  readonly #temperature = slider('temperature', 2, 0.05);
  readonly #topP = slider('top-p', 1, 0.01);
  readonly #maxTokens = h('input', { id: 'max-tokens', type: 'number', min: 1, max: 1e6, step: 1 });
  readonly #seed = h('input', { id: 'seed', type: 'number', min: 0, step: 1 });
  readonly #onChange: (settings: Settings) => void;
  #settings: Settings;

  constructor(settings: Settings, onChange: (settings: Settings) => void) {
    this.#settings = settings;
    this.#onChange = onChange;
    this.#seed.placeholder = 'random';
    this.#system.placeholder = 'How the model should answer';
    const reset = h('button', { type: 'button', class: 'quiet' }, 'As at first');
    reset.addEventListener('click', () => {
      this.#show(DEFAULTS);
      this.#read();
    });
    this.element.append(
      h(
        'form',
        { method: 'dialog' },
        h(
          'header',
          {},
          h('h2', { id: 'settings-title' }, 'Settings'),
          iconButton('close', 'Close', () => this.element.close()),
        ),
        field('system', 'System prompt', this.#system),
        field('temperature', 'Temperature', ...this.#temperature),
        field('top-p', 'Top-p', ...this.#topP),
        h(
          'div',
          { class: 'pair' },
          field('max-tokens', 'Most tokens', this.#maxTokens),
          field('seed', 'Seed', this.#seed),
        ),
        this.#switch.element,
        h('p', { class: 'note' }, WHERE),
        reset,
      ),
    );
    this.#show(settings);
    this.element.addEventListener('input', () => this.#read());
    this.element.addEventListener('click', (event) => {
      if (event.target === this.element) this.element.close(); // beside the sheet
    });
  }

  get settings(): Settings {
    return this.#settings;
  }

  get backend(): Backend {
    return this.#switch.value;
  }

  offer(adapter: Adapter): void {
    this.#switch.offer(adapter);
  }

  open(): void {
    this.#show(this.#settings);
    this.element.showModal();
  }

  #read(): void {
    const { value: seed } = this.#seed;
    this.#settings = settingsFrom({
      system: this.#system.value.trim(),
      temperature: this.#temperature[0].valueAsNumber,
      topP: this.#topP[0].valueAsNumber,
      maxTokens: this.#maxTokens.valueAsNumber,
      seed: seed === '' ? null : Number(seed),
    });
    this.#label();
    this.#onChange(this.#settings);
  }

  #show({ system, temperature, topP, maxTokens, seed }: Settings): void {
    this.#system.value = system;
    this.#temperature[0].value = String(temperature);
    this.#topP[0].value = String(topP);
    this.#maxTokens.value = String(maxTokens);
    this.#seed.value = seed === null ? '' : String(seed);
    this.#label();
  }

  #label(): void {
    for (const [input, output] of [this.#temperature, this.#topP]) {
      output.textContent = input.valueAsNumber.toFixed(2);
    }
  }
}

const WHERE =
  'The model runs in this browser, apart from the page: its kernels on the chosen device, words and tokens on the CPU. What you write stays here.';

function slider(id: string, max: number, step: number): [HTMLInputElement, HTMLOutputElement] {
  const input = h('input', { id, type: 'range', min: 0, max, step });
  return [input, h('output', { for: id })];
}

function field(id: string, name: string, ...controls: readonly HTMLElement[]): HTMLElement {
  return h('div', { class: 'field' }, h('label', { for: id }, name), ...controls);
}
