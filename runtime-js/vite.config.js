import { defineConfig } from 'vite';

export default defineConfig({
  build: {
    lib: { entry: 'src/index.ts', formats: ['es'], fileName: () => 'edgerelax.js' },
    target: 'es2022',
    emptyOutDir: true,
    sourcemap: false,
  },
});
