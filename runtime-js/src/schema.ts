/** Checks of JSON that nothing is known of. A check gives the first problem, with its place. */

export type Check = (value: unknown, at: string) => string | undefined;

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export const text: Check = (value, at) =>
  typeof value === 'string' ? undefined : `${at} is no text`;

export const count: Check = (value, at) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? undefined : `${at} is no count`;

export const integer: Check = (value, at) =>
  Number.isInteger(value) ? undefined : `${at} is no integer`;

export const anything: Check = () => undefined;

export const matching =
  (pattern: RegExp, what: string): Check =>
  (value, at) =>
    typeof value === 'string' && pattern.test(value) ? undefined : `${at} is no ${what}`;

export const oneOf =
  (...values: readonly unknown[]): Check =>
  (value, at) =>
    values.includes(value) ? undefined : `${at} is none of ${values.join(', ')}`;

export const either =
  (...checks: readonly Check[]): Check =>
  (value, at) => {
    const problems = checks.map((check) => check(value, at));
    return problems.includes(undefined) ? undefined : problems[0];
  };

export const orNull = (check: Check): Check => either(check, oneOf(null));

export const listOf =
  (check: Check): Check =>
  (value, at) => {
    if (!Array.isArray(value)) return `${at} is no list`;
    return first(value, (item, k) => check(item, `${at}[${k}]`));
  };

/** An object with any keys. */
export const mapOf =
  (check: Check, key: Check = anything): Check =>
  (value, at) => {
    if (!isRecord(value)) return `${at} is no object`;
    return first(
      Object.entries(value),
      ([name, item]) =>
        key(name, `the key ${JSON.stringify(name)} of ${at}`) ?? check(item, `${at}.${name}`),
    );
  };

/** An object with these keys; others do no harm. */
export const object =
  (fields: Record<string, Check>): Check =>
  (value, at) => {
    if (!isRecord(value)) return `${at} is no object`;
    return first(Object.entries(fields), ([name, check]) =>
      Object.hasOwn(value, name)
        ? check(value[name], at ? `${at}.${name}` : name)
        : `${at ? `${at}.` : ''}${name} is missing`,
    );
  };

/** The first problem among items. */
export function first<T>(
  items: readonly T[],
  problem: (item: T, k: number) => string | undefined,
): string | undefined {
  for (const [k, item] of items.entries()) {
    const found = problem(item, k);
    if (found !== undefined) return found;
  }
  return undefined;
}
