import { expect, it } from 'vitest';
import type { Engine, Sampling, TokenMask } from '../../src/chat/engine.ts';
import { generating } from '../../src/chat/generating.ts';
import { PagedEngine } from '../../src/chat/paged.ts';
import { turn } from '../../src/chat/turn.ts';
import { EdgeRelaxError } from '../../src/errors.ts';
import type { LanguageInfo, Manifest } from '../../src/manifest.ts';
import type { Model, Outputs } from '../../src/model.ts';
import { anything, foretold, languageOf, Oracle } from './oracle.ts';

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

async function tokens(engine: Engine, limit: number, mask?: TokenMask): Promise<number[]> {
  const found: number[] = [];
  const { signal } = new AbortController();
  const options = { limit, signal, onPrompt: () => undefined, ...(mask && { mask }) };
  for await (const { id } of engine.generate([1, 2], GREEDY, options)) found.push(id);
  return found;
}

async function until(met: () => boolean): Promise<void> {
  while (!met()) await turn();
}

it('gives tokens in order, whichever results come first', async () => {
  const { held, model } = heldModel();
  const engine = new PagedEngine(model, language, { inFlight: 3 });
  const answer = tokens(engine, 3);
  await until(() => held.length === 3);
  for (const go of held.reverse()) go();
  expect(await answer).toEqual([0, 1, 2]);
});

const TEXT = { prompt: [1, 2], limit: 3, adjusted: false };

/** Tells results as soon as they are there, until some work is over. */
async function atOnce<T>(oracle: Oracle, work: Promise<T>): Promise<T> {
  let over = false;
  const done = (): boolean => (over = true);
  work.then(done, done);
  while (!over) {
    await turn();
    oracle.held.splice(0).forEach((tell) => tell());
  }
  return work;
}

it('does not let a failure of what was given up harm texts that begin after it', async () => {
  const oracle = new Oracle();
  const rejects: (() => void)[] = [];
  const failing = async (): Promise<Outputs> =>
    new Promise((_, reject) => rejects.push(() => reject(new EdgeRelaxError('vm', 'on purpose'))));
  const { model } = oracle;
  const start = (...given: Parameters<Model['start']>): Promise<Outputs> =>
    given[1]?.function === 'greedy' && rejects.length < 2 ? failing() : model.start(...given);
  const engine = new PagedEngine({ ...model, start } as Model, languageOf(64), { inFlight: 2 });
  const first = tokens(engine, 9);
  await until(() => rejects.length === 2);
  rejects[0]!();
  await expect(first).rejects.toThrow('on purpose');
  const steps = oracle.calls.length;
  const second = tokens(engine, 3);
  await until(() => oracle.calls.length > steps);
  rejects[1]!();
  expect(await atOnce(oracle, second)).toEqual(foretold(TEXT, Infinity));
});

it('ends texts that wait for a mask when it is disposed of', async () => {
  const oracle = new Oracle();
  const engine = new PagedEngine(oracle.model, languageOf(64), { inFlight: 2 });
  let asked = false;
  const never: TokenMask = () => ((asked = true), new Promise(() => undefined));
  const answer = tokens(engine, 3, never);
  await until(() => asked);
  await engine.dispose();
  await expect(atOnce(oracle, answer)).rejects.toThrow('disposed');
});

it('fails a text whose mask throws, and no other', async () => {
  const oracle = new Oracle();
  const engine = new PagedEngine(oracle.model, languageOf(64), { inFlight: 2 });
  const broken: TokenMask = () => {
    throw new Error('no mask');
  };
  const all = Promise.allSettled([tokens(engine, 3, broken), tokens(engine, 3, anything)]);
  const [bad, good] = await atOnce(oracle, all);
  expect(bad).toMatchObject({ status: 'rejected', reason: { message: 'no mask' } });
  expect(good).toEqual({
    status: 'fulfilled',
    value: foretold({ ...TEXT, adjusted: true }, Infinity),
  });
});

it('says once how much of a prompt it had', async () => {
  const oracle = new Oracle();
  const engine = new PagedEngine(oracle.model, languageOf(24), { cacheTokens: 24, inFlight: 1 });
  const told: number[] = [];
  const one = async (prompt: number[], limit: number): Promise<void> => {
    const { signal } = new AbortController();
    const onPrompt = (reused: number): unknown => told.push(reused);
    for await (const _ of engine.generate(prompt, GREEDY, { limit, signal, onPrompt }));
  };
  const whole = Array.from({ length: 11 }, (_, k) => k);
  await atOnce(oracle, Promise.all([one(whole, 13), one([9, ...whole], 12)])); // one gives way
  expect(told).toEqual([0, 0]);
});

it('is not for models that hear', () => {
  const manifest = { language: languageOf(64), assets: ['speech.json'] };
  expect(() => generating(manifest as unknown as Manifest)).toThrow('use loadTranscriber');
});
