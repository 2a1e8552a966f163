/** A model's side of a GPU device: buffers, pipelines, recorded command lists. */

import { type Binding, Bindings, type Ranged, ranged, SLOT } from './bind.ts';
import { EdgeRelaxError } from './errors.ts';
import { Inputs, type Where } from './inputs.ts';
import { BINDING } from './isa.ts';
import type { Bound, GpuOperand } from './library.ts';
import type { GpuKernel } from './manifest.ts';
import { Reads } from './reads.ts';
import { forBrowser } from './wgsl.ts';

const MAX_GROUPS = 65535;

export interface Place {
  readonly kind: number;
  readonly index: number;
  readonly offset: number;
  readonly bytes: number;
}

/** A launch; the first scalar is its grid. */
export interface Dispatch {
  readonly kernel: number;
  readonly places: readonly Place[];
  readonly scalars: Int32Array;
  /** How it is encoded: made when its list is whole. */
  call?: { readonly pipeline: GPUComputePipeline; binding: Binding; x: number; y: number };
}

/** A call of a library function, by its number; the scalars are the dims of its operands. */
export interface LibraryStep {
  readonly library: number;
  readonly places: readonly Place[];
  readonly scalars: Int32Array;
}

/** A copy between places, or zeros where there is no source. */
export interface Transfer {
  readonly source: Place | undefined;
  readonly target: Place;
}

type Launch = Dispatch | LibraryStep;
export type Step = Launch | Transfer;

/** Steps that can be encoded again and again. */
export interface CommandList {
  readonly steps: Step[];
  /** Of the steps those with scalars. */
  launches?: readonly Launch[];
  dispatches?: number;
  own?: Own;
}

/** Uniforms of a list's own, for launches whose scalars change. */
interface Own {
  readonly buffer: GPUBuffer;
  readonly words: Int32Array<ArrayBuffer>;
  /** Where those of a launch begin among the words. */
  readonly starts: ReadonlyMap<number, number>;
  /** When the list was encoded last. */
  used: number;
}

export interface GpuStats {
  pipelines: number;
  bindGroups: number;
  buffers: number;
  bufferBytes: number;
  launches: number;
}

/** Owns every buffer that it makes; `destroy` frees them all and leaves the device alone. */
export class Gpu {
  readonly device: GPUDevice;
  readonly stats: GpuStats = {
    pipelines: 0,
    bindGroups: 0,
    buffers: 0,
    bufferBytes: 0,
    launches: 0,
  };
  readonly #kernels: readonly GpuKernel[];
  readonly #libraries: readonly Bound[];
  readonly #bindings: Bindings;
  readonly #inputs = new Map<number, Inputs>(); // by function
  #function = 0;
  readonly #buffers = new Map<string, GPUBuffer>();
  readonly #empty = new Map<string, GPUBuffer>(); // by access
  readonly #lists = new Map<number, CommandList>();
  readonly #owned = new Set<GPUBuffer>();
  readonly #retired: GPUBuffer[] = []; // freed once what is encoded was submitted
  #encoder: GPUCommandEncoder | undefined;
  #sealed: GPUCommandBuffer[] = [];
  #epoch = 0;
  #pipelines: GPUComputePipeline[] = [];
  /** Whether the device had memory for what was made: told later. */
  #checks: Promise<unknown> = Promise.resolve();
  /** Why there is no memory for slabs or inputs: what uses them computes nothing. */
  #full: string | undefined;
  readonly #reads: Reads;

  constructor(device: GPUDevice, kernels: readonly GpuKernel[], libraries: readonly Bound[] = []) {
    this.device = device;
    this.#kernels = kernels;
    this.#libraries = libraries;
    this.#bindings = new Bindings({
      device,
      make: (bytes, label, usage) => this.#make(bytes, label, usage),
      submit: () => this.submit(),
    });
    this.#reads = new Reads({
      make: (bytes) =>
        this.#make(bytes, 'staging', GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST),
      free: (buffer) => this.free(buffer),
      checked: () => this.#checked(),
    });
  }

  /** Makes all pipelines, asynchronously and at once; `read` gives a file of kernels' modules. */
  async compile(
    read: (file: string) => Promise<Uint8Array>,
    onPipeline: (name: string) => void,
  ): Promise<void> {
    const decoder = new TextDecoder();
    this.#pipelines = await Promise.all(
      this.#kernels.map(async (kernel) => {
        const text = await read(kernel.file);
        const code = decoder.decode(text.subarray(kernel.start, kernel.end));
        const pipeline = await this.#compileOne(kernel, code);
        onPipeline(kernel.name);
        return pipeline;
      }),
    );
  }

  async #compileOne(kernel: GpuKernel, code: string): Promise<GPUComputePipeline> {
    const module = this.device.createShaderModule({ label: kernel.name, code: forBrowser(code) });
    try {
      const pipeline = await this.device.createComputePipelineAsync({
        label: kernel.name,
        layout: this.#bindings.layout(kernel.buffers).pipeline,
        compute: { module, entryPoint: 'main' },
      });
      this.stats.pipelines++;
      return pipeline;
    } catch (cause) {
      const info = await module.getCompilationInfo();
      const lines = info.messages.map((m) => `${m.lineNum}:${m.linePos} ${m.message}`);
      const why = lines.join('; ') || String(cause);
      throw new EdgeRelaxError('device', `kernel ${kernel.name} was refused: ${why}`, { cause });
    }
  }

  /** Where a place begins; a slab that nothing asked for yet is empty. */
  at({ kind, index, offset }: Omit<Place, 'bytes'>): Where {
    const key = `${kind}.${index}`;
    let buffer = this.#buffers.get(key);
    if (!buffer && kind === BINDING.input) {
      const input = this.#inputs.get(this.#function)?.at(index);
      if (input) return { buffer: input.buffer, offset: input.offset + offset };
    }
    if (!buffer) {
      buffer = this.#make(0, key);
      this.#buffers.set(key, buffer);
    }
    return { buffer, offset };
  }

  /** A weight's buffer, to be filled with `write`. */
  makeWeight(k: number, bytes: number, label: string): GPUBuffer {
    const buffer = this.#make(bytes, label);
    this.#buffers.set(`${BINDING.weight}.${k}`, buffer);
    return buffer;
  }

  /**
   * Inputs of a function's call, by number: what is encoded from now on is of this function. True if
   * one has another place than before, so that lists that bind it are stale.
   */
  give(fn: number, data: ReadonlyMap<number, Uint8Array<ArrayBuffer>>): boolean {
    let inputs = this.#inputs.get(fn);
    if (!inputs) {
      inputs = new Inputs({
        make: (bytes, label) => this.#tryMake(bytes, label),
        retire: (buffer) => this.#retire(buffer),
        submit: () => this.submit(),
        epoch: () => this.#epoch,
        write: (buffer, offset, bytes) => this.write(buffer, offset, bytes),
      });
      this.#inputs.set(fn, inputs);
    }
    this.#function = fn;
    return inputs.give(data);
  }

  /** Makes input k anew, of bytes that are 0. */
  makeState(k: number, bytes: number, label: string): void {
    const key = `${BINDING.input}.${k}`;
    const old = this.#buffers.get(key);
    if (old) this.free(old);
    this.#buffers.delete(key);
    const most = this.device.limits.maxStorageBufferBindingSize;
    if (bytes > most) {
      throw new EdgeRelaxError(
        'limit',
        `${label} needs ${bytes} bytes, a kernel of this device reads at most ${most}`,
      );
    }
    this.#buffers.set(key, this.#make(bytes, label));
  }

  /** Makes buffers; throws `memory` where the device has no room for them. */
  async roomFor(make: () => void): Promise<void> {
    this.device.pushErrorScope('out-of-memory');
    try {
      make();
    } finally {
      const failure = await this.device.popErrorScope();
      if (failure) throw new EdgeRelaxError('memory', `the GPU has no memory: ${failure.message}`);
    }
  }

  /** A buffer for which there may be no memory: the next read tells. */
  #tryMake(bytes: number, label: string): GPUBuffer {
    this.device.pushErrorScope('out-of-memory');
    try {
      return this.#make(bytes, label);
    } finally {
      const told = this.device.popErrorScope().then(
        (failure) => {
          if (failure) this.#full ??= `${label} needs ${bytes} bytes: ${failure.message}`;
        },
        () => undefined, // a lost device tells of itself
      );
      this.#checks = Promise.all([this.#checks, told]);
    }
  }

  /** Throws `memory` where something that was read comes of buffers that never were. */
  async #checked(): Promise<void> {
    await this.#checks;
    if (this.#full === undefined) return;
    throw new EdgeRelaxError('memory', `the GPU has no memory: ${this.#full}`);
  }

  /** Gives up slabs and inputs where there was no memory for all: they are made anew. */
  recover(): void {
    if (this.#full === undefined) return;
    this.#full = undefined;
    this.submit();
    for (const [key, buffer] of this.#buffers) {
      if (!key.startsWith(`${BINDING.slab}.`)) continue;
      this.#buffers.delete(key);
      this.free(buffer);
    }
    for (const inputs of this.#inputs.values()) inputs.clear();
    this.#inputs.clear();
  }

  /** Waits until the GPU has done what was submitted. */
  async settled(): Promise<void> {
    await this.device.queue.onSubmittedWorkDone().catch(() => undefined); // the next run tells
  }

  /** Grows a slab; unless it keeps its contents, the old buffer goes before the new one comes. */
  ensure(slab: number, bytes: number, keeps: boolean): void {
    const key = `${BINDING.slab}.${slab}`;
    const old = this.#buffers.get(key);
    if (old && old.size >= bytes) return;
    if (old && !keeps) {
      this.#buffers.delete(key); // there may be no other
      this.#retire(old);
    }
    const made = this.#tryMake(bytes, `slab ${slab}`);
    this.#buffers.set(key, made);
    if (!old || !keeps) return;
    this.#commands().copyBufferToBuffer(old, 0, made, 0, old.size);
    this.#retire(old);
  }

  /** Frees a buffer, now or with the submit of what is encoded and may use it. */
  #retire(buffer: GPUBuffer): void {
    if (this.#encoder || this.#sealed.length > 0) this.#retired.push(buffer);
    else this.free(buffer);
  }

  /** What is encoded and not yet submitted: a run and the read of its results are one submission. */
  #commands(): GPUCommandEncoder {
    this.#encoder ??= this.device.createCommandEncoder();
    return this.#encoder;
  }

  /** Ends what is encoded: it will be submitted, whatever becomes of what comes next. */
  seal(): void {
    if (this.#encoder) this.#sealed.push(this.#encoder.finish());
    this.#encoder = undefined;
  }

  /** Submits what is encoded. Writes overtake what is not submitted. */
  submit(): void {
    this.seal();
    if (this.#sealed.length === 0) return;
    this.#bindings.flush();
    for (const inputs of this.#inputs.values()) inputs.flush();
    this.#reads.ask();
    this.device.queue.submit(this.#sealed);
    this.#sealed = [];
    this.#epoch++;
    this.discard();
  }

  /** Forgets what is encoded and not sealed, as after a failure. */
  discard(): void {
    this.#encoder = undefined;
    if (this.#sealed.length > 0) return;
    for (const buffer of this.#retired.splice(0)) this.free(buffer);
  }

  /** Writes bytes, padded to whole words. */
  write(buffer: GPUBuffer, offset: number, data: Uint8Array<ArrayBuffer>): void {
    const whole = data.length & ~3;
    if (whole) this.device.queue.writeBuffer(buffer, offset, data, 0, whole);
    if (whole === data.length) return;
    const tail = new Uint8Array(4);
    tail.set(data.subarray(whole));
    this.device.queue.writeBuffer(buffer, offset + whole, tail);
  }

  /** Makes what a list is encoded with. */
  finish(list: CommandList): void {
    list.launches = list.steps.filter(isLaunch);
    list.dispatches = list.launches.filter(isDispatch).length;
    for (const launch of list.launches) {
      if (!isDispatch(launch)) continue;
      const { kernel, scalars } = launch;
      const pipeline = this.#pipelines[kernel];
      const accesses = this.#kernels[kernel]?.buffers;
      if (!pipeline || !accesses) {
        throw new EdgeRelaxError('format', `the program launches kernel ${kernel}, unknown here`);
      }
      const layout = this.#bindings.layout(accesses);
      const binding = this.#bindings.bind(layout, this.#ranges(launch), scalars);
      const grid = scalars[0] ?? 0;
      const y = Math.ceil(grid / MAX_GROUPS);
      launch.call = { pipeline, binding, x: Math.ceil(grid / y), y };
    }
    this.stats.bindGroups = this.#bindings.made;
  }

  #ranges({ kernel, places }: Dispatch): Ranged[] {
    const accesses = this.#kernels[kernel]?.buffers ?? [];
    return places.map((place, k) =>
      place.bytes
        ? { ...this.at(place), size: place.bytes }
        : this.#nothing(accesses[k] ?? 'read_write', k),
    );
  }

  /** What stands for an empty range: one element of any type, apart from what else is bound. */
  #nothing(access: string, binding: number): Ranged {
    let buffer = this.#empty.get(access);
    if (!buffer) {
      const bindings = Math.max(...this.#kernels.map((k) => k.buffers.length));
      buffer = this.#make(bindings * SLOT, `empty, ${access}`);
      this.#empty.set(access, buffer);
    }
    return { buffer, offset: binding * SLOT, size: 16 };
  }

  /** Encodes a list of one use. */
  encodeOnce(list: CommandList): void {
    this.finish(list);
    this.encode(list);
    this.#release(list);
  }

  #release({ launches = [], own }: CommandList): void {
    for (const launch of launches) {
      if (isDispatch(launch) && launch.call) this.#bindings.release(launch.call.binding);
    }
    if (own) this.#retire(own.buffer);
  }

  /** Encodes a list: one compute pass for each run of launches. */
  encode(list: CommandList): void {
    const encoder = this.#commands();
    let pass: GPUComputePassEncoder | undefined;
    let pipeline: GPUComputePipeline | undefined;
    for (const step of list.steps) {
      if (isDispatch(step)) {
        const { call } = step;
        if (!call) throw new EdgeRelaxError('vm', 'a list is encoded before it is finished');
        pass ??= encoder.beginComputePass();
        if (call.pipeline !== pipeline) pass.setPipeline((pipeline = call.pipeline));
        pass.setBindGroup(0, call.binding.group);
        pass.dispatchWorkgroups(call.x, call.y);
        continue;
      }
      pass?.end();
      pass = pipeline = undefined;
      if (isTransfer(step)) this.#transfer(step, encoder);
      else this.#callLibrary(step, encoder);
    }
    pass?.end();
    this.stats.launches += list.dispatches ?? 0;
    if (list.own) list.own.used = this.#epoch;
    this.#inputs.get(this.#function)?.use();
  }

  #callLibrary({ library, places, scalars }: LibraryStep, encoder: GPUCommandEncoder): void {
    const entry = this.#libraries[library];
    if (!entry) {
      throw new EdgeRelaxError('format', `the program calls library ${library}, unknown here`);
    }
    if (places.slice(entry.info.inputs.length).every((place) => place.bytes === 0)) return;
    const { device } = this;
    const operand = (k: number, dtype: string, shape: number[]): GpuOperand => {
      const place = places[k] as Place;
      return { dtype, shape, ...this.at(place), bytes: place.bytes };
    };
    entry.call(scalars, operand, { encoder, device });
  }

  #transfer({ source, target }: Transfer, encoder: GPUCommandEncoder): void {
    const to = this.at(target);
    if (!source) {
      encoder.clearBuffer(to.buffer, to.offset, target.bytes);
      return;
    }
    const from = this.at(source);
    encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, target.bytes);
  }

  /** Sets scalars of a list's launches, (launch, scalar, value)…, with one write. */
  setScalars(list: CommandList, rows: Int32Array): void {
    const { launches = [] } = list;
    let first = Infinity;
    let end = 0;
    for (let k = 0; k < rows.length; k += 3) {
      const [launch, scalar, value] = [rows[k] ?? 0, rows[k + 1] ?? 0, rows[k + 2] ?? 0];
      const step = launches[launch];
      if (!step || step.scalars[scalar] === value) continue;
      step.scalars[scalar] = value;
      if (!isDispatch(step)) continue;
      list.own ??= this.#separate(launches, rows);
      const at = (list.own.starts.get(launch) ?? 0) + scalar;
      list.own.words[at] = value;
      first = Math.min(first, at);
      end = Math.max(end, at + 1);
    }
    if (!list.own || first >= end) return;
    const { buffer, words, used } = list.own;
    if (used === this.#epoch) this.submit(); // a write overtakes what is not submitted
    this.device.queue.writeBuffer(buffer, first * 4, words, first, end - first);
  }

  /** Gives launches whose scalars change uniforms that no others share. */
  #separate(launches: readonly Launch[], rows: Int32Array): Own {
    const numbers = new Set(rows.filter((_, k) => k % 3 === 0));
    const changing = [...numbers].filter((number) => isDispatch(launches[number] as Launch));
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const buffer = this.#make(changing.length * SLOT, 'own uniforms', usage);
    const words = new Int32Array((changing.length * SLOT) / 4);
    const starts = new Map<number, number>();
    changing.forEach((number, slot) => {
      const launch = launches[number] as Dispatch;
      const { call, kernel, scalars } = launch;
      if (!call) return;
      const at = (slot * SLOT) / 4;
      starts.set(number, at);
      words.set(scalars, at);
      this.#bindings.release(call.binding);
      const layout = this.#bindings.layout(this.#kernels[kernel]?.buffers ?? []);
      const uniforms = ranged(buffer, slot * SLOT, scalars);
      call.binding = this.#bindings.bindOwn(layout, this.#ranges(launch), uniforms);
    });
    this.stats.bindGroups = this.#bindings.made;
    this.device.queue.writeBuffer(buffer, 0, words);
    return { buffer, words, starts, used: -1 };
  }

  remember(id: number, list: CommandList): void {
    this.#lists.set(id, list);
  }

  recall(id: number): CommandList {
    const list = this.#lists.get(id);
    if (!list) throw new EdgeRelaxError('vm', `no command list ${id} was recorded`);
    return list;
  }

  forget(id?: number): void {
    for (const key of id === undefined ? [...this.#lists.keys()] : [id]) {
      const list = this.#lists.get(key);
      if (list) this.#release(list);
      this.#lists.delete(key);
    }
  }

  /**
   * Copies of the bytes of places, once the GPU has done all that is encoded. When it returns, they
   * are submitted: what comes later does not change them.
   */
  read(places: readonly Place[]): Promise<ArrayBuffer[]> {
    const starts: number[] = [];
    let total = 0;
    for (const place of places) {
      starts.push(total);
      total += (place.bytes + 3) & ~3;
    }
    const size = Math.max(total, 4);
    const staging = this.#reads.take(size);
    try {
      const encoder = this.#commands();
      places.forEach((place, k) => {
        const size = (place.bytes + 3) & ~3;
        const { buffer, offset } = this.at(place);
        if (size) encoder.copyBufferToBuffer(buffer, offset, staging, starts[k] ?? 0, size);
      });
      this.submit();
    } catch (error) {
      this.free(staging);
      throw error;
    }
    return this.#reads.read(staging, size, (bytes) =>
      places.map((place, k) => bytes.slice(starts[k], (starts[k] ?? 0) + place.bytes)),
    );
  }

  free(buffer: GPUBuffer): void {
    if (!this.#owned.delete(buffer)) return;
    this.stats.buffers--;
    this.stats.bufferBytes -= buffer.size;
    buffer.destroy();
  }

  destroy(): void {
    for (const buffer of [...this.#owned]) this.free(buffer);
    this.#buffers.clear();
    this.#empty.clear();
    this.#lists.clear();
    this.#inputs.clear();
  }

  #make(
    bytes: number,
    label: string,
    usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
  ): GPUBuffer {
    const size = Math.max((bytes + 3) & ~3, 16);
    const limit = this.device.limits.maxBufferSize;
    if (size > limit) {
      throw new EdgeRelaxError(
        'limit',
        `${label} needs ${size} bytes, a buffer of this device holds ${limit}; use backend 'wasm'`,
      );
    }
    const buffer = this.device.createBuffer({ size, usage, label });
    this.#owned.add(buffer);
    this.stats.buffers++;
    this.stats.bufferBytes += size;
    return buffer;
  }
}

export function isDispatch(step: Step): step is Dispatch {
  return 'kernel' in step;
}

function isTransfer(step: Step): step is Transfer {
  return 'target' in step;
}

function isLaunch(step: Step): step is Launch {
  return !isTransfer(step);
}
