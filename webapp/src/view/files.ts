/** Ways in for files: a button, a drop, a paste. */

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

const isOf = (kind: string) => (file: File) => file.type.startsWith(`${kind}/`);

/** Takes a file that is dropped on an element or pasted: the first of a kind, if there is one. */
export function takeFile(target: HTMLElement, kind: string, onFile: (file: File) => void): void {
  takeFiles(target, kind, (files) => onFile(files.find(isOf(kind)) ?? (files[0] as File)));
}

/**
 * Takes files of any kind that are dropped on an element, and those of one kind that are pasted. What
 * has words too, as a part of a table has, is pasted as words; in a dialogue nothing is taken.
 */
export function takeFiles(
  target: HTMLElement,
  kind: string,
  onFiles: (files: readonly File[]) => void,
): void {
  const has = ({ dataTransfer }: DragEvent): boolean =>
    dataTransfer?.types.includes('Files') ?? false;
  let depth = 0; // of dragenter over elements inside
  const mark = (change: number): void => {
    depth = change ? Math.max(0, depth + change) : 0;
    target.classList.toggle('dropping', depth > 0);
  };
  target.addEventListener('dragenter', (event) => has(event) && mark(1));
  target.addEventListener('dragleave', (event) => has(event) && mark(-1));
  target.addEventListener('dragover', (event) => has(event) && event.preventDefault());
  target.addEventListener('drop', (event) => {
    if (!has(event)) return;
    event.preventDefault();
    mark(0);
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length > 0) onFiles(files);
  });
  document.addEventListener('paste', ({ clipboardData, target: into }) => {
    if (into instanceof Element && into.closest('dialog')) return;
    if (clipboardData?.types.includes('text/plain')) return;
    const files = [...(clipboardData?.files ?? [])].filter(isOf(kind));
    if (files.length > 0) onFiles(files);
  });
}
