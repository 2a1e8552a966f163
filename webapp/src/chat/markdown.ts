/** Markdown as it grows: blocks that did not change keep their elements. */

import DOMPurify from 'dompurify';
import { Marked, type Token, type TokensList } from 'marked';
import { h } from '../view/dom.ts';

const ALLOWED = {
  ALLOWED_TAGS:
    'p br hr h1 h2 h3 h4 h5 h6 em strong del code pre blockquote ul ol li input a table thead tbody tr th td'.split(
      ' ',
    ),
  ALLOWED_ATTR: ['href', 'start', 'align', 'type', 'checked', 'disabled', 'class'],
  RETURN_DOM_FRAGMENT: true as const,
};

const escaped = (text: string): string => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** HTML is shown as it is written; pictures, which could tell a server what was said, as links. */
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

interface Block {
  readonly raw: string;
  readonly element: HTMLElement;
}

export class MarkdownView {
  readonly element = h('div', { class: 'markdown' });
  #blocks: Block[] = [];

  show(text: string): void {
    const tokens = marked.lexer(text);
    const shown = tokens.filter((token) => token.type !== 'space' && token.type !== 'def');
    const kept = this.#blocks.findIndex((block, k) => block.raw !== shown[k]?.raw);
    const same = kept < 0 ? this.#blocks.length : kept;
    for (const { element } of this.#blocks.splice(same)) element.remove();
    for (const token of shown.slice(same)) {
      const block = { raw: token.raw, element: rendered(token, tokens.links) };
      this.#blocks.push(block);
      this.element.append(block.element);
    }
  }
}

function rendered(token: Token, links: TokensList['links']): HTMLElement {
  const list = Object.assign([token], { links });
  const block = h('div', {}, DOMPurify.sanitize(marked.parser(list), ALLOWED));
  for (const link of block.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer';
  }
  for (const pre of block.querySelectorAll('pre')) pre.before(codeBar(pre));
  for (const table of block.querySelectorAll('table')) {
    const scroller = h('div', { class: 'scroller' });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  return block;
}

/** The language of a block of code, and a button that copies it. */
function codeBar(pre: Element): HTMLElement {
  const language = /language-([\w+#-]+)/.exec(pre.querySelector('code')?.className ?? '')?.[1];
  const button = h('button', { type: 'button', class: 'quiet' }, 'Copy');
  button.addEventListener('click', () => void copy(button, pre.textContent ?? ''));
  return h('div', { class: 'code-bar' }, h('span', {}, language ?? 'code'), button);
}

/** Copies a text and says so on the button. */
export async function copy(button: HTMLButtonElement, text: string): Promise<void> {
  const label = button.textContent;
  const name = button.getAttribute('aria-label');
  const say = (words: string): void => {
    if (name === null) button.textContent = words;
    else button.setAttribute('aria-label', words);
  };
  try {
    await navigator.clipboard.writeText(text);
    say('Copied');
    button.classList.add('done');
  } catch {
    say('Not allowed');
  }
  setTimeout(() => {
    button.classList.remove('done');
    say(name ?? label ?? '');
  }, 1500);
}
