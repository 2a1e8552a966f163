/** A small manifest with one of everything, for tests to damage. */

export const HASH = 'ab'.repeat(32);

export function sound(): Record<string, unknown> {
  return {
    format: 'edgerelax',
    version: 7,
    producer: 'a test',
    source: { file: 'net.onnx', kind: 'onnx', sha256: HASH, metadata: { author: 'me' } },
    symbols: { n: { lo: 1, hi: 64, multiple_of: 1 }, m: { lo: 0, hi: null, multiple_of: 4 } },
    functions: [
      {
        name: 'main',
        inputs: [{ name: 'x', dtype: 'f32', shape: ['n', 16] }],
        outputs: [{ name: 'y', dtype: 'f32', shape: null }],
        states: ['cache'],
      },
    ],
    states: [{ name: 'cache', dtype: 'f32', shape: ['m', 4] }],
    programs: [
      {
        name: 'gpu',
        device: 'gpu',
        adapter: 'gpu',
        needs: { features: [], limits: { maxBufferSize: 1 } },
        program: 'program-gpu.bin',
        gpu_kernels: [
          {
            name: 'add',
            file: 'kernels-gpu.wgsl',
            start: 0,
            end: 100,
            buffers: ['read', 'read_write'],
            scalars: 1,
            features: ['shader-f16'],
          },
        ],
        cpu_kernels: ['add'],
        cpu_kernels_file: 'kernels-gpu.wasm',
        libraries: [
          {
            function: 'my.add',
            device: 'cpu',
            inputs: [{ dtype: 'f32', rank: 2 }],
            outputs: [{ dtype: 'f32', rank: 2 }],
            attrs: { axis: 1 },
          },
        ],
        weights_on_gpu: [0],
        weights_on_cpu: [],
        memory: { slabs: [], planned: null, lower_bound: 0, unplanned: 0 },
      },
    ],
    vm: 'vm.wasm',
    weights: [
      {
        name: 'w',
        dtype: 'f32',
        stored: null,
        shape: [4],
        bytes: 16,
        parts: [
          { file: 'weights.safetensors', offset: 64, bytes: 8 },
          { file: 'weights.safetensors', offset: 80, bytes: 8 },
        ],
      },
    ],
    files: {
      'vm.wasm': { bytes: 10, sha256: HASH },
      'kernels-gpu.wasm': { bytes: 10, sha256: HASH },
      'kernels-gpu.wgsl': { bytes: 100, sha256: HASH },
      'program-gpu.bin': { bytes: 10, sha256: HASH },
      'weights.safetensors': { bytes: 88, sha256: HASH },
      'tokenizer.json': { bytes: 10, sha256: HASH },
      'chat.json': { bytes: 10, sha256: HASH },
    },
    assets: ['tokenizer.json', 'chat.json'],
    language: {
      architecture: 'llama',
      vocabulary: 512,
      context: 64,
      functions: { step: 'main' },
      page_size: 16,
      window: null,
      tokenizer: 'tokenizer.json',
      chat: 'chat.json',
      bos: 1,
      eos: [2, 3],
    },
  };
}
