import { describe, expect, it } from 'vitest';
import type { ChatRequest, ResponseFormat } from '../../src/chat/types.ts';
import {
  type Asked,
  chatOf,
  END,
  FakeEngine,
  obedient,
  SPECIAL,
  TEMPLATE,
  told,
  tokenizer,
  VOCABULARY,
} from './fakes.ts';

const MESSAGES = [{ role: 'user', content: 'hi' }] as const;
const grammar = () => import('@mlc-ai/web-xgrammar');
const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 6 }, age: { type: 'integer' } },
  required: ['name', 'age'],
};
const TOOLS: NonNullable<ChatRequest['tools']> = ['look', 'ring'].map((name) => ({
  type: 'function',
  function: { name, parameters: SCHEMA },
}));

const asking = (seed: number) => {
  const engine = new FakeEngine((asked) => obedient(asked, seed));
  engine.context = 4000;
  return { engine, chat: chatOf(engine, { grammar }) };
};
const ask = async (seed: number, request: Partial<ChatRequest>) =>
  (
    await asking(seed).chat.chat.completions.create({
      messages: MESSAGES,
      ...request,
      stream: false,
    })
  ).choices[0];

describe('answers', () => {
  it.each([1, 2, 3])('keep to a schema (%i)', async (seed) => {
    const response_format = { type: 'json_schema', json_schema: { schema: SCHEMA } } as const;
    const { message, finish_reason } = await ask(seed, { response_format });
    const value = JSON.parse(message.content ?? '') as Record<string, unknown>;
    expect(Object.keys(value)).toEqual(['name', 'age']);
    expect(typeof value['name']).toBe('string');
    expect(Number.isInteger(value['age'])).toBe(true);
    expect(finish_reason).toBe('stop');
  });

  it('keep to a grammar, and to JSON', async () => {
    const rules = 'root ::= "yes" | "no" [!?]';
    const said = await ask(5, { response_format: { type: 'grammar', grammar: rules } });
    expect(said.message.content).toMatch(/^(yes|no[!?])$/);
    const { chat, engine } = asking(1);
    const response_format = { type: 'json_object' } as const;
    await chat.chat.completions.create({ messages: MESSAGES, response_format, max_tokens: 5 });
    expect(engine.asked[0]?.options.mask).toBeDefined();
  });

  it('have no special tokens in their texts', async () => {
    const { chat, engine } = asking(1);
    const masks: Int32Array[] = [];
    engine.generate = async function* (_, __, { mask }) {
      for (const id of tokenizer().encode('{"name": "', false)) {
        masks.push((await mask?.(masks.length ? last : undefined)) ?? new Int32Array());
        last = id;
        yield { id };
      }
      masks.push((await mask?.(last)) ?? new Int32Array());
    };
    let last = -1;
    const response_format = { type: 'json_schema', json_schema: { schema: SCHEMA } } as const;
    await chat.chat.completions.create({ messages: MESSAGES, response_format });
    const inText = masks.at(-1) ?? new Int32Array();
    const may = (id: number): boolean => (((inText[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1;
    expect(may(97)).toBe(true);
    for (const text of SPECIAL) expect(may(tokenizer().idOf(text) ?? -1), text).toBe(false);
  });

  it('of tools that must be called are calls', async () => {
    const { message, finish_reason } = await ask(3, { tools: TOOLS, tool_choice: 'required' });
    expect(finish_reason).toBe('tool_calls');
    expect(['look', 'ring']).toContain(message.tool_calls?.[0]?.function.name);
    const templates = { default: '<tool_call>' + TEMPLATE };
    const engine = new FakeEngine((asked) => obedient(asked, 2));
    engine.context = 4000;
    const chat = chatOf(engine, { grammar, templates });
    const tool_choice = { type: 'function', function: { name: 'ring' } } as const;
    const request = { messages: MESSAGES, tools: TOOLS, tool_choice };
    const { choices } = await chat.chat.completions.create(request);
    const [call] = choices[0].message.tool_calls ?? [];
    expect(call?.function.name).toBe('ring');
    expect(Object.keys(JSON.parse(call?.function.arguments ?? ''))).toEqual(['name', 'age']);
  });

  it('after a schema that is none work', async () => {
    const { chat } = asking(1);
    const bad = { type: 'json_schema', json_schema: { schema: { type: 'colour' } } } as const;
    const request = (response_format: ResponseFormat) =>
      chat.chat.completions.create({ messages: MESSAGES, response_format, stream: false });
    expect(await told(() => request(bad))).toContain('input: xgrammar makes no grammar');
    expect(await told(() => request({ type: 'grammar', grammar: 'root ::= (' }))).toContain(
      'input:',
    );
    const { choices } = await request({ type: 'grammar', grammar: 'root ::= "ok"' });
    expect(choices[0].message.content).toBe('ok');
    await chat.dispose();
  });

  it('against the grammar are refused', async () => {
    const engine = new FakeEngine(async function* ({ options: { mask } }: Asked) {
      await mask?.(undefined);
      yield { id: 120 };
      await mask?.(120);
    });
    const chat = chatOf(engine, { grammar });
    const response_format = { type: 'grammar', grammar: 'root ::= "ok"' } as const;
    const said = await told(() =>
      chat.chat.completions.create({ messages: MESSAGES, response_format }),
    );
    expect(said).toBe('vm: token 120 was drawn against the grammar');
  });
});

describe('the package', () => {
  const response_format = { type: 'json_object' } as const;
  const request = { messages: MESSAGES, response_format } as const;

  it('is asked for where it is missing', async () => {
    const chat = chatOf(new FakeEngine([END]));
    expect(await told(() => chat.chat.completions.create(request))).toMatch(
      /^library: constrained answers need .*@mlc-ai\/web-xgrammar/,
    );
    await chat.chat.completions.create({ messages: MESSAGES });
  });

  it('must be that one', async () => {
    const chat = chatOf(new FakeEngine([END]), { grammar: async () => ({ default: {} }) });
    expect(await told(() => chat.chat.completions.create(request))).toContain('library: what');
  });

  it('may come at the second try', async () => {
    let tries = 0;
    const chat = chatOf(new FakeEngine([END]), {
      grammar: () => (tries++ ? grammar() : Promise.reject(new Error('offline'))),
    });
    expect(await told(() => chat.chat.completions.create(request))).toContain('offline');
    expect((await chat.chat.completions.create(request)).choices.length).toBe(1);
  });

  /** Stands for the package; counts what it makes, and sees what is used after it was freed. */
  function packageOf(failures = 0) {
    const counts = { infos: 0, made: 0, freed: 0, misused: 0 };
    const one = () => {
      let freed = false;
      const dispose = () => void ((freed = true), counts.freed++);
      counts.made++;
      return { dispose, isFreed: () => freed };
    };
    const later = () => new Promise((resolve) => setTimeout(resolve));
    const library = {
      TokenizerInfo: {
        createTokenizerInfo: async () => {
          await later();
          if (counts.infos++ < failures) throw new Error('no room');
          return one();
        },
      },
      GrammarCompiler: {
        createGrammarCompiler: async () => ({ ...one(), compileGrammar: async () => one() }),
      },
      GrammarMatcher: Object.assign(() => undefined, {
        createGrammarMatcher: async (compiled: ReturnType<typeof one>) => {
          await later();
          await later();
          if (compiled.isFreed()) counts.misused++;
          return { ...one(), getNextTokenBitmask: async () => new Int32Array(VOCABULARY) };
        },
      }),
    };
    return { counts, grammar: async () => library };
  }

  it('frees all that it made, and nothing while it is used', async () => {
    const { counts, grammar } = packageOf();
    const chat = chatOf(new FakeEngine([END]), { grammar });
    const rules = Array.from({ length: 30 }, (_, k) => `root ::= "${k % 15}"`);
    const ask = (grammar: string) =>
      chat.chat.completions.create({
        messages: MESSAGES,
        response_format: { type: 'grammar', grammar },
      });
    await Promise.all(rules.map(ask));
    expect(counts.made).toBe(1 + 15 * 2 + 30); // what is equal is compiled once
    await chat.dispose();
    await new Promise((resolve) => setTimeout(resolve));
    expect(counts).toMatchObject({ misused: 0, freed: counts.made });
  });

  it('may fail once: the next request tries again, and nothing is left unheard', async () => {
    const unheard: unknown[] = [];
    const listener = (reason: unknown): unknown => unheard.push(reason);
    process.on('unhandledRejection', listener);
    const { counts, grammar } = packageOf(2);
    const request = {
      messages: MESSAGES,
      response_format: { type: 'grammar', grammar: 'root ::= "a"' },
    } as const;
    for (const wanted of [1, 0]) {
      const chat = chatOf(new FakeEngine([END]), { grammar });
      expect(await told(() => chat.chat.completions.create(request))).toContain('no room');
      if (!wanted) expect(await told(() => chat.chat.completions.create(request))).toBe('nothing');
      await chat.dispose();
    }
    await new Promise((resolve) => setTimeout(resolve));
    process.off('unhandledRejection', listener);
    expect(unheard).toEqual([]);
    expect(counts.freed).toBe(counts.made);
  });
});
