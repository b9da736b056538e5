/* ARANGE: counts. It reads no input; the output's size gives the number of elements. */
#include "common/tensor.h"
#include "arange/kernels.inc"
#include "isa/isa.h"

TAPER_DEFINE_ATTRS(arange)

struct arange_state {
    int64_t count;
};

static taper_status i64_arange_prepare(const taper_call *call, taper_work *work) {
    const taper_tensor *y = call->output;
    struct arange_state *s = call->state;
    if (call->n_inputs != 0 || y->dtype != TAPER_INT64 || y->rank != 1 || !tensor_is_contiguous(y))
        return TAPER_UNSUPPORTED;
    s->count = y->shape[0];
    *work = (taper_work){.tasks = (s->count + TASK_COST - 1) / TASK_COST};
    return TAPER_OK;
}

static taper_status i64_arange_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const struct arange_attrs *attrs = call->attrs;
    const struct arange_state *s = call->state;
    int64_t *y = call->output->data;
    const int64_t last = end * TASK_COST < s->count ? end * TASK_COST : s->count;
    (void)scratch;
    /* Unsigned, because numbers from a file may wrap around. */
    for (int64_t i = begin * TASK_COST; i < last; i++)
        y[i] = (int64_t)((uint64_t)attrs->start + (uint64_t)i * (uint64_t)attrs->step);
    return TAPER_OK;
}

static const taper_kernel arange_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "arange/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_arange);
const taper_family TAPER_ISA_SYM(taper_arange) = {TAPER_ROWS(arange_kernels)};
