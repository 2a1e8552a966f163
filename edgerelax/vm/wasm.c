/* What only the wasm build has: calls of kernels, through the function table, and memory growth. */

#include "model.h"

typedef void Kernel(uint32_t arguments, uint32_t begin, uint32_t end);

void er_call_kernel(uint32_t slot, const ErSpan *buffers, uint32_t buffer_count,
                    const int32_t *scalars, uint32_t scalar_count) {
  uint32_t arguments[ER_MAX_BUFFERS + ER_MAX_SCALARS + 1];
  uint32_t *at = arguments;
  for (uint32_t k = 0; k < buffer_count; k++) *at++ = (uint32_t)(uintptr_t)buffers[k].data;
  for (uint32_t k = 0; k < scalar_count; k++) *at++ = (uint32_t)scalars[k];
  Kernel *kernel = (Kernel *)(uintptr_t)slot;
  kernel((uint32_t)(uintptr_t)arguments, 0, (uint32_t)scalars[0]);
}

/* Emscripten tells the host when memory has grown; our hosts look for themselves. */
void emscripten_notify_memory_growth(size_t memory);

void emscripten_notify_memory_growth(size_t memory) {
  (void)memory;
}
