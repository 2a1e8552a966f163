/* Bindings: from operands to places, from places to cpu memory. */

#include "model.h"

static const char *const kind_names[ER_KIND_COUNT] = {"input", "weight", "slab"};

/* How many bytes the host keeps for what the place names. */
static uint32_t capacity(const ErModel *m, uint32_t kind, uint32_t index) {
  switch ((ErKind)kind) {
    case ER_KIND_INPUT:
      return m->inputs[index].bytes;
    case ER_KIND_WEIGHT:
      return m->weight_rows[index].bytes;
    default:
      return m->slabs[index].bytes;
  }
}

/* On the gpu buffers and bindings have whole words. */
static uint64_t whole_words(uint64_t bytes) {
  return (bytes + 3) / 4 * 4;
}

static bool fits(ErModel *m, const ErPlace *place, uint64_t room) {
  if ((uint64_t)place->offset + place->bytes <= room) return true;
  return er_fail(m, ER_ERROR_BINDING, "bytes %u to %i of %s %u, which has %i", place->offset,
                 (int64_t)place->offset + place->bytes, kind_names[place->kind], place->index,
                 (int64_t)room);
}

bool er_place(ErModel *m, ErDevice device, const uint32_t *binding, const int64_t *r,
              ErPlace *place) {
  const int64_t offset = binding[2] == ER_NO_REGISTER ? 0 : r[binding[2]];
  const int64_t bytes = r[binding[3]];
  const uint32_t kind = binding[0], index = binding[1];
  if (offset < 0 || bytes < 0 || offset > UINT32_MAX - 3 || bytes > UINT32_MAX - 3)
    return er_fail(m, ER_ERROR_VALUE, "%i bytes from %i of %s %u", bytes, offset, kind_names[kind],
                   index);
  uint64_t room = capacity(m, kind, index);
  *place = (ErPlace){kind, index, (uint32_t)offset, (uint32_t)bytes};
  if (device == ER_DEVICE_GPU) {
    room = whole_words(room);
    place->bytes = (uint32_t)whole_words(place->bytes);
  }
  return fits(m, place, room);
}

bool er_aligned(ErModel *m, const ErPlace *place, uint32_t alignment) {
  if (place->offset % alignment == 0) return true;
  return er_fail(m, ER_ERROR_BINDING, "offset %u of %s %u is not a multiple of %u", place->offset,
                 kind_names[place->kind], place->index, alignment);
}

/* The memory of a place on the cpu. A recorded place may be too large for this run's input. */
bool er_data(ErModel *m, const ErPlace *place, uint8_t **data) {
  if (!fits(m, place, capacity(m, place->kind, place->index))) return false;
  const void *start;
  switch ((ErKind)place->kind) {
    case ER_KIND_INPUT:
      start = m->inputs[place->index].pointer;
      break;
    case ER_KIND_WEIGHT:
      start = m->weights[place->index];
      break;
    default:
      start = m->slabs[place->index].data;
  }
  if (!start && place->bytes)
    return er_fail(m, ER_ERROR_USAGE, "%s %u has no bytes on the cpu", kind_names[place->kind],
                   place->index);
  *data = start ? (uint8_t *)(uintptr_t)start + place->offset : NULL;
  return true;
}
