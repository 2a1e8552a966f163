/* Regions: command lists kept by the values of the keys they were made for. */

#include <stdlib.h>
#include <string.h>

#include "model.h"

/* The operands of a region instruction: id, device, keys, late registers, label. */
static const uint32_t *keys_of(const uint32_t *operands) {
  return operands + 2;
}

static const uint32_t *late_of(const uint32_t *operands) {
  return operands + 3 + operands[2];
}

static bool push_command(ErModel *m, ErCommand kind, uint32_t list) {
  uint32_t *at = er_push(m, &m->commands, 2);
  if (!at) return false;
  at[0] = (uint32_t)kind | 2 << 8;
  at[1] = list;
  return true;
}

static uint32_t id_of(uint32_t region, uint32_t slot) {
  return region * ER_LISTS_PER_REGION + slot;
}

void er_free_list(ErList *list) {
  if (!list) return;
  free(list->keys);
  free(list->patches);
  free(list->words.at);
  free(list);
}

static bool same_keys(const ErList *list, const uint32_t *keys, const int64_t *r) {
  for (uint32_t k = 0; k < keys[0]; k++)
    if (list->keys[k] != r[keys[1 + k]]) return false;
  return true;
}

static bool replay(ErModel *m, ErList *list, uint32_t id, const uint32_t *late, ErDevice device,
                   const int64_t *r) {
  uint32_t *at = NULL;
  if (device == ER_DEVICE_GPU) {
    const uint32_t words = 3 + 3 * list->patch_count;
    at = er_push(m, &m->commands, words);
    if (!at) return false;
    *at++ = (uint32_t)ER_COMMAND_REPLAY | words << 8;
    *at++ = id;
    *at++ = list->patch_count;
  }
  for (uint32_t k = 0; k < list->patch_count; k++) {
    const ErPatch *patch = &list->patches[k];
    const int64_t value = r[late[1 + patch->late]];
    if (value < INT32_MIN || value > INT32_MAX)
      return er_fail(m, ER_ERROR_VALUE, "scalar %i passes 32 bits", value);
    if (at) {
      *at++ = patch->dispatch;
      *at++ = patch->scalar;
      *at++ = (uint32_t)(int32_t)value;
    } else {
      list->words.at[patch->word] = (uint32_t)(int32_t)value;
    }
  }
  m->stats[ER_STAT_LIST_HITS]++;
  m->stats[ER_STAT_DISPATCHES] += list->dispatches;
  return at || er_run_cpu(m, list->words.at, list->words.length);
}

static ErList *new_list(ErModel *m, uint32_t key_count) {
  ErList *list = er_new(m, 1, sizeof *list);
  if (!list) return NULL;
  list->keys = er_new(m, key_count, sizeof *list->keys);
  if (list->keys) return list;
  free(list);
  return NULL;
}

/* The slot to record into: a free one, a new one, or the one used longest ago. */
static bool choose(ErModel *m, uint32_t region, uint32_t key_count, uint32_t *chosen) {
  ErRegion *place = &m->regions[region];
  uint32_t slot = 0;
  for (uint32_t k = 0; k < place->list_count; k++) {
    const ErList *list = place->lists[k], *best = place->lists[slot];
    if (list->valid < best->valid || (list->valid == best->valid && list->used < best->used))
      slot = k;
  }
  const bool full = place->list_count == ER_LISTS_PER_REGION;
  if (!full && (place->list_count == 0 || place->lists[slot]->valid)) {
    ErList *list = new_list(m, key_count);
    if (!list) return false;
    slot = place->list_count++;
    place->lists[slot] = list;
  } else if (place->lists[slot]->valid) {
    place->lists[slot]->valid = false;
    m->stats[ER_STAT_LISTS_FORGOTTEN]++;
    if (place->device == ER_DEVICE_GPU && !push_command(m, ER_COMMAND_FORGET, id_of(region, slot)))
      return false;
  }
  *chosen = slot;
  return true;
}

bool er_region(ErModel *m, const uint32_t *operands, const int64_t *r, bool *replayed) {
  const uint32_t id = operands[0];
  const uint32_t *keys = keys_of(operands);
  ErRegion *region = &m->regions[id];
  region->clock++;
  for (uint32_t k = 0; k < region->list_count; k++) {
    ErList *list = region->lists[k];
    if (!list->valid || !same_keys(list, keys, r)) continue;
    list->used = region->clock;
    *replayed = true;
    return replay(m, list, id_of(id, k), late_of(operands), region->device, r);
  }
  uint32_t slot = 0;
  if (!choose(m, id, keys[0], &slot)) return false;
  if (region->device == ER_DEVICE_GPU && !push_command(m, ER_COMMAND_RECORD, id_of(id, slot)))
    return false;
  ErList *list = region->lists[slot];
  for (uint32_t k = 0; k < keys[0]; k++) list->keys[k] = r[keys[1 + k]];
  list->words.length = 0;
  list->patch_count = 0;
  list->dispatches = 0;
  list->used = region->clock;
  m->recording = list;
  m->region = operands;
  m->stats[ER_STAT_LIST_MISSES]++;
  *replayed = false;
  return true;
}

bool er_end_region(ErModel *m) {
  const uint32_t id = m->region[0];
  const ErRegion *region = &m->regions[id];
  uint32_t slot = 0;
  while (region->lists[slot] != m->recording) slot++;
  m->recording->valid = true;
  m->recording = NULL;
  return region->device == ER_DEVICE_CPU || push_command(m, ER_COMMAND_END_RECORD, id_of(id, slot));
}

bool er_note_late(ErModel *m, uint32_t reg, uint32_t scalar, uint32_t word) {
  const uint32_t *late = late_of(m->region);
  ErList *list = m->recording;
  for (uint32_t k = 0; k < late[0]; k++) {
    if (late[1 + k] != reg) continue;
    if (list->patch_count == list->patch_capacity) {
      const uint32_t capacity = list->patch_capacity ? list->patch_capacity * 2 : 16;
      ErPatch *grown = realloc(list->patches, capacity * sizeof *grown);
      if (!grown) return er_fail(m, ER_ERROR_MEMORY, "no memory for %u late scalars", capacity);
      list->patches = grown;
      list->patch_capacity = capacity;
    }
    list->patches[list->patch_count++] = (ErPatch){list->dispatches, scalar, k, word};
    return true;
  }
  return true;
}

bool er_forget_gpu_lists(ErModel *m, bool tell_host) {
  for (uint32_t id = 0; id < m->region_count; id++) {
    ErRegion *region = &m->regions[id];
    if (region->device != ER_DEVICE_GPU) continue;
    for (uint32_t slot = 0; slot < region->list_count; slot++) {
      if (!region->lists[slot]->valid) continue;
      region->lists[slot]->valid = false;
      m->stats[ER_STAT_LISTS_FORGOTTEN]++;
      if (tell_host && !push_command(m, ER_COMMAND_FORGET, id_of(id, slot))) return false;
    }
  }
  return true;
}

void er_drop_recording(ErModel *m) {
  m->recording = NULL; /* its list is not valid yet */
}
