/** Icons: 24 by 24, drawn by lines. */

import { h, svg } from './dom.ts';

const PATHS = {
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7.5 7.5h9v9h-9z',
  copy: 'M9 9h10v10H9zM5 15V5h10',
  again: 'M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6',
  settings: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5',
  fresh: 'M12 5v14M5 12h14',
  down: 'M12 5v14M6 13l6 6 6-6',
  image: 'M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01',
  edit: 'M4 20l1-5L16 4l4 4L9 19zM13.5 6.5l4 4',
  close: 'M6 6l12 12M18 6L6 18',
} as const;

export type Icon = keyof typeof PATHS;

export const icon = (name: Icon): SVGElement =>
  svg('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, path(name));

const path = (name: Icon): SVGElement => svg('path', { d: PATHS[name] });

/** A round button that shows an icon and has a name for those who do not see it. */
export function iconButton(name: Icon, label: string, onClick: () => void): HTMLButtonElement {
  const button = h('button', { type: 'button', class: 'round', 'aria-label': label, title: label });
  button.append(icon(name));
  button.addEventListener('click', onClick);
  return button;
}
