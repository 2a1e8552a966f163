/** Find speech in a recording. */

import type { Client } from '../client.ts';
import { recordSound, soundOf } from '../media.ts';
import type { Tools } from '../protocol.ts';
import { RATE, type Segment } from '../speech.ts';
import { voiceSample } from '../voice.ts';
import { wavFile } from '../wav.ts';
import { h } from './dom.ts';
import { fileButton, takeFile } from './files.ts';
import { Shell } from './shell.ts';
import { seconds } from './units.ts';
import { waveform } from './waveform.ts';

type Sound = Tools['speech']['input'];

export function speechView(client: Client): HTMLElement {
  const sample = h('button', { type: 'button', class: 'primary' }, 'Try the sample');
  const record = h('button', { type: 'button' }, 'Record');
  const result = h('div', { class: 'result' });
  const choose = fileButton('audio', 'Choose a recording', (file) => listen(soundOf(file)));
  const drop = h(
    'div',
    { class: 'drop' },
    h('div', { class: 'controls' }, sample, choose, record),
    h('p', { class: 'note' }, 'or drop a sound file here'),
  );
  let address = '';
  const shell = new Shell(
    client,
    {
      tool: 'speech',
      title: 'Find speech in a recording',
      lead: 'Every 32 milliseconds, the network says how likely it is that somebody speaks. Bells, engines and rain leave it unmoved.',
    },
    [drop, result],
    (found, samples) => {
      URL.revokeObjectURL(address);
      address = URL.createObjectURL(wavFile(samples, RATE));
      result.replaceChildren(...shown(samples, found, address));
    },
  );
  const listen = (sound: Sound | Promise<Sound>): void => void shell.run(sound);
  sample.addEventListener('click', () => listen(voiceSample()));
  takeFile(drop, 'audio', (file) => listen(soundOf(file)));
  recordWith(
    record,
    (file) => listen(soundOf(file)),
    (error) => shell.fail(error),
  );
  return shell.element;
}

/** Makes a button start a recording, and the same button end it. */
function recordWith(
  button: HTMLButtonElement,
  onSound: (sound: Blob) => void,
  onError: (error: unknown) => void,
): void {
  let recording: { stop(): Promise<Blob> } | undefined;
  button.addEventListener('click', async () => {
    button.disabled = true;
    try {
      if (recording) onSound(await recording.stop());
      recording = recording ? undefined : await recordSound();
    } catch (error) {
      recording = undefined;
      onError(error);
    }
    button.disabled = false;
    button.textContent = recording ? 'Stop' : 'Record';
    button.classList.toggle('recording', recording !== undefined);
  });
}

function shown(
  samples: Sound,
  { probabilities, segments }: Tools['speech']['result'],
  address: string,
): Node[] {
  const player = h('audio', { controls: true, src: address });
  const length = samples.length / RATE;
  const list = h('ol', { class: 'segments' }, ...segments.map((one) => segmentItem(one, player)));
  const legend = 'The line is the probability of speech, the shade where there is some.';
  return [
    waveform(samples, probabilities, segments),
    h('p', { class: 'note' }, legend),
    player,
    segments.length ? list : h('p', { class: 'empty' }, `No speech in ${seconds(length)}.`),
  ];
}

function segmentItem({ start, end }: Segment, player: HTMLAudioElement): HTMLElement {
  const text = `${seconds(start)} – ${seconds(end)}`;
  const button = h('button', { type: 'button', 'aria-label': `Play from ${text}` }, text);
  button.addEventListener('click', () => {
    player.currentTime = start;
    void player.play();
  });
  return h('li', {}, button);
}
