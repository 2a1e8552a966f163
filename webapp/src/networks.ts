/** The tools over loaded models: what each needs, and how an input becomes a result. */

import type { Model } from 'edgerelax';
import { alphabet } from './ocr/characters.ts';
import { type Network, readText } from './ocr/read.ts';
import type { ToolName, Tools } from './protocol.ts';
import { similarities, tokenizer, type Tokens } from './sentences.ts';
import { type Loaded, Shelf } from './shelf.ts';
import { RATE, segmentsOf, speechProbabilities } from './speech.ts';

export type OnStage = (done: number, all: number) => void;

export interface Tool<T extends ToolName> {
  readonly shelf: Shelf;
  run(
    loaded: Loaded,
    input: Tools[T]['input'],
    signal: AbortSignal,
    onStage: OnStage,
  ): Promise<Tools[T]['result']>;
}

export const TOOLS: { readonly [T in ToolName]: Tool<T> } = {
  text: {
    shelf: new Shelf(['ppocr-det', 'ppocr-cls', 'ppocr-rec']),
    run: ({ models }, picture, signal, onStage) => {
      const recogniser = model(models, 'ppocr-rec');
      return readText(
        picture,
        {
          detect: network(model(models, 'ppocr-det'), signal),
          classify: network(model(models, 'ppocr-cls'), signal),
          recognise: network(recogniser, signal),
          characters: alphabet(recogniser.manifest.source.metadata['character'] ?? ''),
        },
        onStage,
      );
    },
  },
  sentences: {
    shelf: new Shelf(
      ['minilm'],
      [
        {
          path: 'minilm-tokenizer/tokenizer.json',
          read: (bytes) => tokenizer(JSON.parse(new TextDecoder().decode(bytes)) as object),
        },
      ],
    ),
    run: async ({ models, extras }, sentences, signal) => {
      const encode = extras[0] as (sentences: readonly string[]) => Tokens;
      const { ids, mask, shape } = encode(sentences);
      const minilm = model(models, 'minilm');
      const inputs = { input_ids: { data: ids, shape }, attention_mask: { data: mask, shape } };
      const outputs = await minilm.run(inputs, { signal });
      // of its outputs, the one of rank 2 is the mean over the tokens
      const pooled = Object.values(outputs).find((o) => o.dtype === 'f32' && o.shape.length === 2);
      if (!pooled) throw new Error('the model gives no embedding of whole sentences');
      return similarities(pooled.data as Float32Array, pooled.shape);
    },
  },
  speech: {
    shelf: new Shelf(['silero']),
    run: async ({ models }, samples, signal, onStage) => {
      const silero = model(models, 'silero');
      const probabilities = await speechProbabilities(
        samples,
        async ({ frames, count, h, c }) => {
          const state = [1, 1, 128];
          const inputs = {
            input: { data: frames, shape: [count, frames.length / count] },
            h: { data: h, shape: state },
            c: { data: c, shape: state },
          };
          const { speech_probs, hn, cn } = await silero.run(inputs, { signal });
          return { probabilities: floats(speech_probs), h: floats(hn), c: floats(cn) };
        },
        onStage,
      );
      return { probabilities, segments: segmentsOf(probabilities, samples.length / RATE) };
    },
  },
};

function model(models: ReadonlyMap<string, Model>, name: string): Model {
  const found = models.get(name);
  if (!found) throw new Error(`the model ${name} was not loaded`);
  return found;
}

/** A model of one input and one output. */
function network(model: Model, signal: AbortSignal): Network {
  return async (data, shape) => {
    const input = model.inputs[0]?.name ?? '';
    const outputs = await model.run({ [input]: { data, shape } }, { signal });
    const output = outputs[model.outputs[0]?.name ?? ''];
    return { data: floats(output), shape: output?.shape ?? [] };
  };
}

function floats(output: { readonly data: unknown } | undefined): Float32Array {
  if (!(output?.data instanceof Float32Array)) throw new Error('the model gives no f32 output');
  return output.data;
}
