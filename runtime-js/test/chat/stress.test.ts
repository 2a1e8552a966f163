import { expect, it } from 'vitest';
import type { GenerateOptions, Sampling } from '../../src/chat/engine.ts';
import { type EngineOptions, PagedEngine } from '../../src/chat/paged.ts';
import { turn } from '../../src/chat/turn.ts';
import { EdgeRelaxError } from '../../src/errors.ts';
import { anything, chances, foretold, languageOf, Oracle, PAGE, type Told } from './oracle.ts';

const PLAIN: Sampling = {
  ...{ temperature: 0, topP: 1, topK: 0, minP: 0, seed: 1, logitBias: new Map() },
  ...{ repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 },
};

interface Asked extends Told {
  readonly masked: boolean;
  /** Gives up, by the signal or by leaving, after so many tokens. */
  readonly leaves: number;
  readonly aborts: boolean;
}

async function tokens(engine: PagedEngine, asked: Asked): Promise<number[]> {
  const found: number[] = [];
  const controller = new AbortController();
  const options: GenerateOptions = {
    ...{ limit: asked.limit, signal: controller.signal, onPrompt: () => undefined },
    ...(asked.masked && { mask: anything }),
  };
  const sampling = asked.adjusted ? { ...PLAIN, repetitionPenalty: 2 } : PLAIN;
  if (asked.leaves === 0 && asked.aborts) controller.abort();
  for await (const { id } of engine.generate(asked.prompt, sampling, options)) {
    found.push(id);
    if (found.length < asked.leaves) continue;
    if (!asked.aborts) break;
    controller.abort();
  }
  return found;
}

/** Results come in any order, a few at a time, until the work is over. */
async function played<T>(
  oracle: Oracle,
  chance: (most: number) => number,
  work: Promise<T>,
): Promise<T> {
  let over = false;
  const done = (): boolean => (over = true);
  work.then(done, done);
  for (let idle = 0; !over;) {
    await turn();
    const { held } = oracle;
    idle = held.length > 0 ? 0 : idle + 1;
    if (idle > 50) throw new Error('it hangs');
    for (let k = chance(3); k > 0 && held.length > 0; k--) {
      held.splice(chance(held.length), 1)[0]!();
    }
  }
  return work;
}

interface Case {
  readonly seed: number;
  readonly engine: EngineOptions;
  readonly context: number;
  readonly window: number | null;
  readonly fails: boolean;
}

async function stressed({ seed, engine: options, context, window, fails }: Case): Promise<void> {
  const chance = chances(seed);
  const oracle = new Oracle(window);
  const engine = new PagedEngine(oracle.model, languageOf(context, window), options);
  if (fails) {
    oracle.fails = () => {
      if (chance(40) === 0) throw new EdgeRelaxError(chance(2) ? 'lost' : 'vm', 'on purpose');
    };
  }
  const beginnings = [0, 1].map(() => Array.from({ length: 3 * PAGE }, () => chance(8)));
  const asked = Array.from({ length: 12 }, (_, k): Asked => {
    const tail = Array.from({ length: 1 + chance(PAGE * 3) }, () => chance(64));
    const prompt = [...beginnings[k % 2]!.slice(0, chance(4) * PAGE), ...tail];
    const masked = chance(4) === 0;
    return {
      ...{ prompt, masked, adjusted: masked || chance(3) === 0, aborts: chance(2) === 0 },
      limit: Math.min(1 + chance(20), (engine.context > 1e6 ? 99 : context) - prompt.length),
      leaves: chance(4) === 0 ? chance(6) : Infinity,
    };
  });
  const one = async (text: Asked): Promise<void> => {
    let found: number[];
    for (let k = chance(4); k > 0; k--) await turn();
    try {
      found = await tokens(engine, text);
    } catch (error) {
      const { code } = error as EdgeRelaxError;
      if (text.aborts && text.leaves < Infinity && code === 'abort') return;
      if (fails && ['lost', 'vm'].includes(code)) return;
      throw error;
    }
    const span = options.window ?? 0;
    const roll = {
      span,
      sinks: PAGE,
      dropped: PAGE * Math.max(1, Math.floor((span / PAGE - 1) / 4)),
    };
    const whole = foretold(text, window ?? Infinity, options.window ? roll : undefined);
    expect(found).toEqual(whole.slice(0, Math.max(1, Math.min(whole.length, text.leaves))));
  };
  await played(oracle, chance, Promise.all(asked.map(one)));
  if (!fails) expect(oracle.faults).toEqual([]); // else texts that failed may have read anything
  oracle.faults.length = 0;
  oracle.fails = () => undefined;
  // nothing was kept: a text that needs all of the cache finds room
  const room = options.window ? options.window * 2 : Math.min(context, options.cacheTokens!);
  const long = Array.from({ length: room - 2 }, () => chance(64));
  const last = { prompt: long, masked: false, adjusted: false, leaves: Infinity, aborts: false };
  await played(oracle, chance, one({ ...last, limit: 2 }));
  expect(oracle.faults).toEqual([]);
}

const CASES: Record<string, Omit<Case, 'seed' | 'fails'>> = {
  'a small cache': {
    context: 48,
    window: null,
    engine: { cacheTokens: 64, inFlight: 4, texts: 4 },
  },
  'many in flight': {
    context: 48,
    window: null,
    engine: { cacheTokens: 48, inFlight: 8, texts: 3 },
  },
  'a rolling window': {
    ...{ context: 48, window: null },
    engine: { cacheTokens: 32, inFlight: 3, texts: 3, window: 20, sinks: 4 },
  },
  'a sliding window': {
    context: 48,
    window: 9,
    engine: { cacheTokens: 60, inFlight: 3, texts: 4 },
  },
};

/** More of them find more: they are the same every time. */
const SEEDS = Number(process.env['SEEDS'] ?? 3);

for (const [name, given] of Object.entries(CASES)) {
  for (const fails of [false, true]) {
    it(`${name}: texts are as alone${fails ? ', whatever fails' : ''}`, async () => {
      for (let seed = 0; seed < SEEDS; seed++) {
        try {
          await stressed({ ...given, seed, fails });
        } catch (error) {
          throw new Error(`seed ${seed}: ${String(error)}`, { cause: error });
        }
      }
    }, 60_000);
  }
}
