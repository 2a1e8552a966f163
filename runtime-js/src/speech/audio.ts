/** Audio as a model takes it: one channel, f32 within ±1, at the model's rate. */

import { EdgeRelaxError } from '../errors.ts';

/** Samples of one channel, what a browser decoded, or a sound file as it is. */
export type Audio = Float32Array | AudioBuffer | Blob | ArrayBuffer;

/**
 * The samples of any audio, at `wanted` samples a second. `rate` is that of a Float32Array; without
 * it they are at the wanted one. Channels become their mean. Throws `input` for audio that is empty
 * or not finite, for files that the browser cannot decode, and for what it has to decode where it
 * cannot: in workers.
 */
export async function readAudio(
  audio: Audio,
  wanted: number,
  rate?: number,
): Promise<Float32Array> {
  if (audio instanceof Float32Array) {
    return resampled(checked(audio), rate ?? wanted, wanted);
  }
  if (rate !== undefined) throw wrong('only samples are given a rate: files say their own');
  if (typeof AudioBuffer !== 'undefined' && audio instanceof AudioBuffer) {
    return resampled(checked(meanOf(audio)), audio.sampleRate, wanted);
  }
  const file = audio instanceof Blob ? await audio.arrayBuffer() : audio;
  if (!(file instanceof ArrayBuffer)) {
    throw wrong('audio is samples in a Float32Array, an AudioBuffer, or a file: Blob, ArrayBuffer');
  }
  return checked(meanOf(await decoded(file.slice(0), wanted))); // decoding takes the buffer away
}

function wrong(message: string, cause?: unknown): EdgeRelaxError {
  return new EdgeRelaxError('input', message, { cause });
}

function checked(samples: Float32Array): Float32Array {
  if (samples.length === 0) throw wrong('the audio is empty: it has no samples');
  if (!samples.every(Number.isFinite)) throw wrong('the audio has samples that are not finite');
  return samples;
}

function meanOf(audio: AudioBuffer): Float32Array {
  const count = audio.numberOfChannels;
  const sum = audio.getChannelData(0).slice();
  for (let channel = 1; channel < count; channel++) {
    for (const [k, value] of audio.getChannelData(channel).entries()) sum[k]! += value;
  }
  return count === 1 ? sum : sum.map((value) => value / count);
}

/** As a file's: what plays buffers of other rates may leave out the filter that decoders have. */
async function resampled(
  samples: Float32Array,
  given: number,
  wanted: number,
): Promise<Float32Array> {
  if (!Number.isSafeInteger(given) || given < 1) throw wrong(`a sampling rate of ${given} Hz`);
  if (given === wanted) return samples;
  const found = meanOf(await decoded(wave(samples, given), wanted));
  return found.length > 0 ? found : new Float32Array(1);
}

async function decoded(file: ArrayBuffer, wanted: number): Promise<AudioBuffer> {
  if (typeof OfflineAudioContext === 'undefined') {
    throw wrong(
      `audio is decoded and resampled by pages alone: give samples at ${wanted} Hz, by decodeAudio on the page`,
    );
  }
  try {
    return await new OfflineAudioContext(1, 1, wanted).decodeAudioData(file);
  } catch (cause) {
    throw wrong(`the audio cannot be read as sound: ${String(cause)}`, cause);
  }
}

/** A WAV file of f32 samples. */
function wave(samples: Float32Array, rate: number): ArrayBuffer {
  const header = 44;
  const bytes = samples.length * 4;
  const file = new DataView(new ArrayBuffer(header + bytes));
  const name = (at: number, text: string): void =>
    [...text].forEach((letter, k) => file.setUint8(at + k, letter.charCodeAt(0)));
  const word = (at: number, value: number): void => file.setUint32(at, value, true);
  const half = (at: number, value: number): void => file.setUint16(at, value, true);
  name(0, 'RIFF');
  word(4, header - 8 + bytes);
  name(8, 'WAVEfmt ');
  word(16, 16);
  half(20, 3); // floats
  half(22, 1); // channel
  word(24, rate);
  word(28, rate * 4);
  half(32, 4);
  half(34, 32);
  name(36, 'data');
  word(40, bytes);
  for (const [k, value] of samples.entries()) file.setFloat32(header + 4 * k, value, true);
  return file.buffer as ArrayBuffer;
}
