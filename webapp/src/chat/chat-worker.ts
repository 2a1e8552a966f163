/** Runs the model apart from the page, which stays responsive while it thinks. */

import { capabilities, loadChat, seesImages } from 'edgerelax';
import { serve } from './serve.ts';

serve(globalThis as never, (folder, loading) => loadChat(folder, loading), seesImages);

void capabilities().then(({ webgpu, software, description }) =>
  globalThis.postMessage({ type: 'adapter', adapter: { webgpu, software, description } }),
);
