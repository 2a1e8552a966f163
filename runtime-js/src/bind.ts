/** Bind groups, and the slots of uniforms in them: launches that are alike share both. */

import type { GpuKernel } from './manifest.ts';

export const SLOT = 256; // bytes of one launch's uniforms
const SLOTS = 256; // in one buffer
const IDLE = 64; // slots without a user that are left to who asks for the same scalars again

/** Where scalars are. The same ones are there once. */
interface Slot {
  readonly block: Block;
  readonly offset: number;
  readonly key: string;
  users: number;
}

/** A buffer of slots; `words` are its bytes, of which those from `first` to `end` are to be written. */
interface Block {
  readonly buffer: GPUBuffer;
  readonly words: Int32Array<ArrayBuffer>;
  first: number;
  end: number;
}

/** What a launch is bound to. */
export interface Binding {
  readonly group: GPUBindGroup;
  readonly key: string;
  readonly slot: Slot | undefined;
  users: number;
}

export interface Layout {
  readonly group: GPUBindGroupLayout;
  readonly pipeline: GPUPipelineLayout;
  readonly key: string;
}

export interface Maker {
  readonly device: GPUDevice;
  readonly make: (bytes: number, label: string, usage: number) => GPUBuffer;
  /** Submits what is encoded: what uses a slot must be on its way before the slot is written anew. */
  readonly submit: () => void;
}

export class Bindings {
  /** Bind groups that were made. */
  made = 0;
  readonly #maker: Maker;
  readonly #layouts = new Map<string, Layout>();
  readonly #groups = new Map<string, Binding>();
  readonly #slots = new Map<string, Slot>();
  readonly #blocks: Block[] = [];
  readonly #numbers = new WeakMap<GPUBuffer, number>();
  #idle = new Set<Slot>();
  #fresh = 0; // the first slot of the last block that was never used
  #count = 0;

  constructor(maker: Maker) {
    this.#maker = maker;
  }

  /** The layout of buffers of such accesses, and the uniforms behind them. */
  layout(accesses: GpuKernel['buffers']): Layout {
    const key = accesses.join();
    const known = this.#layouts.get(key);
    if (known) return known;
    const { device } = this.#maker;
    const types: GPUBufferBindingType[] = accesses.map((access) =>
      access === 'read' ? 'read-only-storage' : 'storage',
    );
    const group = device.createBindGroupLayout({
      entries: [...types, 'uniform' as const].map((type, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type },
      })),
    });
    const pipeline = device.createPipelineLayout({ bindGroupLayouts: [group] });
    const layout = { group, pipeline, key };
    this.#layouts.set(key, layout);
    return layout;
  }

  /** Binds buffers and scalars; call `flush` before the launch is submitted. */
  bind(layout: Layout, buffers: readonly Ranged[], scalars: Int32Array): Binding {
    const slot = this.#slot(scalars);
    return this.#take(layout, [...buffers, ranged(slot.block.buffer, slot.offset, scalars)], slot);
  }

  /** Binds buffers and scalars that the caller keeps. */
  bindOwn(layout: Layout, buffers: readonly Ranged[], uniforms: Ranged): Binding {
    return this.#take(layout, [...buffers, uniforms], undefined);
  }

  #take(layout: Layout, resources: readonly Ranged[], slot: Slot | undefined): Binding {
    let key = layout.key;
    for (const { buffer, offset, size } of resources) {
      key += `|${this.#number(buffer)},${offset},${size}`;
    }
    const known = this.#groups.get(key);
    if (known) {
      known.users++;
      if (slot) slot.users--; // it has one already
      return known;
    }
    const entries = resources.map((resource, binding) => ({ binding, resource }));
    const group = this.#maker.device.createBindGroup({ layout: layout.group, entries });
    this.made++;
    const binding = { group, key, slot, users: 1 };
    this.#groups.set(key, binding);
    return binding;
  }

  /** Lets go of what `bind` gave. */
  release(binding: Binding): void {
    if (--binding.users > 0) return;
    this.#groups.delete(binding.key);
    const { slot } = binding;
    if (slot && --slot.users === 0) this.#idle.add(slot);
  }

  /** Writes the slots that are new, with one write for each buffer. */
  flush(): void {
    for (const block of this.#blocks) {
      const { buffer, words, first, end } = block;
      if (first >= end) continue;
      this.#maker.device.queue.writeBuffer(buffer, first * 4, words, first, end - first);
      block.first = words.length;
      block.end = 0;
    }
  }

  #slot(scalars: Int32Array): Slot {
    const key = scalars.join();
    const known = this.#slots.get(key);
    if (known) {
      if (known.users++ === 0) this.#idle.delete(known);
      return known;
    }
    const { block, offset } = this.#place();
    const at = offset / 4;
    block.words.set(scalars, at);
    block.first = Math.min(block.first, at);
    block.end = Math.max(block.end, at + scalars.length);
    const slot = { block, offset, key, users: 1 };
    this.#slots.set(key, slot);
    return slot;
  }

  /** A place for a new slot: a fresh one, one that was given up, or one of a new buffer. */
  #place(): { readonly block: Block; readonly offset: number } {
    const last = this.#blocks.at(-1);
    if (last && this.#fresh < SLOTS) return { block: last, offset: SLOT * this.#fresh++ };
    if (this.#idle.size > IDLE) {
      const [slot] = this.#idle as Set<Slot> & Iterable<Slot>;
      this.#idle.delete(slot as Slot);
      this.#slots.delete((slot as Slot).key);
      this.#maker.submit();
      return slot as Slot;
    }
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const buffer = this.#maker.make(SLOTS * SLOT, 'uniforms', usage);
    const words = new Int32Array((SLOTS * SLOT) / 4);
    const block = { buffer, words, first: words.length, end: 0 };
    this.#blocks.push(block);
    this.#fresh = 1;
    return { block, offset: 0 };
  }

  #number(buffer: GPUBuffer): number {
    let number = this.#numbers.get(buffer);
    if (number === undefined) this.#numbers.set(buffer, (number = this.#count++));
    return number;
  }
}

export type Ranged = Required<GPUBufferBinding>;

/** The uniforms of a launch, whole vectors of four. */
export function ranged(buffer: GPUBuffer, offset: number, scalars: Int32Array): Ranged {
  return { buffer, offset, size: Math.ceil(scalars.length / 4) * 16 };
}
