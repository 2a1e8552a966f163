import { describe, expect, it } from 'vitest';
import { similarities, tokenizer } from '../src/sentences.ts';

/** A WordPiece tokenizer of a few words, in the form of a tokenizer.json. */
const DESCRIPTION = {
  version: '1.0',
  added_tokens: ['[PAD]', '[UNK]', '[CLS]', '[SEP]'].map((content, id) => ({
    id,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  })),
  normalizer: {
    type: 'BertNormalizer',
    clean_text: true,
    handle_chinese_chars: true,
    strip_accents: null,
    lowercase: true,
  },
  pre_tokenizer: { type: 'BertPreTokenizer' },
  post_processor: {
    type: 'TemplateProcessing',
    single: [
      { SpecialToken: { id: '[CLS]', type_id: 0 } },
      { Sequence: { id: 'A', type_id: 0 } },
      { SpecialToken: { id: '[SEP]', type_id: 0 } },
    ],
    pair: [],
    special_tokens: {},
  },
  decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
  model: {
    type: 'WordPiece',
    unk_token: '[UNK]',
    continuing_subword_prefix: '##',
    max_input_chars_per_word: 100,
    vocab: { '[PAD]': 0, '[UNK]': 1, '[CLS]': 2, '[SEP]': 3, play: 4, '##ing': 5, '!': 6 },
  },
};

describe('tokens', () => {
  const encode = tokenizer(DESCRIPTION);

  it('are padded to the longest sentence', () => {
    const { ids, mask, shape } = encode(['Playing!', 'play', '']);
    expect(shape).toEqual([3, 5]);
    expect([...ids].map(Number)).toEqual([2, 4, 5, 6, 3, 2, 4, 3, 0, 0, 2, 3, 0, 0, 0]);
    expect([...mask].map(Number)).toEqual([1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0]);
  });

  it('of a long sentence are cut, with the mark of the end', () => {
    const { ids, shape } = encode(['play '.repeat(300)]);
    expect(shape).toEqual([1, 128]);
    expect([ids[0], ids[126], ids[127]]).toEqual([2n, 4n, 3n]);
  });
});

describe('similarities', () => {
  it('are cosines with the first row', () => {
    const rows = Float32Array.of(1, 0, 2, 0, 0, 3, -1, 0, 1, 1);
    const found = similarities(rows, [5, 2]);
    expect(found.map((x) => Number(x.toFixed(4)))).toEqual([1, 0, -1, 0.7071]);
  });

  it('with nothing are 0, and of one row none', () => {
    expect(similarities(Float32Array.of(1, 0, 0, 0), [2, 2])).toEqual([0]);
    expect(similarities(Float32Array.of(1, 0), [1, 2])).toEqual([]);
  });
});
