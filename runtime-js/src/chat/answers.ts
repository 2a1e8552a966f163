/** Answers as OpenAI shapes them: chunks of what generation gives, and wholes of chunks. */

import { type Choices, merged, summed } from './choices.ts';
import type { LoggedToken, Summary } from './generation.ts';
import type { Call } from './tools.ts';
import type {
  ChatChunk,
  ChatCompletion,
  ChatDelta,
  ChatLogprobs,
  Completion,
  CompletionLogprobs,
  FinishReason,
  TokenLogprob,
  ToolCall,
} from './types.ts';

/** A step of a chat's answer. */
export interface Step {
  readonly text: string;
  readonly calls: readonly Call[];
  readonly tokens: readonly LoggedToken[];
}

export interface Ending extends Omit<Summary, 'finish'> {
  readonly finish: FinishReason;
}

export interface Shape {
  readonly model: string;
  readonly logprobs: boolean;
  readonly includeUsage: boolean;
}

export async function* chatChunks(
  choices: Choices<Step, Ending>,
  { model, logprobs, includeUsage }: Shape,
): AsyncGenerator<ChatChunk, void> {
  const frame = { ...stamp('chatcmpl'), object: 'chat.completion.chunk' as const, model };
  const chunk = (
    index: number,
    delta: ChatDelta,
    tokens: readonly LoggedToken[],
    finish_reason: FinishReason | null,
  ): ChatChunk => ({
    ...frame,
    choices: [{ index, delta, finish_reason, logprobs: logprobs ? logged(tokens) : null }],
    ...(includeUsage && { usage: null }),
  });
  const called = new Map<number, number>(); // how many calls of the choices that have begun
  const endings: Ending[] = [];
  for await (const { at, done, value } of merged(choices)) {
    if (!called.has(at)) yield chunk(at, { role: 'assistant', content: '' }, [], null);
    const first = called.get(at) ?? 0;
    called.set(at, first);
    if (done) {
      endings[at] = value;
      yield chunk(at, {}, [], value.finish);
      continue;
    }
    const { text, calls, tokens } = value;
    const tool_calls = calls.map((call, k) => ({ index: first + k, ...toolCall(call) }));
    called.set(at, first + calls.length);
    const delta = { ...(text && { content: text }), ...(calls.length > 0 && { tool_calls }) };
    yield chunk(at, delta, tokens, null);
  }
  if (includeUsage) yield { ...frame, choices: [], ...summed(endings) };
}

export async function wholeChat(
  choices: Choices<Step, Ending>,
  { model, logprobs }: Shape,
): Promise<ChatCompletion> {
  const all = await drained(choices);
  const told = all.map(({ steps, ending }, index) => {
    const content = steps.map((step) => step.text).join('');
    const calls = steps.flatMap((step) => step.calls.map(toolCall));
    const called = calls.length > 0;
    const message = {
      role: 'assistant' as const,
      content: called && content.trim() === '' ? null : content,
      ...(called && { tool_calls: calls }),
    };
    const tokens = steps.flatMap((step) => step.tokens);
    const listed = logprobs ? logged(tokens) : null;
    return { index, message, finish_reason: ending.finish, logprobs: listed };
  });
  const frame = { ...stamp('chatcmpl'), object: 'chat.completion' as const, model };
  const some = told as unknown as ChatCompletion['choices'];
  return { ...frame, choices: some, ...summed(all.map(({ ending }) => ending)) };
}

/** A step of a text's completion. */
export type Piece = Pick<Step, 'text' | 'tokens'>;

export async function* completionChunks(
  choices: Choices<Piece, Summary>,
  { model, logprobs, includeUsage }: Shape,
): AsyncGenerator<Completion, void> {
  const frame = { ...stamp('cmpl'), object: 'text_completion' as const, model };
  const endings: Summary[] = [];
  for await (const { at, done, value } of merged(choices)) {
    if (done) endings[at] = value;
    const finish_reason = done ? value.finish : null;
    const { text, tokens } = done ? { text: '', tokens: [] } : value;
    const listed = logprobs ? lists(tokens) : null;
    yield {
      ...frame,
      choices: [{ index: at, text, finish_reason, logprobs: listed }],
      ...(includeUsage && { usage: null }),
    };
  }
  if (includeUsage) yield { ...frame, choices: [], ...summed(endings) };
}

export async function wholeCompletion(
  choices: Choices<Piece, Summary>,
  { model, logprobs }: Shape,
): Promise<Completion> {
  const all = await drained(choices);
  const told = all.map(({ steps, ending }, index) => {
    const text = steps.map((step) => step.text).join('');
    const listed = logprobs ? lists(steps.flatMap((step) => step.tokens)) : null;
    return { index, text, finish_reason: ending.finish, logprobs: listed };
  });
  const frame = { ...stamp('cmpl'), object: 'text_completion' as const, model };
  return { ...frame, choices: told, ...summed(all.map(({ ending }) => ending)) };
}

/** All of each choice. */
async function drained<T, R>(
  choices: Choices<T, R>,
): Promise<{ readonly steps: T[]; readonly ending: R }[]> {
  const steps = choices.sources.map((): T[] => []);
  const endings = new Map<number, R>();
  for await (const { at, done, value } of merged(choices)) {
    if (done) endings.set(at, value);
    else steps[at]?.push(value);
  }
  return steps.map((taken, at) => ({ steps: taken, ending: endings.get(at) as R }));
}

function stamp(kind: string): { readonly id: string; readonly created: number } {
  return { id: `${kind}-${randomName()}`, created: Math.floor(Date.now() / 1000) };
}

function randomName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12)); // randomUUID is for secure contexts
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function toolCall({ name, arguments: values }: Call): ToolCall {
  return {
    id: `call_${randomName()}`,
    type: 'function',
    function: { name, arguments: values },
  };
}

function logged(tokens: readonly LoggedToken[]): ChatLogprobs {
  return { content: tokens.map(({ start: _, ...token }): TokenLogprob => token) };
}

function lists(tokens: readonly LoggedToken[]): CompletionLogprobs {
  return {
    tokens: tokens.map((token) => token.token),
    token_logprobs: tokens.map((token) => token.logprob),
    top_logprobs: tokens.map((token) =>
      Object.fromEntries(token.top_logprobs.map(({ token, logprob }) => [token, logprob])),
    ),
    text_offset: tokens.map((token) => token.start),
  };
}
