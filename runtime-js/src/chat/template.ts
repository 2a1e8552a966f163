/** Conversations to prompts, by the chat template that came with the model. */

import { Template as Jinja } from '@huggingface/jinja';
import { EdgeRelaxError } from '../errors.ts';
import type { ContentPart, Message, ToolCall, ToolDefinition } from './types.ts';

export interface Rendering {
  readonly messages: readonly Message[];
  readonly tools: readonly ToolDefinition[] | undefined;
  /** More names for the template. */
  readonly extras: Readonly<Record<string, unknown>>;
}

/** A model's templates by name, read. Throws `template` for one with a fault. */
export class Templates {
  readonly sources: readonly string[];
  readonly #templates: ReadonlyMap<string, ChatTemplate>;

  constructor(
    templates: Readonly<Record<string, string>>,
    names: Readonly<Record<string, unknown>>,
    placeholder?: string,
  ) {
    this.sources = Object.values(templates);
    const read = (source: string): ChatTemplate => new ChatTemplate(source, names, placeholder);
    this.#templates = new Map(Object.entries(templates).map(([name, s]) => [name, read(s)]));
  }

  /** That for conversations with tools is another with some models. */
  of(tools: boolean): ChatTemplate {
    const found = (tools && this.#templates.get('tool_use')) || this.#templates.get('default');
    if (found) return found;
    throw new EdgeRelaxError(
      'template',
      'this model came without a chat template; give loadChat a `template`, or use completions',
    );
  }
}

export class ChatTemplate {
  readonly source: string;
  readonly #jinja: Jinja;
  readonly #names: Readonly<Record<string, unknown>>;
  readonly #parts: boolean;
  readonly #placeholder: string | undefined;

  /**
   * `names` are what templates use beside the messages: `bos_token`, `eos_token`. Those of models
   * that see images, which a `placeholder` stands for, mostly take lists of parts, others texts.
   */
  constructor(source: string, names: Readonly<Record<string, unknown>>, placeholder?: string) {
    this.source = source;
    this.#names = names;
    try {
      this.#jinja = new Jinja(source);
    } catch (cause) {
      throw new EdgeRelaxError('template', `the chat template has a fault: ${why(cause)}`, {
        cause,
      });
    }
    this.#placeholder = placeholder;
    this.#parts = placeholder !== undefined && this.#writesParts();
  }

  /** Whether it writes contents that are lists of parts. */
  #writesParts(): boolean {
    const content = [{ type: 'text', text: PROBE }];
    try {
      const messages = [{ role: 'user', content }];
      const text = this.#jinja.render({ ...this.#names, messages, add_generation_prompt: true });
      return text.includes(PROBE) && !/["']type["']/.test(text);
    } catch {
      return false;
    }
  }

  /** The text up to where the answer begins. Throws `template` with what the template says. */
  render({ messages, tools, extras }: Rendering): string {
    const names = { ...this.#names, ...(tools && { tools }), ...extras };
    let first: unknown;
    for (const said of waysToSay(messages.map((message) => this.#message(message)))) {
      try {
        return this.#jinja.render({ ...names, messages: said, add_generation_prompt: true });
      } catch (cause) {
        first ??= cause;
      }
    }
    throw new EdgeRelaxError('template', `the chat template refuses this: ${why(first)}`, {
      cause: first,
    });
  }

  /** Templates take `system` for `developer`, and arguments as objects. */
  #message({ role, content, tool_calls, ...rest }: Message): Record<string, unknown> {
    return {
      ...rest,
      role: role === 'developer' ? 'system' : role,
      ...(isSilent(content, role) ? {} : { content: this.#content(content ?? '') }),
      ...(tool_calls && { tool_calls: tool_calls.map(withObject) }),
    };
  }

  /** In parts, without what images are; or as a text, where the placeholder stands for each. */
  #content(content: string | readonly ContentPart[]): unknown {
    const parts = typeof content === 'string' ? [textPart(content)] : content;
    if (this.#parts) return parts.map((part) => (part.type === 'text' ? part : { type: 'image' }));
    const mark = `${this.#placeholder ?? ''}\n`;
    return parts.map((part) => (part.type === 'text' ? part.text : mark)).join('');
  }
}

type Said = Record<string, unknown>;

/** An answer may have calls and no text. */
function isSilent(content: Message['content'], role: unknown): boolean {
  return role === 'assistant' && (content ?? undefined) === undefined;
}

/** Templates take one of these for an answer without text: no content, none, an empty one. */
function* waysToSay(messages: readonly Said[]): Generator<readonly Said[]> {
  yield messages;
  const silent = messages.filter((message) => !('content' in message));
  for (const content of silent.length > 0 ? [null, ''] : []) {
    yield messages.map((message) => (silent.includes(message) ? { ...message, content } : message));
  }
}

const textPart = (text: string): ContentPart => ({ type: 'text', text });

const PROBE = 'a text to look for';

const why = (cause: unknown): string => (cause instanceof Error ? cause.message : String(cause));

function withObject({ id, type, function: called }: ToolCall): Record<string, unknown> {
  let values: unknown = called.arguments;
  try {
    values = JSON.parse(called.arguments);
  } catch {
    // what a model wrote may be no JSON; the template then shows it as it is
  }
  return { id, type, function: { name: called.name, arguments: values } };
}
