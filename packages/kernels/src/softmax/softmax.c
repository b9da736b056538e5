/*
 * SOFTMAX along any axis, and its logarithm. Three passes over data that stays in cache: the
 * maximum, the exponentials and their sum, the scaling. Where the elements along the axis contain
 * NaN or +inf, or all are -inf, all results there are NaN, because x - max is NaN. May run in
 * place.
 */
#include <math.h>
#include <string.h>

#include "common/axis.h"
#include "softmax/kernels.inc"
#include "isa/isa.h"
#include "simd/softmax.h"

TAPER_DEFINE_ATTRS(softmax)

enum {
    SOFTMAX_SPAN = 1
        << 16,      /* elements of x, and as many of y: 0.5 MB, which L2 keeps between passes */
    SUM_ROWS = 256, /* terms of a float sum at most; their sums are added up in double */
    COLUMNS = AXIS_MAX_TILE + V_LEN, /* length of the arrays below: whole vectors */
};

/* Scratch of a span of columns. */
typedef struct softmax_columns {
    double total[COLUMNS];
    float max[COLUMNS];
    float sum[COLUMNS]; /* of a block of rows; at the end, the factor or the logarithm */
} softmax_columns;

static taper_status f32_softmax_prepare(const taper_call *call, taper_work *work) {
    const struct softmax_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    axis_spans *s = call->state;
    const bool scalar = x->rank == 0; /* the only axis of a scalar is 0 */
    if (call->n_inputs != 1 || attrs->axis < 0 || attrs->axis >= x->rank + scalar ||
        !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !tensor_is(call->output, TAPER_FLOAT32, tensor_numel(x)))
        return TAPER_UNSUPPORTED;
    *s = axis_split(tensor_count(x, 0, attrs->axis), scalar ? 1 : x->shape[attrs->axis],
                    tensor_count(x, attrs->axis + 1, x->rank), sizeof(float), SOFTMAX_SPAN);
    work->tasks = tensor_numel(x) ? axis_tasks(s) : 0;
    work->scratch_bytes = s->inner == 1 ? 0 : sizeof(softmax_columns);
    return TAPER_OK;
}

V_INLINE void softmax_row(const bool log_, float *y, const float *x, int64_t n) {
    const float max = row_fold_block(ROW_MAX_NUMBER, x, n);
    const double total = softmax_exp_row(!log_, y, x, max, n);
    const vf m = v_set1(max), last = v_set1((float)(log_ ? log(total) : 1.0 / total));
    int64_t i = 0;
    for (; i + V_LEN <= n; i += V_LEN)
        v_store(y + i, log_ ? v_sub(v_sub(v_load(x + i), m), last) : v_mul(v_load(y + i), last));
    if (i < n)
        v_store_n(y + i,
                  log_ ? v_sub(v_sub(v_load_n(x + i, n - i), m), last)
                       : v_mul(v_load_n(y + i, n - i), last),
                  n - i);
}

V_INLINE vf load_lanes(const float *p, int64_t lanes) {
    return lanes < V_LEN ? v_load_n(p, lanes) : v_load(p);
}
V_INLINE vf load_filled(const float *p, int64_t lanes, vf fill) {
    return lanes < V_LEN ? v_load_fill(p, lanes, fill) : v_load(p);
}
V_INLINE void store_lanes(float *p, vf a, int64_t lanes) {
    if (lanes < V_LEN)
        v_store_n(p, a, lanes);
    else
        v_store(p, a);
}

/* x, y: [n][stride], of which `width` columns. */
V_INLINE void softmax_across(const bool log_, softmax_columns *c, float *y, const float *x,
                             int64_t n, int64_t stride, int64_t width) {
    for (int64_t j = 0; j < width; j += V_LEN)
        v_store(c->max + j, v_set1(-INFINITY));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < width; j += V_LEN) {
            const vf v = load_lanes(x + r * stride + j, width - j);
            v_store(c->max + j, v_max(v, v_load(c->max + j)));
        }

    memset(c->total, 0, (size_t)width * sizeof *c->total);
    for (int64_t begin = 0; begin < n; begin += SUM_ROWS) {
        memset(c->sum, 0, (size_t)(width + V_LEN) * sizeof *c->sum);
        for (int64_t r = begin; r < i64_min(begin + SUM_ROWS, n); r++)
            for (int64_t j = 0; j < width; j += V_LEN) {
                const int64_t at = r * stride + j;
                const vf e =
                    v_exp_nonpositive(v_sub(load_lanes(x + at, width - j), v_load(c->max + j)));
                v_store(c->sum + j, v_add(e, v_load(c->sum + j)));
                if (!log_)
                    store_lanes(y + at, e, width - j);
            }
        for (int64_t j = 0; j < width; j++)
            c->total[j] += (double)c->sum[j];
    }

    for (int64_t j = 0; j < width; j++)
        c->sum[j] = (float)(log_ ? log(c->total[j]) : 1.0 / c->total[j]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < width; j += V_LEN) {
            const int64_t at = r * stride + j, lanes = width - j;
            const vf last = v_load(c->sum + j);
            store_lanes(y + at,
                        log_ ? v_sub(v_sub(load_lanes(x + at, lanes), v_load(c->max + j)), last)
                             : v_mul(load_lanes(y + at, lanes), last),
                        lanes);
        }
}

/* Returns in each of the first `lanes` lanes the largest of the lanes that are `inner` apart. */
V_INLINE vf softmax_max(vf a, int64_t inner, int64_t lanes) {
    float lane[V_LEN];
    v_store(lane, a);
    for (int64_t j = 0; j < inner; j++) {
        float largest = lane[j];
        for (int64_t i = j + inner; i < lanes; i += inner)
            largest = lane[i] > largest ? lane[i] : largest;
        for (int64_t i = j; i < lanes; i += inner)
            lane[i] = largest;
    }
    return v_load(lane);
}

/* x, y: [n][inner], inner < V_LEN: a vector holds as many rows as fit. */
V_INLINE void softmax_narrow(const bool log_, float *y, const float *x, int64_t n, int64_t inner) {
    const int64_t lanes = V_LEN / inner * inner, all = n * inner, block = SUM_ROWS * lanes;
    const vf least = v_set1(-INFINITY);
    vf max = least;
    for (int64_t i = 0; i < all; i += lanes)
        max = v_max(load_filled(x + i, i64_min(lanes, all - i), least), max);
    max = softmax_max(max, inner, lanes);

    double total[V_LEN] = {0.0};
    for (int64_t begin = 0; begin < all; begin += block) {
        vf sum = v_zero();
        for (int64_t i = begin; i < i64_min(begin + block, all); i += lanes) {
            const int64_t live = i64_min(lanes, all - i);
            /* The fill adds 0, or NaN as the column's own elements do. */
            const vf e = v_exp_nonpositive(v_sub(load_filled(x + i, live, least), max));
            sum = v_add(sum, e);
            if (!log_)
                store_lanes(y + i, e, live);
        }
        float part[V_LEN];
        v_store(part, sum);
        for (int64_t j = 0; j < lanes; j++)
            total[j % inner] += (double)part[j];
    }

    float factor[V_LEN] = {0.0f};
    for (int64_t j = 0; j < lanes; j++)
        factor[j] = (float)(log_ ? log(total[j % inner]) : 1.0 / total[j % inner]);
    const vf last = v_load(factor);
    for (int64_t i = 0; i < all; i += lanes) {
        const int64_t live = i64_min(lanes, all - i);
        store_lanes(y + i,
                    log_ ? v_sub(v_sub(load_lanes(x + i, live), max), last)
                         : v_mul(load_lanes(y + i, live), last),
                    live);
    }
}

V_INLINE void softmax_spans(const bool log_, const axis_spans *s, float *y, const float *x,
                            int64_t first, int64_t last, softmax_columns *c) {
    for (int64_t i = first; i < last; i++) {
        const axis_span at = axis_span_at(s, i);
        const int64_t offset = at.outer * s->n * s->inner + at.column;
        if (s->inner == 1)
            softmax_row(log_, y + offset, x + offset, s->n);
        else if (s->inner < V_LEN)
            softmax_narrow(log_, y + offset, x + offset, s->n, s->inner);
        else
            softmax_across(log_, c, y + offset, x + offset, s->n, s->inner, at.width);
    }
}

static taper_status f32_softmax_run(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    const struct softmax_attrs *attrs = call->attrs;
    const axis_spans *s = call->state;
    const int64_t first = axis_first(s, begin), last = axis_last(s, end);
    if (attrs->log)
        softmax_spans(true, s, call->output->data, call->inputs[0].data, first, last, scratch);
    else
        softmax_spans(false, s, call->output->data, call->inputs[0].data, first, last, scratch);
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel softmax_kernels[] = {
#include "softmax/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_softmax);
const taper_family TAPER_ISA_SYM(taper_softmax) = {TAPER_ROWS(softmax_kernels)};
