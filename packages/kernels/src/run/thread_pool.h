/* One pool of threads per process. */
#ifndef TAPER_THREAD_POOL_H
#define TAPER_THREAD_POOL_H

#include <stdint.h>

enum { TAPER_POOL_WORKERS = 255 }; /* at most; fits the low byte of a run's word */

typedef void (*taper_pool_fn)(void *arg, int32_t worker, int32_t workers);

/* Around what a caller runs. Callers are not to be more than the CPUs together with the workers
 * of the pool: who comes second computes alone, or with the CPUs that are left. */
void taper_pool_enter(void);
void taper_pool_leave(void);

/*
 * Calls fn(arg, w, n) for w in [0, n), each in a thread of its own, w = 0 in the caller's, and
 * returns when all have. n is at most `workers`: less where threads cannot be created or other
 * callers need the CPUs, 1 where another caller has the pool.
 */
void taper_pool_run(taper_pool_fn fn, void *arg, int32_t workers);

/*
 * Has others call fn(arg, w, n), each in a thread of its own, w in [1, n), for a caller who is at
 * that work as worker 0 already: any of the workers can do it. Returns n, at most `workers`, or 0
 * where another caller has the pool or the CPUs. fn has no meeting points.
 */
int32_t taper_pool_invite(taper_pool_fn fn, void *arg, int32_t workers);

/* Ends what taper_pool_invite has begun, which returned n: waits for those that are at it; those
 * that have not come do no more. */
void taper_pool_part(int32_t n);

/* Meeting point of the n workers inside fn: none leaves before all have come. */
void taper_pool_barrier(int32_t workers);

/* One turn of a loop that waits for another thread, which counts them in *turn, from 0 on: short,
 * but after some hundred microseconds the CPU is others' for a while. */
void taper_pool_wait(int32_t *turn);

#endif /* TAPER_THREAD_POOL_H */
