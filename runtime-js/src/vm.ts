/** The virtual machine: vm.wasm and one model in it. Memory moves when it grows: views are taken anew. */

import { EdgeRelaxError, type ErrorCode } from './errors.ts';
import { ERRORS, INPUT, OUTPUT, STAT, STATUS } from './isa.ts';
import { DTYPES } from './isa.ts';
import { Helpers, isShared, makeMemory, mayBlock } from './threads.ts';

type Call = (...args: number[]) => number;

/** A function of ours that stands in the table like a kernel. What it throws, the run throws. */
export type HostKernel = (args: number, begin: number, end: number) => void;

export interface OutputPlace {
  readonly dtype: string;
  readonly shape: number[];
  readonly device: number;
  readonly kind: number;
  readonly index: number;
  readonly offset: number;
  readonly bytes: number;
  readonly pointer: number;
}

const NEEDED = ['__indirect_function_table', '_initialize', 'er_open', 'er_run'];

/** One program in an instance of its own. `close` frees it with its memory. */
export class Vm {
  /** How many share the work of the kernels. */
  readonly threads: number;
  readonly #module: WebAssembly.Module;
  readonly #exports: Record<string, unknown>;
  readonly #memory: WebAssembly.Memory;
  readonly #model: number;
  #helpers: Helpers | undefined;
  readonly #weights: number[] = [];
  readonly #inputs = new Map<number, { pointer: number; capacity: number }>();
  #closed = false;

  private constructor(
    module: WebAssembly.Module,
    exports: Record<string, unknown>,
    memory: WebAssembly.Memory,
    program: Uint8Array,
    threads: number,
  ) {
    this.threads = isShared(memory) ? threads : 1;
    this.#module = module;
    this.#exports = exports;
    this.#memory = memory;
    this.#call('_initialize');
    this.#call('er_may_block', this.threads > 1 && mayBlock() ? 1 : 0);
    const pointer = this.#copyIn(program);
    this.#model = this.#call('er_open', pointer, program.length);
    this.#call('er_free', pointer);
    if (!this.#model) throw this.#failure(0);
  }

  static async open(
    wasm: Uint8Array<ArrayBuffer>,
    program: Uint8Array,
    threads: number,
  ): Promise<Vm> {
    const memory = makeMemory(threads > 1);
    const { module, exports } = await instantiate(wasm, memory, {}, 'vm.wasm');
    const missing = NEEDED.filter((name) => !(name in exports));
    if (missing.length) throw foreign('vm.wasm', `it has no ${missing.join(', ')}`);
    return new Vm(module, exports, memory, program, threads);
  }

  /** Gives the CPU kernels slots of the function table, and functions of ours the next ones. */
  async loadKernels(
    wasm: Uint8Array<ArrayBuffer> | undefined,
    count: number,
    functions: readonly HostKernel[],
  ): Promise<void> {
    const table = this.#exports['__indirect_function_table'] as WebAssembly.Table;
    const total = count + functions.length;
    const base = table.grow(total);
    if (wasm) await this.#fillTable(wasm, table, base, count);
    for (const [k, f] of functions.entries()) table.set(base + count + k, wrapped(f));
    this.#check(this.#call('er_set_kernels', this.#model, base, total));
  }

  async #fillTable(
    wasm: Uint8Array<ArrayBuffer>,
    table: WebAssembly.Table,
    base: number,
    count: number,
  ): Promise<void> {
    const start = new WebAssembly.Global({ value: 'i32' }, base);
    const env = { ...this.#exports, table, base: start } as WebAssembly.ModuleImports;
    const { module: kernels } = await instantiate(wasm, this.#memory, env, 'kernels.wasm');
    for (let k = 0; k < count; k++) {
      if (!table.get(base + k)) throw foreign('kernels.wasm', `kernel ${k} is missing`);
    }
    if (this.threads === 1) return;
    const task = { memory: this.#memory, vm: this.#module, kernels, count };
    this.#helpers = new Helpers(this.threads, task, (bytes) => this.#alloc(bytes));
  }

  /** Memory for the CPU bytes of weight k; gives its address. */
  makeWeight(k: number, bytes: number): number {
    const pointer = this.#alloc(bytes);
    this.#weights.push(pointer);
    this.#check(this.#call('er_set_weight', this.#model, k, pointer));
    return pointer;
  }

  /** Bits of places: 1 gpu, 2 cpu. */
  inputPlaces(fn: number, k: number): number {
    return this.#call('er_input_places', this.#model, fn, k);
  }

  /** Describes input k and, where the CPU reads it, copies its bytes in. */
  setInput(
    k: number,
    dtype: string,
    shape: readonly number[],
    data: Uint8Array,
    onCpu: boolean,
  ): void {
    const pointer = onCpu ? this.#inputMemory(k, data.length) : 0;
    if (onCpu) this.bytes(pointer, data.length).set(data);
    this.#describe(k, dtype, shape, onCpu ? data.length : (data.length + 3) & ~3, pointer);
  }

  /** Describes input k, `bytes` that are 0 and stay; on the CPU they are made anew. */
  makeState(
    k: number,
    dtype: string,
    shape: readonly number[],
    bytes: number,
    onCpu: boolean,
  ): void {
    const pointer = onCpu ? this.#inputMemory(k, bytes) : 0;
    if (onCpu) this.bytes(pointer, bytes).fill(0);
    this.#describe(k, dtype, shape, bytes, pointer);
  }

  #describe(
    k: number,
    dtype: string,
    shape: readonly number[],
    bytes: number,
    pointer: number,
  ): void {
    const words = this.#words(this.#call('er_input', this.#model, k), INPUT.words);
    words[INPUT.dtype] = DTYPES.indexOf(dtype as (typeof DTYPES)[number]);
    words[INPUT.rank] = shape.length;
    words.set(shape, INPUT.dims);
    words[INPUT.bytes] = bytes;
    words[INPUT.pointer] = pointer;
  }

  /** Starts a function; gives a STATUS, throws on error. */
  run(fn: number): number {
    return this.#step(() => this.#call('er_run', this.#model, fn));
  }

  resume(): number {
    return this.#step(() => this.#call('er_resume', this.#model));
  }

  /** Gives up a waiting run; the next one starts afresh. */
  cancel(): void {
    if (!this.#closed) this.#call('er_cancel', this.#model);
  }

  /** The commands of the last step; valid until the next call. */
  commands(): Int32Array {
    const length = this.#call('er_commands_length', this.#model);
    return new Int32Array(this.#memory.buffer, this.#call('er_commands', this.#model), length);
  }

  output(k: number): OutputPlace {
    const words = this.#words(this.#call('er_output', this.#model, k), OUTPUT.words);
    const word = (at: number): number => words[at] ?? 0;
    return {
      dtype: DTYPES[word(OUTPUT.dtype)] ?? 'f32',
      shape: Array.from(words.subarray(OUTPUT.dims, OUTPUT.dims + word(OUTPUT.rank))),
      device: word(OUTPUT.device),
      kind: word(OUTPUT.kind),
      index: word(OUTPUT.index),
      offset: word(OUTPUT.offset),
      bytes: word(OUTPUT.bytes),
      pointer: word(OUTPUT.pointer),
    };
  }

  /** A view of memory, valid until the next call. */
  bytes(pointer: number, length: number): Uint8Array<ArrayBuffer> {
    return new Uint8Array(this.#memory.buffer as ArrayBuffer, pointer, length);
  }

  /** Counters since opening, by name. */
  stats(): Record<keyof typeof STAT, number> {
    const pointer = this.#call('er_stats', this.#model);
    const numbers = new Float64Array(this.#memory.buffer, pointer, Object.keys(STAT).length);
    const entries = Object.entries(STAT).map(([name, at]) => [name, numbers[at] ?? 0]);
    return Object.fromEntries(entries) as Record<keyof typeof STAT, number>;
  }

  get memoryBytes(): number {
    return this.#memory.buffer.byteLength;
  }

  /** Safe to call twice. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#helpers) this.#call('er_dismiss'); // a worker that waits is slow to be terminated
    this.#helpers?.close();
    this.#call('er_close', this.#model);
  }

  #step(call: () => number): number {
    const stack = this.#call('stackSave');
    try {
      return this.#check(call());
    } catch (cause) {
      this.#call('stackRestore', stack); // what was called in between did not return
      if (cause instanceof EdgeRelaxError && cause.code !== 'library') throw cause;
      this.cancel();
      if (cause instanceof EdgeRelaxError) throw cause;
      throw new EdgeRelaxError('vm', `a CPU kernel trapped: ${String(cause)}`, { cause });
    }
  }

  #call(name: string, ...args: number[]): number {
    return (this.#exports[name] as Call)(...args) >>> 0;
  }

  #check(status: number): number {
    if (status === STATUS.error) throw this.#failure(this.#model);
    return status;
  }

  #failure(model: number): EdgeRelaxError {
    const kind = ERRORS[this.#call('er_error_kind', model)] ?? 'usage';
    const start = this.#call('er_error', model);
    const text = this.bytes(start, Math.min(512, this.#memory.buffer.byteLength - start));
    const message = new TextDecoder().decode(text.slice(0, text.indexOf(0))); // of no shared memory
    const codes: Record<string, ErrorCode> = {
      format: 'format',
      input: 'input',
      check: 'input',
      memory: 'memory',
    };
    return new EdgeRelaxError(codes[kind] ?? 'vm', message);
  }

  #alloc(bytes: number): number {
    const pointer = bytes < 2 ** 32 ? this.#call('er_alloc', bytes) : 0;
    if (!pointer) {
      throw new EdgeRelaxError('memory', `no memory for ${bytes} bytes on the CPU; use WebGPU`);
    }
    return pointer;
  }

  #copyIn(data: Uint8Array): number {
    const pointer = this.#alloc(data.length);
    this.bytes(pointer, data.length).set(data);
    return pointer;
  }

  #inputMemory(k: number, bytes: number): number {
    const known = this.#inputs.get(k);
    if (known && known.capacity >= bytes) return known.pointer;
    if (known) this.#call('er_free', known.pointer);
    const pointer = this.#alloc(bytes);
    this.#inputs.set(k, { pointer, capacity: bytes });
    return pointer;
  }

  #words(pointer: number, count: number): Uint32Array {
    return new Uint32Array(this.#memory.buffer, pointer, count);
  }
}

/** The module that imports a function `(i32, i32, i32) -> ()` and exports it. */
// prettier-ignore
const WRAPPER = new Uint8Array([
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
  1, 7, 1, 0x60, 3, 0x7f, 0x7f, 0x7f, 0, // the type
  2, 7, 1, 1, 0x65, 1, 0x66, 0, 0, // import e.f
  7, 5, 1, 1, 0x66, 0, 0, // export f
]);

/** A function as wasm's own: tables take no others. */
function wrapped(f: HostKernel): unknown {
  const instance = new WebAssembly.Instance(new WebAssembly.Module(WRAPPER), { e: { f } });
  return instance.exports['f'];
}

interface Made {
  readonly module: WebAssembly.Module;
  readonly exports: Record<string, unknown>;
}

async function instantiate(
  wasm: Uint8Array<ArrayBuffer>,
  memory: WebAssembly.Memory,
  env: WebAssembly.ModuleImports,
  name: string,
): Promise<Made> {
  importMemory(wasm, isShared(memory));
  try {
    const made = await WebAssembly.instantiate(wasm, { env: { ...env, memory } });
    return { module: made.module, exports: made.instance.exports };
  } catch (cause) {
    throw foreign(name, String(cause), cause);
  }
}

/** Makes a module import memory that is shared, or that is not: this is one byte of its imports. */
function importMemory(wasm: Uint8Array, shared: boolean): void {
  const name = '\x03env\x06memory\x02'; // with the lengths and the kind; limits follow
  const head = new TextDecoder('latin1').decode(wasm.subarray(0, 1 << 16));
  const at = head.indexOf(name) + name.length;
  if (at >= name.length && (wasm[at] === LIMITED || wasm[at] === SHARED)) {
    wasm[at] = shared ? SHARED : LIMITED;
  }
}

const LIMITED = 1; // kinds of limits
const SHARED = 3;

function foreign(name: string, problem: string, cause?: unknown): EdgeRelaxError {
  return new EdgeRelaxError('format', `${name}: ${problem}; export the model again`, { cause });
}
