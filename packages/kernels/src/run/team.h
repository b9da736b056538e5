/* Data that the workers of one run share, and functions for runs with and without an order. */
#ifndef TAPER_TEAM_H
#define TAPER_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "taper/run.h"

enum { CACHE_LINE = 64 };

typedef struct team {
    const taper_run_args *args;
    _Atomic int32_t status; /* the failing step's; once it is set, the rest of the run is skipped */
    atomic_flag failing;    /* while a worker writes the two below */
    int64_t failed;
    int64_t failed_within; /* the step of the run that failed or contains the failed one; -1: the
                              run was told to end */
    int64_t polled;        /* when worker 0 last polled, by the coarse clock */
} team;

/* One worker's progress through a run. */
typedef struct worker {
    team *team;
    int32_t index;
    int64_t within; /* its present step of the run */
} worker;

/* Progress of one worker's share of its latest phase: the phase's number << 32 | grains handed out.
 */
typedef struct cursor {
    _Alignas(CACHE_LINE) _Atomic uint64_t at;
} cursor;

/* Tasks [from, from + tasks) of a step, in one share for each worker that may compute them. */
typedef struct phase {
    int64_t step, from, tasks;
    int32_t shares;
    uint32_t number; /* different from that of the phase before with the same cursors */
} phase;

/* Called before the workers begin. */
void taper_team_begin(team *t, const taper_run_args *args);

static inline bool has_failed(team *t) {
    return atomic_load_explicit(&t->status, memory_order_relaxed) != TAPER_OK;
}

/* Returns whether a worker that has come to step i is to continue: no step failed, and nothing ends
 * the run. */
bool taper_goes_on(const worker *me, int64_t i);

/* Computes the tasks [begin, end) of step i, unless the run has ended. */
void taper_run_tasks(const worker *me, int64_t i, int64_t begin, int64_t end);

/* Computes the worker's part of a phase: its own share, whose data is in its caches, and then what
 * is left of other shares. Cores are rarely equally fast, because other processes and other threads
 * of the core slow them down. cursors: [shares]. */
void taper_run_shares(const worker *me, const phase *p, cursor *cursors);

/* Returns the time now, where times are recorded; else 0. */
int64_t taper_begin_span(const worker *me);
/* Adds the time since `begin` to this worker's at step i. */
void taper_end_span(const worker *me, int64_t i, int64_t begin);

/* -- runs with an order ------------------------------------------------------------------------ */

/* A worker's part in such a run, whose team is `shared`; a taper_pool_fn. The caller, worker 0,
 * invites the others when there is something for them to do. */
void taper_run_ready(void *shared, int32_t index, int32_t workers);
/* Initializes args->schedule before the workers begin. */
void taper_schedule_begin(const taper_run_args *args);
/* Computes step i, which a kernel computes; workers without a step help. */
void taper_lead(const worker *me, int64_t i);
/* Runs step i, which is control flow, on this worker, and each kernel inside by taper_lead. */
void taper_run_control_alone(const worker *me, int64_t i);

#endif /* TAPER_TEAM_H */
