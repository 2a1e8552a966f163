/** Text to tokens by @huggingface/tokenizers; tokens to bytes by the decoder that they came with. */

import { Tokenizer as Encoder } from '@huggingface/tokenizers';
import { EdgeRelaxError } from '../errors.ts';
import { isRecord } from '../schema.ts';

/** How tokens are written in a vocabulary. */
export type Spelling = 'byte_level' | 'byte_fallback' | 'raw';

type Spelled = string | Uint8Array;
type Step = (token: Spelled) => Spelled;

interface Decoder {
  readonly steps: readonly Step[];
  readonly spelling: Spelling;
  /** A space that the tokenizer puts before a text, and that is no part of it. */
  readonly prefixed: boolean;
}

interface Added {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
}

const utf8 = new TextEncoder();
const NOTHING = new Uint8Array();

export class Tokenizer {
  readonly spelling: Spelling;
  readonly prefixed: boolean;
  readonly #encoder: Encoder;
  readonly #steps: readonly Step[];
  readonly #tokens: string[] = [];
  readonly #added: ReadonlyMap<number, Added>;
  readonly #bytes = new Map<number, Uint8Array>();

  /** Reads a tokenizer.json. Throws `format` for one that cannot turn tokens into text. */
  constructor(json: Uint8Array | string) {
    const description = parsed(json);
    this.#encoder = encoderOf(description);
    const { steps, spelling, prefixed } = decoderOf(description['decoder']);
    this.#steps = steps;
    this.spelling = spelling;
    this.prefixed = prefixed;
    for (const [token, id] of this.#encoder.get_vocab(true)) this.#tokens[id] = token;
    const added = (description['added_tokens'] ?? []) as readonly Added[];
    this.#added = new Map(added.map((token) => [token.id, token]));
  }

  /** Ids below this may have a token. */
  get size(): number {
    return this.#tokens.length;
  }

  /** Special tokens that the text spells out become those; `special` adds what begins a text. */
  encode(text: string, special: boolean): number[] {
    return [...this.#encoder.encode(text, { add_special_tokens: special }).ids];
  }

  idOf(token: string): number | undefined {
    return this.#encoder.token_to_id(token);
  }

  /** As `spelling` says; added tokens too. */
  spelled(id: number): string {
    if (this.spelling === 'raw') {
      return new TextDecoder('utf-8', { ignoreBOM: true }).decode(this.bytes(id));
    }
    const token = this.#tokens[id] ?? '';
    if (this.spelling === 'byte_fallback' || !this.#added.has(id)) return token;
    return Array.from(this.bytes(id), (byte) => CHARACTERS[byte]).join('');
  }

  isSpecial(id: number): boolean {
    return this.#added.get(id)?.special ?? false;
  }

  /** The bytes that a token stands for; none where there is no such token. */
  bytes(id: number): Uint8Array {
    const known = this.#bytes.get(id);
    if (known) return known;
    const made = this.#make(id);
    this.#bytes.set(id, made);
    return made;
  }

  #make(id: number): Uint8Array {
    const added = this.#added.get(id);
    if (added) return utf8.encode(added.content);
    const token = this.#tokens[id];
    if (token === undefined) return NOTHING;
    const value = this.#steps.reduce<Spelled>((spelled, step) => step(spelled), token);
    return typeof value === 'string' ? utf8.encode(value) : value;
  }
}

/** Text to token ids alone, with those that frame a text: tokens need no way back. */
export function encoding(json: Uint8Array | string): (text: string) => number[] {
  const encoder = encoderOf(parsed(json));
  return (text) => [...encoder.encode(text, { add_special_tokens: true }).ids];
}

function parsed(json: Uint8Array | string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(typeof json === 'string' ? json : new TextDecoder().decode(json));
  } catch (cause) {
    throw new EdgeRelaxError('format', 'the tokenizer is not JSON', { cause });
  }
  if (!isRecord(value) || !isRecord(value['model'])) {
    throw new EdgeRelaxError('format', 'the tokenizer is no tokenizer.json: it has no model');
  }
  return value;
}

function encoderOf(description: object): Encoder {
  try {
    return new Encoder(description, {});
  } catch (cause) {
    throw new EdgeRelaxError('format', `the tokenizer cannot be used: ${String(cause)}`, { cause });
  }
}

/** The bytes of GPT-2's alphabet: printable ones stand for themselves, the others follow 255. */
const BYTE_LEVEL: ReadonlyMap<string, number> = (() => {
  const printable = (byte: number): boolean =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte !== 0xad);
  let next = 0x100;
  const all = Array.from({ length: 256 }, (_, byte): [string, number] => [
    String.fromCodePoint(printable(byte) ? byte : next++),
    byte,
  ]);
  return new Map(all);
})();

const CHARACTERS = [...BYTE_LEVEL.keys()];

const onText =
  (change: (text: string) => Spelled): Step =>
  (token) =>
    typeof token === 'string' ? change(token) : token;

const byteLevel = onText((token) => {
  const bytes = [...token].map((character) => BYTE_LEVEL.get(character));
  return bytes.includes(undefined) ? token : Uint8Array.from(bytes as number[]);
});

const byteFallback = onText((token) => {
  const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1];
  return byte === undefined ? token : Uint8Array.of(parseInt(byte, 16));
});

/** The parts of a decoder, one for each token; what works on whole texts is told by `prefixed`. */
function decoderOf(decoder: unknown): Decoder {
  const steps: Step[] = [];
  let spelling: Spelling = 'raw';
  let prefixed = false;
  for (const part of flattened(decoder)) {
    switch (part['type']) {
      case 'ByteLevel':
        steps.push(byteLevel);
        spelling = 'byte_level';
        break;
      case 'ByteFallback':
        steps.push(byteFallback);
        spelling = 'byte_fallback';
        break;
      case 'Replace':
        steps.push(replacement(part));
        break;
      case 'Metaspace': {
        const mark = String(part['replacement'] ?? '▁');
        steps.push(onText((token) => token.replaceAll(mark, ' ')));
        prefixed ||= (part['prepend_scheme'] ?? 'always') !== 'never';
        break;
      }
      case 'Fuse':
        break;
      case 'Strip':
        if (part['content'] !== ' ' || part['stop'] !== 0) throw strange(part);
        prefixed ||= Number(part['start']) > 0;
        break;
      default:
        throw strange(part);
    }
  }
  return { steps, spelling, prefixed };
}

function flattened(decoder: unknown): readonly Record<string, unknown>[] {
  if (!isRecord(decoder)) throw new EdgeRelaxError('format', 'the tokenizer has no decoder');
  if (decoder['type'] !== 'Sequence') return [decoder];
  return (decoder['decoders'] as readonly unknown[]).flatMap(flattened);
}

function replacement(part: Record<string, unknown>): Step {
  const { String: literal, Regex: regex } = part['pattern'] as Record<string, string>;
  const content = String(part['content']);
  const pattern = literal ?? new RegExp(regex ?? '', 'gu');
  return onText((token) => token.replaceAll(pattern, () => content));
}

function strange(part: Record<string, unknown>): EdgeRelaxError {
  const what = JSON.stringify(part);
  return new EdgeRelaxError('format', `the tokenizer’s decoder ${what} does not fit streaming`);
}
