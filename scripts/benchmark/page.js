/**
 * One contender in one page. The same hooks count for both libraries what they launch on the GPU and
 * what memory they take; they are installed before either loads.
 */
'use strict';

const counters = { launches: 0, gpuBytes: 0, gpuPeak: 0 };
const memories = new Set();

/** Replaces a method by one that also calls `after(result, receiver, arguments)`. */
function hook(type, name, after) {
  const inner = type?.prototype[name];
  if (!inner) return;
  type.prototype[name] = function (...given) {
    const result = inner.apply(this, given);
    after(result, this, given);
    return result;
  };
}

function hookGpu() {
  const sizes = new Map(); // by number: the registry may not hold the buffers themselves
  const numbers = new WeakMap();
  let made = 0;
  const release = (number) => {
    counters.gpuBytes -= sizes.get(number) ?? 0;
    sizes.delete(number);
  };
  const collected = new FinalizationRegistry(release);
  hook(globalThis.GPUDevice, 'createBuffer', (buffer) => {
    numbers.set(buffer, ++made);
    sizes.set(made, buffer.size);
    collected.register(buffer, made);
    counters.gpuBytes += buffer.size;
    counters.gpuPeak = Math.max(counters.gpuPeak, counters.gpuBytes);
  });
  hook(globalThis.GPUBuffer, 'destroy', (_, buffer) => release(numbers.get(buffer)));
  for (const name of ['dispatchWorkgroups', 'dispatchWorkgroupsIndirect']) {
    hook(globalThis.GPUComputePassEncoder, name, () => counters.launches++);
  }
}

function hookWebAssembly() {
  WebAssembly.Memory = new Proxy(WebAssembly.Memory, {
    construct(type, given, target) {
      const memory = Reflect.construct(type, given, target);
      memories.add(memory);
      return memory;
    },
  });
  for (const name of ['instantiate', 'instantiateStreaming']) {
    const inner = WebAssembly[name];
    WebAssembly[name] = async (...given) => {
      const result = await inner.apply(WebAssembly, given);
      for (const value of Object.values((result.instance ?? result).exports)) {
        if (Object.prototype.toString.call(value) === '[object WebAssembly.Memory]') {
          memories.add(value);
        }
      }
      return result;
    };
  }
}

const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, i64: BigInt64Array, i32: Int32Array,
  i16: Int16Array, i8: Int8Array, u64: BigUint64Array, u32: Uint32Array, u16: Uint16Array,
  u8: Uint8Array, bool: Uint8Array,
}; // prettier-ignore
const ORT_TYPES = {
  f32: 'float32', f64: 'float64', f16: 'float16', i64: 'int64', i32: 'int32', i16: 'int16',
  i8: 'int8', u64: 'uint64', u32: 'uint32', u16: 'uint16', u8: 'uint8', bool: 'bool',
}; // prettier-ignore

/** Inputs and expected outputs of a model at each of its sizes. */
async function readCases(url) {
  const [index, bytes] = await Promise.all([
    fetch(`${url}.json`).then((r) => r.json()),
    fetch(`${url}.bin`).then((r) => r.arrayBuffer()),
  ]);
  const array = (t) => {
    const data = new ARRAYS[t.dtype](bytes.slice(t.offset, t.offset + t.bytes));
    return { dtype: t.dtype, shape: t.shape, data };
  };
  const arrays = (group) =>
    Object.fromEntries(Object.entries(group).map(([name, t]) => [name, array(t)]));
  return index.map((c) => ({ inputs: arrays(c.inputs), expected: arrays(c.expected) }));
}

/** Numbers of an array that can be subtracted. */
function numbers(data, dtype) {
  if (dtype === 'f16' && data instanceof Uint16Array) {
    return new Float16Array(data.buffer, data.byteOffset, data.length);
  }
  return data instanceof BigInt64Array || data instanceof BigUint64Array
    ? Float64Array.from(data, Number)
    : data;
}

/** max |got - wanted| / max |wanted|; infinite for other shapes, NaNs or infinities. */
function difference(got, wanted) {
  if (!got || got.shape.join() !== wanted.shape.join()) return Infinity;
  const a = numbers(got.data, wanted.dtype);
  const b = numbers(wanted.data, wanted.dtype);
  let gap = 0;
  let scale = 1e-30;
  for (let k = 0; k < b.length; k++) {
    if (!Number.isFinite(Number(b[k])) || !Number.isFinite(Number(a[k]))) {
      if (!Object.is(a[k], b[k])) return Infinity;
      continue;
    }
    gap = Math.max(gap, Math.abs(a[k] - b[k]));
    scale = Math.max(scale, Math.abs(b[k]));
  }
  return gap && gap / scale;
}

/** Ways to load a model and to run it on one of the cases; `launches` so far, where it can be told. */
const LIBRARIES = {
  async edgerelax({ script, model, backend, threads }) {
    const { load } = await import(script);
    const loaded = await load(model, { backend, threads });
    return {
      run: (inputs) => loaded.run(inputs),
      prepare: (inputs) => inputs,
      launches: () => (backend === 'wasm' ? loaded.stats().launches : counters.launches),
      dispose: () => loaded.dispose(),
    };
  },
  async onnxruntime({ script, model, backend, threads }) {
    const ort = await import(script);
    ort.env.wasm.wasmPaths = new URL('.', new URL(script, location.href)).href;
    ort.env.wasm.numThreads = threads;
    ort.env.logLevel = 'error';
    const session = await ort.InferenceSession.create(model, { executionProviders: [backend] });
    return {
      run: async (feeds) => {
        const results = Object.entries(await session.run(feeds));
        return Object.fromEntries(results.map(([name, t]) => [name, { data: t.data, shape: t.dims }]));
      },
      prepare: (inputs) =>
        Object.fromEntries(
          Object.entries(inputs).map(([name, t]) => [
            name,
            new ort.Tensor(ORT_TYPES[t.dtype], t.data, t.shape),
          ]),
        ),
      launches: () => (backend === 'wasm' ? null : counters.launches),
      dispose: () => session.release(),
    };
  },
};

let cases = [];
let given;
const runners = []; // those before the last stay: code lives as long as what it was compiled for
const prepared = new Map();
let kept = [];

function worst(outputs, expected) {
  return Math.max(...Object.entries(expected).map(([n, wanted]) => difference(outputs[n], wanted)));
}

/** What JSON can say of a number that may be infinite. */
const sayable = (gap) => (Number.isFinite(gap) ? gap : 'infinite');

/** Loads library and model and runs the first case: milliseconds until its outputs are there. */
async function start(config) {
  cases = await readCases(config.cases);
  given = config;
  return again();
}

/** Loads the model, beside what was loaded before, and runs the first case. */
async function again() {
  const begun = performance.now();
  runners.push(await LIBRARIES[given.library](given));
  const outputs = await runners.at(-1).run(inputsOf(0));
  const milliseconds = performance.now() - begun;
  return { milliseconds, gap: sayable(worst(outputs, cases[0].expected)) };
}

function inputsOf(number) {
  if (!prepared.has(number)) prepared.set(number, runners.at(-1).prepare(cases[number].inputs));
  return prepared.get(number);
}

/** Runs a case `calls` times in a row: milliseconds of each, launches. Their outputs are kept. */
async function sample({ number, calls }) {
  const inputs = inputsOf(number);
  const { run, launches } = runners.at(-1);
  kept = [];
  const before = launches();
  const begun = performance.now();
  for (let k = 0; k < calls; k++) kept.push(await run(inputs));
  const milliseconds = (performance.now() - begun) / calls;
  return { milliseconds, launches: before === null ? null : (launches() - before) / calls };
}

/** How far the outputs that were kept are from a case's. */
async function compare(number) {
  const gap = Math.max(...kept.map((outputs) => worst(outputs, cases[number].expected)));
  kept = [];
  return { gap: sayable(gap) };
}

function facts() {
  const wasm = [...memories].reduce((sum, memory) => sum + memory.buffer.byteLength, 0);
  const resources = performance.getEntriesByType('resource').map((entry) => entry.name);
  return { wasm_bytes: wasm, gpu_peak_bytes: counters.gpuPeak, resources };
}

async function adapter() {
  const found = await navigator.gpu?.requestAdapter();
  if (!found) return 'none';
  const { vendor, architecture, device, description } = found.info;
  return [vendor, architecture, device, description].filter(Boolean).join(' ');
}

/** Fails where a step does not end; pages have no other limit. */
function patiently(step, seconds = 120) {
  const late = new Promise((_, fail) => {
    setTimeout(() => fail(new Error(`not done after ${seconds} s`)), seconds * 1e3);
  });
  return Promise.race([step, late]);
}

hookWebAssembly();
hookGpu();
globalThis.bench = { start, again, sample, compare, facts, adapter, patiently };
