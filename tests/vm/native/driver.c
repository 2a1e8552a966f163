/* Runs programs, good and bad, in a native build of the VM under sanitizers.

   driver budget stress file: the file holds programs, each as `length, bytes` with a 32-bit length.
   One line is printed for each program. With stress, each program is run again and again, the first
   time without its first allocation, then without its second, until none fails.

   As a host it checks each command's layout and touches all memory that it is told of. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { MAX_STEPS = 64, MAX_BLOCK = 64 << 20 };

static long allocations_left = -1; /* before one fails; negative: none fails */
static bool allocation_failed;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static bool refused(size_t size) {
  if (size > MAX_BLOCK) return true;
  if (allocations_left < 0) return false;
  if (allocations_left-- > 0) return false;
  allocation_failed = true;
  return true;
}

void *__wrap_malloc(size_t size) {
  return refused(size) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
  return refused(count * size) ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *block, size_t size) {
  return refused(size) ? NULL : __real_realloc(block, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
  return refused(size) ? NULL : __real_aligned_alloc(alignment, size);
}

static void die(const char *what) {
  fprintf(stderr, "driver: %s\n", what);
  exit(3);
}

/* On one line: damaged texts have all bytes. */
static void print_words(const char *words) {
  for (; *words; words++) putchar(*words == '\n' ? '?' : *words);
}

static uint8_t sink;

static void touch(void *data, uint32_t bytes) {
  uint8_t *at = data;
  for (uint32_t k = 0; k < bytes; k++) sink = (uint8_t)(sink + at[k]);
  if (bytes) memset(data, 1, bytes);
}

bool er_call_kernel(ErModel *m, const ErKernelRow *kernel, const ErSpan *buffers,
                    const int32_t *scalars) {
  (void)m;
  for (uint32_t k = 0; k <= kernel->scalars; k++) sink = (uint8_t)(sink + (uint32_t)scalars[k]);
  for (uint32_t k = 0; k < kernel->buffers; k++) touch(buffers[k].data, buffers[k].bytes);
  return true;
}

/* There is one thread. */
void er_call_range(const ErJob *job, uint32_t begin, uint32_t end) {
  (void)job, (void)begin, (void)end;
}

void er_wait(_Atomic uint32_t *at, uint32_t expected) {
  (void)at, (void)expected;
}

void er_wake(_Atomic uint32_t *at) {
  (void)at;
}

static void *address(const uint32_t *words) {
  return (void *)(uintptr_t)(words[0] | (uint64_t)words[1] << 32);
}

static void check_place(const ErModel *m, const uint32_t *words) {
  const uint32_t limits[] = {m->input_count, m->weight_count, m->slab_count};
  if (words[0] >= ER_KIND_COUNT || words[1] >= limits[words[0]]) die("no such place");
  if (words[3] % 4) die("a place of no whole words");
}

/* Places and scalars, both counted; the words they take. */
static uint32_t check_bound(const ErModel *m, const uint32_t *words, uint32_t left) {
  if (left < 2 || words[0] > left / 4) die("too many places");
  for (uint32_t k = 0; k < words[0]; k++) check_place(m, words + 1 + 4 * k);
  const uint32_t scalars = words[1 + 4 * words[0]];
  return 2 + 4 * words[0] + scalars;
}

static void check_command(const ErModel *m, const uint32_t *words, uint32_t size) {
  const uint32_t *o = words + 1;
  uint32_t wanted = 0;
  switch ((ErCommand)(words[0] & 255)) {
    case ER_COMMAND_RESET:
      wanted = 1;
      break;
    case ER_COMMAND_ENSURE:
      wanted = 4;
      break;
    case ER_COMMAND_RECORD:
    case ER_COMMAND_END_RECORD:
    case ER_COMMAND_FORGET:
      wanted = 2;
      break;
    case ER_COMMAND_REPLAY:
      wanted = 3 + 3 * o[1];
      break;
    case ER_COMMAND_DISPATCH:
      wanted = 2 + check_bound(m, o + 1, size - 2);
      break;
    case ER_COMMAND_COPY:
      check_place(m, o);
      check_place(m, o + 4);
      wanted = 9;
      break;
    case ER_COMMAND_FILL:
      check_place(m, o);
      wanted = 6;
      break;
    case ER_COMMAND_UPLOAD:
    case ER_COMMAND_READ:
      check_place(m, o);
      touch(address(o + 5), o[4]);
      wanted = 8;
      break;
    case ER_COMMAND_LIBRARY: {
      const uint8_t *name = address(o + 1);
      for (uint32_t k = 0; k < o[0]; k++) sink = (uint8_t)(sink + name[k]);
      wanted = 4 + check_bound(m, o + 3, size - 4);
      break;
    }
  }
  if (wanted != size) die("a command of another size");
}

static void check_commands(const ErModel *m) {
  const uint32_t *words = er_commands(m);
  for (uint32_t left = er_commands_length(m); left;) {
    const uint32_t size = *words >> 8;
    if (size == 0 || size > left) die("a command leaves its list");
    check_command(m, words, size);
    words += size;
    left -= size;
  }
}

/* Blocks of the host, freed at the end of a program. */
static void *blocks[256];
static uint32_t block_count;

static void *block(uint32_t bytes) {
  if (block_count == 256 || bytes > 1 << 16) return NULL;
  void *made = __real_calloc(bytes ? bytes : 1, 1);
  blocks[block_count++] = made;
  return made;
}

static void fill_input(ErModel *m, const ErFunction *f, uint32_t k, uint32_t size) {
  const ErInputRow *row = &f->inputs[k];
  ErInput *input = er_input(m, k);
  const uint32_t rank = row->rank == ER_ANY_RANK ? 1 : row->rank;
  uint32_t elements = 1;
  for (uint32_t d = 0; d < rank; d++) {
    const uint32_t dim = d ? 1 : size;
    input->dims[d] = (int32_t)dim;
    elements *= dim;
  }
  input->dtype = row->dtype;
  input->rank = rank;
  input->bytes = elements * 8;
  input->pointer = block(input->bytes);
}

static ErStatus drive(ErModel *m, uint32_t function, uint32_t steps) {
  ErStatus status = er_run(m, function);
  check_commands(m);
  for (uint32_t k = 0; k < steps && (status == ER_NEED_READ || status == ER_FLUSH); k++) {
    status = er_resume(m);
    check_commands(m);
  }
  if (status == ER_DONE)
    for (uint32_t k = 0; k < m->functions[function].row->outputs; k++) {
      const ErOutput *output = er_output(m, k);
      if (output->device == ER_DEVICE_CPU && output->pointer)
        touch((void *)(uintptr_t)output->pointer, output->bytes);
    }
  if (status == ER_NEED_READ || status == ER_FLUSH) er_cancel(m);
  if (status == ER_ERROR && (!*er_error(m) || er_error_kind(m) == ER_ERROR_NONE)) die("no words");
  if (status == ER_ERROR && er_commands_length(m)) die("commands of a failed run");
  return status;
}

static void run_all(ErModel *m, double budget) {
  er_set_budget(m, budget);
  for (uint32_t k = 0; k < m->weight_count; k++) er_set_weight(m, k, block(er_weight_bytes(m, k)));
  if (er_set_kernels(m, 0, 16) == ER_ERROR && !*er_error(m)) die("no words");
  const uint32_t sizes[] = {8, 8, 0, 100};
  for (uint32_t round = 0; round < 4; round++)
    for (uint32_t f = 0; f < m->function_count && f < 8; f++) {
      const ErFunction *function = &m->functions[f];
      for (uint32_t k = 0; k < function->row->inputs && k < 16; k++)
        fill_input(m, function, k, sizes[round]);
      const ErStatus status = drive(m, f, round == 1 ? 0 : MAX_STEPS);
      printf(" %u:", (unsigned)f);
      print_words(status == ER_ERROR ? er_error(m) : "ok");
    }
}

static void run_program(const uint8_t *program, uint32_t length, double budget) {
  ErModel *m = er_open(program, length);
  if (m) {
    printf("opened");
    run_all(m, budget);
    er_close(m);
  } else {
    if (!*er_error(NULL)) die("no words");
    printf("refused %u: ", (unsigned)er_error_kind(NULL));
    print_words(er_error(NULL));
  }
  while (block_count) free(blocks[--block_count]);
}

static void run_without_each_allocation(const uint8_t *program, uint32_t length, double budget) {
  for (long n = 0;; n++) {
    allocation_failed = false;
    allocations_left = n;
    run_program(program, length, budget);
    allocations_left = -1;
    if (!allocation_failed) break;
    printf("\n");
  }
}

int main(int count, char **arguments) {
  if (count != 4) die("usage: driver budget stress file");
  const double budget = atof(arguments[1]);
  FILE *file = fopen(arguments[3], "rb");
  uint32_t length;
  if (!file) die("no file");
  while (fread(&length, sizeof length, 1, file) == 1) {
    uint8_t *program = __real_malloc(length ? length : 1); /* exactly: reading past it is seen */
    if (fread(program, 1, length, file) != length) die("the file is cut");
    if (atoi(arguments[2]))
      run_without_each_allocation(program, length, budget);
    else
      run_program(program, length, budget);
    printf("\n");
    free(program);
  }
  fclose(file);
  return 0;
}
