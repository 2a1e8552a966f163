/** Tool calls in a model's text. Each family writes them in its way, which its template shows. */

import { isRecord } from '../schema.ts';
import { overlap } from './stream.ts';
import type { ToolDefinition } from './types.ts';

/** How calls are written. */
export interface CallFormat {
  /** What begins calls; without it a call is the whole answer. */
  readonly begin: string | undefined;
  /** What ends them; without it they go on to the next `begin` or the answer's end. */
  readonly end: string | undefined;
  /** Begins the answer, and is no part of a call. */
  readonly lead?: string;
  /** What the arguments are called. */
  readonly key: 'arguments' | 'parameters';
  /** Whether calls are a list. */
  readonly list: boolean;
}

/** By what templates hold, the first that fits. */
const FORMATS: readonly (readonly [mark: string, format: CallFormat])[] = [
  ['<tool_call>', { begin: '<tool_call>', end: '</tool_call>', key: 'arguments', list: false }],
  [
    '<|tool_call|>',
    { begin: '<|tool_call|>', end: '<|/tool_call|>', key: 'arguments', list: true },
  ],
  ['[TOOL_CALLS]', { begin: '[TOOL_CALLS]', end: undefined, key: 'arguments', list: true }],
];

/** Llama 3's, and what models write who were told of tools but of no marks. */
const BARE: CallFormat = {
  begin: undefined,
  end: undefined,
  lead: '<|python_tag|>',
  key: 'parameters',
  list: false,
};

export function callFormatOf(template: string): CallFormat {
  return FORMATS.find(([mark]) => template.includes(mark))?.[1] ?? BARE;
}

/** Marks of a format; where they are special tokens they must be shown to be found. */
export function marksOf({ begin, end, lead }: CallFormat): string[] {
  return [begin, end, lead].filter((mark) => mark !== undefined);
}

export interface Call {
  readonly name: string;
  /** JSON. */
  readonly arguments: string;
}

export interface Found {
  readonly text: string;
  readonly calls: readonly Call[];
}

/** Takes calls out of a text that comes piece by piece. What is no call after all stays text. */
export class ToolCalls {
  /** How many there were so far. */
  calls = 0;
  readonly #format: CallFormat;
  readonly #names: ReadonlySet<string>;
  #held = '';
  #started = false;
  #called = false;

  constructor(format: CallFormat, tools: readonly ToolDefinition[]) {
    this.#format = format;
    this.#names = new Set(tools.map((tool) => tool.function.name));
  }

  push(text: string): Found {
    this.#held += text;
    return this.#counted(this.#format.begin === undefined ? this.#bare() : this.#marked(false));
  }

  flush(): Found {
    return this.#counted(this.#format.begin === undefined ? this.#rest() : this.#marked(true));
  }

  #counted(found: Found): Found {
    this.calls += found.calls.length;
    return found;
  }

  /** All that was held. */
  #rest(): Found {
    const { lead = '' } = this.#format;
    const all = this.#held;
    const body = all.trimStart();
    const calls = this.#read(body.startsWith(lead) ? body.slice(lead.length) : body);
    this.#held = '';
    return calls ? { text: '', calls } : { text: all, calls: [] };
  }

  /** Everything is held while it may be a call. */
  #bare(): Found {
    const { lead = '' } = this.#format;
    const start = this.#held.trimStart();
    const may = /^[[{]/.test(start) || start.startsWith(lead) || lead.startsWith(start);
    if (!this.#started && may) return { text: '', calls: [] };
    this.#started = true; // it began with something else
    const text = this.#held;
    this.#held = '';
    return { text, calls: [] };
  }

  #marked(last: boolean): Found {
    const { begin = '', end } = this.#format;
    let text = '';
    const calls: Call[] = [];
    const show = (length: number): void => {
      text += this.#shown(this.#held.slice(0, length));
      this.#held = this.#held.slice(length);
    };
    for (;;) {
      const start = this.#held.indexOf(begin);
      if (start < 0) {
        show(this.#held.length - (last ? 0 : overlap(this.#held, begin)));
        return { text, calls };
      }
      show(start);
      const found = this.#held.indexOf(end ?? begin, begin.length);
      if (found < 0 && !last) return { text, calls };
      const to = found < 0 ? this.#held.length : found;
      const after = found < 0 ? to : found + (end?.length ?? 0);
      const read = this.#read(this.#held.slice(begin.length, to));
      if (read) this.#held = this.#held.slice(after);
      else show(after);
      this.#called ||= read !== undefined;
      calls.push(...(read ?? []));
    }
  }

  /** Text after a call, without the space between. */
  #shown(text: string): string {
    if (!this.#called) return text;
    const rest = text.trimStart();
    this.#called = rest === '';
    return rest;
  }

  /** The calls that a text is, if it is nothing else. */
  #read(body: string): readonly Call[] | undefined {
    const calls = values(body).flat().map(callOf);
    if (calls.length === 0 || calls.includes(undefined)) return undefined;
    const whole = calls as readonly Call[];
    const bare = this.#format.begin === undefined;
    return bare && !whole.every((call) => this.#names.has(call.name)) ? undefined : whole;
  }
}

/** The JSON values that a text is, with space, commas or semicolons between; else none. */
function values(body: string): unknown[] {
  const found: unknown[] = [];
  let rest = body.trim();
  while (rest !== '') {
    const whole = parsed(rest);
    if (whole !== undefined) return [...found, whole];
    const end = firstEnd(rest);
    const value = end > 0 ? parsed(rest.slice(0, end)) : named(rest);
    if (value === undefined) return [];
    found.push(value);
    rest = end > 0 ? rest.slice(end).replace(/^[\s;,]+/, '') : '';
  }
  return found;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Where the object or list ends that a text begins with; 0 where it begins or ends none. */
function firstEnd(text: string): number {
  if (!/^[[{]/.test(text)) return 0;
  let depth = 0;
  for (const { 0: mark, index } of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{}]/gs)) {
    if (mark === '{' || mark === '[') depth++;
    else if (mark === '}' || mark === ']') depth--;
    if (depth === 0) return index + 1;
  }
  return 0;
}

/** `name[ARGS]{…}` or `name{…}`, as newer Mistrals have it. */
function named(body: string): unknown {
  const [, name, given] = /^\s*([A-Za-z0-9_.-]+)(?:\[ARGS\])?\s*(\{.*\})\s*$/s.exec(body) ?? [];
  const values = parsed(given ?? '');
  return name === undefined || values === undefined ? undefined : { name, arguments: values };
}

function callOf(item: unknown): Call | undefined {
  if (!isRecord(item) || typeof item['name'] !== 'string') return undefined;
  const values = item['arguments'] ?? item['parameters'] ?? {};
  if (typeof values === 'string') return { name: item['name'], arguments: values };
  return isRecord(values) ? { name: item['name'], arguments: JSON.stringify(values) } : undefined;
}

/** The schema of a call of one of these tools. */
export function callSchema(format: CallFormat, tools: readonly ToolDefinition[]): object {
  const calls = tools.map(({ function: { name, parameters } }) => ({
    type: 'object',
    properties: { name: { const: name }, [format.key]: parameters ?? { type: 'object' } },
    required: ['name', format.key],
    additionalProperties: false,
  }));
  const one = calls.length === 1 ? (calls[0] as object) : { anyOf: calls };
  return format.list ? { type: 'array', items: one, minItems: 1 } : one;
}
