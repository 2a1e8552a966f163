/* What a model is made of, for the sources of the VM. */

#ifndef ER_MODEL_H
#define ER_MODEL_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "er.h"

enum { ER_MAX_DEPTH = 256, ER_MAX_PENDING = 16, ER_ERROR_SIZE = 512 };
enum { ER_REGISTER_FILE = 1 << 20 };

#define OPCODE(name, operands, text) ER_OP_##name,
typedef enum { ER_OPCODES(OPCODE) ER_OP_COUNT } ErOpcode;
#undef OPCODE

#define DTYPE(name, text, kind, bits) ER_DTYPE_##name,
typedef enum { ER_DTYPES(DTYPE) ER_DTYPE_COUNT } ErDType;
#undef DTYPE

typedef struct {
  const char *name;
  ErNumberKind kind;
  uint32_t bits;
} ErDTypeRow;

typedef struct {
  const char *text; /* not closed by a zero */
  uint32_t length;
} ErText;

/* Rows of the program's tables, as they stand in the file. */
typedef struct {
  uint32_t bytes, places;
} ErWeightRow;

typedef struct {
  uint32_t device, bytes, keeps;
} ErSlabRow;

typedef struct {
  uint32_t device, index, buffers, scalars, steps;
} ErKernelRow;

typedef struct {
  uint32_t name, dtype, rank, places;
} ErInputRow;

typedef struct {
  uint32_t name, dtype;
} ErOutputRow;

typedef struct {
  uint32_t name, parameters, results, registers, words, inputs, outputs;
} ErFunctionRow;

typedef struct {
  const ErFunctionRow *row;
  const ErInputRow *inputs;
  const ErOutputRow *outputs;
  const uint32_t *code;
} ErFunction;

/* A growable array of words. */
typedef struct {
  uint32_t *at;
  uint32_t length, capacity;
} ErWords;

/* A resolved binding, as it stands in a command. */
typedef struct {
  uint32_t kind, index, offset, bytes;
} ErPlace;

typedef struct {
  void *data;
  uint32_t bytes;
} ErSpan;

/* Scalar `scalar` of the list's dispatch `dispatch` is the late register number `late` of the
   region; on the cpu it stands in `word` of the list. */
typedef struct {
  uint32_t dispatch, scalar, late, word;
} ErPatch;

/* A recorded command list. Those of the cpu hold the commands; the host holds those of the gpu. */
typedef struct {
  bool valid;
  uint64_t used; /* when, by the region's clock */
  int64_t *keys;
  ErPatch *patches;
  uint32_t patch_count, patch_capacity, dispatches;
  ErWords words;
} ErList;

typedef struct {
  ErDevice device;
  uint32_t key_count, list_count;
  uint64_t clock;
  ErList *lists[ER_LISTS_PER_REGION];
} ErRegion;

typedef struct {
  const ErFunction *function;
  const uint32_t *back; /* the caller's next instruction */
  const uint32_t *dsts; /* the caller's count and registers for the results */
  uint32_t base;        /* of its registers */
} ErFrame;

/* A launch of a cpu kernel: the function table's slot, what it is called with, its iterations, and
   about how many instructions each takes; 0: they must not be split. */
typedef struct {
  uint32_t slot;
  const uint32_t *arguments;
  uint32_t grid, steps;
} ErJob;

/* A gpu read under way. */
typedef struct {
  uint32_t dst, count, dtype;
  uint8_t *bytes; /* owned */
} ErPending;

typedef enum { ER_STATE_IDLE, ER_STATE_RUNNING, ER_STATE_WAITING } ErState;

struct ErModel {
  uint32_t *program; /* owned; the tables below point into it */
  uint32_t string_count, weight_count, slab_count, kernel_count, function_count, region_count;
  uint32_t input_count, output_count; /* the most of any function */
  ErText *strings;
  const ErWeightRow *weight_rows;
  const ErSlabRow *slab_rows;
  const ErKernelRow *kernels;
  ErFunction *functions;
  bool uses_gpu;

  const void **weights;
  ErSpan *slabs; /* gpu slabs have no data here */
  ErInput *inputs;
  ErOutput *outputs; /* a result that is not yet set has rank ER_ANY_RANK */
  ErRegion *regions;
  uint32_t kernel_base, cpu_kernels;

  ErState state;
  const uint32_t *pc;
  uint32_t depth;
  ErFrame frames[ER_MAX_DEPTH];
  int64_t *registers;
  uint32_t register_capacity;
  int64_t budget, steps_left;

  ErWords commands;
  ErWords scratch;        /* one cpu command */
  ErList *recording;      /* or NULL */
  const uint32_t *region; /* operands of the region instruction that records */
  ErPending pending[ER_MAX_PENDING];
  uint32_t pending_count;
  bool reads, uploads; /* among the commands not yet executed */
  bool needs_reset;

  double stats[ER_STAT_COUNT];
  ErError error_kind;
  char error[ER_ERROR_SIZE];
};

extern const ErDTypeRow er_dtypes[ER_DTYPE_COUNT];
extern const char *const er_opcode_names[ER_OP_COUNT];

/* error.c: the only way to fail; always false. Directives: %s text, %q ErText, %u uint32_t,
   %i int64_t. */
bool er_fail(ErModel *m, ErError kind, const char *format, ...);
void er_format(char *out, size_t size, const char *format, va_list args);
ErText er_text(const char *text);

/* memory.c: all zeroed; NULL where memory is short, with the failure told. */
void *er_new(ErModel *m, uint64_t count, uint64_t size);
uint32_t *er_push(ErModel *m, ErWords *words, uint32_t count);
bool er_ensure(ErModel *m, uint32_t slab, int64_t bytes);

/* load.c, verify.c */
bool er_load(ErModel *m, const uint8_t *program, uint32_t length);
bool er_verify(ErModel *m, const ErFunction *function);

/* exec.c */
ErStatus er_execute(ErModel *m);
bool er_begin(ErModel *m, const ErFunction *function);

/* bindings.c: `binding` is the four operand words; r the registers of the frame. */
bool er_place(ErModel *m, ErDevice device, const uint32_t *binding, const int64_t *r,
              ErPlace *place);
bool er_aligned(ErModel *m, const ErPlace *place, uint32_t alignment);
bool er_data(ErModel *m, const ErPlace *place, uint8_t **data);

/* commands.c: an instruction's operands become a command, run at once on the cpu. */
bool er_dispatch(ErModel *m, const uint32_t *operands, const int64_t *r);
bool er_copy(ErModel *m, const uint32_t *operands, const int64_t *r);
bool er_fill(ErModel *m, const uint32_t *operands, const int64_t *r);
bool er_library(ErModel *m, const uint32_t *operands, const int64_t *r);
bool er_to_cpu(ErModel *m, const uint32_t *operands, const int64_t *r);
bool er_to_gpu(ErModel *m, const uint32_t *operands, const int64_t *r);
bool er_read(ErModel *m, const uint32_t *operands, int64_t *r);
bool er_finish_reads(ErModel *m, int64_t *r);
void er_drop_reads(ErModel *m);
bool er_output_place(ErModel *m, const uint32_t *operands, const int64_t *r);

/* cpu.c, and wasm.c or a test's own; a job's arguments are pointers of the buffers, then scalars */
bool er_run_cpu(ErModel *m, const uint32_t *words, uint32_t length);
bool er_call_kernel(ErModel *m, const ErKernelRow *kernel, const ErSpan *buffers,
                    const int32_t *scalars);

/* pool.c: the iterations of a kernel, by all threads. False if it trapped in a helper. `helped` is
   how many pieces of the grid helpers took. */
bool er_share(const ErJob *job, uint32_t *helped);
void er_settle(void); /* until no helper is at the last job */

/* wasm.c or a test's own */
void er_call_range(const ErJob *job, uint32_t begin, uint32_t end);
void er_wait(_Atomic uint32_t *at, uint32_t expected); /* unless it is another number already */
void er_wake(_Atomic uint32_t *at);                    /* all that wait */

/* regions.c */
bool er_region(ErModel *m, const uint32_t *operands, const int64_t *r, bool *replayed);
bool er_end_region(ErModel *m);
bool er_note_late(ErModel *m, uint32_t reg, uint32_t scalar, uint32_t word);
bool er_forget_gpu_lists(ErModel *m, bool tell_host);
void er_drop_recording(ErModel *m);
void er_free_list(ErList *list);

#endif
