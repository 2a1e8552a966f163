/* The cpu device: runs the words of commands, fresh or recorded. */

#include <string.h>

#include "model.h"

enum { BYTES_PER_STEP = 64 }; /* how the run's budget is charged */

static bool run_dispatch(ErModel *m, const uint32_t *words) {
  const ErKernelRow *kernel = &m->kernels[words[1]];
  const uint32_t count = kernel->buffers;
  const ErPlace *places = (const ErPlace *)(words + 3);
  const uint32_t *scalars = words + 3 + count * (sizeof(ErPlace) / sizeof *words);
  ErSpan buffers[ER_MAX_BUFFERS];
  if (kernel->index >= m->cpu_kernels)
    return er_fail(m, ER_ERROR_USAGE, "cpu kernel %u: the host has set %u", kernel->index,
                   m->cpu_kernels);
  for (uint32_t k = 0; k < count; k++) {
    uint8_t *data = NULL;
    if (!er_data(m, &places[k], &data)) return false;
    buffers[k] = (ErSpan){data, places[k].bytes};
  }
  return er_call_kernel(m, kernel, buffers, (const int32_t *)(scalars + 1));
}

static bool run_copy(ErModel *m, const uint32_t *words) {
  const ErPlace *places = (const ErPlace *)(words + 1);
  uint8_t *dst = NULL, *src = NULL;
  if (!er_data(m, &places[0], &dst) || !er_data(m, &places[1], &src)) return false;
  m->steps_left -= places[0].bytes / BYTES_PER_STEP;
  memmove(dst, src, places[0].bytes);
  return true;
}

static bool run_fill(ErModel *m, const uint32_t *words) {
  const ErPlace *place = (const ErPlace *)(words + 1);
  const uint32_t word = words[5];
  uint8_t *dst = NULL;
  if (!er_data(m, place, &dst)) return false;
  m->steps_left -= place->bytes / BYTES_PER_STEP;
  if (word == (word & 255) * 0x01010101u)
    memset(dst, (int)(word & 255), place->bytes);
  else
    for (uint32_t k = 0; k < place->bytes; k++) dst[k] = (uint8_t)(word >> 8 * (k % 4));
  return true;
}

bool er_run_cpu(ErModel *m, const uint32_t *all, uint32_t length) {
  for (uint32_t at = 0; at < length; at += all[at] >> 8) {
    const uint32_t *words = all + at;
    bool good;
    m->steps_left--;
    switch ((ErCommand)(*words & 255)) {
      case ER_COMMAND_DISPATCH:
        good = run_dispatch(m, words);
        break;
      case ER_COMMAND_COPY:
        good = run_copy(m, words);
        break;
      default:
        good = run_fill(m, words);
    }
    if (!good) return false;
  }
  return true;
}
