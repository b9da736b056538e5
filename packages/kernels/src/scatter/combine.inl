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

/* n elements, each with an index of its own; their places y_step apart, columns y_col. */
struct scatter_run {
    int64_t n, index_step, src_step, y_step, y_col;
    int64_t size, first, last; /* places of the dim, and those of the call */
};

/* a: what is there, b: what comes. One comparison does for most places of the call. */
#define SCATTER_RUN(name, T, I, expr)                                                              \
    static taper_status name(T *y, const I *index, const T *src, const struct scatter_run *r) {    \
        const int64_t index_step = r->index_step, src_step = r->src_step, y_col = r->y_col;        \
        const int64_t y_step = r->y_step, first = r->first, span = r->last - first;                \
        for (int64_t j = r->n; j > 0; j--, index += index_step, src += src_step, y += y_col) {     \
            int64_t at = *index;                                                                   \
            if ((uint64_t)(at - first) >= (uint64_t)span) {                                        \
                at += at < 0 ? r->size : 0;                                                        \
                if (at < 0 || at >= r->size)                                                       \
                    return TAPER_BAD_INDEX;                                                        \
                if (at < first || at >= r->last)                                                   \
                    continue;                                                                      \
            }                                                                                      \
            const T a = y[at * y_step], b = *src;                                                  \
            y[at * y_step] = (T)(expr);                                                            \
            (void)a;                                                                               \
        }                                                                                          \
        return TAPER_OK;                                                                           \
    }

/* A row with one index meets a row. Apart, as GCC makes branches of conditions where it inlines. */
#define SCATTER_ROW(name, T, expr)                                                                 \
    static __attribute__((noinline)) void name(T *restrict y, const T *restrict src, int64_t step, \
                                               int64_t n) {                                        \
        if (step == 1)                                                                             \
            for (int64_t j = 0; j < n; j++) {                                                      \
                const T a = y[j], b = src[j];                                                      \
                y[j] = (T)(expr);                                                                  \
                (void)a;                                                                           \
            }                                                                                      \
        else                                                                                       \
            for (int64_t j = 0; j < n; j++) {                                                      \
                const T a = y[j], b = src[j * step];                                               \
                y[j] = (T)(expr);                                                                  \
                (void)a;                                                                           \
            }                                                                                      \
    }

/* A single column is one run along the axis, several are a run, or a row, for each of its places.
 */
#define SCATTER(name, T, expr)                                                                     \
    SCATTER_RUN(name##_int32, T, int32_t, expr)                                                    \
    SCATTER_RUN(name##_int64, T, int64_t, expr)                                                    \
    SCATTER_ROW(name##_row, T, expr)                                                               \
    static taper_status name(const struct scatter_state *s, const struct scatter_line *l) {        \
        const bool column = s->index_cols == 1, rows = !column && s->one_index;                    \
        const struct scatter_run run = {.n = column ? s->count : s->index_cols,                    \
                                        .index_step =                                              \
                                            column ? s->index_steps.axis : s->index_steps.col,     \
                                        .src_step = column ? s->src_steps.axis : s->src_steps.col, \
                                        .y_step = s->y_step,                                       \
                                        .y_col = !column,                                          \
                                        .size = s->positions.size,                                 \
                                        .first = l->first,                                         \
                                        .last = l->last};                                          \
        taper_status status = TAPER_OK;                                                            \
        for (int64_t k = 0; k < (column ? 1 : s->count) && status == TAPER_OK; k++) {              \
            const T *src = (const T *)l->src + k * s->src_steps.axis;                              \
            const int64_t i = k * s->index_steps.axis;                                             \
            const int64_t at = rows ? position_at(&s->positions, l->index, i) : 0;                 \
            if (at < 0)                                                                            \
                status = TAPER_BAD_INDEX;                                                          \
            else if (rows && at >= l->first && at < l->last)                                       \
                name##_row((T *)l->y + at * s->y_step, src, run.src_step, run.n);                  \
            else if (!rows && s->positions.is_int32)                                               \
                status = name##_int32(l->y, (const int32_t *)l->index + i, src, &run);             \
            else if (!rows)                                                                        \
                status = name##_int64(l->y, (const int64_t *)l->index + i, src, &run);             \
        }                                                                                          \
        return status;                                                                             \
    }

/* The extremes of floats are NaN if one of them is. */
#define SCATTER_FLOATS(id, T)                                                                      \
    SCATTER(id##_sum, T, a + b)                                                                    \
    SCATTER(id##_prod, T, a *b)                                                                    \
    SCATTER(id##_amax, T, b != b ? b : id##_larger(a, b))                                          \
    SCATTER(id##_amin, T, b != b ? b : id##_smaller(a, b))
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
