/** Sound over time, with the probability of speech and the segments, as one drawing. */

import { FRAME, peaksOf, RATE, type Segment } from '../speech.ts';
import { svg } from './dom.ts';
import { seconds } from './units.ts';

const WIDTH = 1000;
const HEIGHT = 240;
const WAVE = { middle: 150, reach: 80 }; // of the sound's curve
const CURVE = { bottom: 230, reach: 220 }; // of the probability's
const COLUMNS = 500;

export function waveform(
  samples: Float32Array,
  probabilities: Float32Array,
  segments: readonly Segment[],
): SVGSVGElement {
  const length = samples.length / RATE || 1;
  const x = (time: number): number => Math.min(WIDTH, (time / length) * WIDTH);
  const total = segments.reduce((sum, { start, end }) => sum + end - start, 0);
  const label = `${seconds(length)} of sound, ${seconds(total)} of it speech`;
  return svg(
    'svg',
    { class: 'wave', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' },
    svg('title', {}, label),
    ...segments.map(({ start, end }) =>
      svg('rect', { x: x(start), width: x(end) - x(start), y: 0, height: HEIGHT }),
    ),
    svg('path', { class: 'sound', d: soundPath(samples) }),
    svg('path', { class: 'probability', d: probabilityPath(probabilities, x) }),
  );
}

/** Up along the highest samples, back along the lowest. */
function soundPath(samples: Float32Array): string {
  const peaks = peaksOf(samples, COLUMNS);
  const loudest = Math.max(0.05, ...peaks.flatMap(([low, high]) => [-low, high]));
  const point = (value: number, k: number): string =>
    `${((k * WIDTH) / COLUMNS).toFixed(1)} ${(WAVE.middle - (value / loudest) * WAVE.reach).toFixed(1)}`;
  const upper = peaks.map(([, high], k) => point(high, k));
  const lower = peaks.map(([low], k) => point(low, k)).reverse();
  return `M${[...upper, ...lower].join('L')}Z`;
}

function probabilityPath(probabilities: Float32Array, x: (time: number) => number): string {
  const points = Array.from(probabilities, (probability, k) => {
    const time = ((k + 0.5) * FRAME) / RATE;
    return `${x(time).toFixed(1)} ${(CURVE.bottom - probability * CURVE.reach).toFixed(1)}`;
  });
  return points.length ? `M${points.join('L')}` : '';
}
