/* The virtual machine as a host sees it.

   A model is one program with its weights, slabs and recorded command lists. A call never waits: it
   runs until the program ends, or until the host must do something, and says which. After each
   return the host executes the commands in order; after ER_ERROR there are none. */

#ifndef ER_H
#define ER_H

#include <stdint.h>

#include "opcodes.h"

typedef struct ErModel ErModel;

/* What the host fills in before a run. `pointer` is needed where the program reads the input on the
   cpu (er_input_places); the bytes are borrowed until the run ends. */
typedef struct {
  uint32_t dtype, rank;
  int32_t dims[ER_MAX_RANK];
  uint32_t bytes;
  const void *pointer;
} ErInput;

/* Where a result lies, valid after ER_DONE and until the next run. `pointer` is set on the cpu. */
typedef struct {
  uint32_t dtype, rank;
  int32_t dims[ER_MAX_RANK];
  uint32_t device, kind, index, offset, bytes;
  const void *pointer;
} ErOutput;

/* The version of program files that er_open reads. */
uint32_t er_version(void);

/* Memory for the host, aligned to 16; NULL if there is none. */
void *er_alloc(uint32_t bytes);
void er_free(void *pointer);

/* Copies and checks a program. NULL if it is bad or memory is short: er_error(NULL) says why. */
ErModel *er_open(const uint8_t *program, uint32_t length);

/* Frees all that the model owns, in any state. */
void er_close(ErModel *model);

/* On which devices weight k, or input k of a function, is bound: bit ER_DEVICE_GPU, bit
   ER_DEVICE_CPU; 0 if there is no such. */
uint32_t er_weight_places(const ErModel *model, uint32_t k);
uint32_t er_input_places(const ErModel *model, uint32_t function, uint32_t k);

uint32_t er_weight_bytes(const ErModel *model, uint32_t k);

/* The cpu bytes of weight k, borrowed until er_close; er_weight_bytes of them. */
ErStatus er_set_weight(ErModel *model, uint32_t k, const void *bytes);

/* The cpu kernels stand in slots base… of the function table. */
ErStatus er_set_kernels(ErModel *model, uint32_t base, uint32_t count);

/* How many steps one run may take; at first 2^32. */
void er_set_budget(ErModel *model, double steps);

/* The descriptor of input k, at one address until er_close; NULL if no function has so many. */
ErInput *er_input(ErModel *model, uint32_t k);

/* Starts a function that takes no registers. Not while another run of the model waits. */
ErStatus er_run(ErModel *model, uint32_t function);

/* Continues after ER_NEED_READ or ER_FLUSH. */
ErStatus er_resume(ErModel *model);

/* Gives up a waiting run, or tells that commands could not be executed: the next run starts with a
   reset. Harmless at any time. */
void er_cancel(ErModel *model);

/* The commands of the last call, in words; valid until the next call on the model. */
const uint32_t *er_commands(const ErModel *model);
uint32_t er_commands_length(const ErModel *model);

/* The descriptor of result k, at one address until er_close; NULL if there are not so many. */
const ErOutput *er_output(const ErModel *model, uint32_t k);

/* ER_STAT_COUNT numbers, counted since er_open, at the same address until er_close. */
const double *er_stats(ErModel *model);

/* Threads, where memory is shared: a host makes helpers, each an instance of this module and of the
   kernels, at the same slots, on the same memory, with a stack of its own. They share the kernels'
   iterations; models and the heap are the caller's alone. */

/* Helps until er_dismiss. After a trap the helper's host takes back its stack, says so, and calls it
   again: the run has failed, the model is as good as before. */
void er_help(void);
void er_help_trapped(void);

/* Makes all helpers return, now and later. */
void er_dismiss(void);

/* Whether the caller may block until helpers are done; at first it spins, as a window must. */
void er_may_block(uint32_t may);

/* The words and the kind of the last failure; of er_open's where model is NULL. */
const char *er_error(const ErModel *model);
ErError er_error_kind(const ErModel *model);

#endif
