import { defineConfig } from 'vitest/config';

export default defineConfig({
  build: {
    lib: { entry: 'src/index.ts', formats: ['es'], fileName: () => 'edgerelax.js' },
    target: 'es2022',
    emptyOutDir: true,
    sourcemap: false,
    rollupOptions: {
      preserveEntrySignatures: 'allow-extension', // the chat's file imports from the main one
      output: { chunkFileNames: 'edgerelax-chat.js' },
    },
  },
  test: {
    testTimeout: 30_000, // xgrammar alone takes seconds to be read
    server: { deps: { inline: ['@mlc-ai/web-xgrammar'] } }, // a script that Node can't import
  },
});
