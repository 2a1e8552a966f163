/** Sound as a WAV file, so that the page can play what it examined. */

/** 16 bits, mono. */
export function wavFile(samples: Float32Array, rate: number): Blob {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at: number, letters: string): void =>
    [...letters].forEach((letter, k) => bytes.setUint8(at + k, letter.charCodeAt(0)));
  text(0, 'RIFF');
  bytes.setUint32(4, 36 + 2 * samples.length, true);
  text(8, 'WAVEfmt ');
  bytes.setUint32(16, 16, true); // size of the format
  bytes.setUint16(20, 1, true); // integers
  bytes.setUint16(22, 1, true); // channels
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, 2 * rate, true); // bytes a second
  bytes.setUint16(32, 2, true); // bytes a frame
  bytes.setUint16(34, 16, true); // bits
  text(36, 'data');
  bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, k) => {
    const limited = Math.min(1, Math.max(-1, sample));
    bytes.setInt16(44 + 2 * k, Math.round(limited * 32767), true);
  });
  return new Blob([bytes.buffer as ArrayBuffer], { type: 'audio/wav' });
}
