/* Runs steps one after the other. The caller goes through them; the pool's workers help it with
 * those that they share. */
#include "taper/run.h"

#include <string.h>

#include "os/os.h"
#include "run/team.h"

static void copy_all(const taper_copy *copies, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (copies[i].to != copies[i].from && copies[i].bytes)
            memcpy(copies[i].to, copies[i].from, copies[i].bytes);
}

static void run_block(const worker *me, taper_block block);

static void run_if(const worker *me, const taper_control *c) {
    run_block(me, c->blocks[*c->predicate ? 0 : 1]);
}

static void run_while(const worker *me, const taper_control *c, int64_t i) {
    copy_all(c->enter, c->n_enter);
    for (;;) {
        run_block(me, c->blocks[0]);
        if (!taper_goes_on(me, i) || !*c->predicate)
            return;
        run_block(me, c->blocks[1]);
        if (!taper_goes_on(me, i))
            return;
        copy_all(c->next, c->n_next);
    }
}

static void run_scan(const worker *me, const taper_control *c, int64_t i) {
    copy_all(c->enter, c->n_enter);
    for (int64_t trip = 0; trip < c->trips && taper_goes_on(me, i); trip++) {
        for (int64_t k = 0; k < c->n_slices; k++)
            *c->slices[k].pointer = c->slices[k].first + trip * c->slices[k].stride;
        run_block(me, c->blocks[0]);
        if (has_failed(me->team))
            return;
        copy_all(c->next, c->n_next);
    }
}

void taper_run_control(const worker *me, int64_t i) {
    const taper_control *c = me->team->args->steps[i].control;
    const int64_t begin = taper_begin_span(me);
    switch (c->kind) {
    case TAPER_IF:
        run_if(me, c);
        break;
    case TAPER_WHILE:
        run_while(me, c, i);
        break;
    case TAPER_SCAN:
        run_scan(me, c, i);
        break;
    }
    taper_end_span(me, i, begin);
}

static void run_block(const worker *me, taper_block block) {
    for (int64_t i = block.first; i < block.first + block.count && taper_goes_on(me, i); i++) {
        if (me->team->args->steps[i].control)
            taper_run_control(me, i);
        else
            taper_lead(me, i);
    }
}

static void run_in_order(team *t, int32_t wanted) {
    worker me = {.team = t, .workers = taper_pool_take(wanted)};
    cursor cursors[TAPER_POOL_WORKERS];
    job own;
    if (me.workers > 1) {
        taper_job_begin(&own, t, cursors, me.workers);
        me.job = &own;
    }
    run_block(&me, (taper_block){0, t->args->count});
    if (me.workers > 1)
        taper_pool_release();
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
    team t;
    const int32_t workers = workers_wanted(args);
    taper_team_begin(&t, args);
    taper_pool_enter();
    if (args->order)
        taper_run_ready(&t, workers);
    else
        run_in_order(&t, workers);
    taper_pool_leave();
    *failed = t.failed;
    return (taper_status)atomic_load_explicit(&t.status, memory_order_relaxed);
}

int32_t taper_cpu_count(void) { return taper_os_cpu_count(); }

int64_t taper_now(void) { return taper_os_now(); }
