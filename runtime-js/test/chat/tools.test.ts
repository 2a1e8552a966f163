import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { type CallFormat, callFormatOf, callSchema, ToolCalls } from '../../src/chat/tools.ts';
import type { ChatRequest, ToolDefinition } from '../../src/chat/types.ts';
import { chatOf, saying, TEMPLATE } from './fakes.ts';

const TOOLS: readonly ToolDefinition[] = ['look', 'ring'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { at: { type: 'string' } } } },
}));

const QWEN = callFormatOf('… <tool_call>\n{"name": … </tool_call> …');
const PHI = callFormatOf('<|tool_call|>');
const LLAMA = callFormatOf('{"name": function name, "parameters": dictionary}');

/** The same however the text is cut. */
function found(format: CallFormat, text: string) {
  const runs = [1, 2, 3, 7, text.length + 1].map((size) => {
    const parser = new ToolCalls(format, TOOLS);
    const parts = text.match(new RegExp(`.{1,${size}}`, 'gs')) ?? [];
    const steps = [...parts.map((part) => parser.push(part)), parser.flush()];
    return {
      text: steps.map((step) => step.text).join(''),
      calls: steps.flatMap((step) => step.calls.map((call) => [call.name, call.arguments])),
    };
  });
  for (const run of runs) expect(run).toEqual(runs[0]);
  return runs[0];
}

const LOOK = '{"name": "look", "arguments": {"at": "the </sky>"}}';
const LOOKED = ['look', '{"at":"the </sky>"}'];

/** What the tests of Python's chat read too; arguments that are text stand for themselves. */
interface Case {
  readonly name: string;
  readonly template: string;
  readonly text: string;
  readonly content: string;
  readonly calls: readonly (readonly [name: string, values: unknown])[];
}

const CASES: readonly Case[] = JSON.parse(
  readFileSync(new URL('../../../tests/chat/tool_calls.json', import.meta.url), 'utf8'),
);

describe('what is read', () => {
  it.each(CASES.map((one) => [one.name, one] as const))('of %s', (_, one) => {
    const calls = one.calls.map(([name, values]) => [
      name,
      typeof values === 'string' ? values : JSON.stringify(values),
    ]);
    expect(found(callFormatOf(one.template), one.text)).toEqual({ text: one.content, calls });
  });
});

describe('the schema of calls', () => {
  it('is one tool’s, or any’s', () => {
    const [look] = TOOLS;
    const one = {
      type: 'object',
      properties: { name: { const: 'look' }, arguments: look?.function.parameters },
      required: ['name', 'arguments'],
      additionalProperties: false,
    };
    expect(callSchema(QWEN, TOOLS.slice(0, 1))).toEqual(one);
    expect(callSchema(QWEN, TOOLS)).toMatchObject({ anyOf: [one, {}] });
    expect(callSchema(PHI, TOOLS.slice(0, 1))).toEqual({ type: 'array', items: one, minItems: 1 });
    expect(callSchema(LLAMA, TOOLS)).toMatchObject({
      anyOf: [{ required: ['name', 'parameters'] }, {}],
    });
  });
});

describe('a chat with tools', () => {
  const template =
    '{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>{% endif %}' +
    TEMPLATE;
  const request: ChatRequest = { messages: [{ role: 'user', content: 'hi' }], tools: TOOLS };
  const ask = (text: string, more: Partial<ChatRequest> = {}) => {
    const engine = saying(text);
    engine.context = 4000;
    const chat = chatOf(engine, { templates: { default: template } });
    const answer = chat.chat.completions.create({ ...request, ...more, stream: false });
    const stream = () => chat.chat.completions.create({ ...request, ...more, stream: true });
    return { engine, answer, stream, chat };
  };
  const said = `<tool_call>\n${LOOK}\n</tool_call>\n<tool_call>\n${LOOK}\n</tool_call>`;

  it('calls', async () => {
    const { answer, engine, chat } = ask(said);
    const { choices } = await answer;
    expect(choices[0].finish_reason).toBe('tool_calls');
    expect(choices[0].message.content).toBeNull();
    const calls = choices[0].message.tool_calls ?? [];
    expect(calls.map((call) => call.function)).toEqual(
      Array(2).fill({ name: LOOKED[0], arguments: LOOKED[1] }),
    );
    expect(new Set(calls.map((call) => call.id)).size).toBe(2);
    const told = chat.encode('{"type": "function", "function": {"name": "look"');
    expect(engine.asked[0]?.prompt.slice(0, told.length)).toEqual(told);
  });

  it('calls in a stream, numbered', async () => {
    const deltas = [];
    const reasons = [];
    for await (const { choices } of ask(said).stream()) {
      deltas.push(...(choices[0]?.delta.tool_calls ?? []));
      reasons.push(choices[0]?.finish_reason);
    }
    expect(deltas.map((delta) => [delta.index, delta.function.name])).toEqual([
      [0, 'look'],
      [1, 'look'],
    ]);
    expect(reasons.at(-1)).toBe('tool_calls');
  });

  it('calls once where it shall not in parallel, and ends with that', async () => {
    const { choices, usage } = await ask(said, { parallel_tool_calls: false }).answer;
    expect(choices[0].message.tool_calls?.length).toBe(1);
    expect(choices[0].finish_reason).toBe('tool_calls');
    expect(usage.completion_tokens).toBeLessThan((await ask(said).answer).usage.completion_tokens);
  });

  it('says text where it calls none, and its reason', async () => {
    const { choices } = await ask('No <tool').answer;
    expect(choices[0]).toMatchObject({ message: { content: 'No <tool' }, finish_reason: 'stop' });
    expect(choices[0].message).not.toHaveProperty('tool_calls');
  });

  it('that is not to call is not told of them', async () => {
    const { answer, engine, chat } = ask(said, { tool_choice: 'none' });
    expect((await answer).choices[0].message.content).toBe(said);
    const plain = '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n';
    expect(engine.asked[0]?.prompt).toEqual(chat.encode(plain));
  });

  it('that must call needs grammars', async () => {
    await expect(ask(said, { tool_choice: 'required' }).answer).rejects.toMatchObject({
      code: 'library',
      message: expect.stringContaining('@mlc-ai/web-xgrammar'),
    });
  });
});
