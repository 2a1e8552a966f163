/** Files and the microphone as what the networks take. */

import { ToolError } from './client.ts';
import { RATE } from './speech.ts';

const MOST_SIDE = 2000; // pixels: a larger picture is shrunk

export async function pictureOf(file: Blob): Promise<ImageData> {
  const bitmap = await createImageBitmap(file).catch((cause: unknown) => {
    throw new ToolError('picture', String(cause));
  });
  const ratio = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(1, Math.round(bitmap.width * ratio));
  const height = Math.max(1, Math.round(bitmap.height * ratio));
  const context = contextOf(width, height);
  context.fillStyle = 'white'; // under what is transparent
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = 'high';
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

/** A canvas to draw on and read from. */
export function contextOf(width: number, height: number): CanvasRenderingContext2D {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  if (!context) throw new ToolError('memory', `no canvas of ${width} × ${height} pixels`);
  return context;
}

/** The mean of all channels at 16 kHz. */
export async function soundOf(file: Blob): Promise<Float32Array> {
  const context = new OfflineAudioContext(1, 1, RATE); // decoding resamples to its rate
  const buffer = await context.decodeAudioData(await file.arrayBuffer()).catch((cause: unknown) => {
    throw new ToolError('sound', String(cause));
  });
  const mono = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
    const samples = buffer.getChannelData(channel);
    for (let k = 0; k < mono.length; k++) mono[k]! += samples[k]! / buffer.numberOfChannels;
  }
  return mono;
}

/** Records until `stop` is called, which gives the sound. */
export async function recordSound(): Promise<{ stop(): Promise<Blob> }> {
  const devices = navigator.mediaDevices as MediaDevices | undefined; // none without https
  const stream = await devices?.getUserMedia({ audio: true }).catch((cause: unknown) => {
    throw new ToolError('microphone', String(cause));
  });
  if (!stream) throw new ToolError('microphone', 'the page is not served over https');
  const recorder = new MediaRecorder(stream);
  const pieces: Blob[] = [];
  recorder.addEventListener('dataavailable', ({ data }) => pieces.push(data));
  const stopped = new Promise<void>((resolve) =>
    recorder.addEventListener('stop', () => resolve(), { once: true }),
  );
  recorder.start();
  return {
    async stop() {
      recorder.stop();
      await stopped;
      for (const track of stream.getTracks()) track.stop();
      return new Blob(pieces, { type: recorder.mimeType });
    },
  };
}
