/** The line of figures under a result. */

import type { Facts } from '../protocol.ts';
import { h } from './dom.ts';
import { bytes, duration } from './units.ts';

export const BACKENDS = { webgpu: 'WebGPU', wasm: 'WebAssembly' } as const;

export function factsList(facts: Facts): HTMLElement {
  const rows: readonly (readonly [name: string, key: string, value: string])[] = [
    ['Last run', 'time', duration(facts.milliseconds)],
    ['Backend', 'backend', BACKENDS[facts.backend]],
    ['Kernels', 'kernels', facts.kernels.toLocaleString('en')],
    ['Download', 'download', bytes(facts.downloadBytes)],
    ['Memory', 'memory', bytes(facts.memoryBytes)],
  ];
  const items = rows.map(([name, key, value]) =>
    h('div', {}, h('dt', {}, name), h('dd', { 'data-fact': key }, value)),
  );
  return h('dl', { class: 'facts' }, ...items);
}
