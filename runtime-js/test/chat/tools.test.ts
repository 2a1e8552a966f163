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
const MISTRAL = callFormatOf("{{ '[TOOL_CALLS]' }}");
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

describe('calls', () => {
  it.each<[string, CallFormat, string, string, string[][]]>([
    ['Qwen', QWEN, `<tool_call>\n${LOOK}\n</tool_call>`, '', [LOOKED]],
    ['after text', QWEN, `So: <tool_call>${LOOK}</tool_call>`, 'So: ', [LOOKED]],
    [
      'several',
      QWEN,
      `<tool_call>${LOOK}</tool_call>\n<tool_call>{"name": "ring"}</tool_call>\n`,
      '',
      [LOOKED, ['ring', '{}']],
    ],
    ['and text', QWEN, `<tool_call>${LOOK}</tool_call>\n done `, 'done ', [LOOKED]],
    ['cut off, but whole', QWEN, `<tool_call>${LOOK}`, '', [LOOKED]],
    ['Phi 4', PHI, `<|tool_call|>[${LOOK}]<|/tool_call|>`, '', [LOOKED]],
    ['Granite', PHI, `<|tool_call|>[${LOOK}, {"name": "ring"}]`, '', [LOOKED, ['ring', '{}']]],
    ['Mistral', MISTRAL, `[TOOL_CALLS] [${LOOK}]`, '', [LOOKED]],
    [
      'newer Mistral',
      MISTRAL,
      '[TOOL_CALLS]look[ARGS]{"at": "[x]"}',
      '',
      [['look', '{"at":"[x]"}']],
    ],
    ['Llama 3', LLAMA, '{"name": "look", "parameters": {"at": "x"}}', '', [['look', '{"at":"x"}']]],
    [
      'Llama 3, several',
      LLAMA,
      '{"name": "look", "parameters": {"at": "}; {\\""}}; {"name": "ring", "parameters": {}}\n',
      '',
      [
        ['look', '{"at":"}; {\\""}'],
        ['ring', '{}'],
      ],
    ],
    ['a list', LLAMA, ' [{"name": "ring"}]', '', [['ring', '{}']]],
    ['Llama 3.1', LLAMA, '<|python_tag|>{"name": "ring", "parameters": {}}', '', [['ring', '{}']]],
    [
      'arguments as text',
      QWEN,
      '<tool_call>{"name":"a","arguments":"{}"}</tool_call>',
      '',
      [['a', '{}']],
    ],
  ])('as of %s', (_, format, text, rest, calls) => {
    expect(found(format, text)).toEqual({ text: rest, calls });
  });

  it.each<[string, CallFormat, string]>([
    ['broken JSON', QWEN, '<tool_call>{"name": "look", </tool_call> sorry'],
    ['JSON of something else', QWEN, '<tool_call>{"nam": "look"}</tool_call>'],
    ['arguments that are a number', QWEN, '<tool_call>{"name":"a","arguments":3}</tool_call>'],
    ['a mark that does not come', QWEN, 'a < b <tool'],
    ['no end', QWEN, '<tool_call>{"name": "lo'],
    ['an empty list', MISTRAL, '[TOOL_CALLS][]'],
    ['an answer in JSON', LLAMA, '{"answer": 42}'],
    ['a call and more', LLAMA, '{"name": "look"} and so on'],
    ['a list of numbers', LLAMA, '[1, 2]'],
    ['a name that is no tool', LLAMA, '{"name": "Ann", "parameters": {}}'],
    ['text before', LLAMA, 'Well: {"name": "look", "parameters": {}}'],
    ['space', LLAMA, '  \n'],
  ])('that are none are text: %s', (_, format, text) => {
    expect(found(format, text)).toEqual({ text, calls: [] });
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

  it('calls once where it shall not in parallel', async () => {
    const { choices } = await ask(said, { parallel_tool_calls: false }).answer;
    expect(choices[0].message.tool_calls?.length).toBe(1);
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
