/** From an artifact's folder to what transcribes. */

import { Sum } from '../chat/progress.ts';
import { Tokenizer } from '../chat/tokenizer.ts';
import { EdgeRelaxError } from '../errors.ts';
import { loadModel, type LoadOptions, openSource } from '../load.ts';
import { SPEECH } from '../manifest.ts';
import { readInfo } from './info.ts';
import { hearing, Listener } from './listener.ts';
import { Transcriber } from './transcriber.ts';

export { readAudio } from './audio.ts';

/** Loads a speech model's folder. Throws `format` for a model that does not hear. */
export async function openTranscriber(
  url: string | URL,
  options: LoadOptions,
): Promise<Transcriber> {
  const progress = new Sum(options.onProgress);
  const source = await openSource(url, { ...options, onProgress: progress.of('text') });
  const language = hearing(source.manifest);
  const { tokenizer: name } = language;
  if (name === null) {
    throw new EdgeRelaxError('format', 'this speech model came without a tokenizer');
  }
  source.expect([name, SPEECH]);
  const [tokens, speech] = await Promise.all([source.asset(name), source.asset(SPEECH)]);
  const info = readInfo(speech, language);
  const tokenizer = new Tokenizer(tokens);
  const own = { ...options, onProgress: progress.of('model') };
  const model = await loadModel(source.also(own), own);
  try {
    const listener = await Listener.open(model, language);
    const { backend } = model;
    return new Transcriber({ listener, tokenizer, info, eos: language.eos, backend });
  } catch (error) {
    await model.dispose();
    throw error;
  }
}
