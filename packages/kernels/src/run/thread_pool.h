/* One pool of threads per process. */
#ifndef TAPER_THREAD_POOL_H
#define TAPER_THREAD_POOL_H

#include <stdint.h>

enum { TAPER_POOL_WORKERS = 255 }; /* at most; fits the low byte of a run's word */

typedef void (*taper_pool_fn)(void *arg, int32_t worker, int32_t workers);

/* Called before and after a caller's run. Callers and the workers of the pool together use at most
 * all CPUs: a second caller computes alone, or with the CPUs that are left. */
void taper_pool_enter(void);
void taper_pool_leave(void);

/*
 * Calls fn(arg, w, n) for w in [0, n), each in its own thread, w = 0 in the caller's, and returns
 * when all calls have returned. n is at most `workers`: it is less where threads cannot be created
 * or other callers need the CPUs, and 1 where another caller owns the pool.
 */
void taper_pool_run(taper_pool_fn fn, void *arg, int32_t workers);

/*
 * Lets other threads call fn(arg, w, n), each in its own thread, w in [1, n), while the caller
 * already does that work as worker 0; the work must not need all of them. Returns n, at most
 * `workers`, or 0 where another caller owns the pool or uses the CPUs. fn must not use the barrier.
 */
int32_t taper_pool_invite(taper_pool_fn fn, void *arg, int32_t workers);

/* Ends a run that taper_pool_invite has begun, which returned n: waits for the threads that have
 * joined; the others no longer join. */
void taper_pool_part(int32_t n);

/* Barrier of the n workers inside fn: none returns before all have called it. */
void taper_pool_barrier(int32_t workers);

/* One iteration of a loop that waits for another thread; *turn counts them, from 0 on. It is short,
 * but after some hundred microseconds it yields the CPU for a while. */
void taper_pool_wait(int32_t *turn);

#endif /* TAPER_THREAD_POOL_H */
