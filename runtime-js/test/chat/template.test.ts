import { describe, expect, it } from 'vitest';
import { ChatTemplate } from '../../src/chat/template.ts';
import type { Message } from '../../src/chat/types.ts';

const render = (source: string, messages: readonly Message[], extras = {}): string =>
  new ChatTemplate(source, { bos_token: '<s>' }).render({ messages, tools: undefined, extras });

const HI: readonly Message[] = [{ role: 'user', content: 'hi' }];

describe('templates', () => {
  it('know special tokens, that an answer is wanted, and what requests add', () => {
    const source =
      '{{ bos_token }}{{ add_generation_prompt }} {{ thinking | default("none") }} {{ tools is defined }}';
    expect(render(source, HI)).toBe('<s>true none false');
    expect(render(source, HI, { thinking: 'much' })).toBe('<s>true much false');
  });

  it('get one text for parts, system for developer, and no null', () => {
    const source = '{% for m in messages %}[{{ m.role + ":" + m.content }}]{% endfor %}';
    const parts = ['a', 'b'].map((text) => ({ type: 'text' as const, text }));
    const call = { id: '1', type: 'function', function: { name: 'f', arguments: '{}' } } as const;
    expect(
      render(source, [
        { role: 'developer', content: 'x' },
        { role: 'user', content: parts },
        { role: 'assistant', content: null, tool_calls: [call] },
      ]),
    ).toBe('[system:x][user:ab][assistant:]');
  });

  it('get an answer of calls alone as they ask: without content, with none, with an empty one', () => {
    const call = { id: '1', type: 'function', function: { name: 'f', arguments: '{}' } } as const;
    const silent: Message = { role: 'assistant', content: null, tool_calls: [call] };
    const each = (body: string) => `{% for m in messages %}[${body}]{% endfor %}`;
    expect(render(each('{{ "content" in m }}'), [silent])).toBe('[false]');
    expect(render(each('{{ m.content is defined }}'), [...HI, silent])).toBe('[true][false]');
    const asksNone = each(
      '{% if m.content is none %}calls{% else %}{{ "" + m.content }}{% endif %}',
    );
    expect(render(asksNone, [...HI, silent])).toBe('[hi][calls]');
    expect(render(each('{{ m.content | trim }}'), [...HI, silent])).toBe('[hi][]');
    const { tool_calls: _, ...bare } = silent;
    expect(render(asksNone, [{ ...bare, content: '' }])).toBe('[]');
  });

  it('of models that see images get parts, where they write them', () => {
    const rows = '{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]';
    const whole = '{% for m in messages %}[{{ m.content }}]';
    for (const [source, placeholder] of [
      [rows, '<image>'],
      [whole, '<image>'],
      [whole, undefined],
    ] as const) {
      const template = new ChatTemplate(`${source}{% endfor %}`, {}, placeholder);
      const told = { messages: HI, tools: undefined, extras: {} };
      expect(template.render(told)).toBe('[hi]');
    }
  });

  it('get arguments as objects, or as the text that they are', () => {
    const source =
      '{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}';
    const said = (text: string): Message => ({
      role: 'assistant',
      tool_calls: [{ id: '1', type: 'function', function: { name: 'f', arguments: text } }],
    });
    expect(render(source, [said('{"a":[1,"x"]}')])).toBe('{"a": [1, "x"]}');
    expect(render(source, [said('{"a":')])).toBe(JSON.stringify('{"a":'));
  });

  it('show what tools answered', () => {
    const source =
      '{% for m in messages %}{{ m.tool_call_id }}={{ m.content }} by {{ m.name }}{% endfor %}';
    expect(render(source, [{ role: 'tool', tool_call_id: 'c1', content: '42', name: 'f' }])).toBe(
      'c1=42 by f',
    );
  });
});
