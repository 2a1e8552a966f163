/** Answers that keep to a JSON schema or a grammar, by @mlc-ai/web-xgrammar. */

import type * as XGrammar from '@mlc-ai/web-xgrammar';
import { EdgeRelaxError } from '../errors.ts';
import type { TokenMask } from './engine.ts';
import type { Constraint } from './request.ts';
import type { Tokenizer } from './tokenizer.ts';

type Library = typeof XGrammar;

export interface GrammarOptions {
  /** Imports the package, which the caller brings. */
  readonly load: (() => Promise<unknown>) | undefined;
  readonly tokenizer: Tokenizer;
  readonly vocabulary: number;
  readonly eos: readonly number[];
  /** Special tokens that may stand in a text; others may not. */
  readonly marks: ReadonlySet<number>;
}

/** A mask for one answer; `dispose` when it is done. */
export interface Matching {
  readonly mask: TokenMask;
  dispose(): void;
}

const MOST_KEPT = 8;
const NEWLINE = 0x0a; // xgrammar lets other control characters into strings of bounded length
const ON_ONE_LINE = -1;
const SEPARATORS: [string, string] = [', ', ': '];

/** A grammar that is made or being made, and how many matchers are being made of it. */
interface Kept {
  readonly made: Promise<XGrammar.CompiledGrammar>;
  users: number;
}

export class Grammars {
  readonly #options: GrammarOptions;
  #library: Promise<Library> | undefined;
  readonly #grammars = new Map<string, Kept>(); // the least recently used first
  readonly #infos = new Map<boolean, Promise<XGrammar.TokenizerInfo>>();

  constructor(options: GrammarOptions) {
    this.#options = options;
  }

  /** Throws `library` without the package, `input` where it makes no grammar of the constraint. */
  async match(constraint: Constraint): Promise<Matching> {
    const { GrammarMatcher } = await this.#open();
    const kept = this.#kept(constraint);
    kept.users++;
    try {
      const eos = [...this.#options.eos];
      const matcher = await GrammarMatcher.createGrammarMatcher(await kept.made, eos);
      return { mask: maskOf(matcher), dispose: () => matcher.dispose() };
    } finally {
      kept.users--;
      this.#trim();
    }
  }

  /** The grammars that were used last are kept: making one takes long. */
  #kept(constraint: Constraint): Kept {
    const key = JSON.stringify(constraint);
    const kept = this.#grammars.get(key) ?? { made: this.#compile(constraint), users: 0 };
    this.#grammars.delete(key);
    this.#grammars.set(key, kept);
    forgetting(this.#grammars, key, kept, kept.made);
    return kept;
  }

  #trim(): void {
    for (const [key, kept] of this.#grammars) {
      if (this.#grammars.size <= MOST_KEPT) return;
      if (kept.users > 0) continue;
      this.#grammars.delete(key);
      disposing(kept.made);
    }
  }

  async #compile(constraint: Constraint): Promise<XGrammar.CompiledGrammar> {
    const { GrammarCompiler } = await this.#open();
    const tokens = await this.#tokens(constraint.kind !== 'grammar');
    const compiler = await GrammarCompiler.createGrammarCompiler(tokens, false);
    try {
      return await compile(compiler, constraint);
    } finally {
      compiler.dispose();
    }
  }

  dispose(): void {
    for (const { made } of this.#grammars.values()) disposing(made);
    this.#grammars.clear();
    for (const made of this.#infos.values()) disposing(made);
    this.#infos.clear();
  }

  #open(): Promise<Library> {
    const { load } = this.#options;
    if (!load) {
      throw new EdgeRelaxError(
        'library',
        "constrained answers need the package @mlc-ai/web-xgrammar: give loadChat { grammar: () => import('@mlc-ai/web-xgrammar') }",
      );
    }
    this.#library ??= load().then(libraryOf);
    this.#library.catch(() => (this.#library = undefined)); // the next request tries again
    return this.#library;
  }

  /** The vocabulary, as xgrammar takes it; what it may not use is empty. */
  async #tokens(json: boolean): Promise<XGrammar.TokenizerInfo> {
    const { tokenizer, vocabulary, eos, marks } = this.#options;
    const { TokenizerInfo } = await this.#open();
    const ends = new Set(eos);
    const hidden = (id: number): boolean =>
      (tokenizer.isSpecial(id) && !ends.has(id) && !marks.has(id)) ||
      (json && tokenizer.bytes(id).some((byte) => byte < 0x20 && byte !== NEWLINE));
    const made =
      this.#infos.get(json) ??
      TokenizerInfo.createTokenizerInfo(
        Array.from({ length: vocabulary }, (_, id) => (hidden(id) ? '' : tokenizer.spelled(id))),
        tokenizer.spelling,
        tokenizer.prefixed,
        vocabulary,
        [...eos],
      );
    this.#infos.set(json, made);
    forgetting(this.#infos, json, made, made);
    return made;
  }
}

/** What could not be made is made anew for the next request. */
function forgetting<K, V>(map: Map<K, V>, key: K, value: V, made: Promise<unknown>): void {
  made.catch(() => {
    if (map.get(key) === value) map.delete(key);
  });
}

function disposing(made: Promise<{ dispose(): void }>): void {
  made.then(
    (one) => one.dispose(),
    () => undefined, // who asked for it was told
  );
}

/** The package's one file is a script: by bundler it gives a namespace, a default, or a global. */
function libraryOf(imported: unknown): Library {
  const { default: inner } = imported as { readonly default?: unknown };
  const global = (globalThis as { readonly xgrammar?: unknown }).xgrammar;
  const found = [imported, inner, global].find(
    (one) => typeof (one as Partial<Library> | undefined)?.GrammarMatcher === 'function',
  );
  if (!found) {
    throw new EdgeRelaxError('library', 'what `grammar` imports is not @mlc-ai/web-xgrammar');
  }
  return found as Library;
}

async function compile(
  compiler: XGrammar.GrammarCompiler,
  constraint: Constraint,
): Promise<XGrammar.CompiledGrammar> {
  try {
    return await compiled(compiler, constraint);
  } catch (cause) {
    throw new EdgeRelaxError(
      'input',
      'xgrammar makes no grammar of what the answer shall be; it logs why to the console',
      { cause },
    );
  }
}

function compiled(
  compiler: XGrammar.GrammarCompiler,
  constraint: Constraint,
): Promise<XGrammar.CompiledGrammar> {
  switch (constraint.kind) {
    case 'json':
      return compiler.compileBuiltinJSONGrammar();
    case 'grammar':
      return compiler.compileGrammar(constraint.grammar);
    case 'schema':
      return compiler.compileJSONSchema(
        JSON.stringify(constraint.schema),
        false, // small models that may write any space write space for ever
        ON_ONE_LINE,
        SEPARATORS,
        constraint.strict,
      );
    case 'tagged': {
      const { begin, schema, end } = constraint;
      const content = { type: 'json_schema' as const, json_schema: { ...schema } };
      const format = { type: 'tag' as const, begin, content, end };
      return compiler.compileStructuralTag({ type: 'structural_tag', format });
    }
  }
}

function maskOf(matcher: XGrammar.GrammarMatcher): TokenMask {
  return async (previous) => {
    if (previous !== undefined && !matcher.acceptToken(previous)) {
      throw new EdgeRelaxError('vm', `token ${previous} was drawn against the grammar`);
    }
    return matcher.getNextTokenBitmask();
  };
}
