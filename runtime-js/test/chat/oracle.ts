/**
 * A language model that is easy to foretell: the next token is a hash of what its pages hold. So a
 * page that two texts write, or that is read before it is written, shows in the tokens.
 */

import type { TokenMask } from '../../src/chat/engine.ts';
import { EdgeRelaxError } from '../../src/errors.ts';
import type { LanguageInfo } from '../../src/manifest.ts';
import type { Model, Outputs } from '../../src/model.ts';
import type { TensorData } from '../../src/tensors.ts';

const ROLES = ['step', 'greedy', 'sample', 'adjusted', 'top', 'count', 'clear', 'shift'];

export const PAGE = 4;
export const VOCABULARY = 64;

export function languageOf(context: number, window: number | null = null) {
  return {
    architecture: 'llama',
    ...{ vocabulary: VOCABULARY, context, page_size: PAGE, window },
    functions: Object.fromEntries(ROLES.map((role) => [role, role])),
    ...{ tokenizer: null, chat: null, bos: null, eos: [] },
  } satisfies LanguageInfo;
}

/** Whole numbers below `most`, the same for the same seed. */
export function chances(seed: number): (most: number) => number {
  let state = seed + 1;
  return (most) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
  };
}

function mixed(hash: number, value: number): number {
  return Math.imul(hash ^ value, 0x01000193) >>> 0;
}

interface Cell {
  readonly token: number;
  readonly position: number;
}

type Inputs = Readonly<Record<string, TensorData>>;

export class Oracle {
  /** Results that are there, and are told when these are called. */
  readonly held: (() => void)[] = [];
  /** What was read without having been written there. */
  readonly faults: string[] = [];
  /** Throws where the next start is to fail. */
  fails: (role: string) => void = () => undefined;
  readonly calls: string[] = [];
  readonly #window: number;
  #cells = new Map<number, Cell>();
  readonly #logits = new Map<number, number>();
  readonly #drawn = new Map<number, number>();
  readonly #counts = new Map<number, Map<number, number>>();
  #disposed = false;

  constructor(window: number | null = null) {
    this.#window = window ?? Infinity;
  }

  get model(): Model {
    const manifest = { programs: [], states: [], functions: [] };
    const model = {
      ...{ backend: 'webgpu', variant: 'gpu', manifest },
      start: (inputs: Inputs, { function: role }: { function: string }) =>
        this.#start(role, inputs),
      settled: () => this.#later({}),
      reload: async () => this.#cells.clear(),
      dispose: async () => void (this.#disposed = true),
    };
    return model as unknown as Model;
  }

  async #start(role: string, inputs: Inputs): Promise<Outputs> {
    this.calls.push(role);
    if (this.#disposed) throw new EdgeRelaxError('disposed', 'the model was disposed of');
    this.fails(role);
    return this.#later(this.#run(role, inputs));
  }

  #later(outputs: Outputs): Promise<Outputs> {
    return new Promise((resolve) => this.held.push(() => resolve(outputs)));
  }

  #run(role: string, inputs: Inputs): Outputs {
    const read = (name: string): number[] => Array.from(inputs[name]!.data as Int32Array);
    const rows = inputs['rows'] ? read('rows') : [];
    if (role === 'step') this.#step(inputs, read, rows);
    if (role === 'shift') this.#shift(read('source'), read('target'), read('by'));
    if (role === 'clear') for (const row of rows) this.#counts.set(row, new Map());
    if (role === 'count') {
      const [tokens, amounts] = [read('tokens'), read('amounts')];
      rows.forEach((row, k) => this.#counted(row).set(tokens[k]!, amounts[k]!));
    }
    if (role !== 'greedy' && role !== 'adjusted') return {};
    const found = rows.map((row) => this.#draw(row, role === 'adjusted'));
    return { token: { data: Int32Array.from(found), shape: [rows.length], dtype: 'i32' } };
  }

  #draw(row: number, adjusted: boolean): number {
    const counts = this.#counted(row);
    const token = next(this.#logits.get(row)!, adjusted ? counts : undefined);
    if (adjusted) counts.set(token, (counts.get(token) ?? 0) + 1);
    this.#drawn.set(row, token);
    return token;
  }

  #counted(row: number): Map<number, number> {
    const counts = this.#counts.get(row) ?? new Map<number, number>();
    this.#counts.set(row, counts);
    return counts;
  }

  #step(inputs: Inputs, read: (name: string) => number[], rows: readonly number[]): void {
    const [texts = 0, count = 0] = inputs['tokens']!.shape;
    const width = inputs['pages']!.shape[1]!;
    const [tokens, positions, slots] = [read('tokens'), read('positions'), read('slots')];
    tokens.forEach((given, k) => {
      const token = given < 0 ? this.#drawn.get(-1 - given)! : given;
      this.#cells.set(slots[k]!, { token, position: positions[k]! });
    });
    const pages = read('pages');
    for (let k = 0; k < texts; k++) {
      const last = positions[(k + 1) * count - 1]!;
      let hash = 7;
      for (let p = Math.max(0, last - this.#window + 1); p <= last; p++) {
        const slot = pages[k * width + Math.floor(p / PAGE)]! * PAGE + (p % PAGE);
        const cell = this.#cells.get(slot);
        if (cell?.position !== p) this.faults.push(`position ${p} of row ${rows[k]} at ${slot}`);
        hash = mixed(hash, cell?.token ?? -1);
      }
      this.#logits.set(rows[k]!, hash);
    }
  }

  #shift(source: readonly number[], target: readonly number[], by: readonly number[]): void {
    const before = new Map(this.#cells);
    source.forEach((page, k) => {
      for (let j = 0; j < PAGE; j++) {
        const cell = before.get(page * PAGE + j);
        if (!cell) this.faults.push(`page ${page} is moved unwritten`);
        else this.#cells.set(target[k]! * PAGE + j, { ...cell, position: cell.position + by[k]! });
      }
    });
  }
}

function next(hash: number, counts: ReadonlyMap<number, number> | undefined): number {
  let found = hash;
  const sorted = [...(counts ?? [])].sort(([a], [b]) => a - b);
  for (const [token, count] of sorted) found = mixed(mixed(found, token), count);
  return (found >>> 8) % VOCABULARY;
}

export interface Told {
  readonly prompt: readonly number[];
  readonly limit: number;
  readonly adjusted: boolean;
}

/** The tokens that a text gets when nothing goes wrong. A roll is of tokens, in whole pages. */
export function foretold(
  { prompt, limit, adjusted }: Told,
  window: number,
  roll?: { readonly span: number; readonly sinks: number; readonly dropped: number },
): number[] {
  const counts = new Map([...new Set(prompt)].map((token) => [token, 1 << 30]));
  const found: number[] = [];
  let kept: number[] = [];
  for (let at = 0; found.length < limit; at++) {
    const token = at < prompt.length ? prompt[at]! : found[at - prompt.length]!;
    if (roll && kept.length === roll.span) kept.splice(roll.sinks, roll.dropped);
    kept.push(token);
    if (at < prompt.length - 1) continue;
    const seen = kept.slice(-window);
    const drawn = next(seen.reduce(mixed, 7), adjusted ? counts : undefined);
    counts.set(drawn, (counts.get(drawn) ?? 0) + 1);
    found.push(drawn);
  }
  return found;
}

export const anything: TokenMask = async () => new Int32Array(VOCABULARY / 32).fill(-1);
