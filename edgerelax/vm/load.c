/* Reads a program file. Everything is checked here and in verify.c; a run trusts it. */

#include <string.h>

#include "model.h"

typedef struct {
  ErModel *m;
  const char *section;
  const uint32_t *at, *end;
} Reader;

#define DTYPE(name, text, kind, bits) {text, ER_NUMBER_##kind, bits},
const ErDTypeRow er_dtypes[ER_DTYPE_COUNT] = {ER_DTYPES(DTYPE)};
#undef DTYPE

static const char *const section_names[ER_SECTION_COUNT] = {"strings", "weights",   "slabs",
                                                            "kernels", "functions", "code"};

/* The next `count` things of `words` words each; NULL past the section's end. */
static const void *take(Reader *reader, uint64_t count, uint64_t words) {
  const uint64_t left = (uint64_t)(reader->end - reader->at);
  if (count * words > left) {
    er_fail(reader->m, ER_ERROR_FORMAT, "section %s: %i words wanted, %i left", reader->section,
            (int64_t)(count * words), (int64_t)left);
    return NULL;
  }
  const uint32_t *taken = reader->at;
  reader->at += count * words;
  return taken;
}

static bool take_word(Reader *reader, uint32_t *word) {
  const uint32_t *taken = take(reader, 1, 1);
  if (taken) *word = *taken;
  return taken;
}

/* A row's field that must be below `limit`. */
static bool below(const Reader *reader, uint32_t row, const char *what, uint32_t value,
                  uint32_t limit) {
  if (value < limit) return true;
  return er_fail(reader->m, ER_ERROR_FORMAT, "section %s, row %u: %s %u of %u", reader->section,
                 row, what, value, limit);
}

static bool load_strings(Reader *reader) {
  ErModel *m = reader->m;
  if (!take_word(reader, &m->string_count)) return false;
  const uint32_t *lengths = take(reader, m->string_count, 1);
  if (!lengths) return false;
  m->strings = er_new(m, m->string_count, sizeof *m->strings);
  if (!m->strings) return false;
  const char *text = (const char *)reader->at;
  uint64_t used = 0;
  for (uint32_t k = 0; k < m->string_count; k++) {
    m->strings[k] = (ErText){text + used, lengths[k]};
    used += lengths[k];
    if (used > (uint64_t)((const char *)reader->end - text))
      return er_fail(m, ER_ERROR_FORMAT, "string %u of %u bytes leaves its section", k, lengths[k]);
  }
  return take(reader, (used + 3) / 4, 1);
}

static bool load_weights(Reader *reader) {
  ErModel *m = reader->m;
  if (!take_word(reader, &m->weight_count)) return false;
  m->weight_rows = take(reader, m->weight_count, 2);
  if (!m->weight_rows) return false;
  m->weights = er_new(m, m->weight_count, sizeof *m->weights);
  return m->weights;
}

static bool load_slabs(Reader *reader) {
  ErModel *m = reader->m;
  if (!take_word(reader, &m->slab_count)) return false;
  m->slab_rows = take(reader, m->slab_count, sizeof *m->slab_rows / 4);
  if (!m->slab_rows) return false;
  for (uint32_t k = 0; k < m->slab_count; k++) {
    const ErSlabRow *row = &m->slab_rows[k];
    if (!below(reader, k, "device", row->device, ER_DEVICE_COUNT)) return false;
    if (!below(reader, k, "keeps", row->keeps, 2)) return false;
    if (row->device == ER_DEVICE_GPU) m->uses_gpu = true;
  }
  m->slabs = er_new(m, m->slab_count, sizeof *m->slabs);
  return m->slabs;
}

static bool load_kernels(Reader *reader) {
  ErModel *m = reader->m;
  if (!take_word(reader, &m->kernel_count)) return false;
  m->kernels = take(reader, m->kernel_count, sizeof *m->kernels / 4);
  if (!m->kernels) return false;
  for (uint32_t k = 0; k < m->kernel_count; k++) {
    const ErKernelRow *row = &m->kernels[k];
    if (!below(reader, k, "device", row->device, ER_DEVICE_COUNT)) return false;
    const uint32_t scalars = row->device == ER_DEVICE_GPU ? ER_GPU_SCALARS : ER_MAX_SCALARS;
    if (!below(reader, k, "index", row->index, INT32_MAX)) return false;
    if (!below(reader, k, "buffers", row->buffers, ER_MAX_BUFFERS + 1)) return false;
    if (!below(reader, k, "scalars", row->scalars, scalars + 1)) return false;
    if (!below(reader, k, "steps", row->steps, row->scalars + 1)) return false;
  }
  return true;
}

static bool load_function(Reader *reader, uint32_t k, const uint32_t **code, uint64_t *code_left) {
  ErModel *m = reader->m;
  ErFunction *f = &m->functions[k];
  f->row = take(reader, 1, sizeof *f->row / 4);
  if (!f->row) return false;
  f->inputs = take(reader, f->row->inputs, sizeof *f->inputs / 4);
  f->outputs = f->inputs ? take(reader, f->row->outputs, sizeof *f->outputs / 4) : NULL;
  if (!f->outputs) return false;
  if (!below(reader, k, "name", f->row->name, m->string_count)) return false;
  if (!below(reader, k, "registers", f->row->registers, ER_MAX_REGISTERS + 1)) return false;
  if (!below(reader, k, "parameters", f->row->parameters, f->row->registers + 1)) return false;
  for (uint32_t i = 0; i < f->row->inputs; i++) {
    if (!below(reader, k, "input name", f->inputs[i].name, m->string_count)) return false;
    if (!below(reader, k, "input dtype", f->inputs[i].dtype, ER_DTYPE_COUNT)) return false;
    if (f->inputs[i].rank != ER_ANY_RANK &&
        !below(reader, k, "input rank", f->inputs[i].rank, ER_MAX_RANK + 1))
      return false;
  }
  for (uint32_t i = 0; i < f->row->outputs; i++) {
    if (!below(reader, k, "output name", f->outputs[i].name, m->string_count)) return false;
    if (!below(reader, k, "output dtype", f->outputs[i].dtype, ER_DTYPE_COUNT)) return false;
  }
  if (f->row->words > *code_left)
    return er_fail(m, ER_ERROR_FORMAT, "function %u: %u words of code, %i are left", k,
                   f->row->words, (int64_t)*code_left);
  f->code = *code;
  *code += f->row->words;
  *code_left -= f->row->words;
  if (f->row->inputs > m->input_count) m->input_count = f->row->inputs;
  if (f->row->outputs > m->output_count) m->output_count = f->row->outputs;
  return true;
}

static bool load_functions(Reader *reader, const uint32_t *code, uint64_t code_words) {
  ErModel *m = reader->m;
  if (!take_word(reader, &m->function_count) || !take_word(reader, &m->region_count)) return false;
  const uint64_t rows = (uint64_t)(reader->end - reader->at) / (sizeof(ErFunctionRow) / 4);
  if (m->function_count > rows)
    return er_fail(m, ER_ERROR_FORMAT, "%u functions, room for %i", m->function_count,
                   (int64_t)rows);
  if (m->region_count > code_words)
    return er_fail(m, ER_ERROR_FORMAT, "%u regions in %i words", m->region_count,
                   (int64_t)code_words);
  m->functions = er_new(m, m->function_count, sizeof *m->functions);
  m->regions = er_new(m, m->region_count, sizeof *m->regions);
  if (!m->functions || !m->regions) return false;
  for (uint32_t k = 0; k < m->region_count; k++) m->regions[k].device = ER_DEVICE_COUNT;
  for (uint32_t k = 0; k < m->function_count; k++)
    if (!load_function(reader, k, &code, &code_words)) return false;
  if (code_words)
    return er_fail(m, ER_ERROR_FORMAT, "%i words of code belong to no function",
                   (int64_t)code_words);
  m->inputs = er_new(m, m->input_count, sizeof *m->inputs);
  m->outputs = er_new(m, m->output_count, sizeof *m->outputs);
  return m->inputs && m->outputs;
}

/* Finds the sections, which stand in order and fill the file. */
static bool find_sections(ErModel *m, const uint32_t *end, Reader *sections) {
  Reader file = {m, "table", m->program + 3, end};
  for (uint32_t k = 0; k < ER_SECTION_COUNT; k++) {
    const uint32_t *head = take(&file, 2, 1);
    if (!head) return false;
    if (head[0] != k)
      return er_fail(m, ER_ERROR_FORMAT, "section %u where section %u (%s) belongs", head[0], k,
                     section_names[k]);
    if (head[1] % 4)
      return er_fail(m, ER_ERROR_FORMAT, "section %s: %u bytes are no whole words",
                     section_names[k], head[1]);
    file.section = section_names[k];
    const uint32_t *payload = take(&file, head[1] / 4, 1);
    if (!payload) return false;
    sections[k] = (Reader){m, section_names[k], payload, file.at};
  }
  if (file.at == end) return true;
  return er_fail(m, ER_ERROR_FORMAT, "%i words after the last section", (int64_t)(end - file.at));
}

static bool load_header(ErModel *m, const uint8_t *program, uint32_t length) {
  uint32_t head[3] = {0, 0, 0};
  if (length < sizeof head || length % 4)
    return er_fail(m, ER_ERROR_FORMAT, "%u bytes are no program", length);
  memcpy(head, program, sizeof head);
  if (head[0] != ER_MAGIC)
    return er_fail(m, ER_ERROR_FORMAT, "not a program: it begins with %u, not ERX1", head[0]);
  if (head[1] != ER_VERSION)
    return er_fail(m, ER_ERROR_FORMAT, "program version %u; this virtual machine reads version %u",
                   head[1], ER_VERSION);
  if (head[2] != length)
    return er_fail(m, ER_ERROR_FORMAT, "the program says it has %u bytes; %u came", head[2],
                   length);
  m->program = er_new(m, length, 1);
  if (!m->program) return false;
  memcpy(m->program, program, length);
  return true;
}

bool er_load(ErModel *m, const uint8_t *program, uint32_t length) {
  Reader sections[ER_SECTION_COUNT];
  if (!load_header(m, program, length)) return false;
  if (!find_sections(m, m->program + length / 4, sections)) return false;
  const Reader *code = &sections[ER_SECTION_CODE];
  if (!load_strings(&sections[ER_SECTION_STRINGS]) ||
      !load_weights(&sections[ER_SECTION_WEIGHTS]) || !load_slabs(&sections[ER_SECTION_SLABS]) ||
      !load_kernels(&sections[ER_SECTION_KERNELS]) ||
      !load_functions(&sections[ER_SECTION_FUNCTIONS], code->at, (uint64_t)(code->end - code->at)))
    return false;
  for (uint32_t k = 0; k < ER_SECTION_CODE; k++)
    if (sections[k].at != sections[k].end)
      return er_fail(m, ER_ERROR_FORMAT, "section %s: %i words too many", section_names[k],
                     (int64_t)(sections[k].end - sections[k].at));
  for (uint32_t k = 0; k < m->function_count; k++)
    if (!er_verify(m, &m->functions[k])) return false;
  return true;
}
