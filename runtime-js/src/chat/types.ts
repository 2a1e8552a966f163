/** Requests and answers, shaped as OpenAI's. Where a field may be null, null means absent. */

export type Role = 'system' | 'developer' | 'user' | 'assistant' | 'tool';

export interface ToolCall {
  readonly id: string;
  readonly type: 'function';
  /** `arguments` is JSON as the model wrote it. */
  readonly function: { readonly name: string; readonly arguments: string };
}

/** Pixels as ImageData has them: red, green, blue and opacity of each, row by row. */
export interface RawImage {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8ClampedArray;
}

/** An image in the page, or the bytes of a file of one; an ImageData is a RawImage. */
export type ImageSource =
  Blob | RawImage | ImageBitmap | HTMLImageElement | HTMLCanvasElement | OffscreenCanvas;

/** For models that see images, beside text. */
export type ContentPart =
  | { readonly type: 'text'; readonly text: string }
  | {
      readonly type: 'image_url';
      /** A data: URL, or one that the page may fetch; `detail` has no effect. */
      readonly image_url: { readonly url: string; readonly detail?: string | null };
    }
  | { readonly type: 'image'; readonly image: ImageSource };

export interface Message {
  readonly role: Role;
  readonly content?: string | readonly ContentPart[] | null;
  readonly name?: string;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
}

export interface ToolDefinition {
  readonly type: 'function';
  readonly function: {
    readonly name: string;
    readonly description?: string;
    /** A JSON schema. */
    readonly parameters?: object;
    readonly strict?: boolean | null;
  };
}

export type ToolChoice =
  | 'none'
  | 'auto'
  | 'required'
  | { readonly type: 'function'; readonly function: { readonly name: string } };

export type ResponseFormat =
  | { readonly type: 'text' }
  | { readonly type: 'json_object' }
  | {
      readonly type: 'json_schema';
      readonly json_schema: {
        readonly name?: string;
        readonly description?: string;
        readonly schema: object;
        readonly strict?: boolean | null;
      };
    }
  /** A grammar in the EBNF of xgrammar, whose rule `root` is the answer. */
  | { readonly type: 'grammar'; readonly grammar: string };

/** What all requests may say. */
export interface Parameters {
  /** Has no effect: a chat has one model. */
  readonly model?: string | null;
  /** The most tokens of the answer; by default what the context has room for. */
  readonly max_tokens?: number | null;
  /** 0 (always the most likely token) to 2. */
  readonly temperature?: number | null;
  readonly top_p?: number | null;
  /** 0: all. */
  readonly top_k?: number | null;
  readonly min_p?: number | null;
  readonly repetition_penalty?: number | null;
  readonly presence_penalty?: number | null;
  readonly frequency_penalty?: number | null;
  /** Added to logits, by token id; −100 forbids, 100 all but forces. */
  readonly logit_bias?: Readonly<Record<string, number>> | null;
  /** Equal seeds give equal answers, on one device. */
  readonly seed?: number | null;
  readonly stop?: string | readonly string[] | null;
  /** How many answers, made at once; those after the first have the seeds after its seed. */
  readonly n?: number | null;
  /** Goes on behind tokens that end a text, to the limit. */
  readonly ignore_eos?: boolean | null;
  readonly user?: string | null;
  readonly response_format?: ResponseFormat | null;
  /** With `include_usage`, streams end in a chunk of usage and timings. */
  readonly stream_options?: { readonly include_usage?: boolean } | null;
  readonly stream?: boolean | null;
  readonly signal?: AbortSignal;
}

export interface ChatRequest extends Parameters {
  readonly messages: readonly Message[];
  readonly max_completion_tokens?: number | null;
  readonly logprobs?: boolean | null;
  readonly top_logprobs?: number | null;
  readonly tools?: readonly ToolDefinition[] | null;
  readonly tool_choice?: ToolChoice | null;
  readonly parallel_tool_calls?: boolean | null;
  /** More names for the template, such as `enable_thinking`. */
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>> | null;
  /** Hints to a service, which have no effect. */
  readonly store?: unknown;
  readonly metadata?: unknown;
  readonly service_tier?: unknown;
  readonly reasoning_effort?: unknown;
  readonly verbosity?: unknown;
  readonly safety_identifier?: unknown;
  readonly prompt_cache_key?: unknown;
  readonly prompt_cache_retention?: unknown;
}

export interface CompletionRequest extends Parameters {
  /** A text, or its token ids. */
  readonly prompt: string | readonly number[];
  /** How many of the most likely tokens to give with each. */
  readonly logprobs?: number | null;
}

export type FinishReason = 'stop' | 'length' | 'tool_calls';

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  /** How much of the prompt was in the cache, from turns before. */
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

/** Beside what OpenAI has. */
export interface Timings {
  /** Seconds from the request's turn to its first token. */
  readonly first_token: number;
  /** Seconds from the first token to the last. */
  readonly generation: number;
  /** Of the tokens after the first; 0 where there are none. */
  readonly tokens_per_second: number;
}

export interface TopLogprob {
  readonly token: string;
  readonly logprob: number;
  /** A token need not be whole characters. */
  readonly bytes: readonly number[];
}

export interface TokenLogprob extends TopLogprob {
  readonly top_logprobs: readonly TopLogprob[];
}

export interface ChatLogprobs {
  readonly content: readonly TokenLogprob[];
}

interface Answer<Object extends string> {
  readonly id: string;
  readonly object: Object;
  /** Seconds since 1970. */
  readonly created: number;
  readonly model: string;
}

export interface ChatChoice {
  readonly index: number;
  readonly message: {
    readonly role: 'assistant';
    readonly content: string | null;
    readonly tool_calls?: readonly ToolCall[];
  };
  readonly finish_reason: FinishReason;
  readonly logprobs: ChatLogprobs | null;
}

export interface ChatCompletion extends Answer<'chat.completion'> {
  readonly choices: readonly [ChatChoice, ...ChatChoice[]];
  readonly usage: Usage;
  readonly timings: Timings;
}

export interface ChatDelta {
  readonly role?: 'assistant';
  readonly content?: string;
  readonly tool_calls?: readonly (ToolCall & { readonly index: number })[];
}

export interface ChatChunk extends Answer<'chat.completion.chunk'> {
  /** None in the chunk of usage. */
  readonly choices: readonly {
    readonly index: number;
    readonly delta: ChatDelta;
    readonly finish_reason: FinishReason | null;
    readonly logprobs: ChatLogprobs | null;
  }[];
  readonly usage?: Usage | null;
  readonly timings?: Timings;
}

export interface CompletionLogprobs {
  readonly tokens: readonly string[];
  readonly token_logprobs: readonly number[];
  readonly top_logprobs: readonly Readonly<Record<string, number>>[];
  /** Where each token's text begins, in UTF-16 units. */
  readonly text_offset: readonly number[];
}

/** An answer, and the chunks of one: in those `finish_reason` comes last. */
export interface Completion extends Answer<'text_completion'> {
  /** None in the chunk of usage. */
  readonly choices: readonly {
    readonly index: number;
    readonly text: string;
    readonly finish_reason: 'stop' | 'length' | null;
    readonly logprobs: CompletionLogprobs | null;
  }[];
  readonly usage?: Usage | null;
  readonly timings?: Timings;
}
