#include "taper/run.h"

#include <time.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

taper_status taper_run(const taper_step *steps, int64_t count, int64_t *failed, int64_t *ns) {
    for (int64_t i = 0; i < count; i++) {
        const taper_step *step = &steps[i];
        const int64_t start = ns ? now_ns() : 0;
        if (step->work.tasks > 0) {
            const taper_status status =
                step->kernel->run(&step->call, 0, step->work.tasks, step->scratch);
            if (status != TAPER_OK) {
                *failed = i;
                return status;
            }
        }
        if (ns)
            ns[i] = now_ns() - start;
    }
    return TAPER_OK;
}
