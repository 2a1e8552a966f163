/** What goes on and what went wrong, in words. */

import type { Progress } from '../protocol.ts';
import { bytes } from './units.ts';

export function progressText({ phase, loaded, total }: Progress): string {
  if (phase === 'fetch') return `Downloading: ${bytes(loaded)} of ${bytes(total)}`;
  if (phase === 'compile') return `Preparing the GPU: ${loaded} of ${total} kernels`;
  return total ? `Working: ${loaded} of ${total}` : 'Working';
}

const ADVICE: Readonly<Record<string, string>> = {
  network: 'A file of the model could not be fetched. Check the connection and try again.',
  integrity: 'A downloaded file is damaged. Reload the page and try again.',
  format: 'The model on this server does not fit this page.',
  'no-webgpu': 'This browser offers no WebGPU. Switch to WebAssembly.',
  limit: 'This GPU is too small for the model. Switch to WebAssembly.',
  memory: 'Memory ran out. Close other pages, or try a smaller input.',
  lost: 'The GPU was lost, as happens when a computer sleeps. Try again: the model is loaded anew.',
  context: 'The conversation is longer than the model can hold. Start a new one.',
  template: 'The model cannot take this conversation.',
  device: 'The GPU refused the work. Switch to WebAssembly.',
  picture: 'This is no picture that the browser can open.',
  sound: 'This is no sound that the browser can decode.',
  microphone: 'The microphone could not be used. Allow it for this page, or choose a recording.',
  worker: 'The page’s worker stopped. Reload the page.',
};

/** Advice, and what the program said. */
export function failureText(error: unknown): { advice: string; detail: string } {
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  const detail = error instanceof Error ? error.message : String(error);
  return { advice: ADVICE[code] ?? 'That did not work.', detail };
}
