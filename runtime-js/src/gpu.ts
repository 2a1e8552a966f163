/** A model's side of a GPU device: buffers, pipelines, recorded command lists. */

import { EdgeRelaxError } from './errors.ts';
import { BINDING } from './isa.ts';
import type { Bound, GpuOperand } from './library.ts';
import type { GpuKernel } from './manifest.ts';
import { forBrowser } from './wgsl.ts';

const SLOT = 256; // bytes of one dispatch's uniforms
const MAX_GROUPS = 65535;
const SMALL = 1 << 16; // inputs up to here get room to grow: a new buffer costs all recorded lists

export interface Place {
  readonly kind: number;
  readonly index: number;
  readonly offset: number;
  readonly bytes: number;
}

/** A launch: its bind group is made when its list is whole. */
export interface Dispatch {
  readonly kernel: number;
  readonly places: readonly Place[];
  readonly scalars: Int32Array;
  group?: GPUBindGroup;
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

/** Steps that can be encoded again and again, with the uniforms of their launches. */
export interface CommandList {
  readonly steps: Step[];
  /** Of the steps those with a slot among the uniforms, one after the other. */
  launches?: Launch[];
  uniforms?: GPUBuffer;
  /** What the uniforms hold. */
  slots?: Int32Array<ArrayBuffer>;
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
  readonly #layouts = new Map<string, { group: GPUBindGroupLayout; pipeline: GPUPipelineLayout }>();
  readonly #buffers = new Map<string, GPUBuffer>();
  readonly #empty = new Map<string, GPUBuffer>(); // by access
  readonly #lists = new Map<number, CommandList>();
  readonly #owned = new Set<GPUBuffer>();
  readonly #retired: GPUBuffer[] = []; // freed once what is encoded was submitted
  #encoder: GPUCommandEncoder | undefined;
  #pipelines: GPUComputePipeline[] = [];
  readonly #staging: GPUBuffer[] = []; // that nothing is being read through

  constructor(device: GPUDevice, kernels: readonly GpuKernel[], libraries: readonly Bound[] = []) {
    this.device = device;
    this.#kernels = kernels;
    this.#libraries = libraries;
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
        layout: this.#layout(kernel.buffers).pipeline,
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

  #layout(accesses: GpuKernel['buffers']): {
    group: GPUBindGroupLayout;
    pipeline: GPUPipelineLayout;
  } {
    const key = accesses.join();
    let layout = this.#layouts.get(key);
    if (!layout) {
      const types: GPUBufferBindingType[] = accesses.map((access) =>
        access === 'read' ? 'read-only-storage' : 'storage',
      );
      const group = this.device.createBindGroupLayout({
        entries: [...types, 'uniform' as const].map((type, binding) => ({
          binding,
          visibility: GPUShaderStage.COMPUTE,
          buffer: { type },
        })),
      });
      const pipeline = this.device.createPipelineLayout({ bindGroupLayouts: [group] });
      layout = { group, pipeline };
      this.#layouts.set(key, layout);
    }
    return layout;
  }

  /** The buffer of a place; a slab that nothing asked for yet is empty. */
  buffer(kind: number, index: number): GPUBuffer {
    const key = `${kind}.${index}`;
    let buffer = this.#buffers.get(key);
    if (!buffer) {
      buffer = this.#make(0, key);
      this.#buffers.set(key, buffer);
    }
    return buffer;
  }

  /** A weight's buffer, to be filled with `write`. */
  makeWeight(k: number, bytes: number, label: string): GPUBuffer {
    const buffer = this.#make(bytes, label);
    this.#buffers.set(`${BINDING.weight}.${k}`, buffer);
    return buffer;
  }

  /** Makes input k large enough; true if it got a new buffer, so that lists that bind it are stale. */
  fitInput(k: number, bytes: number): boolean {
    const key = `${BINDING.input}.${k}`;
    const old = this.#buffers.get(key);
    if (old && old.size >= bytes) return false;
    if (old) this.free(old);
    const roomy = bytes > SMALL ? bytes : 2 ** Math.ceil(Math.log2(Math.max(bytes, SLOT)));
    this.#buffers.set(key, this.#make(roomy, `input ${k}`));
    return true;
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

  /** Waits until the GPU has done what was submitted. */
  async settled(): Promise<void> {
    await this.device.queue.onSubmittedWorkDone().catch(() => undefined); // the next run tells
  }

  /** Grows a slab; unless it keeps its contents, the old buffer goes before the new one comes. */
  ensure(slab: number, bytes: number, keeps: boolean): void {
    const key = `${BINDING.slab}.${slab}`;
    const old = this.#buffers.get(key);
    if (old && old.size >= bytes) return;
    if (old && !keeps) this.#retire(old);
    const made = this.#make(bytes, `slab ${slab}`);
    this.#buffers.set(key, made);
    if (!old || !keeps) return;
    this.#commands().copyBufferToBuffer(old, 0, made, 0, old.size);
    this.#retire(old);
  }

  /** Frees a buffer, now or with the submit of what is encoded and may use it. */
  #retire(buffer: GPUBuffer): void {
    if (this.#encoder) this.#retired.push(buffer);
    else this.free(buffer);
  }

  /** What is encoded and not yet submitted: a run and the read of its results are one submission. */
  #commands(): GPUCommandEncoder {
    this.#encoder ??= this.device.createCommandEncoder();
    return this.#encoder;
  }

  /** Submits what is encoded. Writes overtake what is not submitted. */
  submit(): void {
    if (this.#encoder) this.device.queue.submit([this.#encoder.finish()]);
    this.discard();
  }

  /** Forgets what is encoded and not submitted, as after a failure. */
  discard(): void {
    this.#encoder = undefined;
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

  /** Makes the uniforms and bind groups of a list. */
  finish(list: CommandList): void {
    const launches = list.steps.filter(isLaunch);
    list.launches = launches;
    if (launches.length === 0) return;
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const uniforms = this.#make(launches.length * SLOT, 'uniforms', usage);
    const slots = new Int32Array((launches.length * SLOT) / 4);
    launches.forEach((launch, slot) => {
      if (!isDispatch(launch)) return;
      slots.set(launch.scalars, (slot * SLOT) / 4);
      const accesses = this.#kernels[launch.kernel]?.buffers ?? [];
      const resources = launch.places.map((place, k) =>
        place.bytes
          ? {
              buffer: this.buffer(place.kind, place.index),
              offset: place.offset,
              size: place.bytes,
            }
          : this.#nothing(accesses[k] ?? 'read_write', k),
      );
      const size = Math.ceil(launch.scalars.length / 4) * 16;
      resources.push({ buffer: uniforms, offset: slot * SLOT, size });
      launch.group = this.device.createBindGroup({
        layout: this.#layout(accesses).group,
        entries: resources.map((resource, binding) => ({ binding, resource })),
      });
      this.stats.bindGroups++;
    });
    this.device.queue.writeBuffer(uniforms, 0, slots);
    list.uniforms = uniforms;
    list.slots = slots;
  }

  /** What stands for an empty range: one element of any type, apart from what else is bound. */
  #nothing(access: string, binding: number): Required<GPUBufferBinding> {
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
    if (list.uniforms) this.#retire(list.uniforms);
  }

  /** Encodes a list: one compute pass for each run of launches. */
  encode(list: CommandList): void {
    const encoder = this.#commands();
    let pass: GPUComputePassEncoder | undefined;
    for (const step of list.steps) {
      if (isDispatch(step)) {
        pass ??= encoder.beginComputePass();
        this.#launch(step, pass);
        continue;
      }
      pass?.end();
      pass = undefined;
      if (isTransfer(step)) this.#transfer(step, encoder);
      else this.#callLibrary(step, encoder);
    }
    pass?.end();
  }

  #launch(launch: Dispatch, pass: GPUComputePassEncoder): void {
    const pipeline = this.#pipelines[launch.kernel];
    if (!pipeline || !launch.group) {
      throw new EdgeRelaxError(
        'format',
        `the program launches kernel ${launch.kernel}, unknown here`,
      );
    }
    const grid = launch.scalars[0] ?? 0;
    const y = Math.ceil(grid / MAX_GROUPS);
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, launch.group);
    pass.dispatchWorkgroups(Math.ceil(grid / y), y);
    this.stats.launches++;
  }

  #callLibrary({ library, places, scalars }: LibraryStep, encoder: GPUCommandEncoder): void {
    const entry = this.#libraries[library];
    if (!entry) {
      throw new EdgeRelaxError('format', `the program calls library ${library}, unknown here`);
    }
    if (places.slice(entry.info.inputs.length).every((place) => place.bytes === 0)) return;
    const { device } = this;
    const operand = (k: number, dtype: string, shape: number[]): GpuOperand => {
      const { kind, index, offset, bytes } = places[k] as Place;
      return { dtype, shape, buffer: this.buffer(kind, index), offset, bytes };
    };
    entry.call(scalars, operand, { encoder, device });
  }

  #transfer({ source, target }: Transfer, encoder: GPUCommandEncoder): void {
    const to = this.buffer(target.kind, target.index);
    if (!source) {
      encoder.clearBuffer(to, target.offset, target.bytes);
      return;
    }
    const from = this.buffer(source.kind, source.index);
    encoder.copyBufferToBuffer(from, source.offset, to, target.offset, target.bytes);
  }

  /** Sets scalars of a list's launches, (launch, scalar, value)…, with one write. */
  setScalars(list: CommandList, rows: Int32Array): void {
    const { launches = [], slots, uniforms } = list;
    if (!slots || !uniforms) return;
    let first = slots.length;
    let end = 0;
    for (let k = 0; k < rows.length; k += 3) {
      const [launch, scalar, value] = [rows[k] ?? 0, rows[k + 1] ?? 0, rows[k + 2] ?? 0];
      const step = launches[launch];
      if (step && !isDispatch(step)) {
        step.scalars[scalar] = value;
        continue;
      }
      const at = (launch * SLOT) / 4 + scalar;
      if (slots[at] === value) continue;
      slots[at] = value;
      first = Math.min(first, at);
      end = Math.max(end, at + 1);
    }
    if (first >= end) return;
    this.submit(); // a write overtakes what is encoded but not submitted
    this.device.queue.writeBuffer(uniforms, first * 4, slots, first, end - first);
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
      const uniforms = this.#lists.get(key)?.uniforms;
      if (uniforms) this.free(uniforms);
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
    const staging = this.#stagingFor(size);
    try {
      const encoder = this.#commands();
      places.forEach((place, k) => {
        const size = (place.bytes + 3) & ~3;
        const from = this.buffer(place.kind, place.index);
        if (size) encoder.copyBufferToBuffer(from, place.offset, staging, starts[k] ?? 0, size);
      });
      this.submit();
    } catch (error) {
      this.free(staging);
      throw error;
    }
    return this.#mapped(staging, size, (bytes) =>
      places.map((place, k) => bytes.slice(starts[k], (starts[k] ?? 0) + place.bytes)),
    );
  }

  async #mapped<T>(staging: GPUBuffer, size: number, take: (bytes: ArrayBuffer) => T): Promise<T> {
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, size);
      const found = take(staging.getMappedRange(0, size));
      staging.unmap();
      this.#staging.push(staging);
      return found;
    } catch (error) {
      this.free(staging);
      throw error;
    }
  }

  /** A buffer to read through: there are as many as reads at once. */
  #stagingFor(bytes: number): GPUBuffer {
    const found = this.#staging.findIndex((buffer) => buffer.size >= bytes);
    const [idle] = this.#staging.splice(Math.max(found, 0), 1);
    if (idle && found >= 0) return idle;
    if (idle) this.free(idle); // too small
    return this.#make(bytes, 'staging', GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
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
