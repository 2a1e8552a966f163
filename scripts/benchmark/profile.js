/**
 * Times each kernel of a model in a page. Load it after page.js and before a library.
 *
 * On WebGPU every launch becomes a pass of its own between two timestamps. On WebAssembly each
 * kernel in the function table is put into a shim that notes the time before and after.
 */
'use strict';

const QUERIES = 4096;
const profile = { names: [], spans: [], kernels: new Map(), open: [] };

function add(name, milliseconds) {
  const kernel = profile.kernels.get(name) ?? { milliseconds: 0, calls: 0 };
  kernel.milliseconds += milliseconds;
  kernel.calls++;
  profile.kernels.set(name, kernel);
}

/** A compute pass that gives each launch a pass with timestamps. */
class TimedPass {
  #pipeline;
  #groups = new Map();

  constructor(encoder, begin, device) {
    this.encoder = encoder;
    this.begin = begin;
    this.device = device;
  }

  setPipeline(pipeline) {
    this.#pipeline = pipeline;
  }

  setBindGroup(index, ...group) {
    this.#groups.set(index, group);
  }

  dispatchWorkgroups(...grid) {
    this.#launch((pass) => pass.dispatchWorkgroups(...grid));
  }

  dispatchWorkgroupsIndirect(...at) {
    this.#launch((pass) => pass.dispatchWorkgroupsIndirect(...at));
  }

  end() {}

  #launch(dispatch) {
    const { querySet } = this.device;
    const slot = profile.names.length;
    const timed = profile.on && slot < QUERIES / 2;
    const timestampWrites = {
      querySet,
      beginningOfPassWriteIndex: 2 * slot,
      endOfPassWriteIndex: 2 * slot + 1,
    };
    const pass = this.begin.call(this.encoder, timed ? { timestampWrites } : {});
    if (timed) profile.names.push(this.#pipeline.label);
    pass.setPipeline(this.#pipeline);
    for (const [index, group] of this.#groups) pass.setBindGroup(index, ...group);
    dispatch(pass);
    pass.end();
  }
}

function timeGpu() {
  if (!globalThis.GPUAdapter) return;
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (wanted = {}) {
    const requiredFeatures = [...(wanted.requiredFeatures ?? []), 'timestamp-query'];
    const device = await request.call(this, { ...wanted, requiredFeatures });
    profile.device = {
      device,
      querySet: device.createQuerySet({ type: 'timestamp', count: QUERIES }),
    };
    return device;
  };
  const begin = GPUCommandEncoder.prototype.beginComputePass;
  GPUCommandEncoder.prototype.beginComputePass = function () {
    return new TimedPass(this, begin, profile.device);
  };
}

/** Adds what the timestamps of the launches since the last time say. */
async function collectGpu() {
  if (!profile.device) return;
  const count = 2 * profile.names.length;
  if (count === 0) return;
  const { device, querySet } = profile.device;
  const usage = GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC;
  const resolved = device.createBuffer({ size: count * 8, usage });
  const read = GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ;
  const staging = device.createBuffer({ size: count * 8, usage: read });
  const encoder = device.createCommandEncoder();
  encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
  encoder.copyBufferToBuffer(resolved, 0, staging, 0, count * 8);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const times = new BigInt64Array(staging.getMappedRange());
  profile.names.forEach((name, k) => add(name, Number(times[2 * k + 1] - times[2 * k]) / 1e6));
  profile.names = [];
  resolved.destroy();
  staging.destroy();
}

/** (module (import "s" "enter") (import "s" "kernel") (import "s" "leave") (export "timed")):
 *  calls enter, then kernel with the three numbers given, then leave. */
const SHIM = new Uint8Array([
  0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
  1, 10, 2, 0x60, 0, 0, 0x60, 3, 0x7f, 0x7f, 0x7f, 0, // types: () → (), (i32 i32 i32) → ()
  2, 32, 3, // imports
  1, 0x73, 5, 0x65, 0x6e, 0x74, 0x65, 0x72, 0, 0, // s.enter
  1, 0x73, 6, 0x6b, 0x65, 0x72, 0x6e, 0x65, 0x6c, 0, 1, // s.kernel
  1, 0x73, 5, 0x6c, 0x65, 0x61, 0x76, 0x65, 0, 0, // s.leave
  3, 2, 1, 1, // one function of the second type
  7, 9, 1, 5, 0x74, 0x69, 0x6d, 0x65, 0x64, 0, 3, // export "timed"
  10, 16, 1, 14, 0, // code
  0x10, 0, 0x20, 0, 0x20, 1, 0x20, 2, 0x10, 1, 0x10, 2, 0x0b,
]); // prettier-ignore

/** Puts each kernel that a module set into the table into a shim; named by order, from 0. */
function timeWasm() {
  const shim = new WebAssembly.Module(SHIM);
  const instantiate = WebAssembly.instantiate;
  WebAssembly.instantiate = async (source, imports = {}) => {
    const result = await instantiate.call(WebAssembly, source, imports);
    const { table, base } = imports.env ?? {};
    if (table && base) wrapKernels(shim, table, base.value ?? base);
    return result;
  };
}

function wrapKernels(shim, table, base) {
  for (let k = base; k < table.length; k++) {
    const kernel = table.get(k);
    if (!kernel) continue;
    let begun = 0;
    const enter = () => (begun = performance.now());
    const leave = () => profile.on && add(String(k - base), performance.now() - begun);
    table.set(k, new WebAssembly.Instance(shim, { s: { enter, kernel, leave } }).exports.timed);
  }
}

/** Runs a case some times: by kernel the milliseconds and launches of one run. */
async function profiled({ number, calls }) {
  await bench.sample({ number, calls: 1 }); // what is made once must not be counted
  profile.on = true;
  profile.names = [];
  for (let k = 0; k < calls; k++) {
    await bench.sample({ number, calls: 1 });
    await collectGpu();
  }
  profile.on = false;
  return [...profile.kernels].map(([name, { milliseconds, calls: count }]) => ({
    name,
    milliseconds: milliseconds / calls,
    launches: count / calls,
  }));
}

timeGpu();
timeWasm();
bench.profiled = profiled;
