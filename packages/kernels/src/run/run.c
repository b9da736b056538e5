#include "taper/run.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "os/os.h"
#include "run/thread_pool.h"

enum {
    CACHE_LINE = 64,
    GRAINS = 256, /* at most, that a worker's share of a step is handed out in */
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
    cursor cursors[TAPER_POOL_WORKERS];
} region;

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
    if (status != TAPER_OK) {
        int32_t none = TAPER_OK;
        if (atomic_compare_exchange_strong(&r->status, &none, (int32_t)status))
            r->failed = i;
    }
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

/* One worker's way through all steps. Small steps are worker 0's alone, and runs of them need no
 * meeting: only a phase that several compute waits for what came before, and is waited for. */
static void run_steps(void *arg, int32_t w, int32_t workers) {
    region *r = arg;
    bool was_shared = false; /* the previous step: workers may still be at it */
    uint32_t number = 0;     /* of the phase; each worker counts the same */
    for (int64_t i = 0; i < r->args->count; i++) {
        const taper_step *step = &r->args->steps[i];
        const int32_t n = step->workers < workers ? step->workers : workers;
        const bool shared = n > 1;
        taper_span *span =
            r->args->spans && w < n ? &r->args->spans[i * r->args->workers + w] : NULL;
        const int64_t phases = shared && step->work.phases > 1 ? step->work.phases : 1;
        const int64_t tasks = step->work.tasks / phases;
        for (int64_t p = 0; p < phases; p++) {
            number++;
            if (shared || was_shared)
                taper_pool_barrier(workers);
            was_shared = shared;
            if (w >= n)
                continue;
            if (span && p == 0)
                span->begin = taper_os_now();
            if (n == 1)
                run_tasks(r, i, 0, tasks, w);
            else
                run_shares(r, i, p * tasks, tasks, number, w, n);
        }
        if (span)
            span->end = taper_os_now();
    }
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
    atomic_init(&r.status, TAPER_OK);
    for (int32_t w = 0; w < workers; w++)
        atomic_init(&r.cursors[w].at, 0);
    taper_pool_run(run_steps, &r, workers);
    *failed = r.failed;
    return (taper_status)atomic_load_explicit(&r.status, memory_order_relaxed);
}

int32_t taper_cpu_count(void) { return taper_os_cpu_count(); }

int64_t taper_now(void) { return taper_os_now(); }
