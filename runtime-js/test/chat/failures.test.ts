import { describe, expect, it } from 'vitest';
import type { ChatRequest, CompletionRequest } from '../../src/chat/types.ts';
import { bytes, chatOf, END, FakeEngine, saying, told } from './fakes.ts';

const MESSAGES = [{ role: 'user', content: 'hi' }] as const;
const TOOL = { type: 'function', function: { name: 'look', parameters: {} } };

const BAD: readonly (readonly [string, object, string])[] = [
  ['no messages', { messages: undefined }, 'messages is missing'],
  ['an empty list', { messages: [] }, 'messages is empty'],
  ['text for messages', { messages: 'hi' }, 'messages is no list'],
  ['an unknown role', { messages: [{ role: 'bot', content: '' }] }, 'messages[0].role is none of'],
  ['no content', { messages: [{ role: 'user' }] }, 'messages[0].content is missing'],
  [
    'null content',
    { messages: [{ role: 'user', content: null }] },
    'messages[0].content is no text',
  ],
  ['a silent assistant', { messages: [{ role: 'assistant' }] }, 'messages[0] has neither content'],
  [
    'a picture that is nowhere',
    { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }] },
    'messages[0].content[0].image_url.url is missing',
  ],
  [
    'sound',
    { messages: [{ role: 'user', content: [{ type: 'input_audio' }] }] },
    'messages[0].content[0].type is none of text, image_url, image',
  ],
  [
    'calls that are none',
    { messages: [{ role: 'assistant', tool_calls: [{ id: 'a', type: 'function' }] }] },
    'messages[0].tool_calls[0].function is missing',
  ],
  ['a misspelled field', { max_token: 3 }, 'max_token is no field here; there are messages,'],
  [
    'a misspelled field within',
    { messages: [{ role: 'user', content: '', nam: '' }] },
    'messages[0].nam',
  ],
  ['temperature', { temperature: 2.5 }, 'temperature is no number from 0 to 2'],
  ['temperature of text', { temperature: '1' }, 'temperature is no number'],
  ['temperature of nothing', { temperature: NaN }, 'temperature is no number'],
  ['top_p', { top_p: -0.1 }, 'top_p is no number from 0 to 1'],
  ['top_k', { top_k: 1.5 }, 'top_k is no count'],
  ['min_p', { min_p: 2 }, 'min_p is no number'],
  ['repetition_penalty', { repetition_penalty: 0 }, 'repetition_penalty is no number above 0'],
  ['presence_penalty', { presence_penalty: 3 }, 'presence_penalty is no number from -2 to 2'],
  ['max_tokens', { max_tokens: 0 }, 'max_tokens is 0; it is 1 at least'],
  ['logit_bias', { logit_bias: { a: 1 } }, 'logit_bias: the vocabulary has no token a'],
  [
    'logit_bias beyond',
    { logit_bias: { 9999: 1 } },
    'logit_bias: the vocabulary has no token 9999',
  ],
  ['logit_bias too strong', { logit_bias: { 1: 101 } }, 'logit_bias.1 is no number from -100'],
  ['seed', { seed: 0.5 }, 'seed is no integer'],
  ['stops', { stop: ['a', 1] }, 'stop'],
  ['n', { n: 17 }, 'n is no number from 1 to 16'],
  ['n of nothing', { n: 0 }, 'n is 0; it is 1 at least'],
  ['signal', { signal: {} }, 'signal is no AbortSignal'],
  ['top_logprobs alone', { top_logprobs: 2 }, 'top_logprobs needs logprobs'],
  ['top_logprobs', { logprobs: true, top_logprobs: 21 }, 'top_logprobs is no number from 0 to 20'],
  ['tools', { tools: [{ ...TOOL, type: 'x' }] }, 'tools[0].type is none of function'],
  ['a tool’s name', { tools: [{ ...TOOL, function: { name: 'a b' } }] }, 'tools[0].function.name'],
  ['tool_choice', { tools: [TOOL], tool_choice: 'all' }, 'tool_choice is none of none, auto'],
  ['tool_choice alone', { tool_choice: 'auto' }, 'tool_choice needs tools'],
  [
    'a choice of no tool',
    { tools: [TOOL], tool_choice: { type: 'function', function: { name: 'x' } } },
    'tool_choice names x, which is none of the tools',
  ],
  ['response_format', { response_format: { type: 'xml' } }, 'response_format.type is none of text'],
  [
    'no schema',
    { response_format: { type: 'json_schema', json_schema: {} } },
    'response_format.json_schema.schema is missing',
  ],
  [
    'a format with tools',
    { tools: [TOOL], response_format: { type: 'json_object' } },
    'response_format leaves no room for tools',
  ],
];

describe('a request is refused, with the field', () => {
  it.each(BAD)('for %s', async (_, change, message) => {
    const engine = saying('fine');
    const chat = chatOf(engine);
    const request = { messages: MESSAGES, ...change } as ChatRequest;
    const said = await told(() => chat.chat.completions.create({ ...request, stream: false }));
    expect(said).toMatch(/^input: /);
    expect(said).toContain(message);
    const streamed = chat.chat.completions.create({ ...request, stream: true });
    expect(await told(() => streamed[Symbol.asyncIterator]().next())).toBe(said);
    expect(engine.asked.length).toBe(0);
    const { choices } = await chat.chat.completions.create({ messages: MESSAGES });
    expect(choices[0].message.content).toBe('fine');
  });

  it.each([
    [{}, 'prompt is missing'],
    [{ prompt: '' }, 'prompt is empty'],
    [{ prompt: [] }, 'prompt'],
    [{ prompt: [1, 9999] }, 'prompt[1]: the vocabulary has no token 9999'],
    [{ prompt: 'a', messages: [] }, 'messages is no field here'],
    [{ prompt: 'a', logprobs: 30 }, 'logprobs is no number from 0 to 20'],
  ])('for the completion %j', async (request, message) => {
    const chat = chatOf(saying('fine'));
    expect(await told(() => chat.completions.create(request as CompletionRequest))).toContain(
      `input: ${message}`,
    );
  });

  it.each([undefined, null, 3, 'hi', []])('for what is no request: %j', async (request) => {
    const chat = chatOf(saying('fine'));
    const create = chat.chat.completions.create as (request: unknown) => Promise<unknown>;
    expect(await told(() => create(request))).toContain('input: the request is no object');
  });
});

describe('a template', () => {
  it('that refuses is heard', async () => {
    const template =
      "{% if messages[0].role == 'system' %}{{ raise_exception('No system!') }}{% endif %}x";
    const chat = chatOf(saying('a'), { templates: { default: template } });
    const messages = [{ role: 'system', content: 'be brief' }, ...MESSAGES] as const;
    expect(await told(() => chat.chat.completions.create({ messages }))).toBe(
      'template: the chat template refuses this: No system!',
    );
    const answer = await chat.chat.completions.create({ messages: MESSAGES });
    expect(answer.choices[0].message.content).toBe('a');
  });

  it('with a fault is told when the chat is made', async () => {
    const make = () => chatOf(saying('a'), { templates: { default: '{% for %}' } });
    expect(await told(make)).toMatch(/^template: the chat template has a fault: /);
  });

  it('that is missing leaves completions', async () => {
    const chat = chatOf(saying('a'), { templates: {} });
    expect(await told(() => chat.chat.completions.create({ messages: MESSAGES }))).toContain(
      'template: this model came without a chat template',
    );
    expect((await chat.completions.create({ prompt: 'x' })).choices[0]?.text).toBe('a');
  });
});

describe('an answer that is given up', () => {
  const endless = (): FakeEngine =>
    new FakeEngine(
      function* () {
        for (;;) yield { id: 97 };
      },
      [...bytes('next'), END],
    );
  const next = async (chat: ReturnType<typeof chatOf>): Promise<string | null> =>
    (await chat.chat.completions.create({ messages: MESSAGES })).choices[0].message.content;

  it('by its signal fails with abort, and the next one works', async () => {
    const engine = endless();
    engine.context = 1e6;
    const chat = chatOf(engine);
    const controller = new AbortController();
    const stream = chat.chat.completions.create({
      messages: MESSAGES,
      stream: true,
      signal: controller.signal,
    });
    let count = 0;
    const said = await told(async () => {
      for await (const _ of stream) if (++count === 3) controller.abort();
    });
    expect(said).toBe('abort: aborted');
    expect(engine.running).toBe(0);
    expect(await next(chat)).toBe('next');
  });

  it('by leaving the loop ends without an error', async () => {
    const engine = endless();
    engine.context = 1e6;
    const chat = chatOf(engine);
    let count = 0;
    for await (const _ of chat.chat.completions.create({ messages: MESSAGES, stream: true })) {
      if (++count === 3) break;
    }
    expect(engine.running).toBe(0);
    expect(await next(chat)).toBe('next');
  });

  it('leaves the others alone that are made meanwhile', async () => {
    const engine = saying('one', 'two');
    const chat = chatOf(engine);
    const controller = new AbortController();
    const answers = Promise.allSettled([
      chat.chat.completions.create({ messages: MESSAGES }),
      chat.chat.completions.create({ messages: MESSAGES, signal: controller.signal }),
      chat.chat.completions.create({ messages: MESSAGES }),
    ]);
    while (engine.taken < 3) await new Promise((resolve) => setTimeout(resolve));
    controller.abort();
    const [first, aborted, last] = await answers;
    expect(first.status === 'fulfilled' && first.value.choices[0].message.content).toBe('one');
    expect(aborted).toMatchObject({ status: 'rejected', reason: { code: 'abort' } });
    expect(last.status === 'fulfilled' && last.value.choices[0].message.content).toBe('two');
    expect([engine.most, engine.running]).toEqual([3, 0]);
  });

  it('before it begins never reaches the engine', async () => {
    const engine = saying('one');
    const signal = AbortSignal.abort();
    const chat = chatOf(engine);
    expect(await told(() => chat.chat.completions.create({ messages: MESSAGES, signal }))).toBe(
      'abort: aborted',
    );
    expect(engine.asked.length).toBe(0);
  });

  it('unread does not stand in the way', async () => {
    const chat = chatOf(saying('unread', 'read'));
    chat.chat.completions.create({ messages: MESSAGES, stream: true });
    expect(await next(chat)).toBe('read');
  });

  it('by an engine that fails passes the failure on', async () => {
    const engine = new FakeEngine(
      function* () {
        yield { id: 97 };
        throw new Error('the device is gone');
      },
      [...bytes('next'), END],
    );
    const chat = chatOf(engine);
    expect(await told(() => chat.chat.completions.create({ messages: MESSAGES }))).toContain(
      'the device is gone',
    );
    expect(await next(chat)).toBe('next');
  });
});

describe('dispose', () => {
  it('ends all that runs, and frees the engine once', async () => {
    const engine = new FakeEngine(function* () {
      for (;;) yield { id: 97 };
    });
    engine.context = 1e6;
    const chat = chatOf(engine);
    const answers = [1, 2].map(() =>
      told(() => chat.chat.completions.create({ messages: MESSAGES })),
    );
    while (engine.taken < 3) await new Promise((resolve) => setTimeout(resolve));
    expect(engine.running).toBe(2);
    await Promise.all([chat.dispose(), chat.dispose()]);
    expect(await Promise.all(answers)).toEqual(Array(2).fill('disposed: the chat was disposed of'));
    expect(engine.disposed).toBe(1);
    expect(await told(() => chat.chat.completions.create({ messages: MESSAGES }))).toContain(
      'disposed',
    );
  });
});
