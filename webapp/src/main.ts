/** The page: its tools, and a line on what this browser offers. */

import './style/page.css';
import './style/controls.css';
import './style/results.css';
import { Client } from './client.ts';
import type { Adapter } from './protocol.ts';
import { sentencesView } from './view/sentences-view.ts';
import { speechView } from './view/speech-view.ts';
import { textView } from './view/text-view.ts';

const worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' });
const client = new Client(worker, new URL('models/', document.baseURI).href);

document
  .querySelector('#tools')
  ?.replaceChildren(textView(client), sentencesView(client), speechView(client));

// a file that misses its place must not replace the page
for (const type of ['dragover', 'drop']) {
  document.addEventListener(type, (event) => event.preventDefault());
}

const offer = document.querySelector('#offer');
void client.adapter.then((adapter) => {
  if (offer) offer.textContent = offerText(adapter);
});

function offerText({ webgpu, software, description }: Adapter): string {
  if (!webgpu) return 'This browser offers no WebGPU: WebAssembly does the work.';
  if (software) return 'WebGPU is emulated by the CPU here: WebAssembly does the work.';
  return `This browser offers WebGPU${description ? ` on ${description}` : ''}.`;
}
