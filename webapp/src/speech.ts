/** Finds speech in 16 kHz mono sound with Silero's voice detector. */

export const RATE = 16000;
export const FRAME = 512;
const CONTEXT = 64; // samples before a frame that the network sees too
const STATE = 128;
const CHUNK = 256; // frames in one run

/** The network over a run of frames, its two states going in and coming out. */
export type Detector = (inputs: {
  readonly frames: Float32Array;
  readonly count: number;
  readonly h: Float32Array;
  readonly c: Float32Array;
}) => Promise<{ probabilities: Float32Array; h: Float32Array; c: Float32Array }>;

/** The probability of speech in each frame. `onStage` hears of frames done and of all. */
export async function speechProbabilities(
  samples: Float32Array,
  detector: Detector,
  onStage: (done: number, all: number) => void,
): Promise<Float32Array> {
  const all = Math.ceil(samples.length / FRAME);
  const result = new Float32Array(all);
  let state: { h: Float32Array; c: Float32Array } = {
    h: new Float32Array(STATE),
    c: new Float32Array(STATE),
  };
  for (let start = 0; start < all; start += CHUNK) {
    const count = Math.min(CHUNK, all - start);
    const frames = framesOf(samples, start, count);
    const { probabilities, h, c } = await detector({ frames, count, ...state });
    result.set(probabilities, start);
    state = { h, c };
    onStage(start + count, all);
  }
  return result;
}

/** Frames with their context, one after another; beyond the sound there is silence. */
export function framesOf(samples: Float32Array, start: number, count: number): Float32Array {
  const frames = new Float32Array(count * (CONTEXT + FRAME));
  for (let k = 0; k < count; k++) {
    const from = (start + k) * FRAME - CONTEXT;
    const skipped = Math.max(0, -from);
    const piece = samples.subarray(from + skipped, from + CONTEXT + FRAME);
    frames.set(piece, k * (CONTEXT + FRAME) + skipped);
  }
  return frames;
}

/** In seconds. */
export interface Segment {
  readonly start: number;
  readonly end: number;
}

const ON = 0.5; // probability at which speech begins
const OFF = 0.35; // and below which it may end
const LEAST_SILENCE = 0.1; // seconds that end it
const LEAST_SPEECH = 0.25;
const MARGIN = 0.03;

/** Where there is speech, short pauses within it and short noises outside passed over. */
export function segmentsOf(probabilities: Float32Array, seconds: number): Segment[] {
  const time = (frame: number): number => (frame * FRAME) / RATE;
  const found: Segment[] = [];
  let start: number | undefined;
  let silence: number | undefined;
  const close = (end: number): void => {
    if (start !== undefined && end - start >= LEAST_SPEECH) found.push({ start, end });
    start = silence = undefined;
  };
  probabilities.forEach((probability, k) => {
    if (probability >= ON) {
      start ??= time(k);
      silence = undefined;
    } else if (probability < OFF && start !== undefined) {
      silence ??= time(k);
      if (time(k + 1) - silence >= LEAST_SILENCE) close(silence);
    }
  });
  close(silence ?? seconds);
  return withMargins(found, seconds);
}

function withMargins(segments: readonly Segment[], seconds: number): Segment[] {
  return segments.map(({ start, end }, k) => {
    const before = segments[k - 1]?.end ?? -Infinity;
    const after = segments[k + 1]?.start ?? Infinity;
    return {
      start: Math.max(0, start - MARGIN, (before + start) / 2),
      end: Math.min(seconds, end + MARGIN, (end + after) / 2),
    };
  });
}

/** The least and greatest sample in each of `columns` equal parts. */
export function peaksOf(samples: Float32Array, columns: number): [number, number][] {
  return Array.from({ length: columns }, (_, k) => {
    const from = Math.floor((k * samples.length) / columns);
    const to = Math.max(from + 1, Math.floor(((k + 1) * samples.length) / columns));
    let [low, high] = [Infinity, -Infinity];
    for (const sample of samples.subarray(from, to)) {
      if (sample < low) low = sample;
      if (sample > high) high = sample;
    }
    return low <= high ? [low, high] : [0, 0];
  });
}
