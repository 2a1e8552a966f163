/* The calls of er.h. */

#include <stdlib.h>
#include <string.h>

#include "model.h"

static char open_error[ER_ERROR_SIZE];
static ErError open_error_kind;

uint32_t er_version(void) {
  return ER_VERSION;
}

static ErModel *refuse(ErError kind, const char *text) {
  open_error_kind = kind;
  memmove(open_error, text, strlen(text) + 1);
  return NULL;
}

ErModel *er_open(const uint8_t *program, uint32_t length) {
  ErModel *m = calloc(1, sizeof *m);
  if (!m) return refuse(ER_ERROR_MEMORY, "no memory for a model");
  m->budget = (int64_t)1 << 32;
  m->needs_reset = true;
  if (er_load(m, program, length)) return m;
  refuse(m->error_kind, m->error);
  er_close(m);
  return NULL;
}

void er_close(ErModel *m) {
  if (!m) return;
  er_drop_reads(m);
  for (uint32_t k = 0; m->slabs && k < m->slab_count; k++) free(m->slabs[k].data);
  for (uint32_t k = 0; m->regions && k < m->region_count; k++)
    for (uint32_t slot = 0; slot < m->regions[k].list_count; slot++)
      er_free_list(m->regions[k].lists[slot]);
  free(m->strings);
  free(m->functions);
  free((void *)m->weights);
  free(m->slabs);
  free(m->inputs);
  free(m->outputs);
  free(m->regions);
  free(m->registers);
  free(m->commands.at);
  free(m->scratch.at);
  free(m->program);
  free(m);
}

uint32_t er_weight_places(const ErModel *m, uint32_t k) {
  return k < m->weight_count ? m->weight_rows[k].places : 0;
}

uint32_t er_weight_bytes(const ErModel *m, uint32_t k) {
  return k < m->weight_count ? m->weight_rows[k].bytes : 0;
}

uint32_t er_input_places(const ErModel *m, uint32_t function, uint32_t k) {
  if (function >= m->function_count || k >= m->functions[function].row->inputs) return 0;
  return m->functions[function].inputs[k].places;
}

static ErStatus told(bool good) {
  return good ? ER_DONE : ER_ERROR;
}

ErStatus er_set_weight(ErModel *m, uint32_t k, const void *bytes) {
  if (k >= m->weight_count)
    return told(er_fail(m, ER_ERROR_USAGE, "weight %u of %u", k, m->weight_count));
  m->weights[k] = bytes;
  return ER_DONE;
}

ErStatus er_set_kernels(ErModel *m, uint32_t base, uint32_t count) {
  for (uint32_t k = 0; k < m->kernel_count; k++)
    if (m->kernels[k].device == ER_DEVICE_CPU && m->kernels[k].index >= count)
      return told(er_fail(m, ER_ERROR_FORMAT, "the program needs cpu kernel %u; there are %u",
                          m->kernels[k].index, count));
  m->kernel_base = base;
  m->cpu_kernels = count;
  return ER_DONE;
}

void er_set_budget(ErModel *m, double steps) {
  m->budget = steps >= 1 && steps < 9e18 ? (int64_t)steps : INT64_MAX;
}

ErInput *er_input(ErModel *m, uint32_t k) {
  return k < m->input_count ? &m->inputs[k] : NULL;
}

static bool check_input(ErModel *m, const ErFunction *f, uint32_t k) {
  const ErInputRow *row = &f->inputs[k];
  const ErInput *input = &m->inputs[k];
  const ErText name = m->strings[row->name];
  if (input->dtype != row->dtype)
    return er_fail(m, ER_ERROR_INPUT, "input '%q' has dtype %s; it must be %s", name,
                   input->dtype < ER_DTYPE_COUNT ? er_dtypes[input->dtype].name : "unknown",
                   er_dtypes[row->dtype].name);
  if (input->rank > ER_MAX_RANK)
    return er_fail(m, ER_ERROR_INPUT, "input '%q' has rank %u of at most %u", name, input->rank,
                   ER_MAX_RANK);
  if (row->rank != ER_ANY_RANK && input->rank != row->rank)
    return er_fail(m, ER_ERROR_INPUT, "input '%q' has rank %u; it must be %u", name, input->rank,
                   row->rank);
  uint64_t elements = 1;
  bool empty = false;
  for (uint32_t d = 0; d < input->rank; d++) {
    if (input->dims[d] < 0)
      return er_fail(m, ER_ERROR_INPUT, "dimension %u of input '%q' is %i", d, name,
                     (int64_t)input->dims[d]);
    if (input->dims[d] == 0) empty = true;
    elements *= (uint64_t)input->dims[d];
    if (elements > UINT32_MAX && !empty) break; /* more than any host has */
  }
  const uint64_t bytes = empty ? 0 : elements * ((er_dtypes[row->dtype].bits + 7) / 8);
  if (bytes > input->bytes)
    return er_fail(m, ER_ERROR_INPUT, "input '%q' has %u bytes; its shape needs %i", name,
                   input->bytes, (int64_t)bytes);
  if (bytes && !input->pointer && (row->places >> ER_DEVICE_CPU & 1))
    return er_fail(m, ER_ERROR_USAGE, "input '%q' has no bytes on the cpu", name);
  return true;
}

/* Makes the host forget what it and the VM may no longer agree on. */
static bool reset(ErModel *m) {
  m->needs_reset = false;
  if (!m->uses_gpu) return true;
  er_forget_gpu_lists(m, false);
  uint32_t *at = er_push(m, &m->commands, 1);
  if (!at) return false;
  at[0] = ER_COMMAND_RESET | 1 << 8;
  for (uint32_t k = 0; k < m->slab_count; k++)
    if (m->slab_rows[k].device == ER_DEVICE_GPU) m->slabs[k].bytes = 0;
  m->stats[ER_STAT_GPU_SLAB_BYTES] = 0;
  return true;
}

static bool start(ErModel *m, uint32_t function) {
  if (function >= m->function_count)
    return er_fail(m, ER_ERROR_USAGE, "function %u of %u", function, m->function_count);
  const ErFunction *f = &m->functions[function];
  if (f->row->parameters || f->row->results)
    return er_fail(m, ER_ERROR_USAGE,
                   "function '%q' takes or gives registers: only calls can run it",
                   m->strings[f->row->name]);
  for (uint32_t k = 0; k < f->row->inputs; k++)
    if (!check_input(m, f, k)) return false;
  if (m->needs_reset && !reset(m)) return false;
  for (uint32_t k = 0; k < m->slab_count; k++)
    if (!er_ensure(m, k, m->slab_rows[k].bytes)) return false;
  for (uint32_t k = 0; k < m->output_count; k++) m->outputs[k].rank = ER_ANY_RANK;
  m->steps_left = m->budget;
  return er_begin(m, f);
}

/* A failed run leaves no commands: the next begins with a reset. */
static ErStatus settle(ErModel *m, ErStatus status) {
  m->state = status == ER_NEED_READ || status == ER_FLUSH ? ER_STATE_WAITING : ER_STATE_IDLE;
  if (status == ER_ERROR) er_cancel(m);
  return status;
}

ErStatus er_run(ErModel *m, uint32_t function) {
  if (m->state != ER_STATE_IDLE)
    return told(er_fail(m, ER_ERROR_USAGE, "a run of this model waits: resume or cancel it first"));
  m->commands.length = 0;
  m->reads = m->uploads = false;
  if (!start(m, function)) return settle(m, ER_ERROR);
  m->state = ER_STATE_RUNNING;
  return settle(m, er_execute(m));
}

ErStatus er_resume(ErModel *m) {
  if (m->state != ER_STATE_WAITING)
    return told(er_fail(m, ER_ERROR_USAGE, "no run of this model waits"));
  m->state = ER_STATE_RUNNING;
  m->commands.length = 0;
  m->reads = m->uploads = false;
  if (!er_finish_reads(m, m->registers + m->frames[m->depth - 1].base)) return settle(m, ER_ERROR);
  return settle(m, er_execute(m));
}

void er_cancel(ErModel *m) {
  er_settle(); /* a trap may have left helpers at work */
  er_drop_reads(m);
  er_drop_recording(m);
  m->state = ER_STATE_IDLE;
  m->commands.length = 0;
  m->needs_reset = true;
}

const uint32_t *er_commands(const ErModel *m) {
  return m->commands.at;
}

uint32_t er_commands_length(const ErModel *m) {
  return m->commands.length;
}

const ErOutput *er_output(const ErModel *m, uint32_t k) {
  return k < m->output_count ? &m->outputs[k] : NULL;
}

const double *er_stats(ErModel *m) {
  return m->stats;
}

const char *er_error(const ErModel *m) {
  return m ? m->error : open_error;
}

ErError er_error_kind(const ErModel *m) {
  return m ? m->error_kind : open_error_kind;
}
