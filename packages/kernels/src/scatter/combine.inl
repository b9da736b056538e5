/*
 * How elements of src meet those of the output: one function per dtype and reduction, which takes
 * all of src that goes to one line and keeps its order along the axis.
 */

/* One line's elements, at their first; steps are those of the state. */
struct scatter_line {
    void *y;
    const void *index, *src;
    int64_t first, last; /* places along the axis that this call may write */
};

typedef taper_status scatter_combine(const struct scatter_state *s, const struct scatter_line *l);

/* n elements, each with an index of type I; their places y_step apart, columns y_col. a: what is
 * there, b: what comes. One comparison does for most places of the call. */
#define SCATTER_EACH(T, I, expr)                                                                   \
    {                                                                                              \
        const I *index = (const I *)l->index + i;                                                  \
        T *y = l->y;                                                                               \
        for (int64_t j = 0; j < n; j++, index += index_step, from += src_step, y += y_col) {       \
            int64_t at = *index;                                                                   \
            if ((uint64_t)(at - first) >= (uint64_t)span) {                                        \
                at += at < 0 ? size : 0;                                                           \
                if (at < 0 || at >= size)                                                          \
                    return TAPER_BAD_INDEX;                                                        \
                if (at < first || at >= l->last)                                                   \
                    continue;                                                                      \
            }                                                                                      \
            const T a = y[at * y_step], b = *from;                                                 \
            y[at * y_step] = (T)(expr);                                                            \
            (void)a;                                                                               \
        }                                                                                          \
    }

/* One index for all columns: a row meets a row. */
#define SCATTER_ROW(T, expr, step)                                                                 \
    for (int64_t j = 0; j < s->index_cols; j++) {                                                  \
        const T a = y[j], b = from[j * (step)];                                                    \
        y[j] = (T)(expr);                                                                          \
        (void)a;                                                                                   \
    }

/* A single column is one run along the axis, several are a run for each place of the axis. */
#define SCATTER(name, T, expr)                                                                     \
    static taper_status name(const struct scatter_state *s, const struct scatter_line *l) {        \
        const bool column = s->index_cols == 1;                                                    \
        const int64_t runs = column ? 1 : s->count, n = column ? s->count : s->index_cols;         \
        const int64_t index_step = column ? s->index_steps.axis : s->index_steps.col;              \
        const int64_t src_step = column ? s->src_steps.axis : s->src_steps.col;                    \
        const int64_t y_step = s->y_step, y_col = !column, size = s->positions.size;               \
        const int64_t first = l->first, span = l->last - l->first;                                 \
        for (int64_t k = 0; k < runs; k++) {                                                       \
            const T *from = (const T *)l->src + k * s->src_steps.axis;                             \
            const int64_t i = k * s->index_steps.axis;                                             \
            if (column || !s->one_index) {                                                         \
                if (s->positions.is_int32)                                                         \
                    SCATTER_EACH(T, int32_t, expr)                                                 \
                else                                                                               \
                    SCATTER_EACH(T, int64_t, expr)                                                 \
                continue;                                                                          \
            }                                                                                      \
            const int64_t at = position_at(&s->positions, l->index, i);                            \
            if (at < 0)                                                                            \
                return TAPER_BAD_INDEX;                                                            \
            if (at < first || at >= l->last)                                                       \
                continue;                                                                          \
            T *restrict y = (T *)l->y + at * y_step;                                               \
            if (src_step == 1)                                                                     \
                SCATTER_ROW(T, expr, 1)                                                            \
            else                                                                                   \
                SCATTER_ROW(T, expr, src_step)                                                     \
        }                                                                                          \
        return TAPER_OK;                                                                           \
    }

/* The extremes of floats are NaN if one of them is. */
#define SCATTER_FLOATS(id, T)                                                                      \
    SCATTER(id##_sum, T, a + b)                                                                    \
    SCATTER(id##_prod, T, a *b)                                                                    \
    SCATTER(id##_amax, T, b > a || b != b ? b : a)                                                 \
    SCATTER(id##_amin, T, b < a || b != b ? b : a)
/* Integers wrap. */
#define SCATTER_INTS(id, T)                                                                        \
    SCATTER(id##_sum, T, (uint64_t)a + (uint64_t)b)                                                \
    SCATTER(id##_prod, T, (uint64_t)a *(uint64_t)b)                                                \
    SCATTER(id##_amax, T, b > a ? b : a)                                                           \
    SCATTER(id##_amin, T, b < a ? b : a)

SCATTER_FLOATS(f32, float)
SCATTER_FLOATS(f64, double)
SCATTER_INTS(i64, int64_t)
SCATTER_INTS(i32, int32_t)
SCATTER_INTS(i16, int16_t)
SCATTER_INTS(i8, int8_t)
SCATTER_INTS(u8, uint8_t)
SCATTER(bool_or, uint8_t, a | b)
SCATTER(bool_and, uint8_t, a &b)
SCATTER(write8, uint8_t, b)
SCATTER(write16, uint16_t, b)
SCATTER(write32, uint32_t, b)
SCATTER(write64, uint64_t, b)

#define SCATTER_OPS(id) {id##_sum, id##_prod, id##_amax, id##_amin}
static const char *const scatter_reductions[] = {"sum", "prod", "amax", "amin"};
enum { SCATTER_REDUCTIONS = sizeof scatter_reductions / sizeof scatter_reductions[0] };
/* NULL: only written. */
static scatter_combine *const scatter_combines[TAPER_DTYPE_COUNT][SCATTER_REDUCTIONS] = {
    [TAPER_FLOAT32] = SCATTER_OPS(f32), [TAPER_FLOAT64] = SCATTER_OPS(f64),
    [TAPER_INT64] = SCATTER_OPS(i64),   [TAPER_INT32] = SCATTER_OPS(i32),
    [TAPER_INT16] = SCATTER_OPS(i16),   [TAPER_INT8] = SCATTER_OPS(i8),
    [TAPER_UINT8] = SCATTER_OPS(u8),    [TAPER_BOOL] = {bool_or, bool_and, bool_or, bool_and},
};

/* NULL where there is none. */
static scatter_combine *scatter_find(int32_t dtype, const char *reduce) {
    if (strcmp(reduce, "none") == 0) {
        const size_t size = taper_dtype_size(dtype);
        return size == 1 ? write8 : size == 2 ? write16 : size == 4 ? write32 : write64;
    }
    for (int r = 0; r < SCATTER_REDUCTIONS; r++)
        if (strcmp(reduce, scatter_reductions[r]) == 0)
            return scatter_combines[dtype][r];
    return NULL;
}
