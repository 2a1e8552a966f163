/** The code of docs/chat-js.md runs, one block after another, on an engine that draws what it may. */

import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import type { Chat } from '../../src/chat/chat.ts';
import type { LoadChatOptions } from '../../src/chat/load.ts';
import { bytes, chatOf, END, FakeEngine, obedient } from './fakes.ts';

const PAGE = new URL('../../../docs/chat-js.md', import.meta.url);

async function loadChat(_: string, { grammar, onProgress }: LoadChatOptions): Promise<Chat> {
  onProgress?.({ phase: 'fetch', loaded: 1, total: 1, item: 'weights' });
  const engine = new FakeEngine((asked) =>
    asked.options.mask ? obedient(asked, 1) : [...bytes('Paris'), END].map((id) => ({ id })),
  );
  engine.context = 4000;
  return chatOf(engine, { grammar });
}

it('runs', async () => {
  const blocks = readFileSync(PAGE, 'utf8').matchAll(/^```js\n(.*?)^```/gms);
  const code = [...blocks].map(([, block]) => block).join('');
  const body = code
    .replace(/^import .* from 'edgerelax';$/m, '')
    .replace("import('@mlc-ai/web-xgrammar')", 'xgrammar()');
  const logged: unknown[] = [];
  const console = { log: (...values: unknown[]) => logged.push(...values) };
  const names = ['loadChat', 'console', 'xgrammar'];
  const run = new Function(
    ...names,
    `return (async () => {${body}; return { text, seen, answer }})()`,
  );
  const ran = (await run(loadChat, console, () => import('@mlc-ai/web-xgrammar'))) as {
    text: string;
    seen: number;
    answer: object;
  };
  expect(ran.text).toBe('Paris');
  expect(ran.seen).toBe(2);
  expect(logged).toContain('abort');
  expect(logged.slice(0, 5)).toEqual(['fetch', 1, 1, 'Paris', 'stop']);
  expect(typeof logged.at(-1)).toBe('string');
});
