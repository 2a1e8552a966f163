/** Weights that lie in their files as f16 and are f32 in memory. */

const view = new Uint32Array(1);
const number = new Float32Array(view.buffer);

/** The f32 of f16 bytes, little-endian as both are on every host of WebAssembly. */
export function widened(stored: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const halves = new Uint16Array(stored.slice().buffer);
  const bits = new Uint32Array(halves.length);
  for (let k = 0; k < halves.length; k++) bits[k] = widen(halves[k] as number);
  return new Uint8Array(bits.buffer);
}

function widen(half: number): number {
  const sign = (half & 0x8000) << 16;
  const rest = half & 0x7fff;
  if (rest >= 0x7c00) return sign | 0x7f800000 | (rest << 13); // infinite, or no number
  if (rest >= 0x400) return sign | ((rest << 13) + 0x38000000);
  number[0] = rest * 2 ** -24;
  return sign | (view[0] as number);
}
