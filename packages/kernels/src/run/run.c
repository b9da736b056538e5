/* Runs steps one after the other: all workers go through the same steps, and synchronize around the
 * phases that they share. */
#include "taper/run.h"

#include <string.h>

#include "os/os.h"
#include "run/team.h"
#include "run/thread_pool.h"

/* A run whose workers all go through the same steps. */
typedef struct march {
    team team;
    _Atomic uint8_t decision[2]; /* the latest two decisions of worker 0 about control flow */
    _Atomic uint8_t over[2];     /* whether the run had failed at worker 0's latest two barriers */
    cursor cursors[TAPER_POOL_WORKERS];
} march;

/* What may have happened since the last barrier. */
typedef enum since_meeting {
    NOTHING,
    ALONE,  /* worker 0 may have computed something */
    SHARED, /* others may still be computing */
} since_meeting;

/* One worker's progress through the steps. All workers count the same phases and barriers. */
typedef struct walk {
    worker me;
    march *with;     /* the run; NULL: no other worker goes with this one, and it leads kernels */
    bool first;      /* the first of those workers */
    int32_t workers; /* how many go through these steps */
    since_meeting since;
    bool over; /* the run has failed and all know it: no further barrier */
    uint32_t phases, decisions, meetings; /* counts of shared ones */
} walk;

/* After a failure there is one more barrier, at which all workers learn of it. On a busy machine
 * each barrier takes until the system gives the last worker a CPU. */
static void meet(walk *on) {
    on->since = NOTHING;
    if (on->over || on->workers == 1)
        return;
    _Atomic uint8_t *place = &on->with->over[on->meetings++ % 2];
    if (on->first)
        atomic_store_explicit(place, has_failed(&on->with->team), memory_order_relaxed);
    taper_pool_barrier(on->workers);
    on->over = atomic_load_explicit(place, memory_order_relaxed);
}

/* Called before the first worker continues alone: waits for the results of the others. */
static void go_alone(walk *on) {
    if (on->since == SHARED)
        meet(on);
    on->since = ALONE;
}

/* Returns whether this worker is the first and is to compute step i, where the run still goes on.
 */
static bool goes_first(const walk *on, int64_t i) { return on->first && taper_goes_on(&on->me, i); }

/* Returns the first worker's decision to all workers. The others do not read its operands, which
 * may have changed by then. */
static bool decide(walk *on, bool decision) {
    if (on->workers == 1)
        return decision;
    _Atomic uint8_t *place = &on->with->decision[on->decisions++ % 2];
    if (on->first)
        atomic_store_explicit(place, decision, memory_order_relaxed);
    meet(on);
    return !on->over && atomic_load_explicit(place, memory_order_relaxed);
}

static void copy_all(const taper_copy *copies, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (copies[i].to != copies[i].from && copies[i].bytes)
            memcpy(copies[i].to, copies[i].from, copies[i].bytes);
}

static void run_block(walk *on, taper_block block);

static void run_if(walk *on, const taper_control *c, int64_t i) {
    const bool taken = decide(on, goes_first(on, i) && *c->predicate);
    run_block(on, c->blocks[taken ? 0 : 1]);
}

static void run_while(walk *on, const taper_control *c, int64_t i) {
    if (goes_first(on, i))
        copy_all(c->enter, c->n_enter);
    for (;;) {
        run_block(on, c->blocks[0]);
        go_alone(on);
        if (!decide(on, goes_first(on, i) && *c->predicate))
            return;
        run_block(on, c->blocks[1]);
        go_alone(on);
        if (goes_first(on, i))
            copy_all(c->next, c->n_next);
    }
}

static void run_scan(walk *on, const taper_control *c, int64_t i) {
    if (goes_first(on, i))
        copy_all(c->enter, c->n_enter);
    for (int64_t trip = 0; trip < c->trips; trip++) {
        for (int64_t k = 0; on->first && k < c->n_slices; k++)
            *c->slices[k].pointer = c->slices[k].first + trip * c->slices[k].stride;
        if (!decide(on, goes_first(on, i)))
            return;
        run_block(on, c->blocks[0]);
        go_alone(on);
        if (goes_first(on, i))
            copy_all(c->next, c->n_next);
    }
}

/* Runs the blocks of step i: all workers go through them, or only the first where no step inside is
 * worth sharing. */
static void run_control(walk *on, int64_t i) {
    const taper_step *step = &on->me.team->args->steps[i];
    const int32_t workers = on->workers;
    go_alone(on);
    if (step->workers <= 1 && !on->first)
        return;
    const int64_t begin = taper_begin_span(&on->me);
    on->workers = step->workers <= 1 ? 1 : workers;
    switch (step->control->kind) {
    case TAPER_IF:
        run_if(on, step->control, i);
        break;
    case TAPER_WHILE:
        run_while(on, step->control, i);
        break;
    case TAPER_SCAN:
        run_scan(on, step->control, i);
        break;
    }
    on->workers = workers;
    taper_end_span(&on->me, i, begin);
}

/* Runs step i, which a kernel computes. The first worker computes small steps alone, and
 * consecutive small steps need no barrier: barriers are only before and after a phase that several
 * workers compute. */
static void run_kernel(walk *on, int64_t i) {
    const taper_step *step = &on->me.team->args->steps[i];
    const int32_t n = step->workers < on->workers ? step->workers : on->workers;
    if (n <= 1) {
        go_alone(on);
        if (!on->first)
            return;
        const int64_t begin = taper_begin_span(&on->me);
        taper_run_tasks(&on->me, i, 0, step->work.tasks);
        taper_end_span(&on->me, i, begin);
        return;
    }
    const int64_t phases = step->work.phases > 1 ? step->work.phases : 1;
    const int64_t tasks = step->work.tasks / phases;
    int64_t begin = 0;
    for (int64_t p = 0; p < phases; p++) {
        if (on->since != NOTHING)
            meet(on);
        on->since = SHARED;
        on->phases++;
        if (on->me.index >= n)
            continue;
        if (p == 0)
            begin = taper_begin_span(&on->me);
        const phase now = {i, p * tasks, tasks, n, on->phases};
        taper_run_shares(&on->me, &now, on->with->cursors);
    }
    if (on->me.index < n)
        taper_end_span(&on->me, i, begin);
}

static void run_block(walk *on, taper_block block) {
    for (int64_t i = block.first; i < block.first + block.count && !on->over; i++) {
        const bool goes_on = goes_first(on, i);
        if (on->me.team->args->steps[i].control)
            run_control(on, i);
        else if (on->with)
            run_kernel(on, i);
        else if (goes_on)
            taper_lead(&on->me, i);
    }
}

void taper_run_control_alone(const worker *me, int64_t i) {
    walk on = {.me = *me, .first = true, .workers = 1};
    run_control(&on, i);
}

static void run_steps(void *arg, int32_t index, int32_t workers) {
    march *with = arg;
    walk on = {.me = {.team = &with->team, .index = index},
               .with = with,
               .first = index == 0,
               .workers = workers};
    run_block(&on, (taper_block){0, with->team.args->count});
}

/* Returns the most workers that a step may keep busy. */
static int32_t workers_wanted(const taper_run_args *args) {
    int32_t workers = args->order ? args->leaders : 1;
    for (int64_t i = 0; i < args->count; i++)
        workers = args->steps[i].workers > workers ? args->steps[i].workers : workers;
    workers = workers < args->workers ? workers : args->workers;
    return workers < TAPER_POOL_WORKERS ? workers : TAPER_POOL_WORKERS;
}

taper_status taper_run(const taper_run_args *args, int64_t *failed) {
    march with;
    const int32_t workers = workers_wanted(args);
    taper_team_begin(&with.team, args);
    taper_pool_enter();
    if (args->order) {
        taper_schedule_begin(args);
        taper_run_ready(&with.team, 0, workers);
    } else {
        for (int32_t w = 0; w < workers; w++)
            atomic_init(&with.cursors[w].at, 0);
        taper_pool_run(run_steps, &with, workers);
    }
    taper_pool_leave();
    *failed = with.team.failed;
    return (taper_status)atomic_load_explicit(&with.team.status, memory_order_relaxed);
}

int32_t taper_cpu_count(void) { return taper_os_cpu_count(); }

int64_t taper_now(void) { return taper_os_now(); }
