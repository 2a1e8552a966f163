/** Which variant of an artifact runs here: the first whose needs the browser meets. */

import { EdgeRelaxError } from './errors.ts';
import type { ProgramInfo } from './manifest.ts';

/** What there is for the programs of one device. */
export interface Offer {
  readonly device: ProgramInfo['device'];
  /** The class of the GPU adapter, null for the CPU. */
  readonly adapter: ProgramInfo['adapter'];
  readonly features: ReadonlySet<string>;
  readonly limits: Readonly<Record<string, number>>;
}

/** The programs of a device, or the one of that name; throws `input` where there is none. */
export function candidates(
  programs: readonly ProgramInfo[],
  device: ProgramInfo['device'] | undefined,
  variant: string | undefined,
): readonly ProgramInfo[] {
  const found = programs.filter(
    (p) => (!device || p.device === device) && (variant === undefined || p.name === variant),
  );
  if (found.length > 0) return found;
  const wanted = [variant && `variant '${variant}'`, device && `program for the ${device}`];
  const offered = programs.map((p) => `${p.name} (${p.device})`).join(', ');
  throw new EdgeRelaxError(
    'input',
    `the artifact has no ${wanted.filter(Boolean).join(' that is a ')}, only ${offered}`,
  );
}

/** The first program that fits, preferably one made for the adapter's class. */
export function choose(programs: readonly ProgramInfo[], offers: readonly Offer[]): ProgramInfo {
  const offerFor = (program: ProgramInfo): Offer | undefined =>
    offers.find((offer) => offer.device === program.device);
  const fitting = programs.filter((program) => lack(program, offerFor(program)) === undefined);
  const madeFor = fitting.find((program) => offerFor(program)?.adapter === program.adapter);
  const chosen = madeFor ?? fitting[0];
  if (chosen) return chosen;
  const why = programs.map((p) => `${p.name}: ${lack(p, offerFor(p)) ?? ''}`).join('; ');
  const hint = "use backend 'wasm', or export with the CPU fallback or smaller bounds";
  const code = programs.some(offerFor) ? 'limit' : 'no-webgpu';
  throw new EdgeRelaxError(code, `no variant of the model fits: ${why}; ${hint}`);
}

/** What keeps a program from running; undefined if nothing does. */
export function lack(program: ProgramInfo, offer: Offer | undefined): string | undefined {
  if (!offer) return 'this browser offers no GPU adapter';
  for (const [name, need] of Object.entries(program.needs.limits)) {
    const have = offer.limits[name] ?? 0;
    if (have < need) return `${name} is ${have} here, it needs ${need}`;
  }
  const missing = program.needs.features.filter((name) => !offer.features.has(name));
  return missing.length > 0 ? `there is no ${missing.join(', ')} here` : undefined;
}
