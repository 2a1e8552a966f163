/** Library functions that a program calls: which it needs, and how they are called. */

import { EdgeRelaxError } from './errors.ts';
import type { LibraryInfo, ProgramInfo } from './manifest.ts';
import { type TypedArray, viewOf } from './tensors.ts';
import type { HostKernel, Vm } from './vm.ts';

/** An operand in the VM's memory: a view that is valid during the call. */
export interface CpuOperand {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data: TypedArray;
}

/** An operand on the GPU: a range of a buffer, as kernels store it. */
export interface GpuOperand {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly buffer: GPUBuffer;
  readonly offset: number;
  readonly bytes: number;
}

interface Call<Operand> {
  readonly inputs: readonly Operand[];
  /** Where the results go; all of each is to be written. */
  readonly outputs: readonly Operand[];
  readonly attrs: Readonly<Record<string, unknown>>;
}

export type CpuCall = Call<CpuOperand>;

export interface GpuCall extends Call<GpuOperand> {
  /** The commands under way; no pass is open. It is finished and submitted by its owner. */
  readonly encoder: GPUCommandEncoder;
  readonly device: GPUDevice;
}

export type LibraryFunction = ((call: CpuCall) => void) | ((call: GpuCall) => void);

export type Libraries = Readonly<Record<string, LibraryFunction>>;

/** A way of calling a function, and the function. */
export class Bound {
  readonly info: LibraryInfo;
  readonly #function: LibraryFunction;

  constructor(info: LibraryInfo, fn: LibraryFunction) {
    this.info = info;
    this.#function = fn;
  }

  /** Calls it; `operand` makes the k-th operand of its dtype and shape. `dims` follow one another. */
  call<Operand>(
    dims: ArrayLike<number>,
    operand: (k: number, dtype: string, shape: number[]) => Operand,
    more: object = {},
  ): void {
    const { function: name, inputs, outputs, attrs } = this.info;
    let at = 0;
    const operands = [...inputs, ...outputs].map(({ dtype, rank }, k) => {
      const shape = Array.from({ length: rank }, () => dims[at++] ?? 0);
      return operand(k, dtype, shape);
    });
    const call = {
      inputs: operands.slice(0, inputs.length),
      outputs: operands.slice(inputs.length),
      attrs,
      ...more,
    };
    try {
      (this.#function as (call: unknown) => void)(call);
    } catch (cause) {
      const why = `library function ${name} failed: ${String(cause)}`;
      throw new EdgeRelaxError('library', why, { cause });
    }
  }
}

/** The functions that a program calls on a device, in order. */
export function bound(program: ProgramInfo, device: 'cpu' | 'gpu', libraries: Libraries): Bound[] {
  const entries = program.libraries.filter((entry) => entry.device === device);
  return entries.map((entry) => new Bound(entry, libraries[entry.function] as LibraryFunction));
}

/** Throws `library` with the names of the functions that a program calls and that are not given. */
export function requireLibraries(program: ProgramInfo, libraries: Libraries): void {
  const names = new Set(program.libraries.map((entry) => entry.function));
  const missing = [...names].filter((name) => !Object.hasOwn(libraries, name));
  if (missing.length === 0) return;
  throw new EdgeRelaxError(
    'library',
    `variant ${program.name} calls library functions that are not given: ${missing.join(', ')}; ` +
      'pass them: load(url, { libraries: { name: function } })',
  );
}

/** A function as a kernel of the VM: over the VM's memory, its arguments at `args`. */
export function kernelOf(entry: Bound, vm: () => Vm): HostKernel {
  const count = entry.info.inputs.length + entry.info.outputs.length;
  const ranks = [...entry.info.inputs, ...entry.info.outputs].reduce((n, o) => n + o.rank, 0);
  return (args) => {
    const memory = vm().bytes(args >>> 0, 4 * (count + 1 + ranks));
    const words = new Int32Array(memory.buffer, memory.byteOffset, count + 1 + ranks);
    entry.call(words.slice(count + 1), (k, dtype, shape) => ({
      dtype,
      shape,
      data: viewOf(dtype, memory.buffer, (words[k] ?? 0) >>> 0, shape),
    }));
  };
}
