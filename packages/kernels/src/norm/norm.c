/*
 * LAYER_NORM and RMS_NORM: every row of the trailing dimensions is normalised by its own moments,
 * then scaled by weight and shifted by bias. May run in place: a row is read before it is written.
 * Rows of x may lie anywhere, as those of a slice do; a row that is not contiguous is copied first.
 */
#include <float.h>
#include <math.h>

#include "common/tensor.h"
#include "norm/kernels.inc"
#include "isa/isa.h"
#include "simd/rows.h"

TAPER_DEFINE_ATTRS(layer_norm)
TAPER_DEFINE_ATTRS(rms_norm)

struct norm_state {
    int64_t rows;
    int64_t n; /* elements in a row */
    int64_t rows_per_task;
    int64_t run, step; /* rows of x that are evenly spaced, and elements from one to the next */
    bool copies;       /* a row of x is not contiguous */
};

/* Finds the rows of x that are evenly spaced, in its first `outer` dims. */
static void norm_runs(struct norm_state *s, const taper_tensor *x, int64_t outer) {
    int64_t expected = 1;
    s->copies = false;
    for (int64_t d = x->rank - 1; d >= outer; d--) {
        s->copies |= x->shape[d] != 1 && x->strides[d] != expected;
        expected *= x->shape[d];
    }
    s->run = 1;
    s->step = s->n;
    for (int64_t d = outer - 1; d >= 0; d--) {
        if (x->shape[d] == 1)
            continue;
        if (s->run > 1 && x->strides[d] != s->step * s->run)
            break;
        s->step = s->run > 1 ? s->step : x->strides[d];
        s->run *= x->shape[d];
    }
}

/* Returns the element of x at which a position begins: number `at` of dims [first, last). */
static int64_t norm_offset(const taper_tensor *x, int64_t first, int64_t last, int64_t at) {
    int64_t offset = 0;
    for (int64_t d = last - 1; d >= first; d--) {
        offset += at % x->shape[d] * x->strides[d];
        at /= x->shape[d];
    }
    return offset;
}

/* Returns the next rows of x, from number `row` on: *count of at most that many, *step elements
 * apart. scratch: [n]. */
static const float *norm_rows(const struct norm_state *s, const taper_tensor *x, int64_t outer,
                              int64_t row, int64_t *count, int64_t *step, float *scratch) {
    const float *from = (const float *)x->data + norm_offset(x, 0, outer, row);
    *step = s->step;
    *count = i64_min(*count, s->run - row % s->run);
    if (!s->copies)
        return from;
    *count = 1;
    for (int64_t i = 0; i < s->n; i++)
        scratch[i] = from[norm_offset(x, outer, x->rank, i)];
    return scratch;
}

/* Inputs after the first are weight and bias, one row each. */
static taper_status norm_prepare(const taper_call *call, int64_t dims, taper_work *work) {
    const taper_tensor *x = &call->inputs[0];
    struct norm_state *s = call->state;
    if (dims < 0 || dims > x->rank)
        return TAPER_UNSUPPORTED;
    s->rows = tensor_count(x, 0, x->rank - dims);
    s->n = tensor_count(x, x->rank - dims, x->rank);
    s->rows_per_task = rows_per_task(s->n);
    if (x->dtype != TAPER_FLOAT32 || !tensor_is(call->output, TAPER_FLOAT32, s->rows * s->n))
        return TAPER_UNSUPPORTED;
    norm_runs(s, x, x->rank - dims);
    for (int32_t i = 1; i < call->n_inputs; i++)
        if (call_has_input(call, i) && !tensor_is(&call->inputs[i], TAPER_FLOAT32, s->n))
            return TAPER_UNSUPPORTED;
    work->tasks = s->n == 0 ? 0 : i64_ceil_div(s->rows, s->rows_per_task);
    work->scratch_bytes = s->copies ? (size_t)s->n * sizeof(float) : 0;
    return TAPER_OK;
}

/* y = (x - center) * scale - shift, then times weight and plus bias where there are any. */
typedef struct norm_row {
    vf center;
    vf scale;
    vf shift;
    const float *weight;
    const float *bias;
} norm_row;

V_INLINE vf norm_vector(const norm_row *row, const bool centered, const bool weighted,
                        const bool biased, vf x, vf weight, vf bias) {
    vf y = centered ? v_fma(v_sub(x, row->center), row->scale, row->shift) : v_mul(x, row->scale);
    if (weighted && biased)
        return v_fma(y, weight, bias);
    y = weighted ? v_mul(y, weight) : y;
    return biased ? v_add(y, bias) : y;
}

V_INLINE void norm_write(const norm_row *row, const bool centered, const bool weighted,
                         const bool biased, float *y, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + V_LEN <= n; i += V_LEN)
        v_store(y + i, norm_vector(row, centered, weighted, biased, v_load(x + i),
                                   weighted ? v_load(row->weight + i) : v_zero(),
                                   biased ? v_load(row->bias + i) : v_zero()));
    if (i < n)
        v_store_n(y + i,
                  norm_vector(row, centered, weighted, biased, v_load_n(x + i, n - i),
                              weighted ? v_load_n(row->weight + i, n - i) : v_zero(),
                              biased ? v_load_n(row->bias + i, n - i) : v_zero()),
                  n - i);
}

/* Whether a float holds the scale to full precision: not where it overflows or is denormal, which
 * elements near the ends of the range of floats or a huge eps make it. */
V_INLINE bool norm_scale_fits(double scale) {
    return scale >= (double)FLT_MIN && scale <= (double)FLT_MAX;
}

/* Computes in double a row whose scale does not fit. */
static void norm_row_double(const norm_row *row, const bool centered, double eps, float *y,
                            const float *x, int64_t n) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; centered && i < n; i++)
        sum += (double)x[i];
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double deviation = sqrt(squares / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        double value = ((double)x[i] - mean) / deviation;
        value *= row->weight ? (double)row->weight[i] : 1.0;
        value += row->bias ? (double)row->bias[i] : 0.0;
        y[i] = (float)value;
    }
}

V_INLINE void layer_norm_rows(const bool weighted, const bool biased, norm_row row, double eps,
                              float *y, const float *x, int64_t step, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += step, y += n) {
        /* The sum, rounded to a float, is near the mean, and the difference of x and it is nearly
         * exact for a mean of any size. The mean of the differences then corrects it. */
        const float center = (float)(row_fold(ROW_SUM, x, n) / (double)n);
        const row_moments about = row_moments_about(center, x, n);
        const double offset = about.first / (double)n;
        const double variance = about.second / (double)n - offset * offset;
        const double scale = 1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + eps);
        if (!norm_scale_fits(scale)) {
            norm_row_double(&row, true, eps, y, x, n);
            continue;
        }
        row.center = v_set1(center);
        row.scale = v_set1((float)scale);
        row.shift = v_set1((float)(-offset * scale));
        norm_write(&row, true, weighted, biased, y, x, n);
    }
}

V_INLINE void rms_norm_rows(const bool weighted, norm_row row, double eps, float *y, const float *x,
                            int64_t step, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += step, y += n) {
        const double mean_square = row_fold(ROW_SUM_SQUARES, x, n) / (double)n;
        const double scale = 1.0 / sqrt(mean_square + eps);
        if (!norm_scale_fits(scale)) {
            norm_row_double(&row, false, eps, y, x, n);
            continue;
        }
        row.scale = v_set1((float)scale);
        norm_write(&row, false, weighted, false, y, x, n);
    }
}

/* Normalises rows of x, `step` elements apart; each has other operands of a row. */
typedef void (*norm_kind)(const norm_row *row, double eps, float *y, const float *x, int64_t step,
                          int64_t rows, int64_t n);
#define NORM_KIND(name, rows_of, ...)                                                              \
    static void name(const norm_row *row, double eps, float *y, const float *x, int64_t step,      \
                     int64_t rows, int64_t n) {                                                    \
        rows_of(__VA_ARGS__, *row, eps, y, x, step, rows, n);                                      \
    }
NORM_KIND(layer_norm_plain, layer_norm_rows, false, false)
NORM_KIND(layer_norm_biased, layer_norm_rows, false, true)
NORM_KIND(layer_norm_weighted, layer_norm_rows, true, false)
NORM_KIND(layer_norm_both, layer_norm_rows, true, true)
NORM_KIND(rms_norm_plain, rms_norm_rows, false)
NORM_KIND(rms_norm_weighted, rms_norm_rows, true)
#undef NORM_KIND

/* Normalises the rows of some tasks. dims: the last ones of x, which a row has. */
static void norm_run(const taper_call *call, norm_kind kind, const norm_row *row, double eps,
                     int64_t dims, int64_t begin, int64_t end, float *scratch) {
    const struct norm_state *s = call->state;
    const taper_tensor *x = &call->inputs[0];
    const int64_t last = i64_min(end * s->rows_per_task, s->rows);
    for (int64_t at = begin * s->rows_per_task, rows; at < last; at += rows) {
        int64_t step;
        rows = last - at;
        const float *from = norm_rows(s, x, x->rank - dims, at, &rows, &step, scratch);
        kind(row, eps, (float *)call->output->data + at * s->n, from, step, rows, s->n);
    }
}

static taper_status f32_layer_norm_prepare(const taper_call *call, taper_work *work) {
    const struct layer_norm_attrs *attrs = call->attrs;
    if (call->n_inputs < 1 || call->n_inputs > 3)
        return TAPER_UNSUPPORTED;
    return norm_prepare(call, attrs->dims, work);
}

static taper_status f32_layer_norm_run(const taper_call *call, int64_t begin, int64_t end,
                                       void *scratch) {
    static const norm_kind kinds[2][2] = {{layer_norm_plain, layer_norm_biased},
                                          {layer_norm_weighted, layer_norm_both}};
    const struct layer_norm_attrs *attrs = call->attrs;
    const bool weighted = call_has_input(call, 1), biased = call_has_input(call, 2);
    const norm_row row = {.weight = weighted ? call->inputs[1].data : NULL,
                          .bias = biased ? call->inputs[2].data : NULL};
    norm_run(call, kinds[weighted][biased], &row, attrs->eps, attrs->dims, begin, end, scratch);
    return TAPER_OK;
}

static taper_status f32_rms_norm_prepare(const taper_call *call, taper_work *work) {
    const struct rms_norm_attrs *attrs = call->attrs;
    if (call->n_inputs < 1 || call->n_inputs > 2)
        return TAPER_UNSUPPORTED;
    return norm_prepare(call, attrs->dims, work);
}

static taper_status f32_rms_norm_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    const struct rms_norm_attrs *attrs = call->attrs;
    const norm_row row = {.weight = call->n_inputs > 1 ? call->inputs[1].data : NULL};
    norm_run(call, row.weight ? rms_norm_weighted : rms_norm_plain, &row, attrs->eps, attrs->dims,
             begin, end, scratch);
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel norm_kernels[] = {
#include "norm/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_norm);
const taper_family TAPER_ISA_SYM(taper_norm) = {TAPER_ROWS(norm_kernels)};
