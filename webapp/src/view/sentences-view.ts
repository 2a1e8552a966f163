/** Compare sentences by meaning. */

import type { Client } from '../client.ts';
import { h } from './dom.ts';
import { Shell } from './shell.ts';

const SAMPLE = {
  first: 'A kitten is asleep on the windowsill.',
  others: [
    'The little cat naps by the window.',
    'A window was left open at night.',
    'Interest rates rose again on Monday.',
  ],
};

export function sentencesView(client: Client): HTMLElement {
  const first = h('textarea', { id: 'sentence', rows: 2, maxlength: 2000 });
  first.value = SAMPLE.first;
  const others = h('textarea', { id: 'others', rows: 4, maxlength: 20000 });
  others.value = SAMPLE.others.join('\n');
  const compare = h('button', { type: 'submit', class: 'primary' }, 'Compare');
  const result = h('div', { class: 'result' });
  const form = h(
    'form',
    { class: 'sentences' },
    h('label', { for: 'sentence' }, 'How near is this sentence'),
    first,
    h('label', { for: 'others' }, 'to each of these, one on a line'),
    others,
    h('div', { class: 'controls' }, compare),
  );
  const shell = new Shell(
    client,
    {
      tool: 'sentences',
      title: 'Compare sentences',
      lead: 'By what they mean, not by the words they share. The network turns each into 384 numbers; the nearer two sentences, the smaller the angle between them.',
    },
    [form, result],
    (similarities, [, ...compared]) => result.replaceChildren(bars(compared, similarities)),
  );
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const lines = others.value.split('\n').map((line) => line.trim());
    const sentences = [first.value.trim(), ...lines.filter(Boolean)];
    if (sentences[0] && sentences.length > 1) void shell.run(sentences);
    else shell.fail(new Error('Write a sentence above, and at least one below.'));
  });
  return shell.element;
}

/** The nearest first. */
function bars(sentences: readonly string[], similarities: readonly number[]): HTMLElement {
  const rows = sentences
    .map((sentence, k) => ({ sentence, value: similarities[k] ?? 0 }))
    .sort((a, b) => b.value - a.value);
  const items = rows.map(({ sentence, value }) => {
    const bar = h('div', {
      role: 'meter',
      'aria-label': sentence,
      'aria-valuemin': 0,
      'aria-valuemax': 1,
      'aria-valuenow': value.toFixed(3),
    });
    bar.style.setProperty('--share', `${100 * Math.max(0, value)}%`);
    return h(
      'li',
      {},
      h('span', { class: 'text' }, sentence),
      bar,
      h('span', { class: 'share' }, value.toFixed(2).replace('-', '−')),
    );
  });
  return h('ol', { class: 'bars' }, ...items);
}
