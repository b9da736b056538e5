/*
 * SCATTER's inner loops, two for each dtype and reduction: they combine elements of src with
 * elements of the output.
 */

/* Combines n elements of src, which lie `step` elements apart, with the elements of y at `places`,
 * in order: a place may stand twice. */
typedef void scatter_combine(void *y, const int64_t *places, const void *src, int64_t step,
                             int64_t n);
/* Combines n adjacent elements of src with n adjacent elements of y. */
typedef void scatter_row(void *y, const void *src, int64_t n);

struct scatter_combiner {
    scatter_combine *places;
    scatter_row *row;
};

/* Defines both loops. In expr, a is the element of the output and b the element of src. */
#define SCATTER(name, T, expr)                                                                     \
    static void name##_places(void *data, const int64_t *places, const void *source, int64_t step, \
                              int64_t n) {                                                         \
        T *y = data;                                                                               \
        const T *src = source;                                                                     \
        _Pragma("GCC unroll 2") for (int64_t j = 0; j < n; j++, src += step) {                     \
            const T a = y[places[j]], b = *src;                                                    \
            y[places[j]] = (T)(expr);                                                              \
            (void)a;                                                                               \
        }                                                                                          \
    }                                                                                              \
    static void name##_row(void *data, const void *source, int64_t n) {                            \
        T *restrict y = data;                                                                      \
        const T *restrict src = source;                                                            \
        for (int64_t j = 0; j < n; j++) {                                                          \
            const T a = y[j], b = src[j];                                                          \
            y[j] = (T)(expr);                                                                      \
            (void)a;                                                                               \
        }                                                                                          \
    }

/* A maximum or minimum of floats is NaN if one of them is NaN. */
#define SCATTER_FLOATS(id, T)                                                                      \
    SCATTER(id##_sum, T, a + b)                                                                    \
    SCATTER(id##_prod, T, a *b)                                                                    \
    SCATTER(id##_amax, T, b != b ? b : id##_larger(a, b))                                          \
    SCATTER(id##_amin, T, b != b ? b : id##_smaller(a, b))
/* Sums and products of integers wrap, as in torch. */
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

#define SCATTER_OF(name) {name##_places, name##_row}
#define SCATTER_OPS(id)                                                                            \
    {SCATTER_OF(id##_sum), SCATTER_OF(id##_prod), SCATTER_OF(id##_amax), SCATTER_OF(id##_amin)}
static const char *const scatter_reductions[] = {"sum", "prod", "amax", "amin"};
enum { SCATTER_REDUCTIONS = sizeof scatter_reductions / sizeof scatter_reductions[0] };
/* An entry without functions means that no kernel combines that dtype by that reduction. */
static const struct scatter_combiner scatter_combines[TAPER_DTYPE_COUNT][SCATTER_REDUCTIONS] = {
    [TAPER_FLOAT32] = SCATTER_OPS(f32),
    [TAPER_FLOAT64] = SCATTER_OPS(f64),
    [TAPER_INT64] = SCATTER_OPS(i64),
    [TAPER_INT32] = SCATTER_OPS(i32),
    [TAPER_INT16] = SCATTER_OPS(i16),
    [TAPER_INT8] = SCATTER_OPS(i8),
    [TAPER_UINT8] = SCATTER_OPS(u8),
    [TAPER_BOOL] = {SCATTER_OF(bool_or), SCATTER_OF(bool_and), SCATTER_OF(bool_or),
                    SCATTER_OF(bool_and)},
};

static const struct scatter_combiner scatter_writes[] = {SCATTER_OF(write8), SCATTER_OF(write16),
                                                         SCATTER_OF(write32), SCATTER_OF(write64)};

static const struct scatter_combiner *scatter_write(int64_t size) {
    return &scatter_writes[size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3];
}

/* Returns the loops for a dtype and a reduction, or NULL if there are none. */
static const struct scatter_combiner *scatter_find(int32_t dtype, const char *reduce) {
    if (strcmp(reduce, "none") == 0)
        return scatter_write((int64_t)taper_dtype_size(dtype));
    for (int r = 0; r < SCATTER_REDUCTIONS; r++)
        if (strcmp(reduce, scatter_reductions[r]) == 0 && scatter_combines[dtype][r].row)
            return &scatter_combines[dtype][r];
    return NULL;
}
