/** Answers as OpenAI shapes them: chunks of what generation gives, and wholes of chunks. */

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
  steps: AsyncGenerator<Step, Ending>,
  { model, logprobs, includeUsage }: Shape,
): AsyncGenerator<ChatChunk, void> {
  const frame = { ...stamp('chatcmpl'), object: 'chat.completion.chunk' as const, model };
  const chunk = (
    delta: ChatDelta,
    tokens: readonly LoggedToken[],
    finish_reason: FinishReason | null,
  ): ChatChunk => ({
    ...frame,
    choices: [{ index: 0, delta, finish_reason, logprobs: logprobs ? logged(tokens) : null }],
    ...(includeUsage && { usage: null }),
  });
  let index = 0;
  let begun = false;
  for (;;) {
    const { done, value } = await steps.next();
    if (!begun) yield chunk({ role: 'assistant', content: '' }, [], null);
    begun = true;
    if (done) {
      yield chunk({}, [], value.finish);
      const { usage, timings } = value;
      if (includeUsage) yield { ...frame, choices: [], usage, timings };
      return;
    }
    const { text, calls, tokens } = value;
    const tool_calls = calls.map((call) => ({ index: index++, ...toolCall(call) }));
    const delta = { ...(text && { content: text }), ...(calls.length > 0 && { tool_calls }) };
    yield chunk(delta, tokens, null);
  }
}

export async function wholeChat(
  steps: AsyncGenerator<Step, Ending>,
  { model, logprobs }: Shape,
): Promise<ChatCompletion> {
  let content = '';
  const calls: ToolCall[] = [];
  const tokens: LoggedToken[] = [];
  const { finish, usage, timings } = await drained(steps, (step) => {
    content += step.text;
    calls.push(...step.calls.map(toolCall));
    tokens.push(...step.tokens);
  });
  const called = calls.length > 0;
  const message = {
    role: 'assistant' as const,
    content: called && content.trim() === '' ? null : content,
    ...(called && { tool_calls: calls }),
  };
  const choice = { message, finish_reason: finish, logprobs: logprobs ? logged(tokens) : null };
  const frame = { ...stamp('chatcmpl'), object: 'chat.completion' as const, model };
  return { ...frame, choices: [{ index: 0, ...choice }], usage, timings };
}

/** A step of a text's completion. */
export type Piece = Pick<Step, 'text' | 'tokens'>;

export async function* completionChunks(
  pieces: AsyncGenerator<Piece, Summary>,
  { model, logprobs, includeUsage }: Shape,
): AsyncGenerator<Completion, void> {
  const frame = { ...stamp('cmpl'), object: 'text_completion' as const, model };
  for (;;) {
    const { done, value } = await pieces.next();
    const finish_reason = done ? value.finish : null;
    const { text, tokens } = done ? { text: '', tokens: [] } : value;
    const listed = logprobs ? lists(tokens) : null;
    yield {
      ...frame,
      choices: [{ index: 0, text, finish_reason, logprobs: listed }],
      ...(includeUsage && { usage: null }),
    };
    if (!done) continue;
    const { usage, timings } = value;
    if (includeUsage) yield { ...frame, choices: [], usage, timings };
    return;
  }
}

export async function wholeCompletion(
  pieces: AsyncGenerator<Piece, Summary>,
  { model, logprobs }: Shape,
): Promise<Completion> {
  let text = '';
  const tokens: LoggedToken[] = [];
  const { finish, usage, timings } = await drained(pieces, (piece) => {
    text += piece.text;
    tokens.push(...piece.tokens);
  });
  const listed = logprobs ? lists(tokens) : null;
  const frame = { ...stamp('cmpl'), object: 'text_completion' as const, model };
  const choice = { index: 0 as const, text, finish_reason: finish, logprobs: listed };
  return { ...frame, choices: [choice], usage, timings };
}

async function drained<T, R>(source: AsyncGenerator<T, R>, take: (item: T) => void): Promise<R> {
  for (;;) {
    const { done, value } = await source.next();
    if (done) return value;
    take(value);
  }
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
