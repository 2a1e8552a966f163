/** Ways in for a file: a button, a drop, a paste. */

import { h } from './dom.ts';

/** A button that opens the file dialogue; `kind` is `image` or `audio`. */
export function fileButton(kind: string, label: string, onFile: (file: File) => void): HTMLElement {
  const input = h('input', { type: 'file', accept: `${kind}/*`, class: 'hidden' });
  input.addEventListener('change', () => {
    const file = input.files?.[0];
    input.value = ''; // so that the same file can be chosen again
    if (file) onFile(file);
  });
  return h('label', { class: 'button' }, input, label);
}

/** Takes files that are dropped on an element or, while it is in view, pasted. */
export function takeFiles(target: HTMLElement, kind: string, onFile: (file: File) => void): void {
  const first = (files: DataTransfer | null): File | undefined =>
    [...(files?.files ?? [])].find((file) => file.type.startsWith(`${kind}/`)) ??
    files?.files[0] ??
    undefined;
  let depth = 0; // of dragenter over elements inside
  const mark = (change: number): void => {
    depth = change ? Math.max(0, depth + change) : 0;
    target.classList.toggle('dropping', depth > 0);
  };
  target.addEventListener('dragenter', () => mark(1));
  target.addEventListener('dragleave', () => mark(-1));
  target.addEventListener('dragover', (event) => event.preventDefault());
  target.addEventListener('drop', (event) => {
    event.preventDefault();
    mark(0);
    const file = first(event.dataTransfer);
    if (file) onFile(file);
  });
  document.addEventListener('paste', (event) => {
    const file = first(event.clipboardData);
    if (file?.type.startsWith(`${kind}/`)) onFile(file);
  });
}
