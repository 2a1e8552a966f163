import { defineConfig } from 'vitest/config';

/** What loadChat and loadTranscriber fetch each, and the tokenizer that both need. */
function nameOf({ facadeModuleId }) {
  const [, part = 'text'] = /src\/(\w+)\/load\.ts$/.exec(facadeModuleId ?? '') ?? [];
  return `edgerelax-${part}.js`;
}

export default defineConfig({
  build: {
    lib: { entry: 'src/index.ts', formats: ['es'], fileName: () => 'edgerelax.js' },
    target: 'es2022',
    emptyOutDir: true,
    sourcemap: false,
    rollupOptions: {
      preserveEntrySignatures: 'allow-extension', // the other files import from the main one
      output: { chunkFileNames: nameOf },
    },
  },
  test: {
    testTimeout: 30_000, // xgrammar alone takes seconds to be read
    server: { deps: { inline: ['@mlc-ai/web-xgrammar'] } }, // a script that Node can't import
  },
});
