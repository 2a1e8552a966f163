/** A language model that takes requests of OpenAI's shape. */

import { Album } from './album.ts';
import { AnswerStream } from './answer-stream.ts';
import * as answers from './answers.ts';
import type { Choices } from './choices.ts';
import { type Prompt, promptOf, seenIn } from './contents.ts';
import type { Engine, EngineStats, Sampling } from './engine.ts';
import { checkRoom, generate, type Job, type Piece, type Summary } from './generation.ts';
import { Grammars } from './grammar.ts';
import type { ImagePlan } from './images.ts';
import { Pending } from './pending.ts';
import { checkChat, checkCompletion, type Constraint, type Settings } from './request.ts';
import { MOST_ANSWERS, settingsOf } from './request.ts';
import type { ChatTemplate, Templates } from './template.ts';
import type { Tokenizer } from './tokenizer.ts';
import { callFormatOf, callSchema, marksOf, ToolCalls } from './tools.ts';
import type {
  ChatChunk,
  ChatCompletion,
  ChatRequest,
  Completion,
  CompletionRequest,
  ToolDefinition,
} from './types.ts';

type Streamed = { readonly stream: true };
/** The prompt of a request's answers; the signal ends it, as it ends them. */
type MakePrompt = (signal: AbortSignal) => Promise<Prompt>;

/** What an answer is to be. */
interface Wanted extends Pick<Job, 'settings' | 'begins' | 'enough'> {
  readonly tools?: ChatRequest['tools'];
}
type AtOnce = { readonly stream?: false | null };

export interface ChatCompletions {
  /** An answer, or with `stream: true` its chunks, for `for await`. */
  create(request: ChatRequest & Streamed): AnswerStream<ChatChunk>;
  create(request: ChatRequest & AtOnce): Promise<ChatCompletion>;
  create(request: ChatRequest): AnswerStream<ChatChunk> | Promise<ChatCompletion>;
}

export interface Completions {
  create(request: CompletionRequest & Streamed): AnswerStream<Completion>;
  create(request: CompletionRequest & AtOnce): Promise<Completion>;
  create(request: CompletionRequest): AnswerStream<Completion> | Promise<Completion>;
}

export interface ChatParts {
  readonly engine: Engine;
  readonly tokenizer: Tokenizer;
  /** Jinja, by name: `default`, and perhaps `tool_use`. */
  readonly templates: Templates;
  /** What templates use beside the messages. */
  readonly names: Readonly<Record<string, unknown>>;
  /** How images become tokens, of a model that sees any. */
  readonly images?: ImagePlan | undefined;
  readonly eos: readonly number[];
  /** What answers call the model. */
  readonly model: string;
  /** Sampling that requests do not tell. */
  readonly defaults?: Partial<Sampling>;
  /** Imports @mlc-ai/web-xgrammar. */
  readonly grammar?: (() => Promise<unknown>) | undefined;
}

/** Requests may overlap: the engine works on several at once. A failed one leaves the others alone. */
export class Chat {
  readonly model: string;
  readonly chat: { readonly completions: ChatCompletions };
  readonly completions: Completions;
  readonly #parts: ChatParts;
  readonly #eos: ReadonlySet<number>;
  readonly #marks: ReadonlySet<number>;
  readonly #grammars: Grammars;
  readonly #album: Album | undefined;
  readonly #pending = new Pending();
  #disposal: Promise<void> | undefined;

  constructor(parts: ChatParts) {
    const { engine, tokenizer, templates, images, eos, model } = parts;
    this.#parts = parts;
    this.model = model;
    this.#album = images && new Album(images);
    this.#eos = new Set(eos);
    const marks = templates.sources.flatMap((source) => marksOf(callFormatOf(source)));
    const ids = marks.map((mark) => tokenizer.idOf(mark)).filter((id) => id !== undefined);
    this.#marks = new Set(ids);
    const { vocabulary } = engine;
    const load = parts.grammar;
    this.#grammars = new Grammars({ load, tokenizer, vocabulary, eos, marks: this.#marks });
    this.chat = { completions: { create: ((r: ChatRequest) => this.#chat(r)) as never } };
    this.completions = { create: ((r: CompletionRequest) => this.#complete(r)) as never };
  }

  get backend(): Engine['backend'] {
    return this.#parts.engine.backend;
  }

  /** The most tokens of a conversation. */
  get context(): number {
    return this.#parts.engine.context;
  }

  /** Whether messages may have images. */
  get seesImages(): boolean {
    return this.#parts.images !== undefined;
  }

  /** The token ids of a text. */
  encode(text: string): number[] {
    return this.#parts.tokenizer.encode(text, false);
  }

  stats(): EngineStats {
    return this.#parts.engine.stats();
  }

  /** Ends the answers that are being made, then frees all. Answers that are not done fail. */
  dispose(): Promise<void> {
    this.#disposal ??= this.#pending.close().then(async () => {
      this.#grammars.dispose();
      this.#album?.close();
      await this.#parts.engine.dispose();
    });
    return this.#disposal;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  #chat(request: ChatRequest): AnswerStream<ChatChunk> | Promise<ChatCompletion> {
    const shape = { ...this.#shape(request), logprobs: Boolean(request?.logprobs) };
    const make = (leaving?: AbortSignal): Choices<answers.Step, answers.Ending> => {
      let prompt: Promise<Prompt> | undefined; // of all answers
      return choicesOf(request, leaving, (at, signal) =>
        this.#steps(request, at, signal, (either) => (prompt ??= this.#prompt(request, either))),
      );
    };
    return request?.stream
      ? new AnswerStream((signal) => answers.chatChunks(make(signal), shape))
      : answers.wholeChat(make(), shape);
  }

  #complete(request: CompletionRequest): AnswerStream<Completion> | Promise<Completion> {
    const shape = { ...this.#shape(request), logprobs: (request?.logprobs ?? null) !== null };
    const make = (leaving?: AbortSignal): Choices<Piece, Summary> =>
      choicesOf(request, leaving, (at, signal) => this.#text(request, at, signal));
    return request?.stream
      ? new AnswerStream((signal) => answers.completionChunks(make(signal), shape))
      : answers.wholeCompletion(make(), shape);
  }

  #shape(request: ChatRequest | CompletionRequest): Omit<answers.Shape, 'logprobs'> {
    const includeUsage = request?.stream_options?.include_usage ?? false;
    return { model: this.model, includeUsage };
  }

  async *#steps(
    request: ChatRequest,
    at: number,
    signal: AbortSignal,
    promptOnce: MakePrompt,
  ): AsyncGenerator<answers.Step, answers.Ending> {
    checkChat(request);
    const tools = toolsOf(request);
    const template = this.#parts.templates.of(tools !== undefined);
    const { logprobs, top_logprobs } = request;
    const settings = this.#settings(request, at, logprobs ? (top_logprobs ?? 0) : undefined);
    const constraint = this.#callConstraint(request, template) ?? settings.constraint;
    const parser = tools && new ToolCalls(callFormatOf(template.source), tools);
    const most = request.parallel_tool_calls === false ? 1 : Infinity;
    const enough = (): boolean => parser !== undefined && parser.calls >= most;
    const job = { settings: { ...settings, constraint }, begins: true, tools, enough };
    const pieces = this.#answer(promptOnce, job, signal);
    return yield* parser ? withCalls(pieces, parser, most) : withoutCalls(pieces);
  }

  async #prompt(request: ChatRequest, signal: AbortSignal): Promise<Prompt> {
    const { tokenizer, names, images } = this.#parts;
    const { messages } = request;
    const seen = await seenIn(messages, this.#album, signal);
    const tools = toolsOf(request);
    const extras = request.chat_template_kwargs ?? {};
    const text = this.#parts.templates.of(tools !== undefined).render({ messages, tools, extras });
    if (!images) return { tokens: tokenizer.encode(text, false), pictures: [] };
    // templates of models that see images leave the first token to their processors
    const framed = !(names['bos_token'] && text.startsWith(String(names['bos_token'])));
    return promptOf(text, seen, images, (whole) => tokenizer.encode(whole, framed));
  }

  async *#text(
    request: CompletionRequest,
    at: number,
    signal: AbortSignal,
  ): AsyncGenerator<Piece, Summary> {
    const { engine, tokenizer } = this.#parts;
    checkCompletion(request, engine.vocabulary);
    const { prompt, logprobs } = request;
    const tokens = typeof prompt === 'string' ? tokenizer.encode(prompt, true) : prompt;
    const settings = this.#settings(request, at, logprobs ?? undefined);
    const job = { settings, begins: false };
    return yield* this.#answer(async () => ({ tokens, pictures: [] }), job, signal);
  }

  /** Those of the request's answer number `at`. */
  #settings(
    request: ChatRequest | CompletionRequest,
    at: number,
    logprobs: number | undefined,
  ): Settings {
    const { engine, defaults = {} } = this.#parts;
    const settings = settingsOf(request, defaults, engine.vocabulary);
    const sampling = { ...settings.sampling, seed: settings.sampling.seed + at };
    return { ...settings, sampling, logprobs };
  }

  /** What makes the model call a tool, where it must. */
  #callConstraint(request: ChatRequest, template: ChatTemplate): Constraint | undefined {
    const { tools, tool_choice: choice } = request;
    if (!tools || !choice || choice === 'none' || choice === 'auto') return undefined;
    const named = typeof choice === 'object' ? choice.function.name : undefined;
    const wanted = tools.filter((tool) => named === undefined || tool.function.name === named);
    const format = callFormatOf(template.source);
    const schema = callSchema(format, wanted);
    const { begin, end = '' } = format;
    if (begin === undefined) return { kind: 'schema', schema, strict: true };
    return { kind: 'tagged', begin, schema, end };
  }

  #answer(
    makePrompt: MakePrompt,
    { tools, ...wanted }: Wanted,
    leaving: AbortSignal,
  ): AsyncGenerator<Piece, Summary> {
    const { engine, tokenizer } = this.#parts;
    const { settings } = wanted;
    const shown = tools ? this.#marks : new Set<number>();
    const job = { ...wanted, engine, tokenizer, eos: this.#eos, shown };
    const grammars = this.#grammars;
    return this.#pending.take([settings.signal, leaving], async function* (signal) {
      const { tokens: prompt, pictures } = await makePrompt(signal);
      checkRoom(prompt, engine.context);
      const matching = settings.constraint && (await grammars.match(settings.constraint));
      try {
        return yield* generate({ ...job, prompt, pictures, signal, mask: matching?.mask });
      } finally {
        matching?.dispose();
      }
    });
  }
}

/** The tools that may be called. */
function toolsOf({
  tools,
  tool_choice: choice,
}: ChatRequest): readonly ToolDefinition[] | undefined {
  return choice === 'none' ? undefined : (tools ?? undefined);
}

/** As many answers as a request asks for; whether it may is checked when they begin. */
function choicesOf<T, R>(
  request: ChatRequest | CompletionRequest,
  leaving: AbortSignal | undefined,
  make: (at: number, signal: AbortSignal) => AsyncGenerator<T, R>,
): Choices<T, R> {
  const stopping = new AbortController();
  const signal = AbortSignal.any([stopping.signal, ...(leaving ? [leaving] : [])]);
  const n = request?.n ?? 1;
  const length = Number.isInteger(n) && n > 0 ? Math.min(n, MOST_ANSWERS) : 1;
  const sources = Array.from({ length }, (_, at) => make(at, signal));
  return { sources, stop: () => stopping.abort() };
}

async function* withoutCalls(
  pieces: AsyncGenerator<Piece, Summary>,
): AsyncGenerator<answers.Step, answers.Ending> {
  for (;;) {
    const { done, value } = await pieces.next();
    if (done) return value;
    yield { ...value, calls: [] };
  }
}

async function* withCalls(
  pieces: AsyncGenerator<Piece, Summary>,
  parser: ToolCalls,
  most: number,
): AsyncGenerator<answers.Step, answers.Ending> {
  for (;;) {
    const before = parser.calls;
    const { done, value } = await pieces.next();
    const { text, calls } = done ? parser.flush() : parser.push(value.text);
    const taken = calls.slice(0, Math.max(0, most - before));
    const next = { text, calls: taken, tokens: done ? [] : value.tokens };
    if (next.text !== '' || next.calls.length + next.tokens.length > 0) yield next;
    if (!done) continue;
    return {
      ...value,
      finish: parser.calls > 0 && value.finish === 'stop' ? 'tool_calls' : value.finish,
    };
  }
}
