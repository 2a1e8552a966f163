/** A loaded model: runs are queued per model, a failed one leaves the next ones alone. */

import { findAdapter, gpuOffer, requestDevice } from './adapter.ts';
import { choose } from './choose.ts';
import { drain } from './drain.ts';
import { EdgeRelaxError, throwIfAborted } from './errors.ts';
import { Gpu, type GpuStats, type Place } from './gpu.ts';
import { DEVICE, STATUS } from './isa.ts';
import { bound, kernelOf, type Libraries } from './library.ts';
import {
  filesOf,
  type FunctionInfo,
  type Manifest,
  type ProgramInfo,
  type SymbolInfo,
  type TensorInfo,
} from './manifest.ts';
import { Source } from './source.ts';
import { elementBytes, fromBytes, type Input, readInput, type TypedArray } from './tensors.ts';
import { threadCount } from './threads.ts';
import { type OutputPlace, Vm } from './vm.ts';
import { loadWeights } from './weights.ts';

export type Backend = 'webgpu' | 'wasm';

export interface Output {
  readonly data: TypedArray;
  readonly shape: readonly number[];
  readonly dtype: string;
}

export type Outputs = Record<string, Output>;

export interface RunOptions {
  /** A function other than `main`. */
  readonly function?: string;
  readonly signal?: AbortSignal;
}

export interface ModelOptions {
  readonly device?: GPUDevice | undefined;
  readonly adapter?: GPUAdapter | undefined;
  readonly powerPreference?: GPUPowerPreference | undefined;
  readonly libraries: Libraries;
  readonly threads?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onPipeline: (name: string) => void;
}

export interface ModelStats extends GpuStats {
  instructions: number;
  listHits: number;
  listMisses: number;
  vmBytes: number;
  /** Threads that share the work of the CPU's kernels, and pieces of it that others took. */
  threads: number;
  helpedPieces: number;
}

const ON_GPU = 1;
const ON_CPU = 2;

/** What lives as long as a GPU device does, or the VM alone. */
interface Parts {
  readonly vm: Vm;
  readonly gpu: Gpu | undefined;
}

/** A model ready to run. `dispose` frees everything, and may be called at any time, twice too. */
export class Model {
  readonly backend: Backend;
  /** The name of the artifact's variant that runs. */
  readonly variant: string;
  readonly manifest: Manifest;
  readonly inputs: readonly TensorInfo[];
  readonly outputs: readonly TensorInfo[];
  readonly #source: Source;
  readonly #program: ProgramInfo;
  #options: ModelOptions;
  #parts: Parts | undefined;
  #lost: string | undefined;
  #adapter: GPUAdapter | undefined;
  #disposal: Promise<void> | undefined;
  #tail: Promise<unknown> = Promise.resolve();
  #waiting = 0;
  /** Results that are on their way while other runs go on. */
  readonly #reading = new Set<Promise<unknown>>();
  #suspect = false;
  #sizes: Readonly<Record<string, number>> = {};

  private constructor(source: Source, program: ProgramInfo, options: ModelOptions) {
    this.#source = source;
    this.#program = program;
    this.#options = options;
    this.#adapter = options.adapter;
    this.backend = program.device === 'gpu' ? 'webgpu' : 'wasm';
    this.variant = program.name;
    this.manifest = source.manifest;
    const main = source.manifest.functions[0];
    this.inputs = main?.inputs ?? [];
    this.outputs = main?.outputs ?? [];
  }

  static async open(source: Source, program: ProgramInfo, options: ModelOptions): Promise<Model> {
    const model = new Model(source, program, options);
    await model.#open();
    source.settle();
    model.#options = { ...options, signal: undefined }; // it was for loading, not for reload()
    return model;
  }

  /** Runs a function on inputs by name. Calls may overlap: they run one after another. */
  run(inputs: Record<string, Input>, options: RunOptions = {}): Promise<Outputs> {
    return this.#enqueue(async () => (await this.#begin(inputs, options)).results);
  }

  /**
   * As run, but what comes next does not wait for its results: it begins once the GPU has the
   * commands, and what these leave in states is there for it.
   */
  start(inputs: Record<string, Input>, options: RunOptions = {}): Promise<Outputs> {
    return this.#enqueue(() => this.#begin(inputs, options)).then(({ results }) => results);
  }

  /**
   * Resolves once the next load needs no network: the browser keeps the files, which it writes while
   * the model already runs. Where it has no room or no cache this resolves too.
   */
  kept(): Promise<void> {
    return this.#source.kept();
  }

  /** Waits until all that was asked for is done, failed or not. */
  async settled(): Promise<void> {
    await this.#tail;
    await this.#parts?.gpu?.settled();
    await Promise.allSettled(this.#reading);
  }

  /**
   * Makes the states anew, all 0: what lives on between runs. `sizes` gives the symbols that their
   * dims are. States whose dims are numbers are there from the start.
   */
  allocate(sizes: Readonly<Record<string, number>>): Promise<void> {
    return this.#enqueue(async () => {
      checkSizes(this.manifest, sizes);
      const parts = this.#ready();
      this.#sizes = sizes;
      try {
        await this.#fill(parts);
      } catch (error) {
        this.#sizes = {};
        this.#makeStates(parts.vm, parts.gpu); // what there was room for goes
        throw await this.#explain(error);
      }
    });
  }

  /**
   * Makes the model usable again after its GPU device was lost: a new device, the weights anew. What
   * its states held is lost.
   */
  reload(): Promise<void> {
    return this.#enqueue(async () => {
      this.#refuseDisposed();
      await Promise.allSettled(this.#reading);
      this.#close();
      await this.#open();
    });
  }

  stats(): ModelStats {
    const none: GpuStats = { pipelines: 0, bindGroups: 0, buffers: 0, bufferBytes: 0, launches: 0 };
    const parts = this.#parts;
    const vm = parts?.vm.stats();
    return {
      ...none,
      launches: vm?.dispatches ?? 0,
      ...parts?.gpu?.stats,
      instructions: vm?.instructions ?? 0,
      listHits: vm?.list_hits ?? 0,
      listMisses: vm?.list_misses ?? 0,
      vmBytes: parts?.vm.memoryBytes ?? 0,
      threads: parts?.vm.threads ?? 0,
      helpedPieces: vm?.helped_pieces ?? 0,
    };
  }

  /** Waits for the run that is under way, then frees all. Runs that wait fail with `disposed`. */
  dispose(): Promise<void> {
    this.#disposal ??= this.#tail
      .then(() => Promise.allSettled(this.#reading))
      .then(() => this.#close());
    return this.#disposal;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  #enqueue<T>(task: () => Promise<T>): Promise<T> {
    this.#waiting++;
    const turn = this.#tail.then(async () => {
      this.#waiting--;
      try {
        return await task();
      } finally {
        if (this.#waiting === 0) this.#parts?.gpu?.submit(); // else it goes with what comes next
      }
    });
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  #close(): void {
    const parts = this.#parts;
    this.#parts = undefined;
    parts?.gpu?.destroy();
    parts?.vm.close();
    if (parts?.gpu && !this.#options.device) parts.gpu.device.destroy();
  }

  async #open(): Promise<void> {
    const program = this.#program;
    this.#source.expect(filesOf(this.manifest, program));
    const device = program.device === 'gpu' ? await this.#device() : undefined;
    const gpu =
      device &&
      new Gpu(device, program.gpu_kernels, bound(program, 'gpu', this.#options.libraries));
    let vm: Vm | undefined;
    try {
      vm = await this.#load(program, gpu);
      await this.#fill({ vm, gpu });
      throwIfAborted(this.#options.signal);
    } catch (error) {
      gpu?.destroy();
      vm?.close();
      if (!this.#options.device) device?.destroy();
      throw error;
    }
    this.#lost = undefined;
    this.#parts = { vm, gpu };
    if (gpu) this.#watch(gpu);
  }

  #watch(gpu: Gpu): void {
    void gpu.device.lost.then((info) => {
      if (this.#parts?.gpu === gpu) this.#lost = info.message || info.reason;
    });
  }

  async #device(): Promise<GPUDevice> {
    const { device, powerPreference } = this.#options;
    if (device) {
      if (this.#lost !== undefined) throw lostError('it is the caller’s: load with another one');
      return device;
    }
    const adapter = this.#adapter ?? (await findAdapter(powerPreference));
    this.#adapter = undefined; // one gives a device once; another may fit less
    choose([this.#program], adapter ? [gpuOffer(adapter)] : []);
    if (!adapter) throw new EdgeRelaxError('no-webgpu', "no GPU adapter; use backend 'wasm'");
    return requestDevice(adapter, this.#program);
  }

  /** Fetches what the program needs; pipelines are made while the weights come in. */
  async #load(program: ProgramInfo, gpu: Gpu | undefined): Promise<Vm> {
    const { manifest } = this.#source;
    const file = program.cpu_kernels_file;
    const [wasm, code, kernels] = await Promise.all([
      this.#source.read(manifest.vm),
      this.#source.read(program.program),
      file === null ? undefined : this.#source.read(file),
    ]);
    const threads = program.device === 'cpu' ? threadCount(this.#options.threads) : 1;
    const vm = await Vm.open(wasm, code, threads);
    try {
      const compiling = this.#compile(gpu);
      compiling.catch(() => undefined); // awaited below; a failing weight must not leave it unheard
      const own = bound(program, 'cpu', this.#options.libraries);
      if (kernels || own.length > 0) {
        const functions = own.map((entry) => kernelOf(entry, () => vm));
        await vm.loadKernels(kernels, program.cpu_kernels.length, functions);
      }
      await loadWeights(this.#source, program, vm, gpu);
      await compiling;
      return vm;
    } catch (error) {
      vm.close();
      throw error;
    }
  }

  async #compile(gpu: Gpu | undefined): Promise<void> {
    const files = new Map<string, Promise<Uint8Array>>();
    const read = (file: string): Promise<Uint8Array> => {
      const found = files.get(file) ?? this.#source.read(file);
      files.set(file, found);
      return found;
    };
    await gpu?.compile(read, this.#options.onPipeline);
  }

  /** Makes the states; throws `memory` where the device has no room for them. */
  async #fill({ vm, gpu }: Parts): Promise<void> {
    const made = gpu?.roomFor(() => this.#makeStates(vm, gpu));
    if (made) return made;
    this.#makeStates(vm, gpu);
  }

  /** A state with a dim of which no size is known has none of it. */
  #makeStates(vm: Vm, gpu: Gpu | undefined): void {
    const { states, functions } = this.manifest;
    gpu?.submit(); // what is encoded uses what there was
    for (const [k, { name, dtype, shape }] of states.entries()) {
      const dims = (shape ?? []).map((dim) =>
        typeof dim === 'number' ? dim : (this.#sizes[dim] ?? 0),
      );
      const count = dims.reduce((product, dim) => product * dim, 1);
      const bytes = Math.ceil((count * elementBytes(dtype)) / 4) * 4;
      const places = functions.reduce((all, _, fn) => all | vm.inputPlaces(fn, k), 0);
      vm.makeState(k, dtype, dims, bytes, !gpu || (places & ON_CPU) !== 0);
      if (places & ON_GPU) gpu?.makeState(k, bytes, `state ${name}`);
    }
    if (states.length > 0) vm.cancel(); // recorded lists bind what was there
  }

  /** Gives when all is on its way to the GPU; the results come by themselves. */
  async #begin(
    inputs: Record<string, Input>,
    options: RunOptions,
  ): Promise<{ readonly results: Promise<Outputs> }> {
    throwIfAborted(options.signal);
    const { vm, gpu } = this.#ready();
    const name = options.function ?? 'main';
    const fn = this.manifest.functions.findIndex((f) => f.name === name);
    const info = this.manifest.functions[fn];
    if (!info) throw new EdgeRelaxError('input', `no function ${name}`);
    try {
      if (this.#suspect) {
        vm.cancel();
        gpu?.recover();
      }
      this.#suspect = false;
      this.#giveInputs(vm, gpu, fn, info, inputs);
      await this.#drive(vm, gpu, fn, options.signal);
      return { results: this.#collect(vm, gpu, info) };
    } catch (error) {
      gpu?.discard();
      gpu?.recover();
      vm.cancel();
      throw await this.#explain(error);
    }
  }

  #ready(): Parts {
    this.#refuseDisposed();
    if (this.#lost !== undefined) throw lostError(this.#lost);
    if (!this.#parts) throw lostError('the model could not be reloaded');
    return this.#parts;
  }

  #refuseDisposed(): void {
    if (this.#disposal) throw new EdgeRelaxError('disposed', 'the model was disposed of');
  }

  /** A failure that a lost device caused is told as that. */
  async #explain(error: unknown): Promise<unknown> {
    const gpu = this.#parts?.gpu;
    if (!gpu || error instanceof EdgeRelaxError) return error;
    const info = await Promise.race([
      gpu.device.lost,
      new Promise<undefined>((resolve) => setTimeout(resolve, 50)),
    ]);
    if (info) return lostError(info.message || info.reason);
    return new EdgeRelaxError('device', `the GPU failed: ${String(error)}`, { cause: error });
  }

  #giveInputs(
    vm: Vm,
    gpu: Gpu | undefined,
    fn: number,
    info: FunctionInfo,
    inputs: Record<string, Input>,
  ): void {
    checkNames(info, inputs);
    const onGpu = new Map<number, Uint8Array<ArrayBuffer>>();
    for (const [at, spec] of info.inputs.entries()) {
      const k = this.manifest.states.length + at;
      const { data, shape } = readInput(spec, inputs[spec.name] as Input);
      const bytes = bytesOf(data);
      const places = vm.inputPlaces(fn, k);
      vm.setInput(k, spec.dtype, shape, bytes, !gpu || (places & ON_CPU) !== 0);
      if (places & ON_GPU) onGpu.set(k, bytes);
    }
    if (gpu?.give(fn, onGpu)) vm.cancel();
  }

  async #drive(
    vm: Vm,
    gpu: Gpu | undefined,
    fn: number,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    for (let status = vm.run(fn); ; status = vm.resume()) {
      const reads = gpu ? drain(gpu, vm) : [];
      if (gpu && reads.length > 0) {
        const values = await gpu.read(reads.map((read) => read.place));
        values.forEach((value, k) => {
          const pointer = reads[k]?.pointer ?? 0;
          vm.bytes(pointer, value.byteLength).set(new Uint8Array(value));
        });
      }
      if (status === STATUS.done) return; // what is encoded goes with the read of the results
      gpu?.submit();
      throwIfAborted(signal);
    }
  }

  /** Takes the results, or has them under way when it returns: later runs may overwrite them. */
  #collect(vm: Vm, gpu: Gpu | undefined, info: FunctionInfo): Promise<Outputs> {
    const places = info.outputs.map((_, k) => vm.output(k));
    const remote = places.filter((place) => place.device === DEVICE.gpu);
    const raw = places.map((place) =>
      place.device === DEVICE.gpu
        ? undefined
        : vm.bytes(place.pointer, exact(place).bytes).slice().buffer,
    );
    const fetched = gpu && remote.length > 0 ? gpu.read(remote.map(exact)) : undefined;
    gpu?.seal();
    const outputs = (read: readonly ArrayBuffer[]): Outputs => {
      const rest = read.values();
      const entries = info.outputs.map(({ name }, k) => {
        const { dtype, shape } = places[k] as OutputPlace;
        const bytes = raw[k] ?? rest.next().value ?? new ArrayBuffer(0);
        return [name, { data: fromBytes(dtype, bytes), shape, dtype }] as const;
      });
      return Object.fromEntries(entries);
    };
    return fetched ? this.#watched(fetched.then(outputs)) : Promise.resolve(outputs([]));
  }

  /** Results that dispose and reload wait for. If they fail, what was recorded with them is doubtful. */
  #watched(results: Promise<Outputs>): Promise<Outputs> {
    const told = results.catch(async (error: unknown) => {
      this.#suspect = true;
      throw await this.#explain(error);
    });
    this.#reading.add(told);
    const done = (): boolean => this.#reading.delete(told);
    told.then(done, done);
    return told;
  }
}

function checkSizes(manifest: Manifest, sizes: Readonly<Record<string, number>>): void {
  const dims = manifest.states.flatMap((state) => state.shape ?? []);
  const known = [...new Set(dims.filter((dim) => typeof dim === 'string'))].sort();
  const given = Object.keys(sizes).sort();
  if (known.join() !== given.join()) {
    throw new EdgeRelaxError(
      'input',
      `sizes of ${given.join(', ') || 'nothing'} for states that need ${known.join(', ') || 'none'}`,
    );
  }
  for (const [name, size] of Object.entries(sizes)) {
    const { lo, hi, multiple_of: step } = manifest.symbols[name] as SymbolInfo;
    if (!Number.isSafeInteger(size) || size < lo || size > (hi ?? size) || size % step !== 0) {
      const upper = hi === null ? '' : ` and at most ${hi}`;
      throw new EdgeRelaxError(
        'input',
        `${name} is ${size}: at least ${lo}${upper}, a multiple of ${step}, is expected`,
      );
    }
  }
}

function checkNames(info: FunctionInfo, inputs: Record<string, Input>): void {
  const known = info.inputs.map((spec) => spec.name);
  const unknown = Object.keys(inputs).filter((name) => !known.includes(name));
  const missing = known.filter((name) => inputs[name] === undefined);
  if (unknown.length + missing.length === 0) return;
  const wrong = [
    ...unknown.map((name) => `unknown input '${name}'`),
    ...missing.map((name) => `missing '${name}'`),
  ];
  throw new EdgeRelaxError('input', `${wrong.join(', ')}; the inputs are ${known.join(', ')}`);
}

function bytesOf(data: TypedArray): Uint8Array<ArrayBuffer> {
  return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
}

/** The place without the padding to whole words. */
function exact(place: OutputPlace): Place {
  const count = place.shape.reduce((product, size) => product * size, 1);
  return { ...place, bytes: count * elementBytes(place.dtype) };
}

function lostError(why: string): EdgeRelaxError {
  return new EdgeRelaxError('lost', `the GPU device was lost (${why}); call reload() or load()`);
}
