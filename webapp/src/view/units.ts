/** Numbers as people read them. */

const number = (value: number, digits: number): string =>
  value.toLocaleString('en', { maximumFractionDigits: digits });

export function bytes(count: number): string {
  if (count < 1e3) return `${count} bytes`;
  if (count < 1e6) return `${number(count / 1e3, 0)} kB`;
  return `${number(count / 1e6, count < 1e7 ? 1 : 0)} MB`;
}

export function duration(milliseconds: number): string {
  if (milliseconds < 10) return `${number(milliseconds, 1)} ms`;
  if (milliseconds < 1000) return `${number(milliseconds, 0)} ms`;
  return `${number(milliseconds / 1000, 1)} s`;
}

export const percent = (share: number): string => `${number(100 * share, 0)}%`;

export const seconds = (value: number): string =>
  `${Math.floor(value / 60)}:${(value % 60).toFixed(1).padStart(4, '0')}`;

export const rate = (perSecond: number): string =>
  `${number(perSecond, perSecond < 10 ? 1 : 0)} tokens/s`;
