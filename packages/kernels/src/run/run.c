#define _GNU_SOURCE /* sched_getaffinity */
#include "taper/run.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "run/pool.h"

typedef struct region {
    const taper_run_args *args;
    _Atomic int32_t status; /* the first failure's; set, the rest of the run is skipped */
    int64_t failed;
} region;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Worker w's share of a step's tasks. */
static void run_share(region *r, int64_t i, int32_t w, int32_t workers) {
    const taper_step *step = &r->args->steps[i];
    const int64_t tasks = step->work.tasks;
    const int64_t begin = tasks * w / workers, end = tasks * (w + 1) / workers;
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

/* One worker's way through all steps. Small steps are worker 0's alone, and runs of them need no
 * meeting: only a step that several compute waits for what came before, and is waited for. */
static void run_steps(void *arg, int32_t w, int32_t workers) {
    region *r = arg;
    bool apart = false; /* whether the previous step was shared */
    for (int64_t i = 0; i < r->args->count; i++) {
        const taper_step *step = &r->args->steps[i];
        const int32_t n = step->workers < workers ? step->workers : workers;
        const bool shared = n > 1;
        if (shared || apart)
            taper_pool_barrier(workers);
        apart = shared;
        if (w >= n)
            continue;
        taper_span *span = r->args->spans ? &r->args->spans[i * r->args->workers + w] : NULL;
        if (span)
            span->begin = now_ns();
        run_share(r, i, w, n);
        if (span)
            span->end = now_ns();
    }
}

taper_status taper_run(const taper_run_args *args, int64_t *failed) {
    region r = {.args = args};
    int32_t workers = 1;
    for (int64_t i = 0; i < args->count; i++)
        workers = args->steps[i].workers > workers ? args->steps[i].workers : workers;
    taper_pool_run(run_steps, &r, workers < args->workers ? workers : args->workers);
    *failed = r.failed;
    return (taper_status)atomic_load_explicit(&r.status, memory_order_relaxed);
}

int32_t taper_cpu_count(void) {
    cpu_set_t set;
    int32_t cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file) {
        long long quota, period; /* "max 100000" where there is no limit */
        if (fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
            const long long allowed = (quota + period - 1) / period;
            cpus = allowed < cpus ? (int32_t)allowed : cpus;
        }
        fclose(file);
    }
    return cpus > 0 ? cpus : 1;
}
