/** What chat asks of a language model: tokens after a prompt. It knows nothing of text. */

/** How the next token is drawn from the logits. */
export interface Sampling {
  /** 0 takes the most likely token. */
  readonly temperature: number;
  readonly topP: number;
  /** 0: all. */
  readonly topK: number;
  readonly minP: number;
  /** Divides positive logits, and multiplies negative ones, of tokens that occurred; 1: none. */
  readonly repetitionPenalty: number;
  /** Taken off the logits of tokens that were generated: once, and for each time. */
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  /** Added to the logits, by token. */
  readonly logitBias: ReadonlyMap<number, number>;
  /** Equal seeds give equal tokens, on one device. */
  readonly seed: number;
}

/** A token and the natural logarithm of its probability before temperature and cuts. */
export interface Scored {
  readonly id: number;
  readonly logprob: number;
}

export interface Token {
  readonly id: number;
  /** Where `logprobs` asked for it. */
  readonly logprob?: number;
  /** The most likely tokens in its place, best first. */
  readonly top?: readonly Scored[];
}

/**
 * Which tokens may come next: bit k % 32 of word k >> 5 is set where token k may; bits past the
 * vocabulary mean nothing. The engine calls it before each token, with the one that it drew last,
 * and draws none ahead.
 */
export type TokenMask = (previous: number | undefined) => Promise<Int32Array>;

/** A tile of an image, and the places of the prompt's tokens that stand for its vectors. */
export interface Picture {
  /** Red, green and blue of a square of pixels, row by row. */
  readonly pixels: Uint8Array;
  readonly places: readonly number[];
  /** What tells its pixels from others', where that is known: else they are hashed. */
  readonly id?: string;
}

export interface GenerateOptions {
  /** The most tokens that will be taken. Prompt and these fit the context together. */
  readonly limit: number;
  /** Ends the sequence with an error; what the cache holds stays usable. */
  readonly signal: AbortSignal;
  /** Wants the tokens' probabilities, and those of so many others. */
  readonly logprobs?: number;
  readonly mask?: TokenMask;
  /** What the prompt has of images, for a model that sees them. */
  readonly pictures?: readonly Picture[];
  /** Steps under way at once, in place of as many as the engine finds best. */
  readonly inFlight?: number;
  /** Told once, before the first token: how much of the prompt the cache held already. */
  readonly onPrompt: (reused: number) => void;
}

export interface EngineStats {
  /** Bytes of weights, state and buffers, wherever they are. */
  readonly memoryBytes: number;
  /** Kernels of the variant that runs. */
  readonly kernels: number;
  /** How often kernels were launched since loading. */
  readonly launches: number;
}

export interface Engine {
  readonly backend: 'webgpu' | 'wasm';
  /** The most tokens of a sequence. */
  readonly context: number;
  /** Tokens of an answer that is not told how many; by default what the context has room for. */
  readonly answer?: number | undefined;
  /** How many logits there are; token ids are below it. */
  readonly vocabulary: number;
  /**
   * Tokens after a prompt, which is never empty. The engine finds by itself what the cache holds of
   * it. It may run ahead; when the caller stops asking (`return`), it drops what was not taken.
   * Calls may overlap. After a failure the next call works, or says why none will.
   */
  generate(
    prompt: readonly number[],
    sampling: Sampling,
    options: GenerateOptions,
  ): AsyncIterable<Token>;
  stats(): EngineStats;
  dispose(): Promise<void>;
}
