/** Which tokens may come, and segments of texts: the cases of Python's tests. */

import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import type { SpeechInfo } from '../../src/speech/info.ts';
import { Rules } from '../../src/speech/rules.ts';
import { partsOf } from '../../src/speech/segments.ts';

interface Cases {
  readonly info: SpeechInfo;
  readonly vocabulary: number;
  readonly end: number;
  readonly rules: readonly {
    readonly timestamps: boolean;
    readonly text: readonly number[];
    /** Ranges of ids. */
    readonly allowed: readonly (readonly [number, number])[];
  }[];
  readonly segments: readonly {
    readonly text: readonly number[];
    readonly length: number;
    readonly parts: readonly (readonly [number, number, readonly number[]])[];
    readonly reached: number;
  }[];
}

const CASES = new URL('../../../tests/speech/cases.json', import.meta.url);
const { info, vocabulary, end, rules, segments } = JSON.parse(readFileSync(CASES, 'utf8')) as Cases;

it.each(rules)(
  'what may follow $text, timestamps: $timestamps',
  ({ timestamps, text, allowed }) => {
    const words = new Rules(info, { vocabulary, end, timestamps }).allowed(text);
    expect(words.length).toBe(Math.ceil(vocabulary / 32));
    const wanted = (id: number): boolean => allowed.some(([a, b]) => a <= id && id < b);
    for (let id = 0; id < words.length * 32; id++) {
      expect(((words[id >> 5]! >>> (id & 31)) & 1) === 1, `token ${id}`).toBe(wanted(id));
    }
  },
);

it.each(segments)('segments of $text', ({ text, length, parts, reached }) => {
  const found = partsOf(text, info, length);
  expect(found.parts.map((part) => [part.start, part.end, part.tokens])).toEqual(parts);
  expect(found.reached).toBe(reached);
});

it('a model without timestamps has one segment a window', () => {
  const found = partsOf([1, 2], { ...info, first_timestamp: null }, 500);
  expect(found).toEqual({ parts: [{ start: 0, end: 500, tokens: [1, 2] }], reached: 500 });
});
