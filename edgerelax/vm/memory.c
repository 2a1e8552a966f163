/* The heap as the VM uses it: zeroed blocks, growable words, slabs. */

#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { ALIGNMENT = 16 };

void *er_alloc(uint32_t bytes) {
  if (bytes > UINT32_MAX - 2 * ALIGNMENT) return NULL;
  const uint32_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return aligned_alloc(ALIGNMENT, rounded ? rounded : ALIGNMENT);
}

void er_free(void *pointer) {
  free(pointer);
}

void *er_new(ErModel *m, uint64_t count, uint64_t size) {
  const uint64_t bytes = count * size; /* both come from 32-bit numbers */
  void *block = bytes <= SIZE_MAX ? calloc(count ? (size_t)count : 1, (size_t)size) : NULL;
  if (!block) er_fail(m, ER_ERROR_MEMORY, "no memory for %i bytes", (int64_t)bytes);
  return block;
}

/* Room for `count` more words, counted as used. */
uint32_t *er_push(ErModel *m, ErWords *words, uint32_t count) {
  const uint64_t needed = (uint64_t)words->length + count;
  if (needed > words->capacity) {
    uint64_t capacity = words->capacity ? (uint64_t)words->capacity * 2 : 256;
    if (capacity < needed) capacity = needed;
    const uint64_t bytes = capacity * sizeof *words->at;
    uint32_t *grown = bytes <= UINT32_MAX ? realloc(words->at, (size_t)bytes) : NULL;
    if (!grown) {
      er_fail(m, ER_ERROR_MEMORY, "no memory for %i bytes of commands", (int64_t)bytes);
      return NULL;
    }
    words->at = grown;
    words->capacity = (uint32_t)capacity;
  }
  words->length = (uint32_t)needed;
  return words->at + needed - count;
}

/* What is new in a slab holds anything. */
static bool grow_cpu(ErModel *m, uint32_t slab, uint32_t bytes) {
  ErSpan *span = &m->slabs[slab];
  const ErSpan old = *span;
  const bool keeps = m->slab_rows[slab].keeps;
  if (!keeps) { /* first, so that the new one may lie there */
    free(old.data);
    *span = (ErSpan){NULL, 0};
    m->stats[ER_STAT_CPU_SLAB_BYTES] -= old.bytes;
  }
  uint8_t *grown = er_alloc(bytes);
  if (!grown) return er_fail(m, ER_ERROR_MEMORY, "no memory for slab %u: %u bytes", slab, bytes);
  if (keeps && old.bytes) memcpy(grown, old.data, old.bytes);
  if (keeps) free(old.data);
  m->stats[ER_STAT_CPU_SLAB_BYTES] += bytes - span->bytes;
  *span = (ErSpan){grown, bytes};
  return true;
}

static bool grow_gpu(ErModel *m, uint32_t slab, uint32_t bytes) {
  if (!er_forget_gpu_lists(m, true)) return false;
  uint32_t *words = er_push(m, &m->commands, 4);
  if (!words) return false;
  words[0] = ER_COMMAND_ENSURE | 4 << 8;
  words[1] = slab;
  words[2] = bytes;
  words[3] = m->slab_rows[slab].keeps;
  m->stats[ER_STAT_GPU_SLAB_BYTES] += bytes - m->slabs[slab].bytes;
  m->slabs[slab].bytes = bytes;
  return true;
}

bool er_ensure(ErModel *m, uint32_t slab, int64_t bytes) {
  if (bytes < 0 || bytes > UINT32_MAX - 3)
    return er_fail(m, ER_ERROR_VALUE, "slab %u of %i bytes: at most 4294967292", slab, bytes);
  const uint32_t rounded = ((uint32_t)bytes + 3) / 4 * 4;
  if (rounded <= m->slabs[slab].bytes) return true;
  const bool gpu = m->slab_rows[slab].device == ER_DEVICE_GPU;
  return gpu ? grow_gpu(m, slab, rounded) : grow_cpu(m, slab, rounded);
}
