/*
 * INVERSE and SOLVE of small matrices, each matrix of a batch by itself. Inputs have any strides.
 * Larger matrices are left to LAPACK, whose products of blocks are faster.
 */
#include <math.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "linalg/kernels.inc"

TAPER_DEFINE_ATTRS(linalg)

enum { LINALG_MOST = 32 }; /* rows: two matrices of doubles fit in L1 */

struct linalg_state {
    int64_t n, m;            /* of a [n, n] matrix and its [n, m] right sides */
    int64_t count, per_task; /* matrices */
};

/* Returns the offset of matrix i of y's batch in x, whose batch dims broadcast, in elements. */
static int64_t matrix_offset(const taper_tensor *x, const taper_tensor *y, int64_t i) {
    int64_t offset = 0;
    for (int32_t d = y->rank - 3; d >= 0; d--) {
        const int32_t at = d - (y->rank - x->rank);
        if (at >= 0 && x->shape[at] != 1)
            offset += i % y->shape[d] * x->strides[at];
        i /= y->shape[d];
    }
    return offset;
}

/* Returns whether x is a batch of [rows, cols] matrices that broadcasts to y's. */
static bool is_batch(const taper_tensor *x, const taper_tensor *y, int64_t rows, int64_t cols) {
    if (x->rank < 2 || x->rank > y->rank || x->dtype != y->dtype)
        return false;
    for (int32_t d = 0; d < x->rank - 2; d++)
        if (x->shape[d] != 1 && x->shape[d] != y->shape[d + y->rank - x->rank])
            return false;
    return x->shape[x->rank - 2] == rows && x->shape[x->rank - 1] == cols;
}

static taper_status prepare(const taper_call *call, taper_work *work, int32_t n_inputs) {
    const taper_tensor *y = call->output;
    struct linalg_state *s = call->state;
    if (call->n_inputs != n_inputs || y->rank < 2 || !tensor_is_contiguous(y))
        return TAPER_UNSUPPORTED;
    *s = (struct linalg_state){.n = y->shape[y->rank - 2],
                               .m = y->shape[y->rank - 1],
                               .count = tensor_count(y, 0, y->rank - 2)};
    if (s->n > LINALG_MOST || !is_batch(&call->inputs[0], y, s->n, s->n) ||
        (n_inputs == 2 && !is_batch(&call->inputs[1], y, s->n, s->m)))
        return TAPER_UNSUPPORTED;
    if (tensor_numel(y) == 0) { /* LAPACK finds matrices that are singular nevertheless */
        work->tasks = 0;
        return tensor_numel(&call->inputs[0]) ? TAPER_UNSUPPORTED : TAPER_OK;
    }
    s->per_task = rows_per_task(s->n * s->n * (s->n + s->m) / 4);
    work->tasks = i64_ceil_div(s->count, s->per_task);
    work->scratch_bytes = (size_t)(s->n * s->n) * taper_dtype_size(y->dtype);
    return TAPER_OK;
}

#define T float
#define NAME(name) f32_##name
#define SIZE fabsf
#include "linalg/eliminate.inl"
#undef T
#undef NAME
#undef SIZE
#define T double
#define NAME(name) f64_##name
#define SIZE fabs
#include "linalg/eliminate.inl"

#define LINALG(prefix)                                                                             \
    static taper_status prefix##_inverse_prepare(const taper_call *call, taper_work *work) {       \
        return prepare(call, work, 1);                                                             \
    }                                                                                              \
    static taper_status prefix##_solve_prepare(const taper_call *call, taper_work *work) {         \
        return prepare(call, work, 2);                                                             \
    }
LINALG(f32)
LINALG(f64)
#define f32_inverse_run f32_run
#define f64_inverse_run f64_run
#define f32_solve_run f32_run
#define f64_solve_run f64_run

#define TAPER_KERNEL_ROWS
#undef LINALG
static const taper_kernel linalg_kernels[] = {
#include "linalg/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_linalg);
const taper_family TAPER_ISA_SYM(taper_linalg) = {TAPER_ROWS(linalg_kernels)};
