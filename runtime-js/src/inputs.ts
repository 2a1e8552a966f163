/**
 * Inputs of calls on the GPU: the small ones of a function in one buffer, filled by one write when what
 * uses them is submitted. (A write of its own costs a message to the browser's GPU process.)
 */

const ALIGN = 256; // of what is bound
const SMALL = 1 << 16; // bytes; larger inputs have a buffer of their own

/** Where an input is. */
export interface Where {
  readonly buffer: GPUBuffer;
  readonly offset: number;
}

/** What inputs need of a device. */
export interface Host {
  readonly make: (bytes: number, label: string) => GPUBuffer;
  readonly retire: (buffer: GPUBuffer) => void;
  /** Writes overtake what is encoded and not submitted. */
  readonly submit: () => void;
  /** How often was submitted. */
  readonly epoch: () => number;
  readonly write: (buffer: GPUBuffer, offset: number, data: Uint8Array<ArrayBuffer>) => void;
}

/** The inputs of one function. */
export class Inputs {
  readonly #host: Host;
  #block: { readonly buffer: GPUBuffer; readonly bytes: Uint8Array<ArrayBuffer> } | undefined;
  /** By number of the input: its place in the block. */
  readonly #small = new Map<number, { offset: number; room: number }>();
  readonly #large = new Map<number, GPUBuffer>();
  /** Whether the block's bytes are a call's. */
  #filled = false;
  /** Of the block's bytes those that the buffer does not have yet. */
  #first = Infinity;
  #end = 0;
  /** The epoch of what was encoded last that may use them. */
  #used = -1;

  constructor(host: Host) {
    this.#host = host;
  }

  at(k: number): Where | undefined {
    const large = this.#large.get(k);
    if (large) return { buffer: large, offset: 0 };
    const small = this.#small.get(k);
    return small && this.#block && { buffer: this.#block.buffer, offset: small.offset };
  }

  /** Takes all inputs of a call; true if one has another place now: lists that bind it are stale. */
  give(data: ReadonlyMap<number, Uint8Array<ArrayBuffer>>): boolean {
    const stale = this.#fitOrClear(data);
    for (const [k, given] of data) {
      const large = this.#large.get(k);
      if (large) {
        this.#release();
        this.#host.write(large, 0, given);
        continue;
      }
      const { offset } = this.#small.get(k) as { offset: number };
      if (this.#block) this.#change(this.#block.bytes, offset, given);
    }
    this.#filled = true;
    return stale;
  }

  /** Writes what the buffer does not have yet: to be called before a submission. */
  flush(): void {
    const [first, end] = [this.#first, this.#end];
    if (!this.#block || first >= end) return;
    this.#first = Infinity;
    this.#end = 0;
    const { buffer, bytes } = this.#block;
    this.#host.write(buffer, first, bytes.subarray(first, (end + 3) & ~3));
  }

  /** What uses them is encoded: a call may be in several submissions. */
  use(): void {
    this.#used = this.#host.epoch();
  }

  /** Submits what is encoded with what they were. */
  #release(): void {
    if (this.#used === this.#host.epoch()) this.#host.submit();
  }

  #change(bytes: Uint8Array<ArrayBuffer>, offset: number, given: Uint8Array): void {
    if (this.#filled && same(bytes, offset, given)) return;
    this.#release();
    bytes.set(given, offset);
    this.#first = Math.min(this.#first, offset);
    this.#end = Math.max(this.#end, offset + given.length);
  }

  /** After a failure all have places anew: those that were given up are none. */
  #fitOrClear(data: ReadonlyMap<number, Uint8Array<ArrayBuffer>>): boolean {
    try {
      return this.#fit(data);
    } catch (error) {
      this.clear();
      throw error;
    }
  }

  /** Gives up all places. */
  clear(): void {
    this.flush(); // what is encoded uses it
    if (this.#block) this.#host.retire(this.#block.buffer);
    for (const buffer of this.#large.values()) this.#host.retire(buffer);
    this.#block = undefined;
    this.#small.clear();
    this.#large.clear();
  }

  #fit(data: ReadonlyMap<number, Uint8Array<ArrayBuffer>>): boolean {
    const known = this.#small.size + this.#large.size > 0; // else nothing binds them yet
    let stale = false;
    let grown = this.#block === undefined;
    for (const [k, { length }] of data) {
      const small = this.#small.get(k);
      const large = this.#large.get(k);
      if ((large?.size ?? small?.room ?? -1) >= length) continue;
      stale = true;
      if (length > SMALL) {
        if (large) this.#host.retire(large);
        this.#small.delete(k);
        this.#large.set(k, this.#host.make(length, `input ${k}`));
      } else {
        this.#small.set(k, { offset: 0, room: roomy(length) });
        grown = true;
      }
    }
    if (!grown || this.#small.size === 0) return known && stale;
    let total = 0;
    for (const small of this.#small.values()) {
      small.offset = total;
      total += small.room;
    }
    this.flush(); // what is encoded uses it
    if (this.#block) this.#host.retire(this.#block.buffer);
    const buffer = this.#host.make(total, 'inputs');
    this.#block = { buffer, bytes: new Uint8Array(total) };
    this.#filled = false;
    return known;
  }
}

/** Room to grow in: another place costs all recorded lists. */
function roomy(length: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(length, ALIGN)));
}

function same(all: Uint8Array, at: number, part: Uint8Array): boolean {
  for (let k = 0; k < part.length; k++) if (all[at + k] !== part[k]) return false;
  return true;
}
