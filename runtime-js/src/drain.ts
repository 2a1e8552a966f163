/** Executes the commands of one VM step on a GPU. `vm/isa.py` says what each means. */

import { EdgeRelaxError } from './errors.ts';
import type { CommandList, Gpu, Place, Step } from './gpu.ts';
import { COMMAND } from './isa.ts';
import type { Vm } from './vm.ts';

/** Values to bring back into VM memory before the run can go on. */
export interface PendingRead {
  readonly place: Place;
  readonly pointer: number;
}

/** Encodes all commands; gives the reads. The caller submits, by awaiting them or outright. */
export function drain(gpu: Gpu, vm: Vm): PendingRead[] {
  return new Drain(gpu, vm, vm.commands()).all();
}

class Drain {
  readonly #gpu: Gpu;
  readonly #vm: Vm;
  readonly #words: Int32Array;
  readonly #reads: PendingRead[] = [];
  #recording: { id: number; list: CommandList } | undefined;

  constructor(gpu: Gpu, vm: Vm, words: Int32Array) {
    this.#gpu = gpu;
    this.#vm = vm;
    this.#words = words;
  }

  all(): PendingRead[] {
    for (let at = 0; at < this.#words.length;) {
      const head = this.#word(at);
      this.#execute(head & 0xff, at + 1);
      at += head >>> 8;
    }
    return this.#reads;
  }

  #word(at: number): number {
    return (this.#words[at] ?? 0) >>> 0;
  }

  #place(at: number): Place {
    return {
      kind: this.#word(at),
      index: this.#word(at + 1),
      offset: this.#word(at + 2),
      bytes: this.#word(at + 3),
    };
  }

  #execute(command: number, at: number): void {
    switch (command) {
      case COMMAND.reset:
        this.#gpu.submit();
        return this.#gpu.forget();
      case COMMAND.ensure:
        return this.#gpu.ensure(this.#word(at), this.#word(at + 1), this.#word(at + 2) !== 0);
      case COMMAND.record:
        this.#recording = { id: this.#word(at), list: { steps: [] } };
        return;
      case COMMAND.end_record:
        return this.#endRecord();
      case COMMAND.replay:
        return this.#replay(at);
      case COMMAND.forget:
        this.#gpu.submit();
        return this.#gpu.forget(this.#word(at));
      case COMMAND.dispatch:
        return this.#dispatch(at);
      case COMMAND.copy:
        return this.#add({ source: this.#place(at + 4), target: this.#place(at) });
      case COMMAND.fill:
        if (this.#word(at + 4)) throw new EdgeRelaxError('vm', 'only zeros can be filled');
        return this.#add({ source: undefined, target: this.#place(at) });
      case COMMAND.library:
        return this.#library(at);
      case COMMAND.upload:
        return this.#upload(at);
      case COMMAND.read:
        this.#reads.push({
          place: { ...this.#place(at), bytes: this.#word(at + 4) },
          pointer: this.#word(at + 5),
        });
        return;
    }
    throw new EdgeRelaxError('vm', `command ${command} is not known to this host`);
  }

  #add(step: Step): void {
    if (this.#recording) {
      this.#recording.list.steps.push(step);
      return;
    }
    this.#gpu.encodeOnce({ steps: [step] });
  }

  #endRecord(): void {
    if (!this.#recording) throw new EdgeRelaxError('vm', 'end_record without record');
    const { id, list } = this.#recording;
    this.#recording = undefined;
    this.#gpu.finish(list);
    this.#gpu.remember(id, list);
    this.#gpu.encode(list);
  }

  #replay(at: number): void {
    const list = this.#gpu.recall(this.#word(at));
    this.#gpu.setScalars(list, this.#words.subarray(at + 2, at + 2 + 3 * this.#word(at + 1)));
    this.#gpu.encode(list);
  }

  #dispatch(at: number): void {
    const count = this.#word(at + 1);
    const places = Array.from({ length: count }, (_, k) => this.#place(at + 2 + 4 * k));
    const scalars = at + 2 + 4 * count;
    const values = this.#words.slice(scalars + 1, scalars + 1 + this.#word(scalars));
    this.#add({ kernel: this.#word(at), places, scalars: values });
  }

  #library(at: number): void {
    const name = new TextDecoder().decode(
      this.#vm.bytes(this.#word(at + 1), this.#word(at)).slice(),
    );
    const count = this.#word(at + 3);
    const places = Array.from({ length: count }, (_, k) => this.#place(at + 4 + 4 * k));
    const scalars = at + 4 + 4 * count;
    const dims = this.#words.slice(scalars + 1, scalars + 1 + this.#word(scalars));
    this.#add({ library: Number(name), places, scalars: dims });
  }

  #upload(at: number): void {
    const { buffer, offset } = this.#gpu.at(this.#place(at));
    this.#gpu.submit();
    const data = this.#vm.bytes(this.#word(at + 5), this.#word(at + 4));
    this.#gpu.write(buffer, offset, data);
  }
}
