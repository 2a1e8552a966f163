/** What tells bytes from others. */

import { hash } from '../source.ts';

/** Whether the same bytes have the same name each time: outside a secure context no page has digests. */
export function hasDigests(): boolean {
  return globalThis.crypto?.subtle !== undefined;
}

let nameless = 0;

/** Their digest; without one a name that is none other's. */
export async function nameOf(bytes: Uint8Array): Promise<string> {
  return hasDigests() ? hash(Uint8Array.from(bytes)) : `${nameless++}`;
}
