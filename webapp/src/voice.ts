/** A sample to find speech in: a voice made of arithmetic between noise and a bell. */

import { RATE } from './speech.ts';

const SECONDS = 8;
const PHRASES = [
  { start: 0.8, end: 2.9, pitch: 135 },
  { start: 5.2, end: 7.1, pitch: 190 },
] as const;
const BELL = { start: 3.6, end: 4.6, frequency: 660 } as const;
const SYLLABLES = 4.5; // a second
const CONSONANT = 0.18; // of a syllable
const LOUDNESS = 0.6;

/** The three lowest resonances of five vowels, in hertz. */
const VOWELS = [
  [730, 1090, 2440],
  [300, 870, 2240],
  [270, 2290, 3010],
  [570, 840, 2410],
  [530, 1840, 2480],
] as const;
const BANDWIDTHS = [80, 100, 140] as const;

/** The same every time. */
export function voiceSample(): Float32Array {
  const sound = new Float32Array(SECONDS * RATE);
  const random = noise();
  for (const phrase of PHRASES) speak(sound, phrase, random);
  const peak = sound.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
  return sound.map((sample, k) => {
    const loud = (sample * LOUDNESS) / peak;
    return loud + bell(k / RATE) + random() * 0.004;
  });
}

function bell(time: number): number {
  const { start, end, frequency } = BELL;
  if (time < start || time >= end) return 0;
  return 0.4 * Math.exp(-4 * (time - start)) * Math.sin(2 * Math.PI * frequency * time);
}

/** Pulses of a throat through resonances that glide from vowel to vowel, with hissed consonants. */
function speak(
  sound: Float32Array,
  { start, end, pitch }: (typeof PHRASES)[number],
  random: () => number,
): void {
  const resonances = BANDWIDTHS.map(resonance);
  const formants = [500, 1500, 2500];
  let phase = 0;
  let flow = 0;
  for (let k = Math.round(start * RATE); k < Math.round(end * RATE); k++) {
    const time = k / RATE - start;
    const beat = time * SYLLABLES;
    const within = beat % 1;
    const vowel = VOWELS[Math.floor(beat) % VOWELS.length] ?? VOWELS[0];
    vowel.forEach((frequency, n) => (formants[n]! += (frequency - formants[n]!) * 0.0012));
    const melody = 1 - (0.2 * time) / (end - start) + 0.08 * Math.sin(2 * Math.PI * 1.3 * time);
    phase = (phase + (pitch * melody) / RATE) % 1;
    const open = phase < 0.6 ? Math.sin((Math.PI * phase) / 0.6) ** 2 : 0;
    const loudness = Math.min(1, 1.6 * Math.sin(Math.PI * within));
    const hiss = within < CONSONANT ? 0.02 : 0.003;
    const throat = 4 * (open - flow) * loudness + random() * hiss;
    flow = open;
    sound[k] = resonances.reduce((wave, step, n) => step(wave, formants[n]!), throat);
    if (within < CONSONANT) sound[k]! += random() * 0.01;
  }
}

/** A resonator of two poles whose frequency may move. */
function resonance(bandwidth: number): (input: number, frequency: number) => number {
  const radius = Math.exp((-Math.PI * bandwidth) / RATE);
  let [last, before] = [0, 0];
  return (input, frequency) => {
    const b = 2 * radius * Math.cos((2 * Math.PI * frequency) / RATE);
    const c = -radius * radius;
    [last, before] = [(1 - b - c) * input + b * last + c * before, last];
    return last;
  };
}

/** Numbers of -1 to 1 from a linear congruential generator. */
function noise(): () => number {
  let state = 7;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
}
