/** Threads that share the work of the VM's kernels. `edgerelax/vm/pool.c` says how they agree. */

import { EdgeRelaxError } from './errors.ts';
import { FIRST_PAGES, MOST_PAGES } from './isa.ts';

const MOST_THREADS = 4; // by default
const ALLOWED_THREADS = 256; // where they are asked for
const STACK_BYTES = 32 << 10; // kernels have none; functions of libm need a little
const LEAST_PAGES = 1 << 12; // 256 MiB: with less room than that models do without threads

/** What a helper needs to run kernels. */
interface Task {
  readonly memory: WebAssembly.Memory;
  readonly vm: WebAssembly.Module;
  readonly kernels: WebAssembly.Module;
  readonly count: number;
  readonly stack: number;
}

/** A worker of a browser or of Node. */
interface Helper {
  postMessage(task: Task): void;
  terminate(): unknown;
}

/** As many threads as asked for, by default one for each core up to 4; 1 where none can share. */
export function threadCount(asked: number | undefined): number {
  if (asked !== undefined && !(asked > 0 && asked <= ALLOWED_THREADS)) {
    const problem = `threads is ${String(asked)}: 1 to ${ALLOWED_THREADS} are expected`;
    throw new EdgeRelaxError('input', problem);
  }
  const isolated = globalThis.crossOriginIsolated ?? builtin('worker_threads') !== undefined;
  if (!isolated || typeof SharedArrayBuffer === 'undefined') return 1;
  return Math.max(1, Math.floor(asked ?? Math.min(cores(), MOST_THREADS)));
}

/** The VM's memory; shared, if it is asked for and there is room: its whole range is reserved. */
export function makeMemory(shared: boolean): WebAssembly.Memory {
  for (let pages = MOST_PAGES; shared && pages >= LEAST_PAGES; pages /= 2) {
    try {
      return new WebAssembly.Memory({ initial: FIRST_PAGES, maximum: pages, shared });
    } catch {
      // the next half
    }
  }
  return new WebAssembly.Memory({ initial: FIRST_PAGES, maximum: MOST_PAGES });
}

export function isShared(memory: WebAssembly.Memory): boolean {
  return !(memory.buffer instanceof ArrayBuffer);
}

/** Whether this thread may wait for others: a window must not. */
export function mayBlock(): boolean {
  try {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 1);
    return true;
  } catch {
    return false;
  }
}

/** The workers that help one VM. They come when they can: nobody waits for them. */
export class Helpers {
  readonly #workers: Helper[] = [];
  readonly #url: string | undefined;

  /** `alloc` gives each of them a stack in the memory. */
  constructor(threads: number, task: Omit<Task, 'stack'>, alloc: (bytes: number) => number) {
    const node = builtin('worker_threads');
    const text = node
      ? `require('node:worker_threads').parentPort.once('message', ${help})`
      : `onmessage = ({ data }) => (${help})(data)`;
    this.#url = node ? undefined : URL.createObjectURL(new Blob([text], SCRIPT));
    for (let k = 1; k < threads; k++) {
      const worker = node ? nodeWorker(node, text) : new Worker(this.#url ?? '', { name: NAME });
      this.#workers.push(worker);
      worker.postMessage({ ...task, stack: alloc(STACK_BYTES) + STACK_BYTES });
    }
  }

  close(): void {
    for (const worker of this.#workers.splice(0)) void worker.terminate();
    if (this.#url) URL.revokeObjectURL(this.#url);
  }
}

const NAME = 'edgerelax';
const SCRIPT = { type: 'text/javascript' };

/** A helper's life. Its text is what a worker is sent: it must not name anything of this file. */
function help({ memory, vm, kernels, count, stack }: Task): void {
  const { exports } = new WebAssembly.Instance(vm, { env: { memory } });
  const call = exports as Record<string, (...args: number[]) => number>;
  const table = exports['__indirect_function_table'] as WebAssembly.Table;
  const base = new WebAssembly.Global({ value: 'i32' }, table.grow(count));
  const env = { ...exports, memory, table, base } as WebAssembly.ModuleImports;
  new WebAssembly.Instance(kernels, { env });
  for (;;) {
    call['stackRestore']?.(stack);
    try {
      call['er_help']?.();
      return;
    } catch {
      call['stackRestore']?.(stack);
      call['er_help_trapped']?.(); // the run under way fails
    }
  }
}

interface NodeWorkers {
  readonly Worker: new (text: string, options: { eval: true }) => Helper & { unref(): void };
}

interface NodeSystem {
  availableParallelism(): number;
}

/** A module of Node; undefined in browsers. */
function builtin(name: 'worker_threads'): NodeWorkers | undefined;
function builtin(name: 'os'): NodeSystem | undefined;
function builtin(name: string): unknown {
  const { process } = globalThis as { process?: { getBuiltinModule?: (name: string) => unknown } };
  return process?.getBuiltinModule?.(`node:${name}`);
}

function nodeWorker({ Worker }: NodeWorkers, text: string): Helper {
  const worker = new Worker(text, { eval: true });
  worker.unref(); // it must not keep the process alive
  return worker;
}

function cores(): number {
  return globalThis.navigator?.hardwareConcurrency ?? builtin('os')?.availableParallelism() ?? 1;
}
