/* Threads that share the iterations of a kernel.

   The caller of a kernel offers its grid in pieces; it and the helpers take pieces until none is
   left. A helper counts itself busy before it takes one. So once none is left and nobody is busy all
   are done, and a helper that comes late, or never, keeps nobody waiting. What a piece is, is read
   only after it was taken: until its taker is no longer busy the job does not change.

   Threads have the memory in common and nothing else: each is an instance of the VM with a function
   table and a stack of its own. Only the caller uses models and the heap. */

#include <stdatomic.h>

#include "model.h"

enum {
  /* About 10 us: less is not worth a cache line that travels, let alone a thread that is woken. */
  LEAST_STEPS = 40000,
  /* Threads come late and are interrupted: of so many pieces the last one costs little. */
  PIECES_PER_THREAD = 4,
  /* About 20 us: the next kernel often follows sooner than a sleeper wakes. */
  SPINS = 20000,
};

static struct {
  ErJob job;
  uint32_t piece, pieces;   /* iterations of one, and how many there are */
  _Atomic uint32_t left;    /* pieces that nobody has taken */
  _Atomic uint32_t busy;    /* helpers that may be at one */
  _Atomic uint32_t bell;    /* changes with each job, and when helpers are dismissed */
  _Atomic uint32_t asleep;  /* helpers that wait for the bell */
  _Atomic uint32_t helpers; /* that are in er_help */
  atomic_bool trapped;      /* a helper's kernel, in this job */
  atomic_bool dismissed;
  bool may_block;
} pool;

/* Takes a piece; gives how many were left, this one included, or 0. */
static uint32_t take(void) {
  uint32_t left = atomic_load(&pool.left);
  while (left && !atomic_compare_exchange_weak(&pool.left, &left, left - 1)) {
  }
  return left;
}

/* Takes pieces while there are any; how many it took. */
static uint32_t work(void) {
  uint32_t count = 0;
  for (uint32_t left; (left = take()); count++) {
    const uint32_t begin = (pool.pieces - left) * pool.piece, rest = pool.job.grid - begin;
    er_call_range(&pool.job, begin, begin + (rest < pool.piece ? rest : pool.piece));
  }
  return count;
}

static void no_longer_busy(void) {
  if (atomic_fetch_sub(&pool.busy, 1) == 1) er_wake(&pool.busy);
}

/* Until the bell has rung since it was read. */
static void listen(uint32_t bell) {
  for (uint32_t spins = 0; spins < SPINS; spins++)
    if (atomic_load(&pool.bell) != bell) return;
  atomic_fetch_add(&pool.asleep, 1);
  er_wait(&pool.bell, bell);
  atomic_fetch_sub(&pool.asleep, 1);
}

static void ring(void) {
  atomic_fetch_add(&pool.bell, 1);
  if (atomic_load(&pool.asleep)) er_wake(&pool.bell);
}

void er_help(void) {
  atomic_fetch_add(&pool.helpers, 1);
  for (;;) {
    const uint32_t bell = atomic_load(&pool.bell); /* before the rest: no ring is missed */
    if (atomic_load(&pool.dismissed)) break;
    if (atomic_load(&pool.left)) {
      atomic_fetch_add(&pool.busy, 1);
      work();
      no_longer_busy();
    }
    listen(bell);
  }
  atomic_fetch_sub(&pool.helpers, 1);
}

void er_help_trapped(void) {
  atomic_store(&pool.trapped, true);
  atomic_store(&pool.left, 0);
  no_longer_busy();
  atomic_fetch_sub(&pool.helpers, 1);
}

void er_dismiss(void) {
  atomic_store(&pool.dismissed, true);
  ring();
}

void er_may_block(uint32_t may) {
  pool.may_block = may;
}

void er_settle(void) {
  atomic_store(&pool.left, 0);
  uint32_t busy;
  for (uint32_t spins = 0; (busy = atomic_load(&pool.busy)); spins++)
    if (spins >= SPINS && pool.may_block) er_wait(&pool.busy, busy);
}

/* How many pieces a job is worth. */
static uint32_t worth(const ErJob *job, uint32_t threads) {
  const uint64_t by_steps = (uint64_t)job->grid * job->steps / LEAST_STEPS;
  const uint64_t most = threads * PIECES_PER_THREAD;
  const uint64_t pieces = by_steps < most ? by_steps : most;
  return pieces < job->grid ? (uint32_t)pieces : job->grid;
}

bool er_share(const ErJob *job, uint32_t *helped) {
  const uint32_t helpers = atomic_load(&pool.helpers);
  const uint32_t pieces = helpers ? worth(job, helpers + 1) : 0;
  *helped = 0;
  if (pieces < 2) {
    er_call_range(job, 0, job->grid);
    return true;
  }
  atomic_store(&pool.trapped, false);
  pool.job = *job;
  pool.piece = (job->grid + pieces - 1) / pieces;
  pool.pieces = (job->grid + pool.piece - 1) / pool.piece;
  atomic_store(&pool.left, pool.pieces);
  ring();
  *helped = pool.pieces - work();
  er_settle();
  return !atomic_load(&pool.trapped);
}
