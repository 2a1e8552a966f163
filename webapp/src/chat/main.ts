/** The chat page. */

import '../style/page.css';
import '../style/controls.css';
import '../style/results.css';
import '../style/chat.css';
import '../style/markdown.css';
import { ChatClient } from './chat-client.ts';
import { ChatPage } from './page.ts';

const MODEL = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

/** The model's folder beside those of the other tools; `?model=` names another one there. */
function folder(): string {
  const named = new URLSearchParams(location.search).get('model') ?? '';
  const name = MODEL.test(named) ? named : 'smollm2';
  return new URL(`models/${name}/`, document.baseURI).href;
}

const worker = new Worker(new URL('./chat-worker.ts', import.meta.url), { type: 'module' });
document.body.replaceChildren(...new ChatPage(new ChatClient(worker, folder())).elements);
