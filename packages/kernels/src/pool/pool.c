/*
 * MAX_POOL and AVG_POOL in float32, channels last. Vectors run over channels, several side by side
 * while the taps of a window go by; taps outside of x are left out. Sums are kept by row of a
 * window, then added up.
 */
#include <math.h>

#include "common/tensor.h"
#include "common/window.h"
#include "isa/isa.h"
#include "pool/kernels.inc"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(max_pool)
TAPER_DEFINE_ATTRS(avg_pool)

enum { POOL_VECTORS = 4 };

struct pool_state {
    window_dim dims[WINDOW_DIMS];
    int64_t channels;
    int64_t counted[2 * WINDOW_DIMS]; /* of each padding; AVG_POOL */
    int64_t divisor;                  /* 0: count */
    int64_t rows, rows_per_task;      /* of the output */
};

/* The part of a window that lies in x. */
typedef struct pool_window {
    const float *x; /* first tap, first channel */
    int64_t taps[WINDOW_DIMS];
    int64_t steps[WINDOW_DIMS]; /* from tap to tap, in elements */
    float divisor;
} pool_window;

/* ---- prepare ---- */

static taper_status pool_prepare(const taper_call *call, taper_work *work, const taper_ints *kernel,
                                 const taper_ints *stride, const taper_ints *padding,
                                 const taper_ints *dilation) {
    struct pool_state *state = call->state;
    if (call->n_inputs != 1 || !window_dims(state->dims, &call->inputs[0], call->output, kernel,
                                            stride, padding, 0, dilation))
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *y = call->output;
    state->channels = x->shape[x->rank - 1];
    if (y->shape[y->rank - 1] != state->channels || !windows_fit(state->dims, padding))
        return TAPER_UNSUPPORTED;
    state->rows = tensor_count(y, 0, y->rank - 2);
    const window_dim *d = state->dims;
    const double taps = (double)d[0].kernel * (double)d[1].kernel * (double)d[2].kernel;
    const double cost = taps * (double)d[2].out * (double)state->channels / 16;
    state->rows_per_task = rows_per_task(cost < 1e6 ? (int64_t)cost : 1000000);
    work->tasks = tensor_numel(y) == 0 ? 0 : i64_ceil_div(state->rows, state->rows_per_task);
    work->scratch_bytes = 0;
    return TAPER_OK;
}

static taper_status f32_max_pool_prepare(const taper_call *call, taper_work *work) {
    const struct max_pool_attrs *attrs = call->attrs;
    return pool_prepare(call, work, &attrs->kernel, &attrs->stride, &attrs->padding,
                        &attrs->dilation);
}

static taper_status f32_avg_pool_prepare(const taper_call *call, taper_work *work) {
    const struct avg_pool_attrs *attrs = call->attrs;
    struct pool_state *state = call->state;
    const int64_t n = attrs->padding.count;
    if (n > 2 * WINDOW_DIMS || !window_ints(&attrs->counted, n, 0) || attrs->divisor < -INT32_MAX ||
        attrs->divisor > INT32_MAX)
        return TAPER_UNSUPPORTED;
    for (int64_t i = 0; i < 2 * WINDOW_DIMS; i++) {
        const int64_t missing = 2 * WINDOW_DIMS - n;
        state->counted[i] = i < missing ? 0 : attrs->counted.data[i - missing];
    }
    state->divisor = attrs->divisor;
    return pool_prepare(call, work, &attrs->kernel, &attrs->stride, &attrs->padding, NULL);
}

/* ---- run ---- */

/* lanes: of the last vector; `vectors` and whether lanes is V_LEN are constants where inlined. */
V_INLINE void pool_vectors(const bool max, const pool_window *w, float *y, int64_t c,
                           const int vectors, const bool whole, int64_t lanes) {
    vf total[POOL_VECTORS], row[POOL_VECTORS];
    const vf none = max ? v_set1(-INFINITY) : v_zero();
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        total[v] = none;
    for (int64_t i = 0; i < w->taps[0]; i++)
        for (int64_t j = 0; j < w->taps[1]; j++) {
            const float *x = w->x + i * w->steps[0] + j * w->steps[1] + c;
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                row[v] = max ? total[v] : none;
            for (int64_t k = 0; k < w->taps[2]; k++, x += w->steps[2])
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) {
                    const vf a = whole ? v_load(x + v * V_LEN) : v_load_n(x, lanes);
                    row[v] = max ? v_max_nan(a, row[v]) : v_add(row[v], a);
                }
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                total[v] = max ? row[v] : v_add(total[v], row[v]);
        }
    const vf divisor = v_set1(w->divisor);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        const vf result = max ? total[v] : v_div(total[v], divisor);
        if (whole)
            v_store(y + c + v * V_LEN, result);
        else
            v_store_n(y + c, result, lanes);
    }
}

V_INLINE void pool_pixel(const bool max, const pool_window *w, float *y, int64_t channels) {
    int64_t c = 0;
    for (; c + POOL_VECTORS * V_LEN <= channels; c += POOL_VECTORS * V_LEN)
        pool_vectors(max, w, y, c, POOL_VECTORS, true, V_LEN);
    for (; c + V_LEN <= channels; c += V_LEN)
        pool_vectors(max, w, y, c, 1, true, V_LEN);
    if (c < channels)
        pool_vectors(max, w, y, c, 1, false, channels - c);
}

/* How many positions of the window that begins at `at` are in x or counted. */
static int64_t pool_count(const struct pool_state *state, int32_t d, int64_t at) {
    const window_dim *w = &state->dims[d];
    const int64_t begin = i64_max(at, -state->counted[2 * d]);
    const int64_t end = i64_min(at + w->kernel, w->in + state->counted[2 * d + 1]);
    return i64_max(0, end - begin);
}

V_INLINE void pool_rows(const bool max, const taper_call *call, int64_t first, int64_t last) {
    const struct pool_state *state = call->state;
    const window_dim *d = &state->dims[0], *h = &state->dims[1], *w = &state->dims[2];
    const int64_t pixel = state->channels, row = w->in * pixel, slice = h->in * row;
    const float *x = call->inputs[0].data;
    float *y = call->output->data;
    for (int64_t r = first; r < last; r++) {
        const int64_t image = r / (d->out * h->out);
        const int64_t z = r / h->out % d->out * d->stride - d->low;
        const int64_t v = r % h->out * h->stride - h->low;
        pool_window window = {
            .steps = {d->dilation * slice, h->dilation * row, w->dilation * pixel}};
        int64_t z_tap, v_tap, u_tap;
        window.taps[0] = window_taps(d, z, &z_tap) - z_tap;
        window.taps[1] = window_taps(h, v, &v_tap) - v_tap;
        const float *from =
            x + (image * d->in + z + z_tap * d->dilation) * slice + (v + v_tap * h->dilation) * row;
        const int64_t count = max ? 0 : pool_count(state, 0, z) * pool_count(state, 1, v);
        for (int64_t o = 0; o < w->out; o++) {
            const int64_t u = o * w->stride - w->low;
            window.taps[2] = window_taps(w, u, &u_tap) - u_tap;
            window.x = from + (u + u_tap * w->dilation) * pixel;
            if (!max)
                window.divisor =
                    (float)(state->divisor ? state->divisor : count * pool_count(state, 2, u));
            pool_pixel(max, &window, y + (r * w->out + o) * pixel, pixel);
        }
    }
}

static taper_status f32_max_pool_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    const struct pool_state *state = call->state;
    (void)scratch;
    pool_rows(true, call, begin * state->rows_per_task,
              i64_min(end * state->rows_per_task, state->rows));
    return TAPER_OK;
}

static taper_status f32_avg_pool_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    const struct pool_state *state = call->state;
    (void)scratch;
    pool_rows(false, call, begin * state->rows_per_task,
              i64_min(end * state->rows_per_task, state->rows));
    return TAPER_OK;
}

static const taper_kernel pool_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "pool/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_pool);
const taper_family TAPER_ISA_SYM(taper_pool) = {pool_kernels,
                                                sizeof pool_kernels / sizeof pool_kernels[0]};
