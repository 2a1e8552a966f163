/** The choice between WebGPU and WebAssembly. */

import type { Adapter, Backend } from '../protocol.ts';
import { h } from './dom.ts';
import { BACKENDS } from './facts.ts';

export class BackendSwitch {
  readonly element: HTMLElement;
  readonly #inputs: Readonly<Record<Backend, HTMLInputElement>>;
  readonly #note = h('p', { class: 'note' });

  constructor(name: string, onChange: () => void) {
    const input = (value: Backend): HTMLInputElement =>
      h('input', { type: 'radio', name: `${name}-backend`, value, checked: value === 'wasm' });
    this.#inputs = { webgpu: input('webgpu'), wasm: input('wasm') };
    const options = (['webgpu', 'wasm'] as const).map((backend) =>
      h('label', {}, this.#inputs[backend], h('span', {}, BACKENDS[backend])),
    );
    this.element = h(
      'div',
      { class: 'backend' },
      h('fieldset', {}, h('legend', {}, 'Runs on'), ...options),
      this.#note,
    );
    this.#inputs.webgpu.disabled = true;
    this.element.addEventListener('change', onChange);
  }

  get value(): Backend {
    return this.#inputs.webgpu.checked ? 'webgpu' : 'wasm';
  }

  /** WebGPU is the choice where it is hardware; what a CPU emulates is slower than WebAssembly. */
  offer({ webgpu, software }: Adapter): void {
    this.#inputs.webgpu.disabled = !webgpu;
    this.#inputs.webgpu.checked = webgpu && !software;
    this.#inputs.wasm.checked = !this.#inputs.webgpu.checked;
    if (!webgpu) this.#note.textContent = 'This browser offers no WebGPU.';
    else if (software) this.#note.textContent = 'WebGPU is emulated by the CPU here, and slow.';
  }

  set disabled(disabled: boolean) {
    this.element.querySelector('fieldset')?.toggleAttribute('disabled', disabled);
  }
}
