/** What artifacts are of, by their manifests alone, and which functions load them. */

import { EdgeRelaxError } from './errors.ts';
import { type Manifest, SPEECH } from './manifest.ts';

const KINDS = {
  runs: ['no language model', 'load'],
  hears: ['a speech model', 'loadTranscriber'],
  embeds: ['a model that gives vectors', 'loadEmbedder'],
  writes: ['a language model that writes', 'loadChat or loadEngine'],
} as const;

/** What a model does. */
export type Kind = keyof typeof KINDS;

/** What an artifact's model does first of all. */
export function kindOf({ language, assets }: Manifest): Kind {
  if (!language) return 'runs';
  if (assets.includes(SPEECH)) return 'hears';
  const has = (role: string): boolean => Object.hasOwn(language.functions, role);
  return has('embed') && !has('step') ? 'embeds' : 'writes';
}

/** Says of an artifact that is not what a function loads what it is of, and what loads it. */
export function misfit(manifest: Manifest): EdgeRelaxError {
  const [what, loaders] = KINDS[kindOf(manifest)];
  return new EdgeRelaxError('format', `this artifact is of ${what}; use ${loaders} for it`);
}
