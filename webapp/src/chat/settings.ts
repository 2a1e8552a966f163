/** The settings of a chat: kept in this browser, checked when they come back. */

import type { Settings } from './protocol.ts';

export const DEFAULTS: Settings = {
  system: '',
  temperature: 0.7,
  topP: 0.95,
  maxTokens: 1024,
  seed: null,
};

const KEY = 'edgerelax-chat-settings';

export function restored(storage: Pick<Storage, 'getItem'>): Settings {
  try {
    return settingsFrom(JSON.parse(storage.getItem(KEY) ?? 'null'));
  } catch {
    return DEFAULTS; // storage may be forbidden, and hold anything
  }
}

export function keep(storage: Pick<Storage, 'setItem'>, settings: Settings): void {
  try {
    storage.setItem(KEY, JSON.stringify(settings));
  } catch {
    // forbidden or full: then they last as long as the page
  }
}

/** Settings of anything; what does not fit is as by default. */
export function settingsFrom(value: unknown): Settings {
  const given = (typeof value === 'object' && value ? value : {}) as Record<string, unknown>;
  const number = (key: keyof Settings, lo: number, hi: number): number => {
    const found = given[key];
    const fits = typeof found === 'number' && found >= lo && found <= hi;
    return fits ? found : (DEFAULTS[key] as number);
  };
  const { system, seed } = given;
  const seeded = typeof seed === 'number' && Number.isSafeInteger(seed) && seed >= 0;
  return {
    system: typeof system === 'string' ? system : DEFAULTS.system,
    temperature: number('temperature', 0, 2),
    topP: number('topP', 0, 1),
    maxTokens: Math.max(1, Math.floor(number('maxTokens', 1, 1e6))),
    seed: seeded ? seed : null,
  };
}
