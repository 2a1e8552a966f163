/** Language models in the page of page.js: its hooks count, here tokens are generated and timed. */
'use strict';

const GREEDY = {
  temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0,
  frequencyPenalty: 0, logitBias: new Map(), seed: 0,
}; // prettier-ignore

/**
 * Ways to load a model. `generate` calls `told(id)` for each token, greedily; `forget` makes room in a
 * cache of prompts, so that a prompt is computed anew; `launches` so far, where it can be told.
 */
const ENGINES = {
  async edgerelax({ script, model, backend, room }) {
    const { loadEngine } = await import(script);
    const engine = await loadEngine(model, { backend, threads: 1, cacheTokens: room });
    const write = async (prompt, limit, inFlight, told, onPrompt) => {
      const { signal } = new AbortController();
      const options = { limit, inFlight, signal, onPrompt };
      for await (const { id } of engine.generate(prompt, GREEDY, options)) told(id);
    };
    const generate = (prompt, limit, inFlight, told) =>
      write(prompt, limit, inFlight, told, (reused) => {
        if (reused) throw new Error(`${reused} tokens of the prompt were in the cache`);
      });
    const forget = async (prompt) => {
      const other = Array.from({ length: engine.context - 1 }, (_, k) => prompt.at(-1 - (k % prompt.length)));
      await write(other, 1, 1, () => undefined, () => undefined); // takes all pages
    };
    const launches = () => (backend === 'wasm' ? engine.stats().launches : counters.launches);
    return { generate, forget, launches };
  },
  async transformers({ script, model, backend, dtype }) {
    const { AutoModelForCausalLM, Tensor, env } = await import(script);
    Object.assign(env, { allowLocalModels: true, allowRemoteModels: false, localModelPath: '/' });
    env.useBrowserCache = false;
    env.backends.onnx.wasm.wasmPaths = new URL('/rival-ort/', location.href).href;
    env.backends.onnx.wasm.numThreads = 1;
    const options = { device: backend, dtype, use_external_data_format: true };
    const loaded = await AutoModelForCausalLM.from_pretrained(model, options);
    const generate = async (prompt, limit, _, told) => {
      const shape = [1, prompt.length];
      let begun = false;
      await loaded.generate({
        input_ids: new Tensor('int64', BigInt64Array.from(prompt, BigInt), shape),
        attention_mask: new Tensor('int64', new BigInt64Array(prompt.length).fill(1n), shape),
        max_new_tokens: limit,
        min_new_tokens: limit,
        do_sample: false,
        streamer: {
          put([ids]) {
            if (begun) told(Number(ids[0])); // the prompt comes first
            begun = true;
          },
          end() {},
        },
      });
    };
    const launches = () => (backend === 'wasm' ? null : counters.launches);
    return { generate, forget: async () => undefined, launches };
  },
};

let engine;

/** Loads library and model: milliseconds from before the script is fetched. */
async function open(config) {
  const begun = performance.now();
  engine = await ENGINES[config.library](config);
  return { milliseconds: performance.now() - begun };
}

/** Makes room, so that the prompt is computed anew. */
async function forget(prompt) {
  await engine.forget(prompt);
}

/** Generates: of each token its id, when it was there, what was launched until then; all launches. */
async function tokens({ prompt, limit, inFlight }) {
  const before = engine.launches();
  const since = () => (before === null ? null : engine.launches() - before);
  const begun = performance.now();
  const found = [];
  await engine.generate(prompt, limit, inFlight, (id) => {
    found.push({ id, milliseconds: performance.now() - begun, launches: since() });
  });
  return { tokens: found, launches: since() };
}

globalThis.language = { open, forget, tokens };
