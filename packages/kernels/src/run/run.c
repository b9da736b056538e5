#include "taper/run.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "os/os.h"
#include "run/thread_pool.h"

enum {
    CACHE_LINE = 64,
    GRAINS = 256, /* at most, that a worker's share of a step is handed out in */
    POLL_NS = 25000000
};

/* Of the share of one worker, in its latest phase of a step: the phase's number in the run << 32 |
 * grains handed out. */
typedef struct cursor {
    _Alignas(CACHE_LINE) _Atomic uint64_t at;
} cursor;

typedef struct region {
    const taper_run_args *args;
    _Atomic int32_t status; /* the first failure's; set, the rest of the run is skipped */
    int64_t failed;
    int64_t polled;              /* when worker 0 last did, by the coarse clock */
    _Atomic uint8_t decision[2]; /* of worker 0, which way control goes: the latest two */
    cursor cursors[TAPER_POOL_WORKERS];
} region;

/* What has happened since all workers last met. */
typedef enum since_meeting {
    NOTHING,
    ALONE,  /* worker 0 may have computed */
    SHARED, /* others may be at it still */
} since_meeting;

/* One worker's way through the steps. All of them count and meet alike. */
typedef struct worker {
    region *r;
    int32_t index, workers; /* workers: that go this way */
    since_meeting since;
    uint32_t phases, decisions; /* counted: shared ones */
} worker;

static void fail(region *r, int64_t step, taper_status status) {
    int32_t none = TAPER_OK;
    if (atomic_compare_exchange_strong(&r->status, &none, (int32_t)status))
        r->failed = step;
}

/* Computes some of a step's tasks, on worker w. */
static void run_tasks(region *r, int64_t i, int64_t begin, int64_t end, int32_t w) {
    const taper_step *step = &r->args->steps[i];
    if (begin == end || atomic_load_explicit(&r->status, memory_order_relaxed) != TAPER_OK)
        return;
    void *scratch =
        w == 0
            ? step->scratch
            : (void *)(r->args->worker_scratch + (size_t)(w - 1) * r->args->worker_scratch_bytes);
    const taper_status status = step->kernel->run(&step->call, begin, end, scratch);
    if (status != TAPER_OK)
        fail(r, i, status);
}

/* Half of the grains that are left of a share in that phase; false when there are none. */
static bool take_grains(cursor *c, uint64_t number, int64_t grains, int64_t *begin, int64_t *end) {
    uint64_t at = atomic_load_explicit(&c->at, memory_order_relaxed);
    do {
        *begin = at >> 32 == number ? (int64_t)(uint32_t)at : 0;
        *end = *begin + (grains - *begin + 1) / 2;
        if (*begin == *end)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&c->at, &at, number << 32 | (uint64_t)*end,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Worker w's part in the tasks [from, from + tasks) of step i: its own share, which lies in its
 * caches, then what others have left. Cores are seldom equally fast: other processes and other
 * threads of the core slow them down. number: the phase's, other than the one before had. */
static void run_shares(region *r, int64_t i, int64_t from, int64_t tasks, uint64_t number,
                       int32_t w, int32_t workers) {
    for (int32_t n = 0; n < workers; n++) {
        const int32_t whose = (w + n) % workers;
        const int64_t first = tasks * whose / workers,
                      share = tasks * (whose + 1) / workers - first,
                      grains = share < GRAINS ? share : GRAINS;
        int64_t begin, end;
        while (take_grains(&r->cursors[whose], number, grains, &begin, &end))
            run_tasks(r, i, from + first + share * begin / grains,
                      from + first + share * end / grains, w);
    }
}

static void meet(worker *me) {
    taper_pool_barrier(me->workers);
    me->since = NOTHING;
}

/* Before worker 0 goes on alone: what others compute is there. */
static void go_alone(worker *me) {
    if (me->since == SHARED)
        meet(me);
    me->since = ALONE;
}

/* Whether worker 0 is to go on after coming to step i: no step failed, nobody wants an end. */
static bool goes_on(region *r, int64_t i) {
    const taper_run_args *args = r->args;
    if (args->stop && __atomic_load_n(args->stop, __ATOMIC_RELAXED))
        fail(r, i, TAPER_STOPPED);
    if (args->poll) {
        const int64_t now = taper_os_coarse_now();
        if (now - r->polled >= POLL_NS) {
            r->polled = now;
            if (!args->poll(args->poll_context))
                fail(r, i, TAPER_STOPPED);
        }
    }
    return atomic_load_explicit(&r->status, memory_order_relaxed) == TAPER_OK;
}

/* What worker 0 decides, for all: nobody reads what it has decided by, which may be gone by then.
 */
static bool decide(worker *me, bool decision) {
    if (me->workers == 1)
        return decision;
    _Atomic uint8_t *place = &me->r->decision[me->decisions++ % 2];
    if (me->index == 0)
        atomic_store_explicit(place, decision, memory_order_relaxed);
    meet(me);
    return atomic_load_explicit(place, memory_order_relaxed);
}

/* Now, where times are recorded; else 0. */
static int64_t begin_span(const region *r) { return r->args->spans ? taper_os_now() : 0; }

/* Adds the time since `begin` to this worker's at step i. */
static void end_span(const worker *me, int64_t i, int64_t begin) {
    const taper_run_args *args = me->r->args;
    if (!args->spans)
        return;
    taper_span *span = &args->spans[i * args->workers + me->index];
    if (!span->begin)
        span->begin = span->end = begin;
    span->end += taper_os_now() - begin;
    span->times++;
}

static void copy_all(const taper_copy *copies, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (copies[i].to != copies[i].from && copies[i].bytes)
            memcpy(copies[i].to, copies[i].from, copies[i].bytes);
}

static void run_block(worker *me, taper_block block);

static void run_if(worker *me, const taper_control *c, int64_t i) {
    const bool taken = decide(me, me->index == 0 && goes_on(me->r, i) && *c->predicate);
    run_block(me, c->blocks[taken ? 0 : 1]);
}

static void run_while(worker *me, const taper_control *c, int64_t i) {
    const bool first = me->index == 0;
    if (first && goes_on(me->r, i))
        copy_all(c->enter, c->n_enter);
    for (;;) {
        run_block(me, c->blocks[0]);
        go_alone(me);
        if (!decide(me, first && goes_on(me->r, i) && *c->predicate))
            return;
        run_block(me, c->blocks[1]);
        go_alone(me);
        if (first && goes_on(me->r, i))
            copy_all(c->next, c->n_next);
    }
}

static void run_scan(worker *me, const taper_control *c, int64_t i) {
    const bool first = me->index == 0;
    if (first && goes_on(me->r, i))
        copy_all(c->enter, c->n_enter);
    for (int64_t trip = 0; trip < c->trips; trip++) {
        for (int64_t k = 0; first && k < c->n_slices; k++)
            *c->slices[k].pointer = c->slices[k].first + trip * c->slices[k].stride;
        if (!decide(me, first && goes_on(me->r, i)))
            return;
        run_block(me, c->blocks[0]);
        go_alone(me);
        if (first && goes_on(me->r, i))
            copy_all(c->next, c->n_next);
    }
}

/* Step i's blocks: by all workers alike, or, where no step inside is worth it, by worker 0. */
static void run_control(worker *me, int64_t i) {
    const taper_step *step = &me->r->args->steps[i];
    const int32_t workers = me->workers;
    go_alone(me);
    if (step->workers <= 1 && me->index > 0)
        return;
    const int64_t begin = begin_span(me->r);
    me->workers = step->workers <= 1 ? 1 : workers;
    switch (step->control->kind) {
    case TAPER_IF:
        run_if(me, step->control, i);
        break;
    case TAPER_WHILE:
        run_while(me, step->control, i);
        break;
    case TAPER_SCAN:
        run_scan(me, step->control, i);
        break;
    }
    me->workers = workers;
    end_span(me, i, begin);
}

/* A kernel's step i. Small steps are worker 0's alone, and runs of them need no meeting: only a
 * phase that several compute waits for what came before, and is waited for. */
static void run_kernel(worker *me, int64_t i) {
    const taper_step *step = &me->r->args->steps[i];
    const int32_t n = step->workers < me->workers ? step->workers : me->workers;
    if (n <= 1) {
        go_alone(me);
        if (me->index > 0)
            return;
        const int64_t begin = begin_span(me->r);
        run_tasks(me->r, i, 0, step->work.tasks, 0);
        end_span(me, i, begin);
        return;
    }
    const int64_t phases = step->work.phases > 1 ? step->work.phases : 1;
    const int64_t tasks = step->work.tasks / phases;
    int64_t begin = 0;
    for (int64_t p = 0; p < phases; p++) {
        if (me->since != NOTHING)
            meet(me);
        me->since = SHARED;
        me->phases++;
        if (me->index >= n)
            continue;
        if (p == 0)
            begin = begin_span(me->r);
        run_shares(me->r, i, p * tasks, tasks, me->phases, me->index, n);
    }
    if (me->index < n)
        end_span(me, i, begin);
}

static void run_block(worker *me, taper_block block) {
    for (int64_t i = block.first; i < block.first + block.count; i++) {
        if (me->index == 0)
            goes_on(me->r, i);
        if (me->r->args->steps[i].control)
            run_control(me, i);
        else
            run_kernel(me, i);
    }
}

static void run_steps(void *arg, int32_t index, int32_t workers) {
    region *r = arg;
    worker me = {.r = r, .index = index, .workers = workers};
    run_block(&me, (taper_block){0, r->args->count});
}

taper_status taper_run(const taper_run_args *args, int64_t *failed) {
    int32_t workers = 1;
    for (int64_t i = 0; i < args->count; i++)
        workers = args->steps[i].workers > workers ? args->steps[i].workers : workers;
    workers = workers < args->workers ? workers : args->workers;
    workers = workers < TAPER_POOL_WORKERS ? workers : TAPER_POOL_WORKERS;
    region r;
    r.args = args;
    r.failed = 0;
    r.polled = args->poll ? taper_os_coarse_now() : 0;
    atomic_init(&r.status, TAPER_OK);
    for (int32_t w = 0; w < workers; w++)
        atomic_init(&r.cursors[w].at, 0);
    taper_pool_run(run_steps, &r, workers);
    *failed = r.failed;
    return (taper_status)atomic_load_explicit(&r.status, memory_order_relaxed);
}

int32_t taper_cpu_count(void) { return taper_os_cpu_count(); }

int64_t taper_now(void) { return taper_os_now(); }
