/** Several answers to one request, made at once. */

import type { Summary } from './generation.ts';

/** The choices of a request; `stop` ends them all. */
export interface Choices<T, R> {
  readonly sources: readonly AsyncGenerator<T, R>[];
  readonly stop: () => void;
}

/** What comes of which choice; it ends with what `done` marks. */
export type Event<T, R> = { readonly at: number } & (
  { readonly done: false; readonly value: T } | { readonly done: true; readonly value: R }
);

/** Steps as they come. Where one choice fails all do; none goes on behind a loop that was left. */
export async function* merged<T, R>({ sources, stop }: Choices<T, R>): AsyncGenerator<Event<T, R>> {
  const pull = async (at: number): Promise<Event<T, R>> => {
    const { done = false, value } = await (sources[at] as AsyncGenerator<T, R>).next();
    return { at, done, value } as Event<T, R>;
  };
  const pending = new Map(sources.map((_, at) => [at, pull(at)]));
  try {
    while (pending.size > 0) {
      const event = await Promise.race(pending.values());
      if (event.done) pending.delete(event.at);
      yield event;
      if (!event.done) pending.set(event.at, pull(event.at));
    }
  } finally {
    if (pending.size > 0) stop();
    await Promise.allSettled(pending.values());
    await Promise.allSettled(sources.map((source) => source.return(undefined as R)));
  }
}

/** What a request took in all. */
export function summed(all: readonly Pick<Summary, 'usage' | 'timings'>[]): {
  readonly usage: Summary['usage'];
  readonly timings: Summary['timings'];
} {
  const [first] = all as [Pick<Summary, 'usage' | 'timings'>];
  const add = (figure: (one: (typeof all)[number]) => number): number =>
    all.reduce((sum, one) => sum + figure(one), 0);
  const completion = add(({ usage }) => usage.completion_tokens);
  const { prompt_tokens: prompt } = first.usage;
  return {
    usage: {
      ...first.usage,
      completion_tokens: completion,
      total_tokens: prompt + completion,
    },
    timings: {
      first_token: Math.min(...all.map(({ timings }) => timings.first_token)),
      generation: Math.max(...all.map(({ timings }) => timings.generation)),
      tokens_per_second: add(({ timings }) => timings.tokens_per_second),
    },
  };
}
