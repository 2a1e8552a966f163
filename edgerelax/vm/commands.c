/* Commands: from an instruction's operands to words of the command list.

   Every device command is first written as words: to the command list for the gpu, to the list
   being recorded or a scratch buffer for the cpu, where it then runs at once. */

#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { PLACE = sizeof(ErPlace) / sizeof(uint32_t), BINDING = 4 };

static ErWords *target(ErModel *m, ErDevice device) {
  if (device == ER_DEVICE_GPU) return &m->commands;
  if (m->recording) return &m->recording->words;
  m->scratch.length = 0;
  return &m->scratch;
}

/* A new command of `count` words, the first filled in. */
static uint32_t *command(ErModel *m, ErWords *words, ErCommand kind, uint32_t count) {
  uint32_t *at = er_push(m, words, count);
  if (at) at[0] = (uint32_t)kind | count << 8;
  return at;
}

static void put_address(uint32_t *at, const void *pointer) {
  const uint64_t address = (uint64_t)(uintptr_t)pointer;
  at[0] = (uint32_t)address;
  at[1] = (uint32_t)(address >> 32);
}

static bool fits_i32(ErModel *m, int64_t value, const char *what) {
  if (value >= INT32_MIN && value <= INT32_MAX) return true;
  return er_fail(m, ER_ERROR_VALUE, "%s %i passes 32 bits", what, value);
}

/* The scalars, range checked; those the region calls late are noted in the list being recorded. */
static bool put_scalars(ErModel *m, ErWords *words, uint32_t at, const uint32_t *regs,
                        uint32_t count, uint32_t first, const int64_t *r) {
  for (uint32_t k = 0; k < count; k++) {
    if (!fits_i32(m, r[regs[k]], "scalar")) return false;
    words->at[at + k] = (uint32_t)(int32_t)r[regs[k]];
    if (m->recording && !er_note_late(m, regs[k], first + k, at + k)) return false;
  }
  return true;
}

static bool apart(ErModel *m, const ErPlace *places, uint32_t count) {
  for (uint32_t a = 0; a < count; a++)
    for (uint32_t b = a + 1; b < count; b++) {
      const ErPlace *p = &places[a], *q = &places[b];
      if (p->kind != q->kind || p->index != q->index || p->kind == ER_KIND_WEIGHT) continue;
      if (p->bytes == 0 || q->bytes == 0) continue; /* the host binds something else */
      const uint64_t p_end = (uint64_t)p->offset + p->bytes, q_end = (uint64_t)q->offset + q->bytes;
      if (p->offset >= q_end || q->offset >= p_end) continue;
      return er_fail(m, ER_ERROR_BINDING, "buffers %u and %u overlap: %u bytes at %u and %u at %u",
                     a, b, p->bytes, p->offset, q->bytes, q->offset);
    }
  return true;
}

/* On the gpu, places bound together must be aligned and must not overlap. */
static bool put_places(ErModel *m, ErDevice device, uint32_t *at, const uint32_t *bindings,
                       uint32_t count, const int64_t *r) {
  ErPlace *places = (ErPlace *)at;
  for (uint32_t k = 0; k < count; k++) {
    if (!er_place(m, device, bindings + k * BINDING, r, &places[k])) return false;
    if (device == ER_DEVICE_GPU && !er_aligned(m, &places[k], ER_GPU_OFFSET_ALIGNMENT))
      return false;
  }
  return device == ER_DEVICE_CPU || apart(m, places, count);
}

/* On the cpu a whole command runs now; while recording it also stays in the list. */
static bool finish(ErModel *m, ErDevice device, const ErWords *words, uint32_t start) {
  return device == ER_DEVICE_GPU || er_run_cpu(m, words->at + start, words->length - start);
}

bool er_dispatch(ErModel *m, const uint32_t *operands, const int64_t *r) {
  const ErKernelRow *kernel = &m->kernels[operands[0]];
  const ErDevice device = (ErDevice)kernel->device;
  const int64_t grid = r[operands[1]];
  const uint32_t places = operands[2];
  const uint32_t *bindings = operands + 3, *scalars = bindings + places * BINDING;
  if (grid < 0) return er_fail(m, ER_ERROR_VALUE, "a grid of %i", grid);
  if (!fits_i32(m, grid, "grid")) return false;
  if (grid == 0) return true;
  ErWords *words = target(m, device);
  const uint32_t start = words->length, count = 5 + places * PLACE + scalars[0];
  uint32_t *at = command(m, words, ER_COMMAND_DISPATCH, count);
  if (!at) return false;
  at[1] = device == ER_DEVICE_CPU ? operands[0] : kernel->index;
  at[2] = places;
  if (!put_places(m, device, at + 3, bindings, places, r)) return false;
  const uint32_t tail = 3 + places * PLACE;
  at[tail] = scalars[0] + 1;
  at[tail + 1] = (uint32_t)grid;
  if (!put_scalars(m, words, start + tail + 2, scalars + 1, scalars[0], 1, r)) return false;
  if (m->recording) m->recording->dispatches++;
  m->stats[ER_STAT_DISPATCHES]++;
  return finish(m, device, words, start);
}

bool er_copy(ErModel *m, const uint32_t *operands, const int64_t *r) {
  const ErDevice device = (ErDevice)operands[0];
  ErPlace dst, src;
  if (!er_place(m, device, operands + 1, r, &dst)) return false;
  if (!er_place(m, device, operands + 1 + BINDING, r, &src)) return false;
  if (dst.bytes != src.bytes)
    return er_fail(m, ER_ERROR_BINDING, "a copy of %u bytes to %u", src.bytes, dst.bytes);
  if (r[operands[1 + BINDING + 3]] == 0) return true;
  if (device == ER_DEVICE_GPU && !(er_aligned(m, &dst, 4) && er_aligned(m, &src, 4))) return false;
  if (device == ER_DEVICE_GPU && !apart(m, (const ErPlace[]){dst, src}, 2)) return false;
  ErWords *words = target(m, device);
  const uint32_t start = words->length;
  uint32_t *at = command(m, words, ER_COMMAND_COPY, 1 + 2 * PLACE);
  if (!at) return false;
  memcpy(at + 1, &dst, sizeof dst);
  memcpy(at + 1 + PLACE, &src, sizeof src);
  return finish(m, device, words, start);
}

bool er_fill(ErModel *m, const uint32_t *operands, const int64_t *r) {
  const ErDevice device = (ErDevice)operands[0];
  ErPlace dst;
  if (!er_place(m, device, operands + 1, r, &dst)) return false;
  if (r[operands[1 + 3]] == 0) return true;
  if (device == ER_DEVICE_GPU && !er_aligned(m, &dst, 4)) return false;
  ErWords *words = target(m, device);
  const uint32_t start = words->length;
  uint32_t *at = command(m, words, ER_COMMAND_FILL, 2 + PLACE);
  if (!at) return false;
  memcpy(at + 1, &dst, sizeof dst);
  at[1 + PLACE] = operands[1 + BINDING];
  return finish(m, device, words, start);
}

bool er_library(ErModel *m, const uint32_t *operands, const int64_t *r) {
  const ErText name = m->strings[operands[0]];
  const uint32_t places = operands[1];
  const uint32_t *bindings = operands + 2, *scalars = bindings + places * BINDING;
  const uint32_t start = m->commands.length;
  uint32_t *at = command(m, &m->commands, ER_COMMAND_LIBRARY, 6 + places * PLACE + scalars[0]);
  if (!at) return false;
  at[1] = name.length;
  put_address(at + 2, name.text);
  at[4] = places;
  if (!put_places(m, ER_DEVICE_GPU, at + 5, bindings, places, r)) return false;
  const uint32_t tail = 5 + places * PLACE;
  at[tail] = scalars[0];
  if (!put_scalars(m, &m->commands, start + tail + 1, scalars + 1, scalars[0], 0, r)) return false;
  if (m->recording) m->recording->dispatches++;
  m->stats[ER_STAT_DISPATCHES]++;
  return true;
}

static bool put_transfer(ErModel *m, ErCommand kind, const ErPlace *gpu, uint32_t bytes,
                         const void *data) {
  if (!er_aligned(m, gpu, 4)) return false;
  uint32_t *at = command(m, &m->commands, kind, 4 + PLACE);
  if (!at) return false;
  memcpy(at + 1, gpu, sizeof *gpu);
  at[1 + PLACE] = bytes;
  put_address(at + 2 + PLACE, data);
  return true;
}

/* `cpu` and `gpu` are bindings of as many bytes. */
static bool transfer(ErModel *m, ErCommand kind, const uint32_t *cpu, const uint32_t *gpu,
                     const int64_t *r, bool *any) {
  ErPlace near, far;
  uint8_t *data = NULL;
  if (r[cpu[3]] != r[gpu[3]])
    return er_fail(m, ER_ERROR_BINDING, "a transfer between %i bytes and %i", r[cpu[3]], r[gpu[3]]);
  if (!er_place(m, ER_DEVICE_CPU, cpu, r, &near)) return false;
  if (!er_place(m, ER_DEVICE_GPU, gpu, r, &far)) return false;
  if (near.bytes == 0) return true;
  if (!er_data(m, &near, &data) || !put_transfer(m, kind, &far, near.bytes, data)) return false;
  *any = true;
  return true;
}

bool er_to_cpu(ErModel *m, const uint32_t *operands, const int64_t *r) {
  return transfer(m, ER_COMMAND_READ, operands, operands + BINDING, r, &m->reads);
}

bool er_to_gpu(ErModel *m, const uint32_t *operands, const int64_t *r) {
  return transfer(m, ER_COMMAND_UPLOAD, operands + BINDING, operands, r, &m->uploads);
}

/* One element as a register's value. */
static bool element(ErModel *m, const uint8_t *bytes, ErDTypeRow dtype, int64_t *value) {
  const uint32_t size = dtype.bits / 8;
  uint64_t raw = 0;
  for (uint32_t k = 0; k < size; k++) raw |= (uint64_t)bytes[k] << 8 * k;
  if (dtype.kind == ER_NUMBER_INT && size < 8 && raw >> (dtype.bits - 1))
    raw |= UINT64_MAX << dtype.bits;
  if (dtype.kind == ER_NUMBER_BOOL) raw = raw != 0;
  if (dtype.kind == ER_NUMBER_UINT && raw > INT64_MAX)
    return er_fail(m, ER_ERROR_VALUE, "a u64 value that was read passes 63 bits");
  memcpy(value, &raw, sizeof raw);
  return true;
}

static bool elements(ErModel *m, const uint8_t *bytes, uint32_t dtype, uint32_t count,
                     int64_t *dst) {
  const uint32_t size = er_dtypes[dtype].bits / 8;
  for (uint32_t k = 0; k < count; k++)
    if (!element(m, bytes + k * size, er_dtypes[dtype], &dst[k])) return false;
  return true;
}

bool er_read(ErModel *m, const uint32_t *operands, int64_t *r) {
  const uint32_t dst = operands[0], count = operands[1], dtype = operands[2];
  const ErDevice device = (ErDevice)operands[3];
  const uint32_t bytes = count * (er_dtypes[dtype].bits / 8);
  ErPlace place;
  if (!er_place(m, device, operands + 4, r, &place)) return false;
  if (place.bytes < bytes)
    return er_fail(m, ER_ERROR_BINDING, "a read of %u bytes from %u", bytes, place.bytes);
  if (device == ER_DEVICE_CPU) {
    uint8_t *data = NULL;
    return er_data(m, &place, &data) && elements(m, data, dtype, count, r + dst);
  }
  uint8_t *staging = er_new(m, bytes, 1);
  if (!staging) return false;
  m->pending[m->pending_count++] = (ErPending){dst, count, dtype, staging};
  m->reads = true;
  return put_transfer(m, ER_COMMAND_READ, &place, bytes, staging);
}

bool er_finish_reads(ErModel *m, int64_t *r) {
  bool good = true;
  for (uint32_t k = 0; k < m->pending_count && good; k++) {
    const ErPending *read = &m->pending[k];
    good = elements(m, read->bytes, read->dtype, read->count, r + read->dst);
  }
  er_drop_reads(m);
  return good;
}

void er_drop_reads(ErModel *m) {
  for (uint32_t k = 0; k < m->pending_count; k++) free(m->pending[k].bytes);
  m->pending_count = 0;
}

bool er_output_place(ErModel *m, const uint32_t *operands, const int64_t *r) {
  const uint32_t device = operands[1], rank = operands[6];
  ErOutput *output = &m->outputs[operands[0]];
  ErPlace place;
  if (!er_place(m, (ErDevice)device, operands + 2, r, &place)) return false;
  for (uint32_t k = 0; k < rank; k++) {
    const int64_t size = r[operands[7 + k]];
    if (size < 0 || size > INT32_MAX)
      return er_fail(m, ER_ERROR_VALUE, "dimension %u of result %u is %i", k, operands[0], size);
    output->dims[k] = (int32_t)size;
  }
  output->dtype = m->frames[0].function->outputs[operands[0]].dtype;
  output->rank = rank;
  output->device = device;
  output->kind = place.kind;
  output->index = place.index;
  output->offset = place.offset;
  output->bytes = (uint32_t)r[operands[2 + 3]];
  output->pointer = NULL;
  return true;
}
