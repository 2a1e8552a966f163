import { describe, expect, it } from 'vitest';
import { Detokenizer, StopStrings } from '../../src/chat/stream.ts';
import { Tokenizer } from '../../src/chat/tokenizer.ts';
import { bytes, description, SHOWN, SPECIAL, tokenizer } from './fakes.ts';

const all = (ids: readonly number[], shown?: ReadonlySet<number>): string[] => {
  const detokenizer = new Detokenizer(tokenizer(), { begins: true, ...(shown && { shown }) });
  return [...ids.map((id) => detokenizer.push(id)), detokenizer.flush()];
};

/** A tokenizer as Llama 2 and Gemma have it: ▁ for spaces, bytes spelled out. */
function sentencePiece(parts: object[]): Tokenizer {
  const tokens = [
    '<unk>',
    '▁',
    '▁Hi',
    'Hi',
    '<0xE2>',
    '<0x82>',
    '<0xAC>',
    '▁▁',
    '<0x0A>',
    '\uFEFF',
  ];
  return new Tokenizer(
    JSON.stringify({
      ...description(),
      added_tokens: [],
      decoder: parts.length === 1 ? parts[0] : { type: 'Sequence', decoders: parts },
      model: {
        type: 'BPE',
        byte_fallback: true,
        unk_token: '<unk>',
        vocab: Object.fromEntries(tokens.map((text, id) => [text, id])),
        merges: [],
      },
    }),
  );
}

const LLAMA = [
  { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
  { type: 'ByteFallback' },
  { type: 'Fuse' },
  { type: 'Strip', content: ' ', start: 1, stop: 0 },
];

describe('characters', () => {
  it('come when their last byte does', () => {
    expect(all(bytes('a€b'))).toEqual(['a', '', '', '€', 'b', '']);
    expect(all(bytes('👩‍🚀')).join('')).toBe('👩‍🚀');
  });

  it('may be cut anywhere by tokens of several bytes', () => {
    const tokens = tokenizer();
    const euro = tokens.encode('€', false);
    expect(euro.length).toBe(2);
    expect(all(euro)).toEqual(['', '€', '']);
  });

  it('that never become whole are U+FFFD, and spoil nothing else', () => {
    expect(all([...bytes('a'), 0xe2, 0x82, ...bytes('b€')]).join('')).toBe('a\uFFFDb€');
    expect(all([0xe2, 0x82]).at(-1)).toBe('\uFFFD');
    expect(all(bytes('\uFFFD!'))).toEqual(['', '', '\uFFFD', '!', '']);
    expect(all([0xff, 0xff, 0xff, 0xe2, 0x82, 0xac]).join('')).toBe('\uFFFD\uFFFD\uFFFD€');
  });

  it('include a byte order mark', () => {
    expect(all(bytes('\uFEFFa')).join('')).toBe('\uFEFFa');
  });

  it('are none of special tokens but of those asked for', () => {
    const tokens = tokenizer();
    const [start, call] = [SPECIAL[0], SHOWN[0]].map((text) => tokens.idOf(text ?? '') ?? -1);
    const ids = [start, ...bytes('a'), call] as number[];
    expect(all(ids).join('')).toBe('a<tool_call>');
    expect(all(ids, new Set([start as number])).join('')).toBe('<|im_start|>a<tool_call>');
  });

  it('of ids without a token are none', () => {
    expect(all([9999, ...bytes('a')]).join('')).toBe('a');
  });
});

describe('the space before a text', () => {
  it.each([[LLAMA], [[{ type: 'Metaspace', replacement: '▁', prepend_scheme: 'first' }]]])(
    'goes once, at the beginning',
    (parts) => {
      const tokens = sentencePiece(parts);
      const detokenizer = new Detokenizer(tokens, { begins: true });
      expect([2, 2, 7, 3].map((id) => detokenizer.push(id)).join('')).toBe('Hi Hi  Hi');
      const rest = new Detokenizer(tokens, { begins: false });
      expect(rest.push(2)).toBe(' Hi');
    },
  );

  it('stays where the tokenizer puts none', () => {
    const tokens = sentencePiece(LLAMA.slice(0, 3));
    const detokenizer = new Detokenizer(tokens, { begins: true });
    expect(detokenizer.push(2)).toBe(' Hi');
  });

  it('may come apart from the word, and bytes be spelled out', () => {
    const detokenizer = new Detokenizer(sentencePiece(LLAMA), { begins: true });
    const texts = [1, 3, 4, 5, 6, 8, 1, 9].map((id) => detokenizer.push(id));
    expect(texts).toEqual(['', 'Hi', '', '', '€', '\n', ' ', '\uFEFF']);
  });
});

describe('a decoder that works on whole texts', () => {
  it.each([
    [{ type: 'CTC' }],
    [{ type: 'WordPiece', prefix: '##', cleanup: true }],
    [{ type: 'Strip', content: ' ', start: 0, stop: 1 }],
  ])('is refused with its name', (part) => {
    expect(() => sentencePiece([part])).toThrow(`decoder {"type":"${part.type}"`);
  });

  it('as well as none, and what is no tokenizer', () => {
    const json = (change: object): string => JSON.stringify({ ...description(), ...change });
    expect(() => new Tokenizer(json({ decoder: null }))).toThrow('no decoder');
    expect(() => new Tokenizer('{')).toThrow('not JSON');
    expect(() => new Tokenizer('[]')).toThrow('no tokenizer.json');
    expect(() => new Tokenizer(json({ model: { type: 'New' } }))).toThrow('cannot be used');
  });
});

describe('stop strings', () => {
  const run = (stops: string[], ...texts: string[]): [string[], boolean] => {
    const filter = new StopStrings(stops);
    const out = texts.map((text) => filter.push(text));
    return [[...out, filter.flush()], filter.stopped];
  };

  it('are held back while they may come', () => {
    expect(run(['END'], 'a', 'E', 'N', 'x')).toEqual([['a', '', '', 'ENx', ''], false]);
    expect(run(['END'], 'aE', 'ND')).toEqual([['a', '', ''], true]);
    expect(run(['END'], 'aE')).toEqual([['a', 'E'], false]);
  });

  it('take nothing that follows, and the first one counts', () => {
    expect(run(['b', 'ab'], 'xaby')).toEqual([['x', ''], true]);
    expect(run(['abcd', 'bc'], 'ab', 'c')).toEqual([['', 'a', ''], true]);
  });

  it('may begin again within themselves', () => {
    expect(run(['aab'], 'a', 'a', 'a', 'b')).toEqual([['', '', 'a', '', ''], true]);
    expect(run(['\n\n'], 'a\n', 'b\n', '\n')).toEqual([['a', '\nb', '', ''], true]);
  });

  it('that are none let all through', () => {
    expect(run([], 'a', 'b')).toEqual([['a', 'b', ''], false]);
    expect(run([''], 'a', 'b')).toEqual([['a', 'b', ''], false]);
    expect(run(['', 'b'], 'a', 'b')).toEqual([['a', '', ''], true]);
  });

  it('give the same however the text is cut', () => {
    const text = 'aabab ababc aababcab';
    const stops = ['ababcab', 'bc a'];
    for (let size = 1; size <= text.length; size++) {
      const parts = text.match(new RegExp(`.{1,${size}}`, 'gs')) ?? [];
      const filter = new StopStrings(stops);
      let out = '';
      for (const part of parts) {
        out += filter.push(part);
        if (filter.stopped) break;
      }
      expect(out).toBe('aabab aba');
    }
  });
});
