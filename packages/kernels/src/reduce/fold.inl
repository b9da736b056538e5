/* SUM, MEAN, PROD, AMAX, AMIN, ANY, ALL. */

#include "reduce/reduce_plan.inl"

/* Outputs computed together, and their accumulators: double for floats, int64_t for integers. */
typedef struct span {
    int64_t width;
    union {
        double *f64;  /* [width] */
        int64_t *i64; /* [width] */
    };
    float *part; /* [PART + V_LEN] what a block of rows comes to, before it is added in double */
} span;

enum {
    PART = AXIS_MAX_TILE,
    PART_BYTES = (PART + V_LEN) * (int)sizeof(float),
    PART_ROWS = 64, /* terms of a float sum at most; their sums are added up in double */
    NARROW = 64,    /* with fewer columns, four cache lines, several rows are folded as one */
    NARROW_PART = PART /
        4, /* columns of those rows together: a quarter, so that parts stay in L1 */
};

struct reducer {
    taper_dtype in, out;
    bool mean;
    bool empty; /* has a value for no elements */
    void (*start)(const span *a);
    /* Folds in x: [width][n], or width columns of [n][inner]. */
    void (*rows)(const struct reduce_state *s, const span *a, const void *x);
    void (*columns)(const struct reduce_state *s, const span *a, const void *x);
    /* Folds each output's adjacent columns. */
    void (*join)(const struct reduce_state *s, const span *a);
    void (*finish)(const struct reduce_state *s, const span *a, void *out);
};

/* ---- floats ---- */

V_INLINE void float_start(const row_op op, const span *a) {
    for (int64_t j = 0; j < a->width; j++)
        a->f64[j] = (double)row_identity(op);
}

V_INLINE void f32_rows(const row_op op, const struct reduce_state *s, const span *a,
                       const float *x) {
    const int64_t n = s->spans.n;
    for (int64_t j = 0; j < a->width; j++, x += n) {
        double acc = a->f64[j];
        if (n < 8) /* not worth a vector and the fold of its lanes */
            for (int64_t i = 0; i < n; i++)
                acc = row_join_double(op, acc, (double)x[i]);
        else
            acc = row_join_double(op, acc, row_fold(op, x, n));
        a->f64[j] = acc;
    }
}

/* part[j] = the fold of x[r][j] over the rows, 0 <= j < width. */
V_INLINE void f32_part(const row_op op, float *part, const float *x, int64_t rows, int64_t stride,
                       int64_t width) {
    const vf identity = v_set1(row_identity(op));
    for (int64_t j = 0; j < width; j += V_LEN)
        v_store(part + j, identity);
    /* Four rows at a time: one load and store of part for four loads of x. */
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride) {
        int64_t j = 0;
        for (; j + V_LEN <= width; j += V_LEN) {
            const float *p = x + j;
            const vf low = row_step(op, v_load(p), v_load(p + stride));
            const vf high = row_step(op, v_load(p + 2 * stride), v_load(p + 3 * stride));
            v_store(part + j, row_step(op, v_load(part + j), row_step(op, low, high)));
        }
        for (int64_t k = 0; j < width && k < 4; k++)
            v_store(part + j,
                    row_step(op, v_load(part + j), v_load_n(x + k * stride + j, width - j)));
    }
    for (; r < rows; r++, x += stride) {
        int64_t j = 0;
        for (; j + V_LEN <= width; j += V_LEN)
            v_store(part + j, row_step(op, v_load(part + j), v_load(x + j)));
        if (j < width)
            v_store(part + j, row_step(op, v_load(part + j), v_load_n(x + j, width - j)));
    }
}

V_INLINE void f32_columns(const row_op op, const struct reduce_state *s, const span *a,
                          const float *x) {
    const int64_t width = a->width, stride = s->spans.inner, n = s->spans.n;
    /* Rows without gaps between them are also fewer rows, each as wide as `together` of them. */
    const int64_t together = stride == width && width < NARROW ? NARROW_PART / width : 1;
    int64_t rows = 0;
    for (int64_t r = 0; r < n; r += rows, x += rows * stride) {
        const int64_t wide = i64_min((n - r) / together, PART_ROWS);
        const int64_t folded = wide > 0 ? together : 1;
        rows = wide > 0 ? wide * together : n - r;
        f32_part(op, a->part, x, rows / folded, stride * folded, width * folded);
        for (int64_t k = 0; k < folded; k++)
            for (int64_t j = 0; j < width; j++)
                a->f64[j] = row_join_double(op, a->f64[j], (double)a->part[k * width + j]);
    }
}

V_INLINE void float_join(const row_op op, const struct reduce_state *s, const span *a) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; s->neighbours > 1 && j < outputs; j++) {
        double acc = a->f64[j * s->neighbours];
        for (int64_t k = 1; k < s->neighbours; k++)
            acc = row_join_double(op, acc, a->f64[j * s->neighbours + k]);
        a->f64[j] = acc;
    }
}

static void f32_finish(const struct reduce_state *s, const span *a, void *out) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; j < outputs; j++)
        ((float *)out)[j] = (float)(a->f64[j] / s->divisor);
}

/* ---- float64 ---- */

/* The error of a sum grows with the length of its chains: none has more terms than F64_BLOCK, and
 * their sums are added up. */
enum { F64_LANES = 8, F64_CHAINS = 4, F64_WIDE = F64_CHAINS * F64_LANES, F64_BLOCK = 128 };

typedef double f64_lanes __attribute__((vector_size(F64_LANES * sizeof(double))));
typedef int64_t f64_mask __attribute__((vector_size(F64_LANES * sizeof(double))));

/* Each lane of a with that of b folded in, as row_join_double does it. */
V_INLINE void f64_step(const row_op op, f64_lanes *a, f64_lanes b) {
    if (op == ROW_SUM) {
        *a += b;
    } else if (op == ROW_PROD) {
        *a *= b;
    } else {
        const f64_mask stays = (op == ROW_MAX ? *a > b : *a < b) | (*a != *a);
        *a = (f64_lanes)(((f64_mask)*a & stays) | ((f64_mask)b & ~stays));
    }
}

V_INLINE void f64_block_of(const row_op op, double *acc, const double *x, int64_t n,
                           int64_t stride) {
    f64_lanes lanes[F64_CHAINS];
#pragma GCC unroll 8
    for (int c = 0; c < F64_CHAINS; c++)
        lanes[c] = (f64_lanes){0} + (double)row_identity(op);
    for (int64_t r = 0; r < n; r++, x += stride)
#pragma GCC unroll 8
        for (int c = 0; c < F64_CHAINS; c++) {
            f64_lanes v;
            memcpy(&v, x + c * F64_LANES, sizeof v);
            f64_step(op, &lanes[c], v);
        }
    memcpy(acc, lanes, sizeof lanes);
}

/* acc[F64_WIDE] = the fold of n rows of x, which are that wide. The op is no constant here and
 * below: one function serves all, and few elements are folded one by one. */
static void f64_block(row_op op, double *acc, const double *x, int64_t n, int64_t stride) {
    switch (op) {
    case ROW_PROD:
        f64_block_of(ROW_PROD, acc, x, n, stride);
        break;
    case ROW_MAX:
        f64_block_of(ROW_MAX, acc, x, n, stride);
        break;
    case ROW_MIN:
        f64_block_of(ROW_MIN, acc, x, n, stride);
        break;
    default:
        f64_block_of(ROW_SUM, acc, x, n, stride);
    }
}

static double f64_row(row_op op, const double *x, int64_t n) {
    double total = (double)row_identity(op), lane[F64_WIDE];
    for (int64_t rows; n >= F64_WIDE; x += rows * F64_WIDE, n -= rows * F64_WIDE) {
        rows = i64_min(n / F64_WIDE, F64_BLOCK);
        f64_block(op, lane, x, rows, F64_WIDE);
        for (int half = F64_WIDE / 2; half > 0; half /= 2)
            for (int k = 0; k < half; k++)
                lane[k] = row_join_double(op, lane[k], lane[k + half]);
        total = row_join_double(op, total, lane[0]);
    }
    for (int64_t i = 0; i < n; i++)
        total = row_join_double(op, total, x[i]);
    return total;
}

static void f64_rows(row_op op, const struct reduce_state *s, const span *a, const double *x) {
    for (int64_t j = 0; j < a->width; j++)
        a->f64[j] = row_join_double(op, a->f64[j], f64_row(op, x + j * s->spans.n, s->spans.n));
}

static void f64_columns(row_op op, const struct reduce_state *s, const span *a, const double *x) {
    const int64_t stride = s->spans.inner;
    for (int64_t r = 0; r < s->spans.n; r += F64_BLOCK, x += F64_BLOCK * stride) {
        const int64_t rows = i64_min(s->spans.n - r, F64_BLOCK);
        int64_t j = 0;
        for (; j + F64_WIDE <= a->width; j += F64_WIDE) {
            double part[F64_WIDE];
            f64_block(op, part, x + j, rows, stride);
            for (int k = 0; k < F64_WIDE; k++)
                a->f64[j + k] = row_join_double(op, a->f64[j + k], part[k]);
        }
        for (; j < a->width; j++) {
            double part = (double)row_identity(op);
            for (int64_t i = 0; i < rows; i++)
                part = row_join_double(op, part, x[i * stride + j]);
            a->f64[j] = row_join_double(op, a->f64[j], part);
        }
    }
}

static void f64_finish(const struct reduce_state *s, const span *a, void *out) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; j < outputs; j++)
        ((double *)out)[j] = a->f64[j] / s->divisor;
}

/* ---- integers: int64, int32 and bool as int64 ---- */

V_INLINE int64_t int_load(const taper_dtype dtype, const void *x, int64_t i) {
    switch (dtype) {
    case TAPER_INT64:
        return ((const int64_t *)x)[i];
    case TAPER_INT32:
        return ((const int32_t *)x)[i];
    default:
        return ((const uint8_t *)x)[i];
    }
}

/* Sums and products wrap. */
V_INLINE int64_t int_step(const row_op op, int64_t a, int64_t b) {
    switch (op) {
    case ROW_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case ROW_MAX:
        return a > b ? a : b;
    case ROW_MIN:
        return a < b ? a : b;
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

V_INLINE void int_start(const row_op op, const span *a) {
    for (int64_t j = 0; j < a->width; j++)
        a->i64[j] = op == ROW_MAX ? INT64_MIN : op == ROW_MIN ? INT64_MAX : op == ROW_PROD;
}

V_INLINE void int_rows(const row_op op, const taper_dtype dtype, int64_t *restrict acc,
                       const void *restrict x, int64_t n, int64_t width) {
    for (int64_t j = 0; j < width; j++) {
        if (dtype == TAPER_BOOL) { /* a byte each, 0 or 1: in vectors of bytes */
            const uint8_t *bytes = (const uint8_t *)x + j * n;
            uint8_t all = op == ROW_MIN;
            for (int64_t i = 0; i < n; i++)
                all = op == ROW_MIN ? all & bytes[i] : all | bytes[i];
            acc[j] = int_step(op, acc[j], all);
        } else {
            for (int64_t i = 0; i < n; i++)
                acc[j] = int_step(op, acc[j], int_load(dtype, x, j * n + i));
        }
    }
}

V_INLINE void int_columns(const row_op op, const taper_dtype dtype, int64_t *restrict acc,
                          const void *restrict x, int64_t n, int64_t stride, int64_t width) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < width; j++)
            acc[j] = int_step(op, acc[j], int_load(dtype, x, r * stride + j));
}

V_INLINE void int_join(const row_op op, const struct reduce_state *s, const span *a) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; s->neighbours > 1 && j < outputs; j++) {
        int64_t acc = a->i64[j * s->neighbours];
        for (int64_t k = 1; k < s->neighbours; k++)
            acc = int_step(op, acc, a->i64[j * s->neighbours + k]);
        a->i64[j] = acc;
    }
}

V_INLINE void int_finish(const taper_dtype dtype, const struct reduce_state *s, const span *a,
                         void *out) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; j < outputs; j++) {
        if (dtype == TAPER_INT64)
            ((int64_t *)out)[j] = a->i64[j];
        else if (dtype == TAPER_INT32)
            ((int32_t *)out)[j] = (int32_t)a->i64[j];
        else
            ((uint8_t *)out)[j] = a->i64[j] > 0; /* any of nothing is false, all of nothing true */
    }
}

/* ---- the walk every reduction shares ---- */

static taper_status reduce_prepare(const taper_call *call, const struct reducer *reducer,
                                   taper_work *work) {
    const struct reduce_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    struct reduce_state *s = call->state;
    if (call->n_inputs != 1 || !tensor_is(x, reducer->in, tensor_numel(x)) ||
        !reduce_plan(s, x, &attrs->axes) ||
        !tensor_is(call->output, reducer->out, s->kept.count * reduce_outputs(s, s->spans.inner)) ||
        (s->count == 0 && !reducer->empty))
        return TAPER_UNSUPPORTED;
    s->reducer = reducer;
    s->divisor = reducer->mean ? (double)s->count : 1.0;
    work->tasks = axis_tasks(&s->spans);
    work->scratch_bytes = (size_t)s->spans.tile * sizeof(double) + PART_BYTES;
    return TAPER_OK;
}

static taper_status reduce_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct reduce_state *s = call->state;
    const struct reducer *reducer = s->reducer;
    const int64_t in_bytes = (int64_t)taper_dtype_size((int)reducer->in);
    const int64_t out_bytes = (int64_t)taper_dtype_size((int)reducer->out);
    const char *x = call->inputs[0].data;
    char *y = call->output->data;
    span a = {.f64 = scratch, .part = (float *)((double *)scratch + s->spans.tile)};
    for (int64_t i = axis_first(&s->spans, begin); i < axis_last(&s->spans, end); i++) {
        const axis_span at = axis_span_at(&s->spans, i);
        const int64_t offset = span_offset(s, &at);
        a.width = at.width;
        reducer->start(&a);
        for (int64_t t = 0; t < s->reduced.count; t++)
            (s->along_row ? reducer->rows : reducer->columns)(
                s, &a, x + (offset + loops_offset(&s->reduced, t)) * in_bytes);
        reducer->join(s, &a);
        reducer->finish(s, &a, y + span_output(s, &at) * out_bytes);
    }
    return TAPER_OK;
}

/* ---- one reducer and one kernel each ---- */

#define REDUCE_KERNEL(name)                                                                        \
    static taper_status name##_prepare(const taper_call *call, taper_work *work) {                 \
        return reduce_prepare(call, &name##_reducer, work);                                        \
    }                                                                                              \
    static taper_status name##_run(const taper_call *call, int64_t begin, int64_t end,             \
                                   void *scratch) {                                                \
        return reduce_run(call, begin, end, scratch);                                              \
    }

#define FLOAT_REDUCER(name, type, dtype, op, mean_, empty_)                                        \
    static void name##_start(const span *a) { float_start(op, a); }                                \
    static void name##_rows(const struct reduce_state *s, const span *a, const void *x) {          \
        type##_rows(op, s, a, x);                                                                  \
    }                                                                                              \
    static void name##_columns(const struct reduce_state *s, const span *a, const void *x) {       \
        type##_columns(op, s, a, x);                                                               \
    }                                                                                              \
    static void name##_join(const struct reduce_state *s, const span *a) { float_join(op, s, a); } \
    static const struct reducer name##_reducer = {dtype,          dtype,        mean_,             \
                                                  empty_,         name##_start, name##_rows,       \
                                                  name##_columns, name##_join,  type##_finish};    \
    REDUCE_KERNEL(name)

#define INT_REDUCER(name, op, dtype, empty_)                                                       \
    static void name##_start(const span *a) { int_start(op, a); }                                  \
    static void name##_rows(const struct reduce_state *s, const span *a, const void *x) {          \
        int_rows(op, dtype, a->i64, x, s->spans.n, a->width);                                      \
    }                                                                                              \
    static void name##_columns(const struct reduce_state *s, const span *a, const void *x) {       \
        int_columns(op, dtype, a->i64, x, s->spans.n, s->spans.inner, a->width);                   \
    }                                                                                              \
    static void name##_join(const struct reduce_state *s, const span *a) { int_join(op, s, a); }   \
    static void name##_finish(const struct reduce_state *s, const span *a, void *out) {            \
        int_finish(dtype, s, a, out);                                                              \
    }                                                                                              \
    static const struct reducer name##_reducer = {dtype,          dtype,        false,             \
                                                  empty_,         name##_start, name##_rows,       \
                                                  name##_columns, name##_join,  name##_finish};    \
    REDUCE_KERNEL(name)

FLOAT_REDUCER(f32_sum, f32, TAPER_FLOAT32, ROW_SUM, false, true)
FLOAT_REDUCER(f32_mean, f32, TAPER_FLOAT32, ROW_SUM, true, true)
FLOAT_REDUCER(f32_prod, f32, TAPER_FLOAT32, ROW_PROD, false, true)
FLOAT_REDUCER(f32_amax, f32, TAPER_FLOAT32, ROW_MAX, false, false)
FLOAT_REDUCER(f32_amin, f32, TAPER_FLOAT32, ROW_MIN, false, false)
FLOAT_REDUCER(f64_sum, f64, TAPER_FLOAT64, ROW_SUM, false, true)
FLOAT_REDUCER(f64_mean, f64, TAPER_FLOAT64, ROW_SUM, true, true)
FLOAT_REDUCER(f64_prod, f64, TAPER_FLOAT64, ROW_PROD, false, true)
FLOAT_REDUCER(f64_amax, f64, TAPER_FLOAT64, ROW_MAX, false, false)
FLOAT_REDUCER(f64_amin, f64, TAPER_FLOAT64, ROW_MIN, false, false)
INT_REDUCER(i64_sum, ROW_SUM, TAPER_INT64, true)
INT_REDUCER(i64_prod, ROW_PROD, TAPER_INT64, true)
INT_REDUCER(i64_amax, ROW_MAX, TAPER_INT64, false)
INT_REDUCER(i64_amin, ROW_MIN, TAPER_INT64, false)
INT_REDUCER(i32_amax, ROW_MAX, TAPER_INT32, false)
INT_REDUCER(i32_amin, ROW_MIN, TAPER_INT32, false)
INT_REDUCER(bool_amax, ROW_MAX, TAPER_BOOL, false)
INT_REDUCER(bool_amin, ROW_MIN, TAPER_BOOL, false)
INT_REDUCER(bool_any, ROW_MAX, TAPER_BOOL, true)
INT_REDUCER(bool_all, ROW_MIN, TAPER_BOOL, true)
