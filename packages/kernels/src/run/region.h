/* What the workers of one run share, and what each of them does whichever way it goes. */
#ifndef TAPER_REGION_H
#define TAPER_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "taper/run.h"

enum { CACHE_LINE = 64 };

typedef struct region {
    const taper_run_args *args;
    _Atomic int32_t status; /* the failing step's; set, the rest of the run is skipped */
    atomic_flag failing;    /* while a worker writes the two below */
    int64_t failed;
    int64_t failed_within; /* the step of the run that it is, or lies in; -1: told to end */
    int64_t polled;        /* when worker 0 last did, by the coarse clock */
} region;

/* One worker's way through a run. */
typedef struct worker {
    region *r;
    int32_t index;
    int64_t within; /* the step of the run at which it is */
} worker;

/* Of the share of one worker, in its latest phase of a step: the phase's number << 32 | grains
 * handed out. */
typedef struct cursor {
    _Alignas(CACHE_LINE) _Atomic uint64_t at;
} cursor;

/* Tasks [from, from + tasks) of a step, in as many shares as workers may compute them. */
typedef struct phase {
    int64_t step, from, tasks;
    int32_t shares;
    uint32_t number; /* other than that of the phase before that had the same cursors */
} phase;

/* Before the workers begin. */
void taper_region_begin(region *r, const taper_run_args *args);

static inline bool has_failed(region *r) {
    return atomic_load_explicit(&r->status, memory_order_relaxed) != TAPER_OK;
}

/* Whether a worker is to go on after coming to step i: no step failed, nobody wants an end. */
bool taper_goes_on(const worker *me, int64_t i);

/* Computes the tasks [begin, end) of step i, unless nobody wants them any more. */
void taper_run_tasks(const worker *me, int64_t i, int64_t begin, int64_t end);

/* The worker's part in a phase: its own share, which lies in its caches, then what others have
 * left. Cores are seldom equally fast: other processes and other threads of the core slow them
 * down. cursors: [shares]. */
void taper_run_shares(const worker *me, const phase *p, cursor *cursors);

/* Now, where times are recorded; else 0. */
int64_t taper_begin_span(const worker *me);
/* Adds the time since `begin` to this worker's at step i. */
void taper_end_span(const worker *me, int64_t i, int64_t begin);

/* -- runs with an order ------------------------------------------------------------------------ */

/* A worker's part in such a run, whose region is `r`; a taper_pool_fn. The caller, worker 0,
 * invites the others when there is something for them to do. */
void taper_run_ready(void *r, int32_t index, int32_t workers);
/* Writes args->schedule, before the workers begin. */
void taper_schedule_begin(const taper_run_args *args);
/* Computes a kernel's step i; workers that have no step of their own help. */
void taper_lead(const worker *me, int64_t i);
/* Runs control, step i, on this worker; each kernel inside by taper_lead. */
void taper_run_control_alone(const worker *me, int64_t i);

#endif /* TAPER_REGION_H */
