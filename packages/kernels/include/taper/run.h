/* Running prepared nodes one after the other: what an executor calls once per inference. */
#ifndef TAPER_RUN_H
#define TAPER_RUN_H

#include "taper/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A prepared node: prepare() accepted the call and said how much work it is. */
typedef struct taper_step {
    const taper_kernel *kernel;
    taper_call call;
    taper_work work;
    void *scratch; /* work.scratch_bytes, aligned to TAPER_ALIGNMENT; may be NULL when 0 */
} taper_step;

/*
 * Runs steps[0..count) in order. On failure returns the failing step's status, its index in
 * *failed; later steps are not run. ns, when not NULL, receives each step's nanoseconds.
 */
taper_status taper_run(const taper_step *steps, int64_t count, int64_t *failed, int64_t *ns);

#ifdef __cplusplus
}
#endif
#endif /* TAPER_RUN_H */
