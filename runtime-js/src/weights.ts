/** Weights from their files to where they belong. */

import type { Gpu } from './gpu.ts';
import { widened } from './halves.ts';
import type { ProgramInfo } from './manifest.ts';
import type { Source } from './source.ts';
import type { Vm } from './vm.ts';

/** A range of a shard, and who takes its bytes. */
interface Part {
  readonly offset: number;
  readonly bytes: number;
  readonly take: (stored: Uint8Array<ArrayBuffer>) => void;
}

const PIECE = 1 << 20; // bytes that are widened at once

/** Shards under way at once: one comes in while another is checked. */
const LANES = 2;

/**
 * Fetches each shard once, through memory that each lane takes again: of the weights, JavaScript
 * never holds more than two shards and a piece that is being widened.
 */
export async function loadWeights(
  source: Source,
  program: ProgramInfo,
  vm: Vm,
  gpu: Gpu | undefined,
): Promise<void> {
  const shards = new Map<string, Part[]>();
  const make = (): void => gather(shards, source, program, vm, gpu);
  if (gpu) await gpu.roomFor(make);
  else make();
  const { files } = source.manifest;
  const sizes = [...shards.keys()].map((file) => files[file]?.bytes ?? 0);
  const waiting = [...shards];
  let failed = false;
  const lane = async (): Promise<void> => {
    const memory = new ArrayBuffer(Math.max(...sizes));
    for (let next = waiting.shift(); next && !failed; next = waiting.shift()) {
      const [file, parts] = next;
      const shard = await source.read(file, memory);
      if (failed) return; // where the weights go may be gone
      for (const { offset, bytes, take } of parts) take(shard.subarray(offset, offset + bytes));
    }
  };
  const fail = (error: unknown): never => {
    failed = true;
    throw error;
  };
  const count = Math.min(LANES, shards.size);
  await Promise.all(Array.from({ length: count }, () => lane().catch(fail)));
}

/** The parts by shard. The memory that they go to is made here, all of it. */
function gather(
  shards: Map<string, Part[]>,
  source: Source,
  program: ProgramInfo,
  vm: Vm,
  gpu: Gpu | undefined,
): void {
  const onCpu = new Set(program.weights_on_cpu);
  const onGpu = new Set(program.weights_on_gpu);
  for (const [k, weight] of source.manifest.weights.entries()) {
    if (!onCpu.has(k) && !onGpu.has(k)) continue;
    const buffer = onGpu.has(k) ? gpu?.makeWeight(k, weight.bytes, weight.name) : undefined;
    const pointer = onCpu.has(k) ? vm.makeWeight(k, weight.bytes) : undefined;
    let end = 0;
    const write = (piece: Uint8Array<ArrayBuffer>, at: number): void => {
      if (buffer) gpu?.write(buffer, at, piece);
      if (pointer !== undefined) vm.bytes(pointer + at, piece.length).set(piece);
    };
    for (const { file, offset, bytes } of weight.parts) {
      const start = end;
      const widens = weight.stored !== null;
      const take = (stored: Uint8Array<ArrayBuffer>): void =>
        widens ? widen(stored, start, write) : write(stored, start);
      const parts = shards.get(file) ?? [];
      parts.push({ offset, bytes, take });
      shards.set(file, parts);
      end += widens ? 2 * bytes : bytes;
    }
  }
}

function widen(
  stored: Uint8Array<ArrayBuffer>,
  start: number,
  write: (piece: Uint8Array<ArrayBuffer>, at: number) => void,
): void {
  for (let at = 0; at < stored.length; at += PIECE) {
    write(widened(stored.subarray(at, at + PIECE)), start + 2 * at);
  }
}
