/* What only the wasm build has: calls of kernels, through the function table, threads that wait, and
   memory growth. */

#include "model.h"

typedef void Kernel(uint32_t arguments, uint32_t begin, uint32_t end);

void er_call_range(const ErJob *job, uint32_t begin, uint32_t end) {
  Kernel *kernel = (Kernel *)(uintptr_t)job->slot;
  kernel((uint32_t)(uintptr_t)job->arguments, begin, end);
}

bool er_call_kernel(ErModel *m, const ErKernelRow *kernel, const ErSpan *buffers,
                    const int32_t *scalars) {
  /* Not on the stack: a trap of the caller takes that back while helpers still read. */
  static uint32_t arguments[ER_MAX_BUFFERS + ER_MAX_SCALARS + 1];
  uint32_t *at = arguments, helped;
  for (uint32_t k = 0; k < kernel->buffers; k++) *at++ = (uint32_t)(uintptr_t)buffers[k].data;
  for (uint32_t k = 0; k <= kernel->scalars; k++) *at++ = (uint32_t)scalars[k];
  const uint32_t steps = kernel->steps ? (uint32_t)scalars[kernel->steps] : 0;
  const ErJob job = {m->kernel_base + kernel->index, arguments, (uint32_t)scalars[0], steps};
  const bool good = er_share(&job, &helped);
  m->stats[ER_STAT_HELPED_PIECES] += helped;
  return good || er_fail(m, ER_ERROR_TRAP, "cpu kernel %u trapped in a helper", kernel->index);
}

void er_wait(_Atomic uint32_t *at, uint32_t expected) {
  __builtin_wasm_memory_atomic_wait32((int *)at, (int)expected, -1);
}

void er_wake(_Atomic uint32_t *at) {
  __builtin_wasm_memory_atomic_notify((int *)at, UINT32_MAX);
}

/* Emscripten tells the host when memory has grown; our hosts look for themselves. */
void emscripten_notify_memory_growth(size_t memory);

void emscripten_notify_memory_growth(size_t memory) {
  (void)memory;
}
