/** From an artifact's folder to what transcribes. */

import { Sum } from '../chat/progress.ts';
import { Tokenizer } from '../chat/tokenizer.ts';
import { EdgeRelaxError } from '../errors.ts';
import { load, type LoadOptions } from '../index.ts';
import { type LanguageInfo, type Manifest, SPEECH } from '../manifest.ts';
import { Source } from '../source.ts';
import { readInfo } from './info.ts';
import { hearing, Listener } from './listener.ts';
import { Transcriber } from './transcriber.ts';

export { readAudio } from './audio.ts';

/** Loads a speech model's folder. Throws `format` for a model that does not hear. */
export async function openTranscriber(
  url: string | URL,
  options: LoadOptions,
): Promise<Transcriber> {
  const { signal, fetch, cache, onProgress } = options;
  const progress = new Sum(onProgress);
  const source = await Source.open(url, { signal, fetch, cache, onProgress: progress.of('text') });
  const { language, tokenizer: name } = speechOf(source.manifest);
  source.expect([name, SPEECH]);
  const [tokens, speech] = await Promise.all([source.asset(name), source.asset(SPEECH)]);
  const info = readInfo(speech, language);
  const hears = hearing(language);
  const tokenizer = new Tokenizer(tokens);
  const model = await load(url, { ...options, onProgress: progress.of('model') });
  try {
    const listener = await Listener.open(model, hears);
    const { backend } = model;
    return new Transcriber({ listener, tokenizer, info, eos: language.eos, backend });
  } catch (error) {
    await model.dispose();
    throw error;
  }
}

function speechOf({ language, assets }: Manifest): { language: LanguageInfo; tokenizer: string } {
  if (!language || !assets.includes(SPEECH)) {
    const other = language ? 'loadChat or loadEmbedder' : 'load';
    throw new EdgeRelaxError('format', `this artifact is no speech model; use ${other} for it`);
  }
  const { tokenizer } = language;
  if (tokenizer !== null) return { language, tokenizer };
  throw new EdgeRelaxError('format', 'this speech model came without a tokenizer');
}
