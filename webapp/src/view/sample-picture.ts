/** A picture to read: drawn, so that it needs no download. */

import { contextOf } from '../media.ts';

const WIDTH = 960;
const HEIGHT = 600;
const SCALE = 0.8; // to multiples of 32, which the detector takes as they are
const SANS = 'system-ui, "DejaVu Sans", Arial, sans-serif';
const SERIF = 'Georgia, "DejaVu Serif", serif';

export function samplePicture(): ImageData {
  const context = contextOf(WIDTH * SCALE, HEIGHT * SCALE);
  context.scale(SCALE, SCALE);
  context.fillStyle = '#f6efe2';
  context.fillRect(0, 0, WIDTH, HEIGHT);
  context.strokeStyle = '#2f4a3f';
  context.lineWidth = 6;
  context.strokeRect(24, 24, WIDTH - 48, HEIGHT - 48);
  const write = (text: string, font: string, colour: string, x: number, y: number): void => {
    context.font = font;
    context.fillStyle = colour;
    context.fillText(text, x, y);
  };
  write('Harbour Bakery', `bold 76px ${SERIF}`, '#2f4a3f', 72, 140);
  write('Bread baked by the sea since 1962', `32px ${SANS}`, '#5b5347', 76, 200);
  write('Sourdough', `36px ${SANS}`, '#26231e', 76, 300);
  write('4.50', `36px ${SANS}`, '#26231e', 420, 300);
  write('Dark rye', `36px ${SANS}`, '#26231e', 76, 360);
  write('5.20', `36px ${SANS}`, '#26231e', 420, 360);
  write('Almond croissant', `36px ${SANS}`, '#26231e', 76, 420);
  write('2.90', `36px ${SANS}`, '#26231e', 420, 420);
  write('Open Tuesday to Sunday, 7 to 15', `28px ${SANS}`, '#5b5347', 76, 516);
  context.translate(720, 350);
  context.rotate(-0.21);
  context.textAlign = 'center';
  context.strokeStyle = '#a8412f';
  context.lineWidth = 4;
  context.strokeRect(-110, -62, 220, 92);
  write('OPEN', `bold 64px ${SANS}`, '#a8412f', 0, 8);
  context.setTransform(-SCALE, 0, 0, -SCALE, 720 * SCALE, 492 * SCALE);
  write('Baked for early birds', `26px ${SANS}`, '#5b5347', 0, 0);
  return context.getImageData(0, 0, WIDTH * SCALE, HEIGHT * SCALE);
}
