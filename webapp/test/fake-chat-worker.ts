/** The chat's worker with an engine that knows a few answers, for tests of the page. */

import { bytes, chatOf, END, FakeEngine, tokenizer } from '../../runtime-js/test/chat/fakes.ts';
import { EdgeRelaxError } from '../../runtime-js/src/errors.ts';
import { Detokenizer } from '../../runtime-js/src/chat/stream.ts';
import { type LoadModel, serve } from '../src/chat/serve.ts';

const MARKDOWN = `## Rain

A **rainbow** is light that drops *bend*, see [optics](https://example.org/) — für ½ €.

1. It goes in.
2. It comes out, \`red\` first.

| colour | nm |
| --- | --- |
| red | 700 |
| violet | 400 |

\`\`\`python
def bend(light: float) -> float:
    return light * 1.33  # water
\`\`\`

<img src=x onerror="document.title='broken'"><script>document.title='broken'</script>
![a picture](https://example.org/p.png) [bad](javascript:document.title='broken')`;

const ANSWERS: readonly (readonly [cue: string, answer: string])[] = [
  ['rainbow', MARKDOWN],
  ['capital of France', 'The capital of France is **Paris**.'],
];

/** What stands between the last mark of the user and its end. */
function asked(prompt: readonly number[]): string {
  const all = new Detokenizer(tokenizer(), { begins: true, shown: new Set([END, END - 1]) });
  const text = prompt.map((id) => all.push(id)).join('');
  return text.split('user\n').at(-1)?.split('<|im_end|>')[0] ?? '';
}

/** What the page sends to have the answer without an end go on. */
const more = new BroadcastChannel('more');

/** So many lines at once, and more of them when they are asked for: it ends by its signal alone. */
async function* endless(signal: AbortSignal): AsyncGenerator<{ id: number }> {
  for (;;) {
    const asked = new Promise((resolve) => {
      more.onmessage = resolve;
      signal.onabort = resolve;
    });
    for (const id of bytes('on and on\n\n'.repeat(45))) yield { id };
    await asked;
    signal.throwIfAborted();
  }
}

let failed = false;

const engine = () =>
  new FakeEngine(async function* ({ prompt, sampling, options }) {
    const question = asked(prompt);
    if (question.includes('fail') && !failed) {
      failed = true;
      throw new EdgeRelaxError('lost', 'the GPU device was lost (a test)');
    }
    if (question.includes('endless')) yield* endless(options.signal);
    const known = ANSWERS.find(([cue]) => question.includes(cue))?.[1];
    const said = `${question} at ${sampling.temperature}, seed ${sampling.seed}`;
    for (const id of bytes(known ?? said)) yield { id };
    yield { id: END };
  });

const load: LoadModel = async (folder, { signal, onProgress, backend }) => {
  for (let part = 0; part <= 10; part++) {
    onProgress({ phase: 'fetch', loaded: part * 1e7, total: 1e8 });
    await new Promise((resolve) => setTimeout(resolve, 5));
    signal.throwIfAborted();
  }
  const made = Object.assign(engine(), { context: 8192, backend });
  return chatOf(made, { model: folder.split('/').at(-2) ?? '' });
};

serve(globalThis as never, load, async () => false);
globalThis.postMessage({
  type: 'adapter',
  adapter: { webgpu: false, software: false, description: '' },
});
