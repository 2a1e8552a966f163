/** Runs the tools apart from the page, which stays responsive while a network works. */

import { capabilities } from 'edgerelax';
import { codeOf } from './failure.ts';
import { type Tool, TOOLS } from './networks.ts';
import type { Reply, Request, RunRequest, ToolName, Tools } from './protocol.ts';
import { kernelCount, type Loaded } from './shelf.ts';

const running = new Map<number, AbortController>();
let turn: Promise<unknown> = Promise.resolve();

const reply = (message: Reply): void => globalThis.postMessage(message);

addEventListener('message', ({ data }: MessageEvent<Request>) => {
  if (data.type === 'cancel') {
    running.get(data.id)?.abort();
    return;
  }
  const controller = new AbortController();
  running.set(data.id, controller);
  turn = turn.then(() => answer(data, TOOLS[data.tool] as Tool<ToolName>, controller.signal));
});

void capabilities().then(({ webgpu, software, description }) =>
  reply({ type: 'adapter', adapter: { webgpu, software, description } }),
);

async function answer<T extends ToolName>(
  request: RunRequest<T>,
  tool: Tool<T>,
  signal: AbortSignal,
): Promise<void> {
  const { id, backend } = request;
  try {
    const loaded = await tool.shelf.take({
      backend,
      folder: request.models,
      signal,
      onProgress: (progress) => reply({ type: 'progress', id, progress }),
    });
    const onStage = (done: number, all: number): void =>
      reply({ type: 'progress', id, progress: { phase: 'run', loaded: done, total: all } });
    onStage(0, 0);
    const start = performance.now();
    const result: Tools[ToolName]['result'] = await tool.run(
      loaded,
      request.input,
      signal,
      onStage,
    );
    const milliseconds = performance.now() - start;
    reply({ type: 'result', id, result, facts: { milliseconds, ...factsOf(loaded, backend) } });
  } catch (error) {
    const code = codeOf(error);
    if (code === 'lost' || code === 'vm') await tool.shelf.clear(); // the next run loads anew
    reply({
      type: 'error',
      id,
      code,
      message: error instanceof Error ? error.message : String(error),
    });
  } finally {
    running.delete(id);
  }
}

function factsOf(loaded: Loaded, backend: RunRequest<ToolName>['backend']) {
  const models = [...loaded.models.values()];
  const sum = (of: (model: (typeof models)[number]) => number): number =>
    models.reduce((total, model) => total + of(model), 0);
  return {
    backend,
    downloadBytes: loaded.downloadBytes,
    kernels: sum((model) => kernelCount(model)),
    memoryBytes: sum((model) => model.stats().bufferBytes + model.stats().vmBytes),
  };
}
