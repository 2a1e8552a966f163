/* Runs random jobs on the VM's pool with threads of this machine, built with the thread sanitizer.

   threads helpers jobs seed: each job must reach each iteration of its grid exactly once. Some jobs
   trap in a helper: er_share must say so, and later jobs must be as good as before. Where there are
   helpers there are more jobs until one has helped, however late its thread comes up. */

#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

enum { MAX_GRID = 5000, MAX_HELPERS = 8 };

static _Atomic uint32_t seen[MAX_GRID];
static uint32_t trap_at = UINT32_MAX; /* the iteration at which a helper's kernel ends like a trap */
static _Thread_local jmp_buf *trap;   /* of helpers */
static atomic_uint traps;

static void die(const char *what) {
  fprintf(stderr, "threads: %s\n", what);
  exit(3);
}

void er_wait(_Atomic uint32_t *at, uint32_t expected) {
  syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void er_wake(_Atomic uint32_t *at) {
  syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void er_call_range(const ErJob *job, uint32_t begin, uint32_t end) {
  if (begin >= end || end > job->grid) die("a piece outside of its grid");
  for (uint32_t k = begin; k < end; k++) {
    if (trap && k == trap_at) {
      atomic_fetch_add(&traps, 1);
      longjmp(*trap, 1);
    }
    atomic_fetch_add_explicit(&seen[k], 1 + job->arguments[0], memory_order_relaxed);
  }
}

static void *helper(void *unused) {
  (void)unused;
  jmp_buf here;
  trap = &here;
  while (setjmp(here)) er_help_trapped();
  er_help();
  return NULL;
}

static uint32_t below(uint32_t limit) {
  return (uint32_t)rand() % limit;
}

static void run(uint32_t number, uint32_t *helped_jobs) {
  const uint32_t arguments[] = {number % 1000};
  const uint32_t grid = 1 + below(MAX_GRID), steps = below(4) ? 1 + below(100000) : 0;
  const ErJob job = {number, arguments, grid, steps};
  for (uint32_t k = 0; k < grid; k++) atomic_store_explicit(&seen[k], 0, memory_order_relaxed);
  trap_at = below(8) ? UINT32_MAX : below(grid);
  const uint32_t before = atomic_load(&traps);
  uint32_t helped = 0;
  const bool good = er_share(&job, &helped);
  if (good != (atomic_load(&traps) == before)) die("a trap is told wrongly");
  if (steps == 0 && helped) die("a grid that must not be split was");
  if (helped) ++*helped_jobs;
  for (uint32_t k = 0; good && k < grid; k++)
    if (atomic_load_explicit(&seen[k], memory_order_relaxed) != 1 + arguments[0])
      die("an iteration was not run exactly once");
}

int main(int count, char **given) {
  if (count != 4) die("three numbers are needed");
  const uint32_t helpers = (uint32_t)atoi(given[1]), jobs = (uint32_t)atoi(given[2]);
  pthread_t threads[MAX_HELPERS];
  uint32_t helped_jobs = 0;
  srand((unsigned)atoi(given[3]));
  if (helpers > MAX_HELPERS) die("too many helpers");
  for (uint32_t k = 0; k < helpers; k++) pthread_create(&threads[k], NULL, helper, NULL);
  for (uint32_t k = 0; k < jobs || (helpers && !helped_jobs); k++) {
    er_may_block(k % 2);
    if (!below(50)) usleep(300); /* helpers fall asleep */
    run(k, &helped_jobs);
  }
  er_dismiss();
  for (uint32_t k = 0; k < helpers; k++) pthread_join(threads[k], NULL);
  printf("%u %u\n", helped_jobs, atomic_load(&traps));
  return 0;
}
