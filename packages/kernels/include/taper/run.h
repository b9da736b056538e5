/* Running prepared nodes one after the other: what an executor calls once per inference. */
#ifndef TAPER_RUN_H
#define TAPER_RUN_H

#include "taper/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A prepared node: prepare() accepted the call and said how much work it is. */
typedef struct taper_step {
    const taper_kernel *kernel;
    taper_call call;
    taper_work work;
    void *scratch;   /* worker 0's work.scratch_bytes, aligned; may be NULL when 0 */
    int32_t workers; /* how many the node keeps busy; 1 for a small one */
} taper_step;

/* When one worker was at one step, by taper_now; zeros where it was not. */
typedef struct taper_span {
    int64_t begin, end;
} taper_span;

/* What one run needs. */
typedef struct taper_run_args {
    const taper_step *steps; /* [count] */
    int64_t count;
    int32_t workers;             /* at most this many threads, the caller among them */
    char *worker_scratch;        /* [workers - 1][worker_scratch_bytes], aligned: workers 1.. */
    size_t worker_scratch_bytes; /* at least every step's scratch_bytes; a multiple of 64 */
    taper_span *spans;           /* [count][workers], zeroed by the caller; or NULL */
} taper_run_args;

/*
 * Runs the steps in order. The whole run is one parallel region of a pool that all callers in the
 * process share: the caller works too, the others spin between steps and sleep between runs. A run
 * that finds the pool busy with another run computes alone. The bits do not depend on the number of
 * threads. On failure returns a failing step's status, its index in *failed; later steps are not
 * run.
 */
taper_status taper_run(const taper_run_args *args, int64_t *failed);

/* CPUs this process may use: on Linux and Windows its affinity mask, on Linux also the cgroup's
 * quota rounded up; elsewhere those that are online. */
int32_t taper_cpu_count(void);

/* Nanoseconds of a clock that never goes back. */
int64_t taper_now(void);

#ifdef __cplusplus
}
#endif
#endif /* TAPER_RUN_H */
