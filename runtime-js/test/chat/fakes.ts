/** A tokenizer of bytes, and an engine that says what it is told to. */

import { Chat, type ChatParts } from '../../src/chat/chat.ts';
import type { Engine, GenerateOptions, Sampling, Token } from '../../src/chat/engine.ts';
import { Templates } from '../../src/chat/template.ts';
import { Tokenizer } from '../../src/chat/tokenizer.ts';

/** GPT-2's characters for the bytes, in the order of the bytes. */
const CHARACTERS = (() => {
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return String.fromCodePoint(printable ? byte : next++);
  });
})();

const MERGES = [
  ['h', 'i'],
  ['Ġ', 'hi'],
  ['â', 'Ĥ'], // the first two bytes of €
];

export const SPECIAL = ['<|im_start|>', '<|im_end|>', '<s>'];
export const SHOWN = ['<tool_call>', '</tool_call>'];

const token = (content: string, id: number, special: boolean) => ({
  id,
  content,
  single_word: false,
  lstrip: false,
  rstrip: false,
  normalized: false,
  special,
});

/** Byte b is token b; then come merges, then special tokens, then others that were added. */
export function description(): Record<string, unknown> {
  const merged = MERGES.map((pair) => pair.join(''));
  const vocab = Object.fromEntries([...CHARACTERS, ...merged].map((text, id) => [text, id]));
  const first = 256 + MERGES.length;
  return {
    version: '1.0',
    added_tokens: [...SPECIAL, ...SHOWN].map((content, k) =>
      token(content, first + k, k < SPECIAL.length),
    ),
    normalizer: null,
    pre_tokenizer: {
      type: 'ByteLevel',
      add_prefix_space: false,
      trim_offsets: true,
      use_regex: true,
    },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', vocab, merges: MERGES.map((pair) => pair.join(' ')) },
  };
}

export const tokenizer = (): Tokenizer => new Tokenizer(JSON.stringify(description()));

export const VOCABULARY = 256 + MERGES.length + SPECIAL.length + SHOWN.length + 8; // some are padding
export const END = 256 + MERGES.length + 1;

/** One token for each byte. */
export const bytes = (text: string): number[] => [...new TextEncoder().encode(text)];

export const TEMPLATE =
  "{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n{% endfor %}" +
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';

export interface Asked {
  readonly prompt: readonly number[];
  readonly sampling: Sampling;
  readonly options: GenerateOptions;
}

type Script = (asked: Asked) => Iterable<Token> | AsyncIterable<Token>;

/** Says the tokens of each script in turn; the last one again and again. */
export class FakeEngine implements Engine {
  readonly backend = 'wasm';
  readonly vocabulary = VOCABULARY;
  readonly asked: Asked[] = [];
  context = 256;
  taken = 0;
  running = 0;
  most = 0; // that ran at once
  disposed = 0;
  readonly #scripts: Script[];

  constructor(...scripts: (Script | readonly number[])[]) {
    this.#scripts = scripts.map((script) =>
      typeof script === 'function' ? script : () => script.map((id) => ({ id })),
    );
  }

  async *generate(
    prompt: readonly number[],
    sampling: Sampling,
    options: GenerateOptions,
  ): AsyncGenerator<Token> {
    const asked = { prompt, sampling, options };
    this.asked.push(asked);
    const script = this.#scripts.length > 1 ? this.#scripts.shift() : this.#scripts[0];
    this.most = Math.max(this.most, ++this.running);
    try {
      options.onPrompt(0);
      for await (const token of script?.(asked) ?? []) {
        await new Promise((resolve) => setTimeout(resolve));
        options.signal.throwIfAborted();
        this.taken++;
        yield token;
      }
    } finally {
      this.running--;
    }
  }

  stats() {
    return { memoryBytes: 1000, kernels: 3, launches: 0 };
  }

  async dispose(): Promise<void> {
    this.disposed++;
  }
}

/** Draws among the tokens that the mask allows, by a simple rule. */
export async function* obedient(
  { options: { mask, limit } }: Asked,
  seed = 1,
): AsyncGenerator<Token> {
  let previous: number | undefined;
  let state = seed;
  for (let k = 0; k < limit; k++) {
    const bits = (await mask?.(previous)) ?? new Int32Array();
    const marked = [...bits].flatMap((word, w) =>
      Array.from({ length: 32 }, (_, b) => b)
        .filter((b) => (word >>> b) & 1)
        .map((b) => 32 * w + b),
    );
    const allowed = marked.filter((id) => id < VOCABULARY);
    state = (state * 48271) % 0x7fffffff;
    previous = allowed.includes(END) ? END : allowed[state % allowed.length];
    if (previous === undefined) throw new Error('nothing is allowed');
    yield { id: previous };
  }
}

/** `templates` are their sources. */
interface FakeParts extends Partial<Omit<ChatParts, 'templates'>> {
  readonly templates?: Readonly<Record<string, string>>;
}

export function chatOf(engine: Engine, { templates, ...parts }: FakeParts = {}): Chat {
  const names = parts.names ?? { bos_token: '<s>' };
  const sources = templates ?? { default: TEMPLATE };
  return new Chat({
    engine,
    tokenizer: tokenizer(),
    templates: new Templates(sources, names, parts.images?.placeholder),
    names,
    eos: [END],
    model: 'fake',
    ...parts,
  });
}

/** An engine that says a text, and then that it is done. */
export const saying = (...texts: string[]): FakeEngine =>
  new FakeEngine(...texts.map((text) => [...bytes(text), END]));

/** What something throws or rejects with, as `code: message`. */
export async function told(make: () => unknown): Promise<string> {
  try {
    await make();
  } catch (error) {
    const { code, message } = error as { code?: string; message: string };
    return `${code}: ${message}`;
  }
  return 'nothing';
}
