/** What a manifest must say of a model that writes. */

import { EdgeRelaxError } from '../errors.ts';
import { kindOf, misfit } from '../kinds.ts';
import type { LanguageInfo, Manifest } from '../manifest.ts';
import { ROLES } from './drawing.ts';

export interface Generating extends LanguageInfo {
  readonly page_size: number;
}

/** What the manifest says of a model of texts. Throws `format` for one that is of none. */
export function languageOf(manifest: Manifest): LanguageInfo {
  const { language } = manifest;
  if (!language || kindOf(manifest) === 'hears') throw misfit(manifest);
  return language;
}

/** The same of a model that writes with the engine here. */
export function generating(manifest: Manifest): Generating {
  const language = languageOf(manifest);
  if (kindOf(manifest) !== 'writes') throw misfit(manifest);
  const { page_size, functions } = language;
  const lost = ROLES.find((role) => !Object.hasOwn(functions, role));
  if (page_size === null || lost !== undefined) {
    const what = page_size === null ? 'cache' : `function for ${lost}`;
    throw new EdgeRelaxError(
      'format',
      `this language model has no ${what}, it cannot generate; export the model again`,
    );
  }
  return { ...language, page_size };
}
