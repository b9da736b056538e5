#include <string.h>

#include "os/os.h"
#include "run/thread_pool.h"
#include "taper/machine.h"

enum { MAX_WORKERS = 256 };

typedef struct measured {
    double work;
    int64_t begin, end;
} measured;

typedef struct measure_job {
    const taper_probe *probe;
    char *memory;
    size_t bytes;
    int64_t passes;
    int32_t workers;
    _Atomic int32_t ready; /* workers */
    measured each[MAX_WORKERS];
} measure_job;

/* Begins the measured passes when all workers have come. */
static void measure_one(void *arg, const taper_phase *none, int32_t w) {
    (void)none;
    measure_job *job = arg;
    char *memory = job->memory + (size_t)w * job->bytes;
    memset(memory, 1, job->bytes); /* without a write all pages would be one page, in cache */
    job->probe->run(memory, job->bytes, 1);
    atomic_fetch_add(&job->ready, 1);
    for (int32_t turn = 0; atomic_load(&job->ready) < job->workers;)
        taper_pool_wait(&turn);
    measured *m = &job->each[w];
    const int64_t begin = taper_os_now();
    m->work = job->probe->run(memory, job->bytes, job->passes);
    m->end = taper_os_now();
    m->begin = begin;
}

taper_status taper_measure(const taper_probe *probe, int32_t workers, void *memory, size_t bytes,
                           int64_t passes, taper_measurement *result) {
    if (workers < 1 || workers > MAX_WORKERS || bytes < TAPER_ALIGNMENT || passes < 1)
        return TAPER_BAD_ARGUMENT;
    measure_job job = {.probe = probe, .memory = memory, .bytes = bytes, .passes = passes};
    job.workers = taper_pool_take(workers);
    if (job.workers > 1)
        taper_pool_open(measure_one, &job, NULL, job.workers);
    measure_one(&job, NULL, 0);
    if (job.workers > 1) {
        taper_pool_close();
        taper_pool_release();
    }
    measured all = job.each[0];
    for (int32_t w = 1; w < job.workers; w++) {
        const measured *m = &job.each[w];
        all.work += m->work;
        all.begin = m->begin < all.begin ? m->begin : all.begin;
        all.end = m->end > all.end ? m->end : all.end;
    }
    *result = (taper_measurement){all.work, all.end > all.begin ? all.end - all.begin : 1};
    return TAPER_OK;
}
