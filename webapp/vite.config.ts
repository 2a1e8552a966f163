import { fileURLToPath } from 'node:url';
import type { Plugin } from 'vite';
import { defineConfig } from 'vitest/config';

const POLICY = [
  "default-src 'self'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "img-src 'self' blob: data:",
  "media-src 'self' blob:",
  "worker-src 'self' blob:", // threads of the networks
  "object-src 'none'",
  "base-uri 'self'",
].join('; ');

/** The built page forbids itself what it does not need. In development Vite needs more. */
const contentPolicy: Plugin = {
  name: 'content-policy',
  apply: 'build',
  transformIndexHtml: () => [
    {
      tag: 'meta',
      attrs: { 'http-equiv': 'Content-Security-Policy', content: POLICY },
      injectTo: 'head-prepend',
    },
  ],
};

/** With these a page may share memory among threads. A server of the built page sends them too. */
const ISOLATION = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
};

export default defineConfig({
  base: './', // any folder of any server
  server: { headers: ISOLATION },
  preview: { headers: ISOLATION },
  build: { target: 'es2022', rollupOptions: { input: ['index.html', 'chat.html'] } },
  worker: { format: 'es' },
  plugins: [contentPolicy],
  test: {
    testTimeout: 30_000,
    alias: { edgerelax: fileURLToPath(new URL('../runtime-js/src/index.ts', import.meta.url)) },
  },
});
