/** What failed, as the page tells it. */

import { EdgeRelaxError } from 'edgerelax';

export function codeOf(error: unknown): string {
  if (error instanceof EdgeRelaxError) return error.code;
  if (error instanceof DOMException && error.name === 'AbortError') return 'abort';
  return 'unknown';
}
