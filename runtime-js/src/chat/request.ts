/** Requests checked field by field, and made into what generation needs. */

import { EdgeRelaxError } from '../errors.ts';
import { anything, type Check, count, either, first, isRecord } from '../schema.ts';
import { listOf, mapOf, object, oneOf, text } from '../schema.ts';
import type { Sampling } from './engine.ts';
import { isImage } from './opening.ts';
import type { ChatRequest, CompletionRequest, Parameters, ResponseFormat } from './types.ts';

/** What the text must be. */
export type Constraint =
  | { readonly kind: 'json' }
  | { readonly kind: 'schema'; readonly schema: object; readonly strict: boolean }
  | { readonly kind: 'grammar'; readonly grammar: string }
  /** A schema's JSON between two texts. */
  | {
      readonly kind: 'tagged';
      readonly begin: string;
      readonly schema: object;
      readonly end: string;
    };

/** A request but for its prompt. */
export interface Settings {
  readonly sampling: Sampling;
  /** The most tokens that were asked for. */
  readonly limit: number | undefined;
  readonly stops: readonly string[];
  /** How many others are told with each token's probability. */
  readonly logprobs: number | undefined;
  readonly constraint: Constraint | undefined;
  readonly ignoreEos: boolean;
  readonly signal: AbortSignal | undefined;
}

const range =
  (lo: number, hi: number): Check =>
  (value, at) =>
    typeof value === 'number' && value >= lo && value <= hi
      ? undefined
      : `${at} is no number from ${lo} to ${hi}`;

const positive: Check = (value, at) =>
  typeof value === 'number' && value > 0 && Number.isFinite(value)
    ? undefined
    : `${at} is no number above 0`;

const integer: Check = (value, at) =>
  Number.isSafeInteger(value) ? undefined : `${at} is no integer`;

const several: Check = (value, at) =>
  count(value, at) ?? (value === 0 ? `${at} is 0; it is 1 at least` : undefined);

const filled: Check = (value, at) =>
  text(value, at) ?? (value === '' ? `${at} is empty` : undefined);

const flag = oneOf(true, false);

const some =
  (check: Check): Check =>
  (value, at) =>
    listOf(check)(value, at) ?? ((value as []).length === 0 ? `${at} is empty` : undefined);

const upTo =
  (most: number, check: Check): Check =>
  (value, at) =>
    Array.isArray(value) && value.length > most
      ? `${at} has ${value.length} entries; ${most} are the most`
      : check(value, at);

const signal: Check = (value, at) =>
  value instanceof AbortSignal ? undefined : `${at} is no AbortSignal`;

const record: Check = (value, at) => (isRecord(value) ? undefined : `${at} is no object`);

/** An object whose fields may all be absent; null is absence, other fields are errors. */
const optional =
  (fields: Record<string, Check>): Check =>
  (value, at) => {
    if (!isRecord(value)) return `${at || 'the request'} is no object`;
    return first(Object.entries(value), ([name, item]) => {
      const place = at ? `${at}.${name}` : name;
      const check = Object.hasOwn(fields, name) ? fields[name] : undefined;
      if (!check) return `${place} is no field here; there are ${Object.keys(fields).join(', ')}`;
      return item === undefined || item === null ? undefined : check(item, place);
    });
  };

/** Objects told apart by a field. */
const byField =
  (field: string, kinds: Record<string, Check>): Check =>
  (value, at) => {
    if (!isRecord(value)) return `${at} is no object`;
    const kind = value[field];
    const check = typeof kind === 'string' && Object.hasOwn(kinds, kind) ? kinds[kind] : undefined;
    if (!check) return `${at}.${field} is none of ${Object.keys(kinds).join(', ')}`;
    return check(value, at);
  };

const both =
  (...checks: readonly Check[]): Check =>
  (value, at) =>
    first(checks, (check) => check(value, at));

const image: Check = (value, at) =>
  isImage(value) ? undefined : `${at} is no Blob, ImageData, ImageBitmap, image or canvas`;

const part = byField('type', {
  text: object({ text }),
  image_url: object({
    image_url: both(object({ url: filled }), optional({ url: text, detail: text })),
  }),
  image: object({ image }),
});

const content: Check = (value, at) =>
  Array.isArray(value) ? listOf(part)(value, at) : text(value, at);

const call = object({
  id: filled,
  type: oneOf('function'),
  function: object({ name: filled, arguments: text }),
});

const role = oneOf('system', 'developer', 'user', 'assistant', 'tool');
const plain = both(object({ content }), optional({ role, content, name: text }));

const message = byField('role', {
  system: plain,
  developer: plain,
  user: plain,
  assistant: both(
    optional({ role, content, name: text, tool_calls: listOf(call), refusal: text }),
    (value, at) => {
      const { content, tool_calls } = value as Record<string, unknown>;
      const says = (content ?? undefined) !== undefined || Array.isArray(tool_calls);
      return says ? undefined : `${at} has neither content nor tool_calls`;
    },
  ),
  tool: both(object({ content }), optional({ role, content, name: text, tool_call_id: text })),
});

const definition = object({
  name: (value, at) =>
    typeof value === 'string' && /^[A-Za-z0-9_.-]{1,128}$/.test(value)
      ? undefined
      : `${at} is no name of letters, digits, _, - and .`,
});
const tool = object({
  type: oneOf('function'),
  function: both(
    definition,
    optional({ name: text, description: text, parameters: record, strict: flag }),
  ),
});

const choice: Check = (value, at) =>
  typeof value === 'string'
    ? oneOf('none', 'auto', 'required')(value, at)
    : object({ type: oneOf('function'), function: object({ name: filled }) })(value, at);

const format = byField('type', {
  text: record,
  json_object: record,
  json_schema: object({
    json_schema: both(
      object({ schema: record }),
      optional({ name: text, description: text, schema: record, strict: flag }),
    ),
  }),
  grammar: object({ grammar: filled }),
});

export const MOST_ANSWERS = 16;

const PARAMETERS: Record<string, Check> = {
  model: text,
  max_tokens: several,
  temperature: range(0, 2),
  top_p: range(0, 1),
  top_k: count,
  min_p: range(0, 1),
  repetition_penalty: positive,
  presence_penalty: range(-2, 2),
  frequency_penalty: range(-2, 2),
  logit_bias: mapOf(range(-100, 100)),
  seed: integer,
  stop: either(text, upTo(16, listOf(text))),
  n: both(several, range(1, MOST_ANSWERS)),
  user: text,
  response_format: format,
  stream_options: optional({ include_usage: flag }),
  stream: flag,
  ignore_eos: flag,
  signal,
};

/** Fields that tell a hosted service something, and this one nothing. */
const HINTS = [
  'store',
  'metadata',
  'service_tier',
  'reasoning_effort',
  'verbosity',
  'safety_identifier',
  'prompt_cache_key',
  'prompt_cache_retention',
];

const CHAT: Record<string, Check> = {
  messages: some(message),
  ...PARAMETERS,
  max_completion_tokens: several,
  logprobs: flag,
  top_logprobs: both(count, range(0, 20)),
  tools: some(tool),
  tool_choice: choice,
  parallel_tool_calls: flag,
  chat_template_kwargs: mapOf(anything),
  ...Object.fromEntries(HINTS.map((name) => [name, anything])),
};

const COMPLETION: Record<string, Check> = {
  prompt: either(filled, some(count)),
  ...PARAMETERS,
  logprobs: both(count, range(0, 20)),
};

const refuse = (problem: string | undefined): void => {
  if (problem !== undefined) throw new EdgeRelaxError('input', problem);
};

/** Throws `input`, with the field's name, for a request that is not one. */
export function checkChat(request: ChatRequest): void {
  refuse(optional(CHAT)(request, ''));
  refuse(missing(request, 'messages'));
  if (request.top_logprobs && !request.logprobs) refuse('top_logprobs needs logprobs: true');
  const { tools, tool_choice } = request;
  if (tool_choice && tool_choice !== 'none' && !tools) refuse('tool_choice needs tools');
  if (typeof tool_choice === 'object' && tool_choice) {
    const { name } = tool_choice.function;
    const known = tools?.map((tool) => tool.function.name) ?? [];
    if (!known.includes(name)) refuse(`tool_choice names ${name}, which is none of the tools`);
  }
  const constrained = (request.response_format?.type ?? 'text') !== 'text';
  if (tools && tool_choice !== 'none' && constrained) {
    refuse("response_format leaves no room for tools; set tool_choice: 'none', or leave one out");
  }
}

export function checkCompletion(request: CompletionRequest, vocabulary: number): void {
  refuse(optional(COMPLETION)(request, ''));
  refuse(missing(request, 'prompt'));
  const { prompt } = request;
  if (typeof prompt === 'string') return;
  refuse(first(prompt, (id, k) => (id < vocabulary ? undefined : beyond(`prompt[${k}]`, id))));
}

const missing = (request: object, field: string): string | undefined =>
  ((request as Record<string, unknown>)[field] ?? undefined) === undefined
    ? `${field} is missing`
    : undefined;

const beyond = (at: string, id: number | string): string =>
  `${at}: the vocabulary has no token ${id}`;

/** The settings of a request that was checked; `defaults` are the model's own. */
export function settingsOf(
  request: ChatRequest | CompletionRequest,
  defaults: Partial<Sampling>,
  vocabulary: number,
): Omit<Settings, 'logprobs'> {
  const { stop, max_tokens, signal } = request;
  const completion = 'max_completion_tokens' in request ? request.max_completion_tokens : undefined;
  return {
    sampling: samplingOf(request, defaults, vocabulary),
    limit: completion ?? max_tokens ?? undefined,
    stops: typeof stop === 'string' ? [stop] : (stop ?? []),
    constraint: constraintOf(request.response_format ?? { type: 'text' }),
    ignoreEos: request.ignore_eos ?? false,
    signal,
  };
}

function samplingOf(
  request: Parameters,
  defaults: Partial<Sampling>,
  vocabulary: number,
): Sampling {
  const seed = request.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
  return {
    temperature: request.temperature ?? defaults.temperature ?? 1,
    topP: request.top_p ?? defaults.topP ?? 1,
    topK: request.top_k ?? defaults.topK ?? 0,
    minP: request.min_p ?? defaults.minP ?? 0,
    repetitionPenalty: request.repetition_penalty ?? defaults.repetitionPenalty ?? 1,
    presencePenalty: request.presence_penalty ?? 0,
    frequencyPenalty: request.frequency_penalty ?? 0,
    logitBias: biasOf(request.logit_bias ?? {}, vocabulary),
    seed: Number(BigInt.asUintN(32, BigInt(seed))),
  };
}

function biasOf(bias: Readonly<Record<string, number>>, vocabulary: number): Map<number, number> {
  const entries = Object.entries(bias).map(([key, value]): [number, number] => {
    const known = /^\d+$/.test(key) && Number(key) < vocabulary;
    if (!known) refuse(beyond('logit_bias', key));
    return [Number(key), value];
  });
  return new Map(entries);
}

function constraintOf(format: ResponseFormat): Constraint | undefined {
  switch (format.type) {
    case 'text':
      return undefined;
    case 'json_object':
      return { kind: 'json' };
    case 'json_schema':
      return schemaOf(format.json_schema);
    case 'grammar':
      return { kind: 'grammar', grammar: format.grammar };
  }
}

const schemaOf = ({ schema, strict }: { schema: object; strict?: boolean | null }): Constraint => ({
  kind: 'schema',
  schema,
  strict: strict ?? true,
});
