/* The interpreter. Its whole state is in the model, so that it can stop for the host and go on. */

#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { MIN_REGISTERS = 64 };

static int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

static bool divide(ErModel *m, ErOpcode op, int64_t a, int64_t b, int64_t *dst) {
  if (b == 0) return er_fail(m, ER_ERROR_VALUE, "%i is divided by zero", a);
  if (b == -1) { /* a / b itself may overflow */
    if (op == ER_OP_MOD) {
      *dst = 0;
      return true;
    }
    if (!__builtin_sub_overflow(0, a, dst)) return true;
    return er_fail(m, ER_ERROR_VALUE, "%i / -1 passes 64 bits", a);
  }
  const int64_t q = floor_divide(a, b);
  *dst = op == ER_OP_MOD ? a - q * b : q;
  return true;
}

static bool arithmetic(ErModel *m, ErOpcode op, int64_t a, int64_t b, int64_t *dst) {
  switch (op) {
    case ER_OP_ADD:
      if (!__builtin_add_overflow(a, b, dst)) return true;
      return er_fail(m, ER_ERROR_VALUE, "%i + %i passes 64 bits", a, b);
    case ER_OP_SUB:
      if (!__builtin_sub_overflow(a, b, dst)) return true;
      return er_fail(m, ER_ERROR_VALUE, "%i - %i passes 64 bits", a, b);
    case ER_OP_MUL:
      if (!__builtin_mul_overflow(a, b, dst)) return true;
      return er_fail(m, ER_ERROR_VALUE, "%i * %i passes 64 bits", a, b);
    case ER_OP_MIN:
      *dst = a < b ? a : b;
      return true;
    case ER_OP_MAX:
      *dst = a > b ? a : b;
      return true;
    case ER_OP_GE:
      *dst = a >= b;
      return true;
    case ER_OP_EQ:
      *dst = a == b;
      return true;
    default:
      return divide(m, op, a, b, dst);
  }
}

static bool check(ErModel *m, ErOpcode op, int64_t a, int64_t b, uint32_t text) {
  switch (op) {
    case ER_OP_CHECK_EQ:
      return a == b || er_fail(m, ER_ERROR_CHECK, "%q: %i is not %i", m->strings[text], a, b);
    case ER_OP_CHECK_LE:
      return a <= b || er_fail(m, ER_ERROR_CHECK, "%q: %i is more than %i", m->strings[text], a, b);
    default:
      if (b == -1 || (b != 0 && a % b == 0)) return true;
      return er_fail(m, ER_ERROR_CHECK, "%q: %i is not a multiple of %i", m->strings[text], a, b);
  }
}

static bool fail_text(ErModel *m, ErText text) {
  const ErText silent = er_text("the program fails, without words");
  return er_fail(m, ER_ERROR_CHECK, "%q", text.length ? text : silent);
}

static bool load_dim(ErModel *m, uint32_t k, uint32_t dimension, int64_t *dst) {
  const ErInput *input = &m->inputs[k];
  if (dimension >= input->rank)
    return er_fail(m, ER_ERROR_INPUT, "input '%q' has rank %u; dimension %u is needed",
                   m->strings[m->frames[0].function->inputs[k].name], input->rank, dimension);
  *dst = input->dims[dimension];
  return true;
}

/* Puts a frame with zeroed registers on the stack. */
static bool enter(ErModel *m, const ErFunction *f, const uint32_t *back, const uint32_t *dsts) {
  const ErFrame *top = m->depth ? &m->frames[m->depth - 1] : NULL;
  const uint32_t base = top ? top->base + top->function->row->registers : 0;
  const uint32_t count = f->row->registers, needed = base + count;
  if (m->depth == ER_MAX_DEPTH)
    return er_fail(m, ER_ERROR_LIMIT, "calls are nested deeper than %u", (uint32_t)ER_MAX_DEPTH);
  if (needed > ER_REGISTER_FILE)
    return er_fail(m, ER_ERROR_LIMIT, "%u registers in nested calls, of %u", needed,
                   (uint32_t)ER_REGISTER_FILE);
  if (needed > m->register_capacity || !m->registers) {
    const uint32_t capacity = needed < MIN_REGISTERS ? MIN_REGISTERS : needed;
    int64_t *grown = realloc(m->registers, capacity * sizeof *grown);
    if (!grown) return er_fail(m, ER_ERROR_MEMORY, "no memory for %u registers", capacity);
    m->registers = grown;
    m->register_capacity = capacity;
  }
  if (count) memset(m->registers + base, 0, count * sizeof *m->registers);
  m->steps_left -= count / 8;
  m->frames[m->depth++] = (ErFrame){f, back, dsts, base};
  return true;
}

bool er_begin(ErModel *m, const ErFunction *function) {
  m->depth = 0;
  m->pc = function->code;
  return enter(m, function, NULL, NULL);
}

static bool call(ErModel *m, const uint32_t *operands, const uint32_t *back) {
  const uint32_t count = operands[1];
  const uint32_t *dsts = operands + 2 + count;
  const uint32_t caller = m->frames[m->depth - 1].base;
  if (!enter(m, &m->functions[operands[0]], back, dsts)) return false;
  int64_t *parameters = m->registers + m->frames[m->depth - 1].base;
  for (uint32_t k = 0; k < count; k++) parameters[k] = m->registers[caller + operands[2 + k]];
  return true;
}

/* Takes the top frame off; gives the caller's next instruction, or NULL at the end of the run. */
static const uint32_t *leave(ErModel *m, const uint32_t *results) {
  const ErFrame frame = m->frames[--m->depth];
  if (m->depth == 0) return NULL;
  const int64_t *from = m->registers + frame.base;
  int64_t *to = m->registers + m->frames[m->depth - 1].base;
  for (uint32_t k = 0; k < results[0]; k++) to[frame.dsts[1 + k]] = from[results[1 + k]];
  return frame.back;
}

static bool reads_pending(const ErModel *m, uint32_t reg) {
  for (uint32_t k = 0; k < m->pending_count; k++) {
    const ErPending *read = &m->pending[k];
    if (reg >= read->dst && reg - read->dst < read->count) return true;
  }
  return false;
}

static bool binding_pending(const ErModel *m, const uint32_t *binding) {
  return reads_pending(m, binding[2]) || reads_pending(m, binding[3]);
}

/* Whether the next instruction can join the reads under way: one wait serves several. */
static bool joins_reads(const ErModel *m, const uint32_t *code) {
  switch ((ErOpcode)(code[0] & 255)) {
    case ER_OP_READ:
      return code[4] == ER_DEVICE_GPU && m->pending_count < ER_MAX_PENDING &&
             !binding_pending(m, code + 5);
    case ER_OP_TO_CPU:
      return !binding_pending(m, code + 1) && !binding_pending(m, code + 5);
    default:
      return false;
  }
}

/* Whether the instruction changes cpu memory that uploads may still have to read. */
static bool needs_flush(const ErModel *m, const uint32_t *code) {
  const uint32_t *operands = code + 1;
  if (!m->uploads) return false;
  switch ((ErOpcode)(code[0] & 255)) {
    case ER_OP_DISPATCH:
      return m->kernels[operands[0]].device == ER_DEVICE_CPU;
    case ER_OP_COPY:
    case ER_OP_FILL:
      return operands[0] == ER_DEVICE_CPU;
    case ER_OP_REGION:
      return operands[1] == ER_DEVICE_CPU;
    default: /* ensure */
      return m->slab_rows[operands[0]].device == ER_DEVICE_CPU;
  }
}

static bool finish(ErModel *m) {
  const ErFunction *f = m->frames[0].function;
  for (uint32_t k = 0; k < f->row->outputs; k++) {
    ErOutput *output = &m->outputs[k];
    uint8_t *data = NULL;
    if (output->rank == ER_ANY_RANK)
      return er_fail(m, ER_ERROR_CHECK, "function '%q' has not set its result '%q'",
                     m->strings[f->row->name], m->strings[f->outputs[k].name]);
    if (output->device != ER_DEVICE_CPU) continue;
    const ErPlace place = {output->kind, output->index, output->offset, output->bytes};
    if (!er_data(m, &place, &data)) return false;
    output->pointer = data;
  }
  return true;
}

ErStatus er_execute(ErModel *m) {
  const uint32_t *code = m->pc;
  int64_t *r = m->registers + m->frames[m->depth - 1].base;
  for (;;) {
    const uint32_t *next = code + (code[0] >> 8), *o = code + 1;
    const ErOpcode op = (ErOpcode)(code[0] & 255);
    bool good = true;
    m->pc = code;
    m->stats[ER_STAT_INSTRUCTIONS]++;
    if (--m->steps_left < 0) {
      er_fail(m, ER_ERROR_LIMIT, "more than %i steps", m->budget);
      return ER_ERROR;
    }
    switch (op) {
      case ER_OP_JUMP:
        next = m->frames[m->depth - 1].function->code + o[0];
        break;
      case ER_OP_JUMP_IF_ZERO:
        if (r[o[0]] == 0) next = m->frames[m->depth - 1].function->code + o[1];
        break;
      case ER_OP_CALL:
        good = call(m, o, next);
        if (!good) break;
        next = m->functions[o[0]].code;
        r = m->registers + m->frames[m->depth - 1].base;
        break;
      case ER_OP_RET:
        next = leave(m, o);
        if (!next) return finish(m) ? ER_DONE : ER_ERROR;
        r = m->registers + m->frames[m->depth - 1].base;
        break;
      case ER_OP_CONST:
        r[o[0]] = (int64_t)(o[1] | (uint64_t)o[2] << 32);
        break;
      case ER_OP_MOVE:
        r[o[0]] = r[o[1]];
        break;
      case ER_OP_ADD:
      case ER_OP_SUB:
      case ER_OP_MUL:
      case ER_OP_FLOORDIV:
      case ER_OP_MOD:
      case ER_OP_MIN:
      case ER_OP_MAX:
      case ER_OP_GE:
      case ER_OP_EQ:
        good = arithmetic(m, op, r[o[1]], r[o[2]], &r[o[0]]);
        break;
      case ER_OP_SELECT:
        r[o[0]] = r[o[1]] ? r[o[2]] : r[o[3]];
        break;
      case ER_OP_LOAD_DIM:
        good = load_dim(m, o[1], o[2], &r[o[0]]);
        break;
      case ER_OP_CHECK_EQ:
      case ER_OP_CHECK_LE:
      case ER_OP_CHECK_DIVISIBLE:
        good = check(m, op, r[o[0]], r[o[1]], o[2]);
        break;
      case ER_OP_FAIL:
        good = fail_text(m, m->strings[o[0]]);
        break;
      case ER_OP_ENSURE:
        if (needs_flush(m, code)) return ER_FLUSH;
        good = er_ensure(m, o[0], r[o[1]]);
        break;
      case ER_OP_REGION: {
        bool replayed = false;
        if (needs_flush(m, code)) return ER_FLUSH;
        good = er_region(m, o, r, &replayed);
        if (good && replayed) next = m->frames[m->depth - 1].function->code + next[-1];
        break;
      }
      case ER_OP_END_REGION:
        good = er_end_region(m);
        break;
      case ER_OP_DISPATCH:
        if (needs_flush(m, code)) return ER_FLUSH;
        good = er_dispatch(m, o, r);
        break;
      case ER_OP_COPY:
        if (needs_flush(m, code)) return ER_FLUSH;
        good = er_copy(m, o, r);
        break;
      case ER_OP_FILL:
        if (needs_flush(m, code)) return ER_FLUSH;
        good = er_fill(m, o, r);
        break;
      case ER_OP_READ:
        good = er_read(m, o, r);
        break;
      case ER_OP_TO_CPU:
        good = er_to_cpu(m, o, r);
        break;
      case ER_OP_TO_GPU:
        good = er_to_gpu(m, o, r);
        break;
      case ER_OP_LIBRARY:
        good = er_library(m, o, r);
        break;
      default: /* output; er_verify lets no other opcode in */
        good = er_output_place(m, o, r);
    }
    if (!good) return ER_ERROR;
    code = next;
    if (m->reads && !joins_reads(m, code)) {
      m->pc = code;
      return ER_NEED_READ;
    }
  }
}
