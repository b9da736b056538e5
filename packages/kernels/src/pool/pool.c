/*
 * Pooling over windows of a channels-last tensor: MAX_POOL and AVG_POOL, sliding and adaptive, in
 * float32 by vectors of channels; MAX_POOL of other dtypes and ARGMAX_POOL by plain loops. Taps
 * outside of x are skipped.
 *
 * The float32 kernels keep the results of POOL_VECTORS vectors of channels in registers while they
 * read all taps of a window. An average first sums each row of a window, then adds the rows' sums.
 * A large window of many channels, which shares no tap with the next window, is read in memory
 * order instead: all channels of one tap, then all of the next. Scratch holds the results in
 * between.
 */
#include <math.h>

#include "common/tensor.h"
#include "common/window.h"
#include "isa/isa.h"
#include "pool/kernels.inc"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(max_pool)
TAPER_DEFINE_ATTRS(avg_pool)
TAPER_DEFINE_ATTRS(adaptive_pool)

enum {
    POOL_VECTORS = 4, /* independent sums: enough to hide the latency of an addition */
    /* A window of at least POOL_MANY_TAPS taps and more than POOL_FEW_CHANNELS channels is read in
     * memory order: its rows lie two pages or more apart, too far for the CPU to prefetch. */
    POOL_MANY_TAPS = 32,
    POOL_FEW_CHANNELS = 128,
    POOL_LANES = 16,         /* one unit of a task's cost is one tap of this many channels */
    POOL_MAX_COST = 1000000, /* limits a pixel's cost: far above a task's, and no overflow */
};

struct pool_window;

/* Computes all channels of one output pixel. For ARGMAX_POOL, scratch has room for one element of x
 * per channel. */
typedef void pool_plain(const struct pool_window *w, void *y, int64_t channels, void *scratch);

struct pool_state {
    pool_plain *plain; /* the loop for x's dtype, if the kernel is a plain one */
    window_dim dims[WINDOW_DIMS];
    int64_t channels;
    int64_t counted[2 * WINDOW_DIMS]; /* AVG_POOL: part of each padding that the divisor counts */
    int64_t divisor;                  /* AVG_POOL: 0 divides by the number of counted positions */
    bool adaptive;                    /* windows cover x; their sizes follow from in and out */
    bool streamed;                    /* windows are read in memory order */
    int64_t pixels, pixels_per_task;  /* output pixels; a pixel has all channels */
};

/* The taps of one window that are inside of x. */
typedef struct pool_window {
    const void *x; /* the first tap's first channel */
    int64_t taps[WINDOW_DIMS];
    int64_t steps[WINDOW_DIMS]; /* elements from a tap to the next */
    int64_t pixel;              /* number of the first tap's pixel in its image */
    float divisor;
} pool_window;

/* ---- prepare ---- */

/* Splits the output pixels into tasks and decides whether windows are streamed. `taps` is about the
 * number of taps per window; `apart` says that windows share at most a few elements of x. */
static void pool_split(struct pool_state *state, const taper_tensor *y, double taps, bool apart,
                       taper_work *work) {
    const double cost = taps * (double)state->channels / POOL_LANES;
    state->pixels = tensor_count(y, 0, y->rank - 1);
    state->pixels_per_task = rows_per_task(cost < POOL_MAX_COST ? (int64_t)cost : POOL_MAX_COST);
    work->tasks = tensor_numel(y) == 0 ? 0 : i64_ceil_div(state->pixels, state->pixels_per_task);
    state->streamed = apart && taps >= POOL_MANY_TAPS && state->channels > POOL_FEW_CHANNELS;
    work->scratch_bytes = state->streamed ? 2 * (size_t)state->channels * sizeof(float) : 0;
}

static taper_status pool_prepare(const taper_call *call, taper_work *work, taper_dtype dtype,
                                 const taper_ints *kernel, const taper_ints *stride,
                                 const taper_ints *padding, const taper_ints *dilation) {
    struct pool_state *state = call->state;
    state->adaptive = false;
    if (call->n_inputs != 1)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *y = call->output;
    taper_tensor values = *y; /* y with x's dtype: ARGMAX_POOL's y is int64 */
    values.dtype = (int32_t)dtype;
    if (!window_dims(state->dims, x, &values, dtype, kernel, stride, padding, 0, dilation))
        return TAPER_UNSUPPORTED;
    state->channels = x->shape[x->rank - 1];
    if (y->shape[y->rank - 1] != state->channels || !windows_fit(state->dims, padding))
        return TAPER_UNSUPPORTED;
    bool apart = true;
    double taps = 1;
    for (const window_dim *d = state->dims; d < state->dims + WINDOW_DIMS; d++) {
        apart = apart && (d->out == 1 || d->stride >= d->kernel);
        taps *= (double)d->kernel;
    }
    pool_split(state, y, taps, apart, work);
    return TAPER_OK;
}

static taper_status f32_max_pool_prepare(const taper_call *call, taper_work *work) {
    const struct max_pool_attrs *attrs = call->attrs;
    return pool_prepare(call, work, TAPER_FLOAT32, &attrs->kernel, &attrs->stride, &attrs->padding,
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
    return pool_prepare(call, work, TAPER_FLOAT32, &attrs->kernel, &attrs->stride, &attrs->padding,
                        NULL);
}

/* Fills the window dims as window_dims does: the dims that x lacks come first, of one element. */
static taper_status adaptive_prepare(const taper_call *call, taper_work *work) {
    const struct adaptive_pool_attrs *attrs = call->attrs;
    struct pool_state *state = call->state;
    const taper_tensor *x = &call->inputs[0], *y = call->output;
    const int64_t n = attrs->sizes.count, missing = WINDOW_DIMS - n;
    if (call->n_inputs != 1 || n < 1 || n > WINDOW_DIMS || x->rank != n + 2 || y->rank != n + 2 ||
        !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !tensor_is(y, TAPER_FLOAT32, tensor_numel(y)) || x->shape[0] != y->shape[0] ||
        x->shape[n + 1] != y->shape[n + 1])
        return TAPER_UNSUPPORTED;
    double taps = 1;
    for (int64_t d = 0; d < WINDOW_DIMS; d++) {
        const int64_t i = d - missing;
        window_dim *w = &state->dims[d];
        *w = i < 0 ? (window_dim){.in = 1, .out = 1}
                   : (window_dim){.in = x->shape[1 + i], .out = y->shape[1 + i]};
        if (w->in < 1 || w->in > INT32_MAX || w->out > INT32_MAX ||
            (i >= 0 && w->out != attrs->sizes.data[i]))
            return TAPER_UNSUPPORTED;
        w->dilation = 1;
        taps *= (double)i64_ceil_div(w->in, i64_max(1, w->out));
    }
    state->adaptive = true;
    state->divisor = 0;
    state->channels = x->shape[n + 1];
    pool_split(state, y, taps, true, work);
    return TAPER_OK;
}

/* Defines a pool_plain that computes maxima; a NaN in the window gives NaN. `lowest` is the result
 * of a window without taps. */
#define POOL_PLAIN(name, T, lowest)                                                                \
    static void name(const struct pool_window *w, void *out, int64_t channels, void *scratch) {    \
        T *restrict y = out;                                                                       \
        (void)scratch;                                                                             \
        for (int64_t c = 0; c < channels; c++)                                                     \
            y[c] = lowest;                                                                         \
        for (int64_t i = 0; i < w->taps[0]; i++)                                                   \
            for (int64_t j = 0; j < w->taps[1]; j++)                                               \
                for (int64_t k = 0; k < w->taps[2]; k++) {                                         \
                    const T *x =                                                                   \
                        (const T *)w->x + i * w->steps[0] + j * w->steps[1] + k * w->steps[2];     \
                    for (int64_t c = 0; c < channels; c++) {                                       \
                        const T larger = x[c] > y[c] ? x[c] : y[c];                                \
                        y[c] = x[c] != x[c] ? x[c] : larger;                                       \
                    }                                                                              \
                }                                                                                  \
    }
POOL_PLAIN(f64_plain, double, -INFINITY)
POOL_PLAIN(i64_plain, int64_t, INT64_MIN)
POOL_PLAIN(i32_plain, int32_t, INT32_MIN)
POOL_PLAIN(u8_few, uint8_t, 0)

/* The same, by vectors of channels; the last one overlaps the one before it. */
static void u8_plain(const struct pool_window *w, void *out, int64_t channels, void *scratch) {
    if (channels < (int64_t)sizeof(vi)) {
        u8_few(w, out, channels, scratch);
        return;
    }
    for (int64_t from = 0; from < channels; from += sizeof(vi)) {
        const int64_t c = i64_min(from, channels - (int64_t)sizeof(vi));
        vi larger = vi_set1(0);
        for (int64_t i = 0; i < w->taps[0]; i++)
            for (int64_t j = 0; j < w->taps[1]; j++) {
                const uint8_t *x = (const uint8_t *)w->x + i * w->steps[0] + j * w->steps[1] + c;
                for (int64_t k = 0; k < w->taps[2]; k++, x += w->steps[2])
                    larger = vi_max_u8(larger, vi_load((const int32_t *)(const void *)x));
            }
        vi_store((int32_t *)(void *)((uint8_t *)out + c), larger);
    }
}

static taper_status plain_max_pool_prepare(const taper_call *call, taper_work *work) {
    const struct max_pool_attrs *attrs = call->attrs;
    const taper_dtype dtype = (taper_dtype)call->inputs[0].dtype;
    struct pool_state *state = call->state;
    state->plain = (int32_t)dtype != call->output->dtype ? NULL
                   : dtype == TAPER_FLOAT64              ? f64_plain
                   : dtype == TAPER_INT64                ? i64_plain
                   : dtype == TAPER_INT32                ? i32_plain
                   : dtype == TAPER_UINT8                ? u8_plain
                                                         : NULL;
    if (!state->plain)
        return TAPER_UNSUPPORTED;
    const taper_status status = pool_prepare(call, work, dtype, &attrs->kernel, &attrs->stride,
                                             &attrs->padding, &attrs->dilation);
    work->scratch_bytes = 0;
    return status;
}

/* Defines a pool_plain that computes the number of the pixel, in its image, that holds the maximum:
 * the first of equal elements, the last of NaNs, as in torch; 0 for a window without taps. */
#define POOL_PLACES(name, T)                                                                       \
    static void name(const struct pool_window *w, void *out, int64_t channels, void *scratch) {    \
        int64_t *restrict y = out;                                                                 \
        T *restrict best = scratch;                                                                \
        const bool empty = w->taps[0] == 0 || w->taps[1] == 0 || w->taps[2] == 0;                  \
        for (int64_t c = 0; c < channels; c++) {                                                   \
            best[c] = empty ? 0 : ((const T *)w->x)[c];                                            \
            y[c] = empty ? 0 : w->pixel;                                                           \
        }                                                                                          \
        for (int64_t i = 0; i < w->taps[0]; i++)                                                   \
            for (int64_t j = 0; j < w->taps[1]; j++)                                               \
                for (int64_t k = 0; k < w->taps[2]; k++) {                                         \
                    const int64_t at = i * w->steps[0] + j * w->steps[1] + k * w->steps[2];        \
                    const int64_t pixel = w->pixel + at / channels;                                \
                    const T *x = (const T *)w->x + at;                                             \
                    for (int64_t c = 0; c < channels; c++) {                                       \
                        const bool larger = x[c] > best[c] || x[c] != x[c];                        \
                        best[c] = larger ? x[c] : best[c];                                         \
                        y[c] = larger ? pixel : y[c];                                              \
                    }                                                                              \
                }                                                                                  \
    }
POOL_PLACES(f32_places, float)
POOL_PLACES(f64_places, double)
POOL_PLACES(i64_places, int64_t)
POOL_PLACES(i32_places, int32_t)
POOL_PLACES(u8_places, uint8_t)

static taper_status any_argmax_pool_prepare(const taper_call *call, taper_work *work) {
    static pool_plain *const places[TAPER_DTYPE_COUNT] = {
        [TAPER_FLOAT32] = f32_places, [TAPER_FLOAT64] = f64_places, [TAPER_INT64] = i64_places,
        [TAPER_INT32] = i32_places,   [TAPER_UINT8] = u8_places,
    };
    const struct max_pool_attrs *attrs = call->attrs;
    struct pool_state *state = call->state;
    const taper_dtype dtype = (taper_dtype)call->inputs[0].dtype;
    state->plain = places[dtype];
    if (!state->plain || call->output->dtype != TAPER_INT64)
        return TAPER_UNSUPPORTED;
    const taper_status status = pool_prepare(call, work, dtype, &attrs->kernel, &attrs->stride,
                                             &attrs->padding, &attrs->dilation);
    if (status == TAPER_OK)
        work->scratch_bytes = (size_t)state->channels * sizeof(double);
    return status;
}

#define f32_adaptive_max_pool_prepare adaptive_prepare
#define f32_adaptive_avg_pool_prepare adaptive_prepare

/* ---- run ---- */

/* Computes `vectors` vectors of channels of one output pixel, from channel c on; if not `whole`,
 * one vector of `lanes` channels. max, vectors and whole are constants where this is inlined. */
V_INLINE void pool_vectors(const bool max, const pool_window *w, float *y, int64_t c,
                           const int vectors, const bool whole, int64_t lanes) {
    vf total[POOL_VECTORS], row[POOL_VECTORS];
    const vf none = max ? v_set1(-INFINITY) : v_zero();
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        total[v] = none;
    for (int64_t i = 0; i < w->taps[0]; i++)
        for (int64_t j = 0; j < w->taps[1]; j++) {
            const float *x = (const float *)w->x + i * w->steps[0] + j * w->steps[1] + c;
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

/* Computes all channels of one output pixel. */
V_INLINE void pool_pixel(const bool max, const pool_window *w, float *y, int64_t channels) {
    int64_t c = 0;
    for (; c + POOL_VECTORS * V_LEN <= channels; c += POOL_VECTORS * V_LEN)
        pool_vectors(max, w, y, c, POOL_VECTORS, true, V_LEN);
    for (; c + V_LEN <= channels; c += V_LEN)
        pool_vectors(max, w, y, c, 1, true, V_LEN);
    if (c < channels)
        pool_vectors(max, w, y, c, 1, false, channels - c);
}

/* Returns the maximum or the sum of `to` and `taps` vectors of x that lie `step` elements apart. */
V_INLINE vf pool_fold(const bool max, vf to, const float *x, int64_t step, const int taps) {
    vf a = v_load(x);
#pragma GCC unroll 8
    for (int k = 1; k < taps; k++)
        a = max ? v_max_nan(v_load(x + k * step), a) : v_add(a, v_load(x + k * step));
    return max ? v_max_nan(a, to) : v_add(to, a);
}

/* Combines `taps` adjacent taps, all channels of each, into the results in `row`. */
V_INLINE void pool_taps(const bool max, float *row, const float *x, int64_t step, const int taps,
                        int64_t channels) {
    int64_t c = 0;
    for (; c + V_LEN <= channels; c += V_LEN)
        v_store(row + c, pool_fold(max, v_load(row + c), x + c, step, taps));
    for (; c < channels; c++)
        for (int k = 0; k < taps; k++) {
            const float a = x[k * step + c], b = row[c];
            row[c] = !max ? b + a : a > b || a != a ? a : b;
        }
}

/* Computes one output pixel and reads x in memory order. total and row have `channels` elements. */
V_INLINE void pool_streamed(const bool max, const pool_window *w, float *y, int64_t channels,
                            float *restrict total, float *restrict row) {
    const float none = max ? -INFINITY : 0.0f;
    for (int64_t c = 0; c < channels; c++)
        total[c] = none;
    for (int64_t i = 0; i < w->taps[0]; i++)
        for (int64_t j = 0; j < w->taps[1]; j++) {
            const float *x = (const float *)w->x + i * w->steps[0] + j * w->steps[1];
            float *to = max ? total : row;
            int64_t k = 0;
            for (int64_t c = 0; !max && c < channels; c++)
                row[c] = 0.0f;
            for (; k + 8 <= w->taps[2]; k += 8)
                pool_taps(max, to, x + k * w->steps[2], w->steps[2], 8, channels);
            for (; k + 3 <= w->taps[2]; k += 3)
                pool_taps(max, to, x + k * w->steps[2], w->steps[2], 3, channels);
            for (; k < w->taps[2]; k++)
                pool_taps(max, to, x + k * w->steps[2], w->steps[2], 1, channels);
            for (int64_t c = 0; !max && c < channels; c++)
                total[c] += row[c];
        }
    for (int64_t c = 0; c < channels; c++)
        y[c] = max ? total[c] : total[c] / w->divisor;
}

/* Returns the number of positions along dim d that a window from `at` on covers in x and in the
 * counted padding: a factor of the divisor. */
static int64_t pool_count(const struct pool_state *state, int32_t d, int64_t at) {
    const window_dim *w = &state->dims[d];
    const int64_t begin = i64_max(at, -state->counted[2 * d]);
    const int64_t end = i64_min(at + w->kernel, w->in + state->counted[2 * d + 1]);
    return i64_max(0, end - begin);
}

/* A window along one dim: its first position in x, its taps in x, its factor of the divisor. */
typedef struct pool_side {
    int64_t first, taps, count;
} pool_side;

/* Returns window o along dim d. */
V_INLINE pool_side pool_side_at(const bool max, const struct pool_state *state, int32_t d,
                                int64_t o) {
    const window_dim *w = &state->dims[d];
    if (state->adaptive) {
        const int64_t first = o * w->in / w->out;
        const int64_t taps = i64_ceil_div((o + 1) * w->in, w->out) - first;
        return (pool_side){first, taps, taps};
    }
    const int64_t at = o * w->stride - w->low;
    int64_t tap;
    const int64_t taps = window_taps(w, at, &tap) - tap;
    return (pool_side){at + tap * w->dilation, taps, max ? 0 : pool_count(state, d, at)};
}

/* Computes the pixels of tasks [begin, end): by state->plain if `plain`, else in float32. If not
 * `plain`, scratch is NULL unless windows are streamed. max and plain are constants. */
V_INLINE void pool_pixels(const bool max, const bool plain, const taper_call *call, int64_t begin,
                          int64_t end, float *scratch) {
    const struct pool_state *state = call->state;
    const window_dim *d = &state->dims[0], *h = &state->dims[1], *w = &state->dims[2];
    const int64_t pixel = state->channels, line = w->in * pixel, slice = h->in * line;
    const int64_t last = i64_min(end * state->pixels_per_task, state->pixels);
    const int64_t wide = (int64_t)sizeof(float);
    const int64_t size = plain ? (int64_t)taper_dtype_size(call->inputs[0].dtype) : wide;
    const int64_t y_size = plain ? (int64_t)taper_dtype_size(call->output->dtype) : wide;
    const char *x = call->inputs[0].data;
    char *y = (char *)call->output->data + begin * state->pixels_per_task * pixel * y_size;
    pool_window window = {.steps = {d->dilation * slice, h->dilation * line, w->dilation * pixel}};
    const char *from = x;
    int64_t count = 0, row = 0; /* row: number of the window's first pixel in its image */
    bool inside = false;        /* from, count and row are those of this output row */
    for (int64_t p = begin * state->pixels_per_task; p < last; p++, y += pixel * y_size) {
        const int64_t o = p % w->out, r = p / w->out;
        if (o == 0 || !inside) {
            const int64_t image = r / (d->out * h->out);
            const pool_side z = pool_side_at(max, state, 0, r / h->out % d->out);
            const pool_side v = pool_side_at(max, state, 1, r % h->out);
            window.taps[0] = z.taps;
            window.taps[1] = v.taps;
            from = x + ((image * d->in + z.first) * slice + v.first * line) * size;
            row = (z.first * h->in + v.first) * w->in;
            count = z.count * v.count;
            inside = true;
        }
        const pool_side u = pool_side_at(max, state, 2, o);
        window.taps[2] = u.taps;
        window.x = from + u.first * pixel * size;
        window.pixel = row + u.first;
        window.divisor = (float)(state->divisor ? state->divisor : count * u.count);
        if (plain)
            state->plain(&window, y, pixel, scratch);
        else if (scratch)
            pool_streamed(max, &window, (float *)(void *)y, pixel, scratch, scratch + pixel);
        else
            pool_pixel(max, &window, (float *)(void *)y, pixel);
    }
}

static taper_status f32_max_pool_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    const struct pool_state *state = call->state;
    pool_pixels(true, false, call, begin, end, state->streamed ? scratch : NULL);
    return TAPER_OK;
}

static taper_status plain_max_pool_run(const taper_call *call, int64_t begin, int64_t end,
                                       void *scratch) {
    pool_pixels(true, true, call, begin, end, scratch);
    return TAPER_OK;
}

static taper_status f32_avg_pool_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    const struct pool_state *state = call->state;
    pool_pixels(false, false, call, begin, end, state->streamed ? scratch : NULL);
    return TAPER_OK;
}

#define any_argmax_pool_run plain_max_pool_run
#define f32_adaptive_max_pool_run f32_max_pool_run
#define f32_adaptive_avg_pool_run f32_avg_pool_run

static const taper_kernel pool_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "pool/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_pool);
const taper_family TAPER_ISA_SYM(taper_pool) = {TAPER_ROWS(pool_kernels)};
