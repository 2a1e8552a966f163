/** What the page and its worker say to each other. */

import type { Backend } from 'edgerelax';
import type { Picture } from './ocr/picture.ts';
import type { Line } from './ocr/read.ts';
import type { Segment } from './speech.ts';

export type { Backend };

/** Inputs and results of the tools. */
export interface Tools {
  readonly text: { readonly input: Picture; readonly result: readonly Line[] };
  readonly sentences: {
    /** The first is compared with each of the others. */
    readonly input: readonly string[];
    readonly result: readonly number[];
  };
  readonly speech: {
    /** 16 kHz, mono. */
    readonly input: Float32Array;
    readonly result: {
      readonly probabilities: Float32Array;
      readonly segments: readonly Segment[];
    };
  };
}

export type ToolName = keyof Tools;

/** What a run took. */
export interface Facts {
  readonly backend: Backend;
  readonly milliseconds: number;
  readonly kernels: number;
  readonly downloadBytes: number;
  readonly memoryBytes: number;
}

export interface Progress {
  readonly phase: 'fetch' | 'compile' | 'run';
  readonly loaded: number;
  readonly total: number;
}

export type Request =
  { [T in ToolName]: RunRequest<T> }[ToolName] | { readonly type: 'cancel'; readonly id: number };

export interface RunRequest<T extends ToolName> {
  readonly type: 'run';
  readonly id: number;
  readonly tool: T;
  readonly backend: Backend;
  readonly input: Tools[T]['input'];
  /** The folder of the models. */
  readonly models: string;
}

export interface Adapter {
  readonly webgpu: boolean;
  readonly software: boolean;
  readonly description: string;
}

export type Reply =
  | { readonly type: 'adapter'; readonly adapter: Adapter }
  | { readonly type: 'progress'; readonly id: number; readonly progress: Progress }
  | {
      readonly type: 'result';
      readonly id: number;
      readonly result: Tools[ToolName]['result'];
      readonly facts: Facts;
    }
  | {
      readonly type: 'error';
      readonly id: number;
      readonly code: string;
      readonly message: string;
    };
