import { expect, it } from 'vitest';
import { Tokenizer } from '../../src/chat/tokenizer.ts';
import type { SpeechInfo } from '../../src/speech/info.ts';
import type { Listener } from '../../src/speech/listener.ts';
import { Transcriber } from '../../src/speech/transcriber.ts';
import { description, END, told, VOCABULARY } from '../chat/fakes.ts';

const INFO: SpeechInfo = {
  ...{ rate: 16, window: 32, tick: 1, start: 1, languages: {}, tasks: {}, forced: [] },
  ...{ no_timestamps: null, first_timestamp: null, no_speech: null, previous: null },
  ...{ suppress: [], begin_suppress: [], max_initial_timestamp: null },
};

/** Hears nothing but an end, once it is let: `heard` are the first samples of windows. */
function held() {
  const heard: (number | undefined)[] = [];
  const waiting: (() => void)[] = [];
  const listener = {
    ...{ context: 8, vocabulary: VOCABULARY, window: undefined },
    hear(audio: Float32Array): Promise<void> {
      heard.push(audio[0]);
      return new Promise((resolve) => waiting.push(resolve));
    },
    take: async () => undefined,
    logits: async () => new Float32Array(VOCABULARY),
    draw: async () => ({ token: END, logprob: 0 }),
  } as unknown as Listener;
  const transcriber = new Transcriber({
    ...{ listener, tokenizer: new Tokenizer(JSON.stringify(description())), info: INFO },
    ...{ eos: [END], backend: 'wasm' },
  });
  const go = async (count: number): Promise<void> => {
    await expect.poll(() => heard.length).toBe(count);
    waiting.shift()?.();
  };
  return { transcriber, heard, go };
}

const OPTIONS = { timestamps: false, temperatures: [0] };

it('tells at once that audio is aborted, whoever has the model', async () => {
  const { transcriber, heard, go } = held();
  const stop = new AbortController();
  const { signal } = stop;
  const first = transcriber.transcribe(Float32Array.of(1), OPTIONS);
  await expect.poll(() => heard.length).toBe(1);
  const behind = told(() => transcriber.transcribe(Float32Array.of(2), { ...OPTIONS, signal }));
  const last = transcriber.transcribe(Float32Array.of(3), OPTIONS);
  stop.abort();
  expect(await behind).toBe('abort: aborted'); // while the first has not been let
  await go(1);
  expect((await first).duration).toBe(1 / 16);
  await go(2);
  await last;
  expect(heard).toEqual([1, 3]); // the window of what was aborted was never begun
});

it('tells at once that audio is aborted whose own window is under way', async () => {
  const { transcriber, heard, go } = held();
  const stop = new AbortController();
  const own = told(() =>
    transcriber.transcribe(Float32Array.of(1), { ...OPTIONS, signal: stop.signal }),
  );
  await expect.poll(() => heard.length).toBe(1);
  stop.abort();
  expect(await own).toBe('abort: aborted');
  const next = transcriber.transcribe(Float32Array.of(2), OPTIONS);
  await go(1);
  await go(2); // it begins when the window before it is over
  expect((await next).text).toBe('');
});
