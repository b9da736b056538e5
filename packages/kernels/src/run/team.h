/* Data that the workers of one run share, and functions for runs with and without an order. */
#ifndef TAPER_TEAM_H
#define TAPER_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "run/thread_pool.h"
#include "taper/run.h"

typedef struct team {
    const taper_run_args *args;
    _Atomic int32_t status; /* the failing step's; once it is set, the rest of the run is skipped */
    atomic_flag failing;    /* while a worker writes the two below */
    int64_t failed;
    int64_t failed_within; /* the step of the run that failed or contains the failed one; -1: the
                              run was told to end */
    int64_t polled;        /* when worker 0 last polled, by the coarse clock */
} team;

/* Progress of one worker's share of its latest phase: the phase's number << 32 | grains handed out.
 */
typedef struct cursor {
    _Alignas(TAPER_CACHE_LINE) _Atomic uint64_t at;
} cursor;

/* By which a worker shares the phases of its steps with others. */
typedef struct job {
    team *team;
    cursor *cursors;   /* [workers of the run] */
    uint32_t number;   /* of its latest phase */
    taper_seats seats; /* with an order; otherwise the pool's */
} job;

/* One worker's progress through a run. */
typedef struct worker {
    team *team;
    int32_t index;
    int32_t workers; /* that the run may have */
    int64_t within;  /* its present step of the run */
    job *job;        /* by which it shares steps; NULL: it computes them alone */
} worker;

/* Called before the workers begin. */
void taper_team_begin(team *t, const taper_run_args *args);

static inline bool has_failed(team *t) {
    return atomic_load_explicit(&t->status, memory_order_relaxed) != TAPER_OK;
}

/* Returns whether a worker that has come to step i is to continue: no step failed, and nothing ends
 * the run. */
bool taper_goes_on(const worker *me, int64_t i);

/* Initializes a worker's job. cursors: [workers]. */
void taper_job_begin(job *j, team *t, cursor *cursors, int32_t workers);

/* Computes step i, which a kernel computes, together with those that join. */
void taper_lead(const worker *me, int64_t i);
/* Computes a part of the job's phase, as a worker that has joined; a taper_pool_fn. */
void taper_help(void *job, const taper_phase *phase, int32_t index);

/* Returns the time now, where times are recorded; else 0. */
int64_t taper_begin_span(const worker *me);
/* Adds the time since `begin` to this worker's at step i. */
void taper_end_span(const worker *me, int64_t i, int64_t begin);

/* Runs step i, which is control flow, on this worker, and each kernel inside by taper_lead. */
void taper_run_control(const worker *me, int64_t i);

/* -- runs with an order ------------------------------------------------------------------------ */

/* Runs all steps; args->schedule is the run's. */
void taper_run_ready(team *t, int32_t workers);

#endif /* TAPER_TEAM_H */
