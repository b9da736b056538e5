/* SUM, MEAN, PROD, AMAX, AMIN, ANY, ALL. */

#include "reduce/reduce_plan.inl"

/* An accumulator of floats, or of integers. */
typedef union accumulator {
    double f64;
    int64_t i64;
} accumulator;

/* Outputs computed together, and their accumulators. */
typedef struct span {
    int64_t width;
    union { /* [width] */
        accumulator *any;
        double *f64;
        int64_t *i64;
    };
    double *lost; /* [width] by rounding f64, of float64 */
    union {       /* [PART_LENGTH] the result of a block of rows, before it is added to the rest */
        float *part;
        double *part64;
    };
} span;

enum {
    PART = AXIS_MAX_TILE,
    PART_LENGTH = PART + V_LEN,
    PART_BYTES = PART_LENGTH * (int)sizeof(float),
    PART_ROWS = 64, /* the most terms of a float sum; such sums are added up in double */
    ROW_BYTES = 64,
    NARROW = 64, /* with fewer columns, four cache lines, several rows are folded as one */
    NARROW_PART = PART /
        4, /* columns of those rows together: a quarter of the limit, so that parts stay in L1 */
};

/* Combines to[j] with x[r][j], 0 <= r < rows, 0 <= j < width. */
typedef void f64_fold(double *restrict to, const double *restrict x, int64_t rows, int64_t stride,
                      int64_t width);

struct reducer {
    taper_dtype in, out;
    bool mean;
    bool empty; /* whether there is a result for no elements */
    accumulator identity;
    /* Folds in x: [width][n], or width columns of [n][inner]. */
    void (*rows)(const struct reduce_state *s, const span *a, const void *x);
    void (*columns)(const struct reduce_state *s, const span *a, const void *x);
    /* Folds each output's adjacent columns. */
    void (*join)(const struct reduce_state *s, const span *a);
    void (*finish)(const struct reduce_state *s, const span *a, void *out);
    f64_fold *fold; /* float64 */
};

/* ---- float32 ---- */

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

/* Writes to part[j] the fold of x[r][j] over the rows, 0 <= j < width. */
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

/* Rows without gaps between them can be treated as fewer and wider rows. */
V_INLINE int64_t rows_together(const struct reduce_state *s, const span *a) {
    return s->spans.inner == a->width && a->width < NARROW ? NARROW_PART / a->width : 1;
}

V_INLINE void f32_columns(const row_op op, const struct reduce_state *s, const span *a,
                          const float *x) {
    const int64_t width = a->width, stride = s->spans.inner, n = s->spans.n;
    const int64_t together = rows_together(s, a);
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

V_INLINE void f32_join(const row_op op, const struct reduce_state *s, const span *a) {
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

V_INLINE void f64_fold_rows(const row_op op, double *restrict to, const double *restrict x,
                            int64_t rows, int64_t stride, int64_t width) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride)
        for (int64_t j = 0; j < width; j++) {
            const double *p = x + j;
            const double low = row_join_double(op, p[0], p[stride]);
            const double high = row_join_double(op, p[2 * stride], p[3 * stride]);
            to[j] = row_join_double(op, to[j], row_join_double(op, low, high));
        }
    for (; r < rows; r++, x += stride)
        for (int64_t j = 0; j < width; j++)
            to[j] = row_join_double(op, to[j], x[j]);
}

#define F64_FOLD(name, op)                                                                         \
    static void name(double *restrict to, const double *restrict x, int64_t rows, int64_t stride,  \
                     int64_t width) {                                                              \
        f64_fold_rows(op, to, x, rows, stride, width);                                             \
    }
F64_FOLD(f64_sum_of, ROW_SUM)
F64_FOLD(f64_product_of, ROW_PROD)
F64_FOLD(f64_larger_of, ROW_MAX)
F64_FOLD(f64_smaller_of, ROW_MIN)

/* Adds a part to an accumulator. A sum also keeps what rounding loses, so that its error does not
 * grow with the number of parts. */
V_INLINE void f64_meet(const row_op op, double *acc, double *lost, double part) {
    const double before = *acc;
    *acc = row_join_double(op, before, part);
    if (op == ROW_SUM) {
        const double added = *acc - before;
        *lost += (before - (*acc - added)) + (part - added);
    }
}

V_INLINE void f64_rows(const row_op op, const struct reduce_state *s, const span *a,
                       const double *x) {
    for (int64_t j = 0; j < a->width; j++)
        for (int64_t left = s->spans.n; left > 0;) {
            const int64_t n = i64_min(left, ROW_BLOCK);
            f64_meet(op, a->f64 + j, a->lost + j, row_fold_block_double(op, x, n));
            x += n;
            left -= n;
        }
}

/* One row of the accumulators and parts [rows][width]. */
V_INLINE void f64_parts(const row_op op, double *restrict acc, double *restrict lost,
                        const double *restrict part, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, part += width)
        for (int64_t j = 0; j < width; j++)
            f64_meet(op, acc + j, lost + j, part[j]);
}

static void f64_columns(const struct reduce_state *s, const span *a, const void *data) {
    f64_fold *fold = s->reducer->fold;
    const int64_t width = a->width, stride = s->spans.inner, n = s->spans.n;
    const int64_t together = rows_together(s, a);
    const double *x = data;
    int64_t rows = 0;
    for (int64_t r = 0; r < n; r += rows, x += rows * stride) {
        const int64_t wide = i64_min((n - r) / together, PART_ROWS);
        const int64_t folded = wide > 0 ? together : 1;
        rows = wide > 0 ? wide * together : i64_min(n - r, PART_ROWS);
        memcpy(a->part64, x, (size_t)(folded * width) * sizeof(double));
        fold(a->part64, x + stride * folded, rows / folded - 1, stride * folded, folded * width);
        if (fold == f64_sum_of)
            f64_parts(ROW_SUM, a->f64, a->lost, a->part64, folded, width);
        else
            fold(a->f64, a->part64, folded, width, width);
    }
}

static void f64_join(const struct reduce_state *s, const span *a) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; j < a->width; j++) /* infinities lose nothing */
        a->f64[j] += a->lost[j] - a->lost[j] == 0 ? a->lost[j] : 0;
    for (int64_t j = 0; s->neighbours > 1 && j < outputs; j++) {
        double *first = a->f64 + j * s->neighbours;
        s->reducer->fold(first, first + 1, s->neighbours - 1, 1, 1);
        a->f64[j] = *first;
    }
}

static void f64_finish(const struct reduce_state *s, const span *a, void *out) {
    const int64_t outputs = reduce_outputs(s, a->width);
    for (int64_t j = 0; j < outputs; j++)
        ((double *)out)[j] = a->f64[j] / s->divisor;
}

/* ---- integers, as int64 ---- */

V_INLINE int64_t int_load(const taper_dtype dtype, const void *x, int64_t i) {
    switch (dtype) {
    case TAPER_INT64:
        return ((const int64_t *)x)[i];
    case TAPER_INT32:
        return ((const int32_t *)x)[i];
    case TAPER_INT8:
        return ((const int8_t *)x)[i];
    default:
        return ((const uint8_t *)x)[i];
    }
}

#define INT_IDENTITY(op)                                                                           \
    ((op) == ROW_MAX ? INT64_MIN : (op) == ROW_MIN ? INT64_MAX : (op) == ROW_PROD)

/* Sums and products wrap around. */
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

/* Of elements as they are. */
#define TYPED_STEP(T)                                                                              \
    V_INLINE T T##_step(const row_op op, T a, T b) {                                               \
        return op == ROW_MAX   ? (a > b ? a : b)                                                   \
               : op == ROW_MIN ? (a < b ? a : b)                                                   \
                               : (T)int_step(op, a, b);                                            \
    }
/* Folds n >= 1 elements of a row by vectors, and finds the first one of a value. */
#define TYPED_ROW(T)                                                                               \
    V_INLINE int64_t T##_row(const row_op op, const T *x, int64_t n) {                             \
        enum { LANES = ROW_BYTES / sizeof(T) };                                                    \
        const bool is_extreme = op == ROW_MAX || op == ROW_MIN;                                    \
        T lanes[LANES], best = is_extreme ? *x : op == ROW_PROD;                                   \
        int64_t i = 0;                                                                             \
        if (n >= LANES) {                                                                          \
            memcpy(lanes, x, sizeof lanes);                                                        \
            for (i = LANES; i + LANES <= n; i += LANES)                                            \
                for (int64_t k = 0; k < LANES; k++)                                                \
                    lanes[k] = T##_step(op, lanes[k], x[i + k]);                                   \
            for (int64_t k = 0; k < LANES; k++)                                                    \
                best = T##_step(op, best, lanes[k]);                                               \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            best = T##_step(op, best, x[i]);                                                       \
        return best;                                                                               \
    }                                                                                              \
    V_INLINE int64_t T##_place(const T *x, int64_t n, T value) {                                   \
        enum { LANES = ROW_BYTES / sizeof(T) };                                                    \
        int64_t i = 0;                                                                             \
        for (T found = 0; i + LANES <= n; i += LANES) {                                            \
            for (int64_t k = 0; k < LANES; k++)                                                    \
                found |= x[i + k] == value;                                                        \
            if (found)                                                                             \
                break;                                                                             \
        }                                                                                          \
        while (x[i] != value)                                                                      \
            i++;                                                                                   \
        return i;                                                                                  \
    }
#define TYPED(T) TYPED_STEP(T) TYPED_ROW(T)
TYPED(int64_t)
TYPED(int32_t)
TYPED(uint8_t)
TYPED(int8_t)

/* Extremes of `width` columns of n rows of bytes, in vectors of bytes. */
#define BYTE_COLUMNS(T)                                                                            \
    V_INLINE void T##_columns(const row_op op, T *restrict best, const T *restrict x, int64_t n,   \
                              int64_t stride, int64_t width) {                                     \
        int64_t r = 1;                                                                             \
        memcpy(best, x, (size_t)width);                                                            \
        for (; r + 4 <= n; r += 4)                                                                 \
            for (int64_t j = 0; j < width; j++) {                                                  \
                const T *p = x + r * stride + j;                                                   \
                const T low = T##_step(op, p[0], p[stride]);                                       \
                const T high = T##_step(op, p[2 * stride], p[3 * stride]);                         \
                const T both = T##_step(op, low, high);                                            \
                best[j] = T##_step(op, best[j], both);                                             \
            }                                                                                      \
        for (; r < n; r++)                                                                         \
            for (int64_t j = 0; j < width; j++)                                                    \
                best[j] = T##_step(op, best[j], x[r * stride + j]);                                \
    }
BYTE_COLUMNS(uint8_t)
BYTE_COLUMNS(int8_t)

/* Folds a row of n >= 1 elements. */
V_INLINE int64_t int_row(const row_op op, const taper_dtype dtype, const void *x, int64_t n) {
    switch (dtype) {
    case TAPER_INT64:
        return int64_t_row(op, x, n);
    case TAPER_INT32:
        return int32_t_row(op, x, n);
    case TAPER_INT8:
        return int8_t_row(op, x, n);
    default:
        return uint8_t_row(op, x, n);
    }
}

V_INLINE void int_rows(const row_op op, const taper_dtype dtype, const span *a, const void *x,
                       int64_t n) {
    const int64_t bytes = n * (int64_t)taper_dtype_size((int)dtype);
    for (int64_t j = 0; j < a->width && n > 0; j++)
        a->i64[j] = int_step(op, a->i64[j], int_row(op, dtype, (const char *)x + j * bytes, n));
}

/* Four rows at a time: one load and store of acc for four loads of x. */
V_INLINE void int_columns(const row_op op, const taper_dtype dtype, int64_t *restrict acc,
                          const void *restrict x, int64_t n, int64_t stride, int64_t width) {
    int64_t r = 0;
    for (; r + 4 <= n; r += 4)
        for (int64_t j = 0; j < width; j++) {
            const int64_t at = r * stride + j;
            const int64_t low =
                int_step(op, int_load(dtype, x, at), int_load(dtype, x, at + stride));
            const int64_t high = int_step(op, int_load(dtype, x, at + 2 * stride),
                                          int_load(dtype, x, at + 3 * stride));
            acc[j] = int_step(op, acc[j], int_step(op, low, high));
        }
    for (; r < n; r++)
        for (int64_t j = 0; j < width; j++)
            acc[j] = int_step(op, acc[j], int_load(dtype, x, r * stride + j));
}

/* The same of bytes, through a row of bytes. */
V_INLINE void byte_columns(const row_op op, const taper_dtype dtype, const span *a, const void *x,
                           int64_t n, int64_t stride) {
    if (n == 0)
        return;
    if (dtype == TAPER_INT8)
        int8_t_columns(op, (int8_t *)a->part, x, n, stride, a->width);
    else
        uint8_t_columns(op, (uint8_t *)a->part, x, n, stride, a->width);
    int_columns(op, dtype, a->i64, a->part, 1, 0, a->width);
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
        else if (dtype == TAPER_INT8)
            ((int8_t *)out)[j] = (int8_t)a->i64[j];
        else if (dtype == TAPER_UINT8)
            ((uint8_t *)out)[j] = (uint8_t)a->i64[j];
        else
            ((uint8_t *)out)[j] = a->i64[j] > 0; /* no elements: ANY is 0, ALL is 1 */
    }
}

/* ---- the loop that all reductions share ---- */

static taper_status reduce_prepare(const taper_call *call, const struct reducer *reducer,
                                   taper_work *work) {
    const struct reduce_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    struct reduce_state *s = call->state;
    if (call->n_inputs != 1 || !tensor_is(x, reducer->in, tensor_numel(x)) ||
        !reduce_plan(s, call, &attrs->axes, work) ||
        !tensor_is(call->output, reducer->out, s->kept.count * reduce_outputs(s, s->spans.inner)) ||
        (s->count == 0 && !reducer->empty && tensor_numel(call->output) > 0))
        return TAPER_UNSUPPORTED;
    s->reducer = reducer;
    s->divisor = reducer->mean ? (double)s->count : 1.0;
    work->tasks = axis_tasks(&s->spans);
    work->scratch_bytes = (reducer->fold ? 2 : 1) * (size_t)s->spans.tile * sizeof(double) +
                          (reducer->fold ? 2 * PART_BYTES : PART_BYTES);
    return TAPER_OK;
}

static taper_status reduce_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct reduce_state *s = call->state;
    const struct reducer *reducer = s->reducer;
    const int64_t in_bytes = (int64_t)taper_dtype_size((int)reducer->in);
    const int64_t out_bytes = (int64_t)taper_dtype_size((int)reducer->out);
    const char *x = call->inputs[0].data;
    char *y = call->output->data;
    span a = {.f64 = scratch};
    a.lost = a.f64 + s->spans.tile;
    a.part64 = reducer->fold ? a.lost + s->spans.tile : a.lost;
    for (int64_t i = axis_first(&s->spans, begin); i < axis_last(&s->spans, end); i++) {
        const axis_span at = axis_span_at(&s->spans, i);
        const int64_t offset = span_offset(s, &at);
        a.width = at.width;
        for (int64_t j = 0; j < at.width; j++)
            a.any[j] = reducer->identity;
        for (int64_t j = 0; reducer->fold && j < at.width; j++)
            a.lost[j] = 0.0;
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

#define F32_REDUCER(name, op, mean_, empty_)                                                       \
    static void name##_rows(const struct reduce_state *s, const span *a, const void *x) {          \
        f32_rows(op, s, a, x);                                                                     \
    }                                                                                              \
    static void name##_columns(const struct reduce_state *s, const span *a, const void *x) {       \
        f32_columns(op, s, a, x);                                                                  \
    }                                                                                              \
    static void name##_join(const struct reduce_state *s, const span *a) { f32_join(op, s, a); }   \
    static const struct reducer name##_reducer = {.in = TAPER_FLOAT32,                             \
                                                  .out = TAPER_FLOAT32,                            \
                                                  .mean = mean_,                                   \
                                                  .empty = empty_,                                 \
                                                  .identity = {.f64 = FLOAT_IDENTITY(op)},         \
                                                  .rows = name##_rows,                             \
                                                  .columns = name##_columns,                       \
                                                  .join = name##_join,                             \
                                                  .finish = f32_finish};                           \
    REDUCE_KERNEL(name)

#define F64_REDUCER(name, op, fold_, mean_, empty_)                                                \
    static void name##_rows(const struct reduce_state *s, const span *a, const void *x) {          \
        f64_rows(op, s, a, x);                                                                     \
    }                                                                                              \
    static const struct reducer name##_reducer = {.in = TAPER_FLOAT64,                             \
                                                  .out = TAPER_FLOAT64,                            \
                                                  .mean = mean_,                                   \
                                                  .empty = empty_,                                 \
                                                  .identity = {.f64 = FLOAT_IDENTITY(op)},         \
                                                  .rows = name##_rows,                             \
                                                  .columns = f64_columns,                          \
                                                  .join = f64_join,                                \
                                                  .finish = f64_finish,                            \
                                                  .fold = fold_};                                  \
    REDUCE_KERNEL(name)

#define INT_REDUCER(name, op, dtype, empty_)                                                       \
    static void name##_rows(const struct reduce_state *s, const span *a, const void *x) {          \
        int_rows(op, dtype, a, x, s->spans.n);                                                     \
    }                                                                                              \
    static void name##_columns(const struct reduce_state *s, const span *a, const void *x) {       \
        if (taper_dtype_size((int)dtype) == 1)                                                     \
            byte_columns(op, dtype, a, x, s->spans.n, s->spans.inner);                             \
        else                                                                                       \
            int_columns(op, dtype, a->i64, x, s->spans.n, s->spans.inner, a->width);               \
    }                                                                                              \
    static void name##_join(const struct reduce_state *s, const span *a) { int_join(op, s, a); }   \
    static void name##_finish(const struct reduce_state *s, const span *a, void *out) {            \
        int_finish(dtype, s, a, out);                                                              \
    }                                                                                              \
    static const struct reducer name##_reducer = {.in = dtype,                                     \
                                                  .out = dtype,                                    \
                                                  .empty = empty_,                                 \
                                                  .identity = {.i64 = INT_IDENTITY(op)},           \
                                                  .rows = name##_rows,                             \
                                                  .columns = name##_columns,                       \
                                                  .join = name##_join,                             \
                                                  .finish = name##_finish};                        \
    REDUCE_KERNEL(name)

#define FLOAT_IDENTITY(op)                                                                         \
    ((op) == ROW_MAX ? -INFINITY : (op) == ROW_MIN ? INFINITY : (op) == ROW_PROD)

F32_REDUCER(f32_sum, ROW_SUM, false, true)
F32_REDUCER(f32_mean, ROW_SUM, true, true)
F32_REDUCER(f32_prod, ROW_PROD, false, true)
F32_REDUCER(f32_amax, ROW_MAX, false, false)
F32_REDUCER(f32_amin, ROW_MIN, false, false)
F64_REDUCER(f64_sum, ROW_SUM, f64_sum_of, false, true)
F64_REDUCER(f64_mean, ROW_SUM, f64_sum_of, true, true)
F64_REDUCER(f64_prod, ROW_PROD, f64_product_of, false, true)
F64_REDUCER(f64_amax, ROW_MAX, f64_larger_of, false, false)
F64_REDUCER(f64_amin, ROW_MIN, f64_smaller_of, false, false)
INT_REDUCER(i64_sum, ROW_SUM, TAPER_INT64, true)
INT_REDUCER(i64_prod, ROW_PROD, TAPER_INT64, true)
INT_REDUCER(i64_amax, ROW_MAX, TAPER_INT64, false)
INT_REDUCER(i64_amin, ROW_MIN, TAPER_INT64, false)
INT_REDUCER(i32_amax, ROW_MAX, TAPER_INT32, false)
INT_REDUCER(i32_amin, ROW_MIN, TAPER_INT32, false)
INT_REDUCER(u8_amax, ROW_MAX, TAPER_UINT8, false)
INT_REDUCER(u8_amin, ROW_MIN, TAPER_UINT8, false)
INT_REDUCER(i8_amax, ROW_MAX, TAPER_INT8, false)
INT_REDUCER(i8_amin, ROW_MIN, TAPER_INT8, false)
INT_REDUCER(bool_amax, ROW_MAX, TAPER_BOOL, false)
INT_REDUCER(bool_amin, ROW_MIN, TAPER_BOOL, false)
INT_REDUCER(bool_any, ROW_MAX, TAPER_BOOL, true)
INT_REDUCER(bool_all, ROW_MIN, TAPER_BOOL, true)
