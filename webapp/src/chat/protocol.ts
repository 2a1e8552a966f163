/** What the chat page and its worker say to each other. */

import type { Adapter, Backend, Progress } from '../protocol.ts';

export interface Turn {
  readonly role: 'user' | 'assistant';
  readonly content: string;
  /** Shown to the model before the words. */
  readonly images?: readonly Blob[];
}

export interface Settings {
  /** Empty: none. */
  readonly system: string;
  readonly temperature: number;
  readonly topP: number;
  readonly maxTokens: number;
  /** null: another one for each answer. */
  readonly seed: number | null;
}

/** What an answer took. */
export interface AnswerFacts {
  readonly finish: 'stop' | 'length';
  readonly tokens: number;
  /** 0: too short to tell. */
  readonly tokensPerSecond: number;
  readonly firstTokenMs: number;
}

/** The model that is loaded. */
export interface ModelFacts {
  readonly model: string;
  readonly backend: Backend;
  readonly kernels: number;
  readonly memoryBytes: number;
  /** Tokens of the conversation, and how many there may be. */
  readonly used: number;
  readonly context: number;
  readonly seesImages: boolean;
}

export interface Ask {
  readonly type: 'ask';
  readonly id: number;
  readonly backend: Backend;
  /** The model's folder. */
  readonly folder: string;
  readonly turns: readonly Turn[];
  readonly settings: Settings;
}

export type ChatRequest =
  | Ask
  | { readonly type: 'stop'; readonly id: number }
  /** Asks what the model in a folder can do, before it is loaded. */
  | { readonly type: 'look'; readonly folder: string };

export type ChatReply =
  | { readonly type: 'adapter'; readonly adapter: Adapter }
  | { readonly type: 'sees'; readonly images: boolean }
  | { readonly type: 'progress'; readonly id: number; readonly progress: Progress }
  | { readonly type: 'text'; readonly id: number; readonly text: string }
  | {
      readonly type: 'done';
      readonly id: number;
      readonly answer: AnswerFacts;
      readonly model: ModelFacts;
    }
  | {
      readonly type: 'error';
      readonly id: number;
      readonly code: string;
      readonly message: string;
    };
