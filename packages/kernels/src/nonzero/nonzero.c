/*
 * NONZERO: row-major positions of the elements that are not 0. The output has room for all
 * elements; entries after the last position are the number of elements, which is not a position.
 */
#include <string.h>

#include "common/tensor.h"
#include "isa/isa.h"

/* Writes the positions of the nonzero ones of n elements to y, in order; returns how many there
 * are. */
typedef int64_t find_nonzero(const void *x, int64_t n, int64_t *y);

struct nonzero_state {
    find_nonzero *find;
    int64_t n;
};

/* Every position is written, whether it counts or not, so that no branch depends on the values. */
#define FIND(name, T, IS_NONZERO)                                                                  \
    static int64_t name(const void *x, int64_t n, int64_t *y) {                                    \
        const T *p = x;                                                                            \
        int64_t found = 0;                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const T a = p[i];                                                                      \
            y[found] = i;                                                                          \
            found += IS_NONZERO;                                                                   \
        }                                                                                          \
        return found;                                                                              \
    }

FIND(find_f64, double, a != 0)
FIND(find_f32, float, a != 0)
FIND(find_64, uint64_t, a != 0)
FIND(find_32, uint32_t, a != 0)
FIND(find_16, uint16_t, a != 0)

/* For bytes: skips eight zeros at once, because most masks are sparse. */
static int64_t find_8(const void *x, int64_t n, int64_t *y) {
    const uint8_t *p = x;
    int64_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, sizeof word);
        for (int64_t k = i; word != 0 && k < i + 8; k++) {
            y[found] = k;
            found += p[k] != 0;
        }
    }
    for (; i < n; i++) {
        y[found] = i;
        found += p[i] != 0;
    }
    return found;
}

static find_nonzero *const find_of[TAPER_DTYPE_COUNT] = {
    [TAPER_FLOAT32] = find_f32, [TAPER_FLOAT64] = find_f64, [TAPER_INT64] = find_64,
    [TAPER_INT32] = find_32,    [TAPER_INT16] = find_16,    [TAPER_INT8] = find_8,
    [TAPER_UINT8] = find_8,     [TAPER_BOOL] = find_8,
};

static taper_status any_nonzero_prepare(const taper_call *call, taper_work *work) {
    struct nonzero_state *s = call->state;
    if (call->n_inputs != 1)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = call->inputs;
    s->n = tensor_numel(x);
    if (!find_of[x->dtype] || !tensor_is_contiguous(x) ||
        !tensor_is(call->output, TAPER_INT64, s->n))
        return TAPER_UNSUPPORTED;
    s->find = find_of[x->dtype];
    *work = (taper_work){.tasks = s->n > 0};
    return TAPER_OK;
}

static taper_status any_nonzero_run(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    const struct nonzero_state *s = call->state;
    int64_t *y = call->output->data;
    (void)scratch;
    if (begin == end)
        return TAPER_OK;
    for (int64_t i = s->find(call->inputs[0].data, s->n, y); i < s->n; i++)
        y[i] = s->n;
    return TAPER_OK;
}

static const taper_kernel nonzero_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "nonzero/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_nonzero);
const taper_family TAPER_ISA_SYM(taper_nonzero) = {TAPER_ROWS(nonzero_kernels)};
