/* Checks a function's code, so that a run need not: each operand, each jump, each region. */

#include <stdlib.h>

#include "model.h"

#define OPCODE(name, operands, text) operands,
static const char *const operands_of[ER_OP_COUNT] = {ER_OPCODES(OPCODE)};
#undef OPCODE
#define OPCODE(name, operands, text) text,
const char *const er_opcode_names[ER_OP_COUNT] = {ER_OPCODES(OPCODE)};
#undef OPCODE

/* What a word of code is; a region instruction stands outside its region, end_region inside. */
enum { NOT_A_START, START, START_IN_REGION };

typedef struct {
  ErModel *m;
  const ErFunction *f;
  uint8_t *starts;        /* one for each word */
  uint32_t at;            /* the instruction under inspection */
  uint32_t length;        /* its words */
  const uint32_t *region; /* operands of the region it is in, or NULL */
  uint32_t region_start;
} Verifier;

static bool bad(const Verifier *v, const char *format, ...) {
  char text[ER_ERROR_SIZE];
  va_list args;
  va_start(args, format);
  er_format(text, sizeof text, format, args);
  va_end(args);
  const uint32_t op = v->f->code[v->at] & 255;
  const char *name = op < ER_OP_COUNT ? er_opcode_names[op] : "?";
  return er_fail(v->m, ER_ERROR_FORMAT, "function '%q', word %u (%s): %s",
                 v->m->strings[v->f->row->name], v->at, name, text);
}

static bool check_index(const Verifier *v, const char *what, uint32_t value, uint32_t limit) {
  return value < limit || bad(v, "%s %u of %u", what, value, limit);
}

static bool contains(const uint32_t *counted, uint32_t value) {
  for (uint32_t k = 0; k < counted[0]; k++)
    if (counted[1 + k] == value) return true;
  return false;
}

static const uint32_t *keys_of(const uint32_t *region) {
  return region + 2;
}

static const uint32_t *late_of(const uint32_t *region) {
  return region + 3 + region[2];
}

/* A late register is one that a replay sets anew: only scalars of commands may read it. */
static bool check_read(const Verifier *v, uint32_t reg, bool scalar) {
  if (!check_index(v, "register", reg, v->f->row->registers)) return false;
  if (!v->region || scalar || !contains(late_of(v->region), reg)) return true;
  return bad(v, "register %u is late in its region and can only be a scalar", reg);
}

static bool check_write(const Verifier *v, uint32_t reg) {
  if (!check_index(v, "register", reg, v->f->row->registers)) return false;
  if (!v->region) return true;
  if (!contains(late_of(v->region), reg) && !contains(keys_of(v->region), reg)) return true;
  return bad(v, "register %u is a key of its region or late and is written in it", reg);
}

static bool check_label(const Verifier *v, uint32_t target) {
  if (target >= v->f->row->words || v->starts[target] == NOT_A_START)
    return bad(v, "word %u begins no instruction", target);
  if (!v->region)
    return v->starts[target] == START || bad(v, "the jump to word %u enters a region", target);
  const uint32_t *end = v->region + 3 + keys_of(v->region)[0] + 1 + late_of(v->region)[0];
  const bool inside =
      v->starts[target] == START_IN_REGION && target > v->region_start && target < *end;
  return inside || bad(v, "the jump to word %u leaves the region", target);
}

static bool check_binding(const Verifier *v, const uint32_t *binding) {
  const uint32_t counts[ER_KIND_COUNT] = {v->f->row->inputs, v->m->weight_count, v->m->slab_count};
  if (!check_index(v, "binding kind", binding[0], ER_KIND_COUNT)) return false;
  if (!check_index(v, "binding", binding[1], counts[binding[0]])) return false;
  if (binding[2] != ER_NO_REGISTER && !check_read(v, binding[2], false)) return false;
  return check_read(v, binding[3], false);
}

/* The table says where each weight and input is needed, so that a host need not read the code. */
static bool check_place(const Verifier *v, const uint32_t *binding, uint32_t device) {
  const uint32_t kind = binding[0], index = binding[1];
  if (!check_index(v, "device", device, ER_DEVICE_COUNT)) return false;
  if (device == ER_DEVICE_GPU) v->m->uses_gpu = true;
  switch ((ErKind)kind) {
    case ER_KIND_SLAB:
      return v->m->slab_rows[index].device == device ||
             bad(v, "slab %u is on another device", index);
    case ER_KIND_WEIGHT:
      return (v->m->weight_rows[index].places >> device & 1) ||
             bad(v, "weight %u is not kept on device %u", index, device);
    default:
      return (v->f->inputs[index].places >> device & 1) ||
             bad(v, "input %u is not kept on device %u", index, device);
  }
}

static bool check_places(const Verifier *v, const uint32_t *counted, uint32_t device) {
  for (uint32_t k = 0; k < counted[0]; k++)
    if (!check_place(v, counted + 1 + 4 * k, device)) return false;
  return true;
}

/* Commands in a region are those of its device. */
static bool check_device(const Verifier *v, uint32_t device) {
  if (!check_index(v, "device", device, ER_DEVICE_COUNT)) return false;
  return !v->region || v->region[1] == device || bad(v, "the region is on another device");
}

/* Checks one operand; `*operand` moves past it. */
static bool check_operand(const Verifier *v, char letter, const uint32_t **operand,
                          uint32_t *left) {
  const uint32_t *o = *operand;
  const bool counted = letter == 'R' || letter == 'D' || letter == 'B';
  const uint64_t each = letter == 'B' || letter == 'b' ? 4 : letter == 'i' ? 2 : 1;
  if (*left < 1) return bad(v, "an operand is missing");
  const uint64_t words = counted ? 1 + o[0] * each : each;
  if (words > *left) return bad(v, "%i words of operands wanted, %u left", (int64_t)words, *left);
  *operand += words;
  *left -= (uint32_t)words;
  switch (letter) {
    case 'd':
      return check_write(v, o[0]);
    case 'r':
      return check_read(v, o[0], false);
    case 'l':
      return check_label(v, o[0]);
    case 's':
      return check_index(v, "string", o[0], v->m->string_count);
    case 'g':
      return check_index(v, "region", o[0], v->m->region_count);
    case 'v':
      return check_device(v, o[0]);
    case 't':
      return check_index(v, "dtype", o[0], ER_DTYPE_COUNT);
    case 'n':
      return check_index(v, "input", o[0], v->f->row->inputs);
    case 'o':
      return check_index(v, "output", o[0], v->f->row->outputs);
    case 'm':
      return check_index(v, "slab", o[0], v->m->slab_count);
    case 'k':
      return check_index(v, "kernel", o[0], v->m->kernel_count);
    case 'f':
      return check_index(v, "function", o[0], v->m->function_count);
    case 'b':
      return check_binding(v, o);
    case 'D':
      for (uint32_t k = 0; k < o[0]; k++)
        if (!check_write(v, o[1 + k])) return false;
      return true;
    case 'R':
      for (uint32_t k = 0; k < o[0]; k++)
        if (!check_read(v, o[1 + k], true)) return false;
      return true;
    case 'B':
      for (uint32_t k = 0; k < o[0]; k++)
        if (!check_binding(v, o + 1 + 4 * k)) return false;
      return true;
    default: /* numbers of any value */
      return true;
  }
}

static bool check_call(const Verifier *v, const uint32_t *operands) {
  const ErFunction *callee = &v->m->functions[operands[0]];
  const uint32_t *dsts = operands + 2 + operands[1];
  if (operands[1] != callee->row->parameters || dsts[0] != callee->row->results)
    return bad(v, "%u arguments and %u results for a function of %u and %u", operands[1], dsts[0],
               callee->row->parameters, callee->row->results);
  if (callee->row->inputs > v->f->row->inputs || callee->row->outputs > v->f->row->outputs)
    return bad(v, "the called function has more inputs or outputs than this one");
  for (uint32_t k = 0; k < callee->row->inputs; k++)
    if (callee->inputs[k].places & ~v->f->inputs[k].places)
      return bad(v, "the called function needs input %u on another device", k);
  return true;
}

static bool check_dispatch(const Verifier *v, const uint32_t *operands) {
  const ErKernelRow *kernel = &v->m->kernels[operands[0]];
  const uint32_t places = operands[2], scalars = operands[3 + 4 * places];
  if (places != kernel->buffers || scalars != kernel->scalars)
    return bad(v, "%u buffers and %u scalars for a kernel of %u and %u", places, scalars,
               kernel->buffers, kernel->scalars);
  return check_device(v, kernel->device) && check_places(v, operands + 2, kernel->device);
}

static bool check_readable(const Verifier *v, const uint32_t *operands) {
  const uint64_t past = (uint64_t)operands[0] + operands[1];
  const ErDTypeRow *dtype = &er_dtypes[operands[2]];
  if (operands[1] == 0 || past > v->f->row->registers)
    return bad(v, "registers %u to %i of %u", operands[0], (int64_t)past, v->f->row->registers);
  if (dtype->kind == ER_NUMBER_FLOAT || dtype->kind == ER_NUMBER_STRING || dtype->bits < 8)
    return bad(v, "a read of %s; only bool and whole-byte integers can be read", dtype->name);
  return check_place(v, operands + 4, operands[3]);
}

static bool begin_region(Verifier *v, const uint32_t *operands) {
  ErRegion *region = &v->m->regions[operands[0]];
  if (region->device != ER_DEVICE_COUNT) return bad(v, "region %u stands twice", operands[0]);
  region->device = (ErDevice)operands[1];
  region->key_count = operands[2];
  v->region = operands;
  v->region_start = v->at;
  return true;
}

static bool finish_region(Verifier *v, const uint32_t *operands) {
  if (operands[0] != v->region[0])
    return bad(v, "ends region %u inside region %u", operands[0], v->region[0]);
  const uint32_t *end = late_of(v->region) + 1 + late_of(v->region)[0];
  if (*end != v->at + v->length) return bad(v, "the region's label is %u", *end);
  v->region = NULL;
  return true;
}

/* What an opcode asks beyond its operands' kinds. */
static bool check_rest(Verifier *v, uint32_t op, const uint32_t *operands) {
  switch ((ErOpcode)op) {
    case ER_OP_CALL:
      return check_call(v, operands);
    case ER_OP_RET:
      return operands[0] == v->f->row->results ||
             bad(v, "%u results of a function of %u", operands[0], v->f->row->results);
    case ER_OP_LOAD_DIM:
      return check_index(v, "dimension", operands[2], ER_MAX_RANK);
    case ER_OP_REGION:
      return begin_region(v, operands);
    case ER_OP_END_REGION:
      return finish_region(v, operands);
    case ER_OP_DISPATCH:
      return check_dispatch(v, operands);
    case ER_OP_COPY:
      return check_place(v, operands + 1, operands[0]) && check_place(v, operands + 5, operands[0]);
    case ER_OP_FILL:
      return check_place(v, operands + 1, operands[0]);
    case ER_OP_READ:
      return check_readable(v, operands);
    case ER_OP_TO_CPU:
      return check_place(v, operands, ER_DEVICE_CPU) && check_place(v, operands + 4, ER_DEVICE_GPU);
    case ER_OP_TO_GPU:
      return check_place(v, operands, ER_DEVICE_GPU) && check_place(v, operands + 4, ER_DEVICE_CPU);
    case ER_OP_LIBRARY:
      if (operands[1] > ER_MAX_BUFFERS)
        return bad(v, "%u buffers of %u", operands[1], ER_MAX_BUFFERS);
      return check_device(v, ER_DEVICE_GPU) && check_places(v, operands + 1, ER_DEVICE_GPU);
    case ER_OP_OUTPUT:
      return check_index(v, "rank", operands[6], ER_MAX_RANK + 1) &&
             check_place(v, operands + 2, operands[1]);
    default:
      return true;
  }
}

/* A list is the same each time its keys are, and a recording is never interrupted. */
static bool check_in_region(const Verifier *v, uint32_t op) {
  switch ((ErOpcode)op) {
    case ER_OP_CALL:
    case ER_OP_RET:
    case ER_OP_ENSURE:
    case ER_OP_REGION:
    case ER_OP_READ:
    case ER_OP_TO_CPU:
    case ER_OP_TO_GPU:
    case ER_OP_OUTPUT:
      return !v->region || bad(v, "not inside a region");
    case ER_OP_END_REGION:
      return v->region || bad(v, "no region is open");
    default:
      return true;
  }
}

static bool check_instruction(Verifier *v) {
  const uint32_t *code = v->f->code + v->at;
  const uint32_t op = code[0] & 255;
  const uint32_t *operand = code + 1;
  uint32_t left = v->length - 1;
  if (!check_in_region(v, op)) return false;
  for (const char *letter = operands_of[op]; *letter; letter++)
    if (!check_operand(v, *letter, &operand, &left)) return false;
  if (left) return bad(v, "%u words too many", left);
  return check_rest(v, op, code + 1);
}

/* Finds where instructions start; afterwards their lengths add up and their opcodes exist. */
static bool mark_starts(Verifier *v) {
  bool in_region = false;
  const uint32_t words = v->f->row->words;
  uint32_t op = ER_OP_COUNT;
  for (v->at = 0; v->at < words; v->at += v->length) {
    const uint32_t head = v->f->code[v->at];
    op = head & 255;
    v->length = head >> 8;
    if (!check_index(v, "opcode", op, ER_OP_COUNT)) return false;
    if (v->length == 0 || v->length > words - v->at)
      return bad(v, "%u words, %u left", v->length, words - v->at);
    v->starts[v->at] = in_region ? START_IN_REGION : START;
    if (op == ER_OP_REGION) in_region = true;
    if (op == ER_OP_END_REGION) in_region = false;
  }
  if (op == ER_OP_RET || op == ER_OP_JUMP || op == ER_OP_FAIL) return true;
  return er_fail(v->m, ER_ERROR_FORMAT, "function '%q' does not end in ret, jump or fail",
                 v->m->strings[v->f->row->name]);
}

bool er_verify(ErModel *m, const ErFunction *function) {
  Verifier v = {m, function, er_new(m, function->row->words, 1), 0, 0, NULL, 0};
  if (!v.starts) return false;
  bool good = mark_starts(&v);
  for (v.at = 0; good && v.at < function->row->words; v.at += v.length) {
    v.length = function->code[v.at] >> 8;
    good = check_instruction(&v);
  }
  if (good && v.region) {
    v.at = v.region_start;
    good = bad(&v, "the region does not end");
  }
  free(v.starts);
  return good;
}
