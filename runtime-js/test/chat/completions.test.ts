import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { ChatChunk, Completion } from '../../src/chat/types.ts';
import { Tokenizer } from '../../src/chat/tokenizer.ts';
import { type Asked, bytes, chatOf, description, END, FakeEngine } from './fakes.ts';
import { saying, tokenizer, told, VOCABULARY } from './fakes.ts';

const MESSAGES = [{ role: 'user', content: 'hi' }] as const;
const text = (chunks: readonly ChatChunk[]): string =>
  chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');

async function collected<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of stream) all.push(item);
  return all;
}

describe('an answer', () => {
  it('has the shape of OpenAI’s', async () => {
    const engine = saying('Grüße 👋');
    const chat = chatOf(engine);
    const answer = await chat.chat.completions.create({ messages: MESSAGES });
    expect(answer).toMatchObject({
      object: 'chat.completion',
      model: 'fake',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: 'Grüße 👋' },
          finish_reason: 'stop',
          logprobs: null,
        },
      ],
    });
    const prompt = '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n';
    expect(engine.asked[0]?.prompt).toEqual(chat.encode(prompt));
    const tokens = bytes('Grüße 👋').length + 1;
    const count = engine.asked[0]?.prompt.length ?? 0;
    expect(answer.usage).toEqual({
      prompt_tokens: count,
      completion_tokens: tokens,
      total_tokens: count + tokens,
      prompt_tokens_details: { cached_tokens: 0 },
    });
    expect(answer.timings.first_token).toBeGreaterThan(0);
    expect(answer.timings.tokens_per_second).toBeGreaterThan(0);
    expect(answer.id).toMatch(/^chatcmpl-[0-9a-f]{24}$/);
    expect(Math.abs(answer.created - Date.now() / 1000)).toBeLessThan(10);
  });

  it('comes in chunks, of whole characters', async () => {
    const stream = chatOf(saying('a€b')).chat.completions.create({
      messages: MESSAGES,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = await collected(stream);
    const deltas = chunks.map((chunk) => chunk.choices[0]?.delta);
    const first = { role: 'assistant', content: '' };
    expect(deltas).toEqual([
      first,
      { content: 'a' },
      { content: '€' },
      { content: 'b' },
      {},
      undefined,
    ]);
    expect(chunks.at(-2)?.choices[0]?.finish_reason).toBe('stop');
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe(6);
    expect(chunks.slice(0, -1).every((chunk) => chunk.usage === null)).toBe(true);
    expect(new Set(chunks.map((chunk) => chunk.id)).size).toBe(1);
  });

  it('without usage asked for ends with the reason', async () => {
    const chunks = await collected(
      chatOf(saying('a')).chat.completions.create({ messages: MESSAGES, stream: true }),
    );
    expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('stop');
    expect(chunks.some((chunk) => 'usage' in chunk)).toBe(false);
  });

  it('may also be awaited before it is read', async () => {
    const stream = await chatOf(saying('ab')).chat.completions.create({
      messages: MESSAGES,
      stream: true,
    });
    expect(text(await collected(stream))).toBe('ab');
  });

  it('of nothing is empty', async () => {
    const answer = await chatOf(saying('')).chat.completions.create({ messages: MESSAGES });
    expect(answer.choices[0].message.content).toBe('');
    expect(answer.timings.tokens_per_second).toBe(0);
  });
});

describe('the end', () => {
  it('is a stop string, of which nothing is seen', async () => {
    const engine = saying('one\n\ntwo');
    const answer = await chatOf(engine).chat.completions.create({
      messages: MESSAGES,
      stop: ['\n\n', 'three'],
    });
    expect(answer.choices[0]).toMatchObject({ message: { content: 'one' }, finish_reason: 'stop' });
    expect(answer.usage.completion_tokens).toBe(5);
    expect(engine.taken).toBe(5);
    expect(engine.running).toBe(0);
  });

  it.each([
    [{ max_tokens: 3 }, 'one', 'length'],
    [{ max_completion_tokens: 2, max_tokens: 9 }, 'on', 'length'],
    [{ max_tokens: 4, stop: 'e more' }, 'one ', 'length'],
    [{ max_tokens: 9, stop: 'e more' }, 'on', 'stop'],
    [{ max_tokens: 8 }, 'one more', 'length'],
    [{ max_tokens: 9 }, 'one more', 'stop'],
  ])('by %j', async (limits, content, reason) => {
    const engine = saying('one more');
    const answer = await chatOf(engine).chat.completions.create({ messages: MESSAGES, ...limits });
    expect(answer.choices[0].message.content).toBe(content);
    expect(answer.choices[0].finish_reason).toBe(reason);
  });

  it('is the context’s', async () => {
    const engine = saying('a'.repeat(300));
    const answer = await chatOf(engine).chat.completions.create({ messages: MESSAGES });
    expect(answer.usage.total_tokens).toBe(256);
    expect(answer.choices[0].finish_reason).toBe('length');
    expect(engine.asked[0]?.options.limit).toBe(256 - answer.usage.prompt_tokens);
  });

  it('is not where a token says so, if it is to be ignored', async () => {
    const engine = new FakeEngine([...bytes('a'), END, ...bytes('b'), END]);
    const { choices, usage } = await chatOf(engine).chat.completions.create({
      messages: MESSAGES,
      ignore_eos: true,
      max_tokens: 3,
      metadata: { of: 'mine' },
    });
    expect(choices[0]).toMatchObject({ message: { content: 'ab' }, finish_reason: 'length' });
    expect(usage.completion_tokens).toBe(3);
  });

  it('within a character leaves U+FFFD', async () => {
    const answer = await chatOf(saying('€')).chat.completions.create({
      messages: MESSAGES,
      max_tokens: 2,
    });
    expect(answer.choices[0].message.content).toBe('\uFFFD');
  });

  it('of what the prompt has no room for is told with numbers', async () => {
    const engine = saying('a');
    const chat = chatOf(engine);
    const messages = [{ role: 'user', content: 'x'.repeat(300) }] as const;
    expect(await told(() => chat.chat.completions.create({ messages }))).toMatch(
      /^context: the prompt has 3\d\d tokens, and the context holds 256/,
    );
    expect(engine.asked.length).toBe(0);
    expect((await chat.chat.completions.create({ messages: MESSAGES })).choices.length).toBe(1);
  });
});

describe('sampling', () => {
  it('is what the request says', async () => {
    const engine = saying('a');
    await chatOf(engine).chat.completions.create({
      messages: MESSAGES,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 40,
      min_p: 0.05,
      repetition_penalty: 1.1,
      presence_penalty: 0.25,
      frequency_penalty: -0.5,
      logit_bias: { '65': -100, 66: 5 },
      seed: -1,
    });
    expect(engine.asked[0]?.sampling).toEqual({
      temperature: 0.5,
      topP: 0.9,
      topK: 40,
      minP: 0.05,
      repetitionPenalty: 1.1,
      presencePenalty: 0.25,
      frequencyPenalty: -0.5,
      logitBias: new Map([
        [65, -100],
        [66, 5],
      ]),
      seed: 2 ** 32 - 1,
    });
  });

  it('is the model’s where the request is silent, with a seed of chance', async () => {
    const engine = saying('a');
    const chat = chatOf(engine, { defaults: { temperature: 0.2, topK: 50 } });
    await chat.chat.completions.create({ messages: MESSAGES, temperature: null });
    await chat.chat.completions.create({ messages: MESSAGES, top_k: 0 });
    const [first, second] = engine.asked.map((asked) => asked.sampling);
    expect(first).toMatchObject({ temperature: 0.2, topK: 50, topP: 1, minP: 0 });
    expect(second).toMatchObject({ temperature: 0.2, topK: 0 });
    expect(first?.seed).not.toBe(second?.seed);
  });
});

interface Logged {
  readonly name: string;
  readonly written: readonly string[];
  readonly stop: string[];
  readonly content: string;
  readonly tokens: readonly string[];
}

const LOGGED = JSON.parse(
  readFileSync(new URL('../../../tests/chat/logprobs.json', import.meta.url), 'utf8'),
) as Logged[];

describe('probabilities', () => {
  it.each(LOGGED)(
    'are of the answer’s tokens: $name',
    async ({ written, stop, content, tokens }) => {
      const script = written.flatMap((piece) => tokenizer().encode(piece, false));
      const engine = new FakeEngine(() => script.map((id) => ({ id, logprob: -1, top: [] })));
      const asked = { messages: MESSAGES, logprobs: true, stop };
      const [choice] = (await chatOf(engine).chat.completions.create(asked)).choices;
      expect(choice.message.content).toBe(content);
      expect(choice.logprobs?.content.map(({ token }) => token)).toEqual(tokens);
    },
  );

  const scored = (text: string, end = true): FakeEngine =>
    new FakeEngine(() => [
      ...bytes(text).map((id, k) => ({
        id,
        logprob: -k,
        top: [
          { id, logprob: -k },
          { id: 256, logprob: -9 },
        ],
      })),
      ...(end ? [{ id: END, logprob: 0 }] : []),
    ]);

  it('stand with the tokens, whose bytes need not be characters', async () => {
    const engine = scored('a€');
    const answer = await chatOf(engine).chat.completions.create({
      messages: MESSAGES,
      logprobs: true,
      top_logprobs: 2,
    });
    expect(engine.asked[0]?.options.logprobs).toBe(2);
    const content = answer.choices[0].logprobs?.content ?? [];
    expect(content.map((token) => token.bytes)).toEqual([[97], [0xe2], [0x82], [0xac]]);
    expect(content.map((token) => token.logprob)).toEqual([-0, -1, -2, -3]);
    expect(content[0]).toEqual({
      token: 'a',
      logprob: -0,
      bytes: [97],
      top_logprobs: [
        { token: 'a', logprob: -0, bytes: [97] },
        { token: 'hi', logprob: -9, bytes: [104, 105] },
      ],
    });
  });

  it('keep a byte order mark that a token is', async () => {
    const made = description();
    const [mark] = made['added_tokens'] as object[];
    const id = VOCABULARY - 1;
    (made['added_tokens'] as object[]).push({ ...mark, id, content: '\ufeff', special: false });
    const script = () => [
      { id, logprob: -1 },
      { id: END, logprob: 0 },
    ];
    const chat = chatOf(new FakeEngine(script), { tokenizer: new Tokenizer(JSON.stringify(made)) });
    const { choices } = await chat.chat.completions.create({ messages: MESSAGES, logprobs: true });
    expect(choices[0].message.content).toBe('\ufeff');
    expect(choices[0].logprobs?.content[0]).toMatchObject({
      token: '\ufeff',
      bytes: [0xef, 0xbb, 0xbf],
    });
  });

  it('come with the chunk that has their text, and none with what a stop cut off', async () => {
    const stream = chatOf(scored('abXYcd')).chat.completions.create({
      messages: MESSAGES,
      logprobs: true,
      stop: ['XYc'],
      stream: true,
    });
    const seen = (await collected(stream)).map(({ choices: [choice] }) => [
      choice?.delta.content ?? null,
      choice?.logprobs?.content.map((token) => token.token).join(''),
    ]);
    expect(seen).toEqual([
      ['', ''],
      ['a', 'a'],
      ['b', 'b'],
      [null, ''],
    ]);
  });

  it('are all there at the end', async () => {
    const answer = await chatOf(scored('abX', false)).chat.completions.create({
      messages: MESSAGES,
      logprobs: true,
      stop: ['XY'],
    });
    expect(answer.choices[0].logprobs?.content.map((token) => token.token)).toEqual([
      'a',
      'b',
      'X',
    ]);
  });
});

describe('a completion', () => {
  it('goes on from the prompt', async () => {
    const engine = saying(' Paris');
    const answer = await chatOf(engine).completions.create({ prompt: 'The capital is' });
    expect(answer).toMatchObject({
      object: 'text_completion',
      choices: [{ index: 0, text: ' Paris', finish_reason: 'stop', logprobs: null }],
    });
    expect(engine.asked[0]?.prompt).toEqual(bytes('The capital is'));
  });

  it('takes tokens, streams, and tells probabilities in lists', async () => {
    const ids = bytes('ab');
    const engine = new FakeEngine(() => [
      ...ids.map((id) => ({ id, logprob: -1, top: [{ id, logprob: -1 }] })),
      { id: END },
    ]);
    const request = { prompt: [1, 2, 3], logprobs: 1, stream_options: { include_usage: true } };
    const chat = chatOf(engine);
    const chunks: Completion[] = await collected(
      chat.completions.create({ ...request, stream: true }),
    );
    expect(engine.asked[0]?.prompt).toEqual([1, 2, 3]);
    expect(chunks.map((chunk) => chunk.choices[0]?.text)).toEqual(['a', 'b', '', undefined]);
    expect(chunks.at(-1)?.usage?.prompt_tokens).toBe(3);
    const whole = await chat.completions.create(request);
    expect(whole.choices[0]?.logprobs).toEqual({
      tokens: ['a', 'b'],
      token_logprobs: [-1, -1],
      top_logprobs: [{ a: -1 }, { b: -1 }],
      text_offset: [0, 1],
    });
  });
});

describe('several answers to one request', () => {
  const request = { messages: MESSAGES, n: 3, seed: 7 } as const;

  it('are made at once, with seeds of their own and the prompt counted once', async () => {
    const engine = saying('one', 'three', 'five');
    const answer = await chatOf(engine).chat.completions.create(request);
    expect(answer.choices.map(({ index, message }) => [index, message.content])).toEqual([
      [0, 'one'],
      [1, 'three'],
      [2, 'five'],
    ]);
    expect(engine.most).toBe(3);
    expect(engine.asked.map(({ sampling }) => sampling.seed)).toEqual([7, 8, 9]);
    const prompt = engine.asked[0]?.prompt.length ?? 0;
    const said = 'onethreefive'.length + 3;
    expect(answer.usage).toMatchObject({
      prompt_tokens: prompt,
      completion_tokens: said,
      total_tokens: prompt + said,
    });
  });

  it('tell the cache of the first, whichever ends first', async () => {
    const holding = (text: string, cached: number) => {
      const said = [...bytes(text), END].map((id) => ({ id }));
      return ({ options }: Asked) => (options.onPrompt(cached), said);
    };
    const chat = () => chatOf(new FakeEngine(holding('a long one', 1), holding('b', 2))).chat;
    const asked = { ...request, n: 2 };
    const { usage } = await chat().completions.create(asked);
    const streamed = chat().completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    expect(usage.prompt_tokens_details.cached_tokens).toBe(1);
    expect((await collected(streamed)).at(-1)?.usage).toEqual(usage);
  });

  it('come in one stream, each under its index, with one chunk of usage', async () => {
    const stream = chatOf(saying('one', 'three', 'five')).chat.completions.create({
      ...request,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = await collected(stream);
    const of = (index: number) =>
      chunks.filter(({ choices }) => choices[0]?.index === index).map(({ choices }) => choices[0]);
    for (const [index, said] of ['one', 'three', 'five'].entries()) {
      const mine = of(index);
      expect(mine[0]?.delta).toEqual({ role: 'assistant', content: '' });
      expect(mine.map((choice) => choice?.delta.content ?? '').join('')).toBe(said);
      expect(mine.at(-1)?.finish_reason).toBe('stop');
    }
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);
    expect(chunks.filter(({ usage }) => usage).length).toBe(1);
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe('onethreefive'.length + 3);
  });

  it('end together where one fails', async () => {
    const engine = new FakeEngine(
      function* () {
        for (;;) yield { id: 97 };
      },
      function* () {
        yield { id: 97 };
        throw new Error('no more');
      },
    );
    engine.context = 1e6;
    const chat = chatOf(engine);
    expect(await told(() => chat.completions.create({ prompt: 'x', n: 2 }))).toContain('no more');
    expect(engine.running).toBe(0);
  });

  it('of texts have their probabilities', async () => {
    const script = [{ id: 97, logprob: -1, top: [] }];
    const chat = chatOf(new FakeEngine(() => script));
    const { choices } = await chat.completions.create({
      prompt: 'x',
      n: 2,
      max_tokens: 1,
      logprobs: 0,
    });
    expect(choices.map(({ index, text, logprobs }) => [index, text, logprobs?.tokens])).toEqual([
      [0, 'a', ['a']],
      [1, 'a', ['a']],
    ]);
  });
});
