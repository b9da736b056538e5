/*
 * Cumulative sums, products and extremes along an axis. Floats are added and multiplied in double,
 * because the chain is as long as the axis; integers wrap.
 */
#include <math.h>
#include <string.h>

#include "common/axis.h"
#include "isa/isa.h"
#include "scan/kernels.inc"

TAPER_DEFINE_ATTRS(scan)

/* n rows of width columns, inner elements apart. state: 8 bytes per column. */
typedef void scan_span(void *y, const void *x, int64_t n, int64_t inner, int64_t width,
                       void *state);

struct scan_state {
    axis_spans spans;
    scan_span *span;
    int64_t x_size, y_size; /* of an element */
};

/* ---- folds ---- */

/* acc: the result so far, of type A; v: the element. */
#define SCAN(name, T, A, identity, expr)                                                           \
    static void name(void *out, const void *in, int64_t n, int64_t inner, int64_t width,           \
                     void *state) {                                                                \
        T *y = out;                                                                                \
        const T *x = in;                                                                           \
        A *restrict total = state;                                                                 \
        if (inner == 1) {                                                                          \
            A acc = identity;                                                                      \
            for (int64_t k = 0; k < n; k++) {                                                      \
                const A v = (A)x[k];                                                               \
                acc = expr;                                                                        \
                y[k] = (T)acc;                                                                     \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t j = 0; j < width; j++)                                                        \
            total[j] = identity;                                                                   \
        for (int64_t k = 0; k < n; k++, x += inner, y += inner)                                    \
            for (int64_t j = 0; j < width; j++) {                                                  \
                const A acc = total[j], v = (A)x[j];                                               \
                total[j] = expr;                                                                   \
                y[j] = (T)total[j];                                                                \
            }                                                                                      \
    }
#define SCAN_INTS(id, T)                                                                           \
    SCAN(id##_sum, T, uint64_t, 0, acc + v)                                                        \
    SCAN(id##_prod, T, uint64_t, 1, acc *v)

/* log(exp(a) + exp(b)). */
static inline double log_add_exp(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    if (a == b) /* infinities too */
        return a + 0x1.62e42fefa39efp-1;
    return a != a || b != b ? a + b : high + log1p(exp(low - high));
}

SCAN(f32_sum_columns, float, double, 0.0, acc + v)
SCAN(f64_sum_columns, double, double, 0.0, acc + v)
SCAN(f32_prod_columns, float, double, 1.0, acc *v)
SCAN(f64_prod_columns, double, double, 1.0, acc *v)
SCAN(f32_log_sum, float, double, -INFINITY, log_add_exp(acc, v))
SCAN(f64_log_sum, double, double, -INFINITY, log_add_exp(acc, v))
SCAN(i64_sum_columns, int64_t, uint64_t, 0, acc + v)
SCAN(i64_prod, int64_t, uint64_t, 1, acc *v)
SCAN_INTS(i32, int32_t)
SCAN_INTS(i16, int16_t)
SCAN_INTS(i8, int8_t)
SCAN_INTS(u8, uint8_t)

/* Goes along a row four elements at a time, so that only one operation in four depends on the
 * total. */
#define SCAN_BY_FOURS(name, T, A, identity, OP)                                                    \
    static void name(void *out, const void *in, int64_t n, int64_t inner, int64_t width,           \
                     void *state) {                                                                \
        T *y = out;                                                                                \
        const T *x = in;                                                                           \
        A total = identity;                                                                        \
        int64_t i = 0;                                                                             \
        if (inner != 1) {                                                                          \
            name##_columns(out, in, n, inner, width, state);                                       \
            return;                                                                                \
        }                                                                                          \
        for (; i + 4 <= n; i += 4) {                                                               \
            const A a = (A)x[i], ab = a OP(A) x[i + 1], c = (A)x[i + 2];                           \
            const A abcd = ab OP(c OP(A) x[i + 3]);                                                \
            y[i] = (T)(total OP a);                                                                \
            y[i + 1] = (T)(total OP ab);                                                           \
            y[i + 2] = (T)(total OP(ab OP c));                                                     \
            y[i + 3] = (T)(total = total OP abcd);                                                 \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            y[i] = (T)(total = total OP(A) x[i]);                                                  \
    }
SCAN_BY_FOURS(f32_sum, float, double, 0.0, +)
SCAN_BY_FOURS(f64_sum, double, double, 0.0, +)
SCAN_BY_FOURS(f32_prod, float, double, 1.0, *)
SCAN_BY_FOURS(f64_prod, double, double, 1.0, *)
SCAN_BY_FOURS(i64_sum, int64_t, uint64_t, 0, +)

/* ---- extremes and their positions ---- */

/* Elements of a row of which one loop of vectors says whether any is better than the best so far:
 * in most blocks none is. A wide block that has one is looked at block by block; elements of 8
 * bytes have no wide blocks. */
enum { SCAN_BLOCK = 8, SCAN_WIDE_BYTES = 64 };

/* Whether an element of a block is as good as the best so far, or NaN. */
#define SCAN_RECORD(name, T, BITS, RELATION)                                                       \
    static inline bool name##_has_record(const T *x, T best, const int block) {                    \
        BITS records = 0;                                                                          \
        for (int i = 0; i < block; i++)                                                            \
            records |= (x[i] RELATION best) | (x[i] != x[i]) ? -1 : 0;                             \
        return records != 0;                                                                       \
    }

/* The last of equal elements; from the first NaN on, the last NaN. Of b, the best of a row so far
 * at place `where`, `found` is the result. Of columns, `first` is the result for the first element
 * v, and `next` for element k of value v, which may be `better` than all before. */
#define SCAN_EXTREME(name, records, T, Y, RELATION, found, first, next)                            \
    static void name(void *out, const void *in, int64_t n, int64_t inner, int64_t width,           \
                     void *state) {                                                                \
        Y *y = out;                                                                                \
        const T *x = in;                                                                           \
        T *restrict best = state;                                                                  \
        if (inner == 1) {                                                                          \
            T b = n > 0 ? *x : 0;                                                                  \
            const int many = (int)(SCAN_WIDE_BYTES / sizeof(T));                                   \
            int64_t where = 0;                                                                     \
            for (int64_t k = 0; k < n;) {                                                          \
                const int64_t left = n - k;                                                        \
                const bool wide = many > SCAN_BLOCK && k % many == 0 && left >= many;              \
                if (wide && !records##_has_record(x + k, b, many)) {                               \
                    for (int i = 0; i < many; i++)                                                 \
                        y[k + i] = found;                                                          \
                    k += many;                                                                     \
                } else if (left >= SCAN_BLOCK && !records##_has_record(x + k, b, SCAN_BLOCK)) {    \
                    for (int i = 0; i < SCAN_BLOCK; i++)                                           \
                        y[k + i] = found;                                                          \
                    k += SCAN_BLOCK;                                                               \
                } else {                                                                           \
                    for (const int64_t end = i64_min(k + SCAN_BLOCK, n); k < end; k++) {           \
                        if (__builtin_expect(x[k] RELATION b || x[k] != x[k], 0)) {                \
                            b = x[k];                                                              \
                            where = k;                                                             \
                        }                                                                          \
                        y[k] = found;                                                              \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            (void)where;                                                                           \
            return;                                                                                \
        }                                                                                          \
        for (int64_t j = 0; j < width && n > 0; j++) {                                             \
            const T v = best[j] = x[j];                                                            \
            y[j] = first;                                                                          \
            (void)v;                                                                               \
        }                                                                                          \
        for (int64_t k = 1; k < n; k++) {                                                          \
            x += inner;                                                                            \
            y += inner;                                                                            \
            for (int64_t j = 0; j < width; j++) {                                                  \
                const T v = x[j], b = best[j];                                                     \
                const bool better = v RELATION b || v != v;                                        \
                best[j] = better ? v : b;                                                          \
                y[j] = better ? next : y[j - inner];                                               \
            }                                                                                      \
        }                                                                                          \
    }
#define SCAN_EXTREMES(id, T, BITS)                                                                 \
    SCAN_RECORD(id##_most, T, BITS, >=)                                                            \
    SCAN_RECORD(id##_least, T, BITS, <=)                                                           \
    SCAN_EXTREME(id##_argmax, id##_most, T, int64_t, >=, where, 0, k)                              \
    SCAN_EXTREME(id##_argmin, id##_least, T, int64_t, <=, where, 0, k)                             \
    SCAN_EXTREME(id##_largest, id##_most, T, T, >=, b, v, v)                                       \
    SCAN_EXTREME(id##_smallest, id##_least, T, T, <=, b, v, v)
SCAN_EXTREMES(f32, float, int32_t)
SCAN_EXTREMES(f64, double, int64_t)
SCAN_EXTREMES(i64, int64_t, int64_t)
SCAN_EXTREMES(i32, int32_t, int32_t)
SCAN_EXTREMES(i16, int16_t, int16_t)
SCAN_EXTREMES(i8, int8_t, int8_t)
SCAN_EXTREMES(u8, uint8_t, int8_t)

/* ---- kernels ---- */

static taper_status scan_prepare(const taper_call *call, taper_work *work, scan_span *const *spans,
                                 bool places) {
    const struct scan_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    struct scan_state *s = call->state;
    const bool scalar = x->rank == 0; /* the only axis of a scalar is 0 */
    if (call->n_inputs != 1 || attrs->axis < 0 || attrs->axis >= x->rank + scalar ||
        !spans[x->dtype] || !tensor_is_contiguous(x) ||
        !tensor_is(call->output, places ? TAPER_INT64 : (taper_dtype)x->dtype, tensor_numel(x)))
        return TAPER_UNSUPPORTED;
    s->span = spans[x->dtype];
    s->x_size = (int64_t)taper_dtype_size(x->dtype);
    s->y_size = (int64_t)taper_dtype_size(call->output->dtype);
    s->spans = axis_split(tensor_count(x, 0, attrs->axis), scalar ? 1 : x->shape[attrs->axis],
                          tensor_count(x, attrs->axis + 1, x->rank), s->x_size, INT64_MAX);
    work->tasks = tensor_numel(x) ? axis_tasks(&s->spans) : 0;
    work->scratch_bytes = (size_t)s->spans.tile * sizeof(double);
    return TAPER_OK;
}

static taper_status scan_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct scan_state *s = call->state;
    const axis_spans *spans = &s->spans;
    for (int64_t i = axis_first(spans, begin); i < axis_last(spans, end); i++) {
        const axis_span at = axis_span_at(spans, i);
        const int64_t start = at.outer * spans->n * spans->inner + at.column;
        s->span((char *)call->output->data + start * s->y_size,
                (const char *)call->inputs[0].data + start * s->x_size, spans->n, spans->inner,
                at.width, scratch);
    }
    return TAPER_OK;
}

#define SCAN_KERNEL(name, places, ...)                                                             \
    static taper_status any_##name##_prepare(const taper_call *call, taper_work *work) {           \
        static scan_span *const spans[TAPER_DTYPE_COUNT] = {__VA_ARGS__};                          \
        return scan_prepare(call, work, spans, places);                                            \
    }                                                                                              \
    static taper_status any_##name##_run(const taper_call *call, int64_t begin, int64_t end,       \
                                         void *scratch) {                                          \
        return scan_run(call, begin, end, scratch);                                                \
    }
#define SCAN_REALS(what)                                                                           \
    [TAPER_FLOAT32] = f32_##what, [TAPER_FLOAT64] = f64_##what, [TAPER_INT64] = i64_##what,        \
    [TAPER_INT32] = i32_##what, [TAPER_INT16] = i16_##what, [TAPER_INT8] = i8_##what,              \
    [TAPER_UINT8] = u8_##what

SCAN_KERNEL(cumsum, false, SCAN_REALS(sum))
SCAN_KERNEL(cumprod, false, SCAN_REALS(prod))
SCAN_KERNEL(logcumsumexp, false, [TAPER_FLOAT32] = f32_log_sum, [TAPER_FLOAT64] = f64_log_sum)
SCAN_KERNEL(cumargmax, true, SCAN_REALS(argmax), [TAPER_BOOL] = u8_argmax)
SCAN_KERNEL(cumargmin, true, SCAN_REALS(argmin), [TAPER_BOOL] = u8_argmin)
SCAN_KERNEL(cummax, false, SCAN_REALS(largest), [TAPER_BOOL] = u8_largest)
SCAN_KERNEL(cummin, false, SCAN_REALS(smallest), [TAPER_BOOL] = u8_smallest)

static const taper_kernel scan_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "scan/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_scan);
const taper_family TAPER_ISA_SYM(taper_scan) = {TAPER_ROWS(scan_kernels)};
