import { expect, it } from 'vitest';
import type { Engine, Sampling } from '../../src/chat/engine.ts';
import { PagedEngine } from '../../src/chat/paged.ts';
import type { LanguageInfo } from '../../src/manifest.ts';
import type { Model, Outputs } from '../../src/model.ts';

const ROLES = ['step', 'greedy', 'sample', 'adjusted', 'top', 'count', 'clear'];

const language = {
  architecture: 'llama',
  ...{ vocabulary: 8, context: 64, page_size: 16, window: null },
  functions: Object.fromEntries(ROLES.map((role) => [role, role])),
  ...{ tokenizer: null, chat: null, bos: null, eos: [] },
} satisfies LanguageInfo;

const GREEDY: Sampling = {
  ...{ temperature: 0, topP: 1, topK: 0, minP: 0, seed: 1, logitBias: new Map() },
  ...{ repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 },
};

/** A model whose draws give 0, 1, 2… once they are told to. */
function heldModel() {
  const held: (() => void)[] = [];
  const drawn: Record<string, number> = {};
  const start = (_: unknown, { function: role }: { function: string }): Promise<Outputs> => {
    if (role !== 'greedy') return Promise.resolve({});
    const token = (drawn[role] ??= 0);
    drawn[role]++;
    const data = Int32Array.of(token);
    return new Promise((resolve) =>
      held.push(() => resolve({ token: { data, shape: [1], dtype: 'i32' } })),
    );
  };
  const manifest = { programs: [], states: [], functions: [] };
  const model = {
    ...{ backend: 'webgpu', variant: 'gpu', manifest, start },
    settled: async () => undefined,
  };
  return { held, model: model as unknown as Model };
}

async function tokens(engine: Engine, limit: number): Promise<number[]> {
  const found: number[] = [];
  const options = { limit, signal: new AbortController().signal, onPrompt: () => undefined };
  for await (const { id } of engine.generate([1, 2], GREEDY, options)) found.push(id);
  return found;
}

it('gives tokens in order, whichever results come first', async () => {
  const { held, model } = heldModel();
  const engine = new PagedEngine(model, language, { inFlight: 3 });
  const answer = tokens(engine, 3);
  await expect.poll(() => held.length).toBe(3);
  for (const go of held.reverse()) go();
  expect(await answer).toEqual([0, 1, 2]);
});
