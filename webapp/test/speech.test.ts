import { describe, expect, it } from 'vitest';
import { FRAME, framesOf, peaksOf, RATE, segmentsOf, speechProbabilities } from '../src/speech.ts';
import { voiceSample } from '../src/voice.ts';
import { wavFile } from '../src/wav.ts';

const counted = (length: number): Float32Array => Float32Array.from({ length }, (_, k) => k + 1);

describe('frames', () => {
  it('begin with silence, then with the end of the last frame', () => {
    const frames = framesOf(counted(2 * FRAME), 0, 2);
    const [first, second] = [frames.subarray(0, 576), frames.subarray(576)];
    expect(new Set(first.subarray(0, 64))).toEqual(new Set([0]));
    expect([first[64], first[575]]).toEqual([1, 512]);
    expect([second[0], second[64], second[575]]).toEqual([449, 513, 1024]);
  });

  it('start anywhere and end with silence', () => {
    const frames = framesOf(counted(FRAME + 10), 1, 2);
    expect([frames[0], frames[64], frames[73], frames[74]]).toEqual([449, 513, 522, 0]);
    expect(new Set(frames.subarray(576 + 64))).toEqual(new Set([0]));
  });
});

describe('probabilities', () => {
  it('carry the state from run to run', async () => {
    const seen: { count: number; h: number }[] = [];
    const stages: number[][] = [];
    const result = await speechProbabilities(
      new Float32Array(600 * FRAME - 5),
      async ({ frames, count, h, c }) => {
        expect(frames).toHaveLength(count * 576);
        seen.push({ count, h: h[0]! });
        const probabilities = new Float32Array(count).fill(h[0]!);
        return { probabilities, h: h.map((x) => x + 1), c };
      },
      (...stage) => stages.push(stage),
    );
    expect(seen).toEqual([
      { count: 256, h: 0 },
      { count: 256, h: 1 },
      { count: 88, h: 2 },
    ]);
    expect([result[0], result[255], result[256], result[599]]).toEqual([0, 0, 1, 2]);
    expect(stages.at(-1)).toEqual([600, 600]);
  });

  it('of no sound are none', async () => {
    const never = (): never => {
      throw new Error('asked');
    };
    expect(await speechProbabilities(new Float32Array(0), never, () => undefined)).toHaveLength(0);
  });
});

/** Segments of runs of frames: [frames, probability]…, in frames. */
function segments(...runs: readonly (readonly [number, number])[]): [number, number][] {
  const probabilities = Float32Array.from(
    runs.flatMap(([count, p]) => Array.from({ length: count }, () => p)),
  );
  const frame = FRAME / RATE;
  return segmentsOf(probabilities, probabilities.length * frame).map(({ start, end }) => [
    Number((start / frame).toFixed(2)),
    Number((end / frame).toFixed(2)),
  ]);
}

describe('segments', () => {
  const margin = Number((0.03 / (FRAME / RATE)).toFixed(2));

  it('stand where speech is, with a margin', () => {
    expect(segments([20, 0.1], [30, 0.9], [20, 0.1])).toEqual([[20 - margin, 50 + margin]]);
  });

  it('bridge short pauses and unsure frames', () => {
    expect(segments([20, 0.9], [3, 0.1], [20, 0.9], [9, 0])).toEqual([[0, 43 + margin]]);
    expect(segments([20, 0.9], [30, 0.4], [20, 0.9], [9, 0])).toEqual([[0, 70 + margin]]);
  });

  it('end at long pauses', () => {
    expect(segments([20, 0.9], [9, 0.1], [20, 0.9])).toHaveLength(2);
  });

  it('leave out short noises', () => {
    expect(segments([20, 0], [7, 0.9], [20, 0])).toEqual([]);
  });

  it('last to the end of the sound', () => {
    expect(segments([20, 0], [20, 0.9])).toEqual([[20 - margin, 40]]);
    expect(segments()).toEqual([]);
  });
});

describe('peaks', () => {
  it('are the least and greatest of each part', () => {
    expect(peaksOf(Float32Array.of(1, -2, 3, 4), 2)).toEqual([
      [-2, 1],
      [3, 4],
    ]);
    expect(peaksOf(Float32Array.of(5), 3)).toHaveLength(3);
    expect(peaksOf(new Float32Array(0), 2)).toEqual([
      [0, 0],
      [0, 0],
    ]);
  });
});

describe('the sample', () => {
  it('is the same every time, and never too loud', () => {
    const sample = voiceSample();
    expect(sample).toEqual(voiceSample());
    expect(sample.length).toBe(8 * RATE);
    expect(sample.every((x) => Math.abs(x) < 1)).toBe(true);
    const power = (from: number, to: number): number =>
      sample.subarray(from * RATE, to * RATE).reduce((sum, x) => sum + x * x, 0) / (to - from);
    expect(power(1, 2.5)).toBeGreaterThan(100 * power(0, 0.7));
  });
});

describe('WAV files', () => {
  it('have the header that players expect', async () => {
    const blob = wavFile(Float32Array.of(0, 1, -1, 2), RATE);
    const view = new DataView(await blob.arrayBuffer());
    const text = (at: number): string =>
      String.fromCharCode(...[0, 1, 2, 3].map((k) => view.getUint8(at + k)));
    expect([text(0), text(8), text(12), text(36)]).toEqual(['RIFF', 'WAVE', 'fmt ', 'data']);
    expect(view.getUint32(4, true)).toBe(blob.size - 8);
    expect([view.getUint32(24, true), view.getUint32(40, true)]).toEqual([RATE, 8]);
    expect([0, 1, 2, 3].map((k) => view.getInt16(44 + 2 * k, true))).toEqual([
      0, 32767, -32767, 32767,
    ]);
  });
});
