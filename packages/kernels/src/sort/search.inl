/* SEARCHSORTED: counts the elements of a sorted row that come before a value. NaN comes after
 * numbers. */

/* Writes to y how many of the n elements of a row come before each of `count` values. */
typedef void search_row(int64_t *y, const void *row, int64_t n, const void *values, int64_t count,
                        bool right);

struct search_state {
    search_row *row;
    int64_t size;     /* of an element */
    int64_t n;        /* of a row */
    int64_t row_step; /* from row to row: 0 where all values share one */
    int64_t values;   /* per row */
    int64_t total, per_task;
    bool right;
};

/* Values that are searched together: their steps do not wait for each other. */
enum { SEARCH_TOGETHER = 4 };

/* All searches of a row take as many steps, without a branch on the data. most: no number is above
 * it; NaN, which comes after it, is where the numbers end, or behind the other NaN. Integers need
 * none. */
#define SEARCH(name, T, most)                                                                      \
    TENSOR_INLINE void name##_some(int64_t *y, const T *x, int64_t n, const T *v, const int count, \
                                   const bool right) {                                             \
        int64_t first[SEARCH_TOGETHER] = {0};                                                      \
        while (n > 0) {                                                                            \
            const int64_t half = n - n / 2;                                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < count; j++) {                              \
                const T a = x[first[j] + half - 1];                                                \
                first[j] += half & -(int64_t)(right ? a <= v[j] : a < v[j]);                       \
            }                                                                                      \
            n /= 2;                                                                                \
        }                                                                                          \
        _Pragma("GCC unroll 4") for (int j = 0; j < count; j++) y[j] = first[j];                   \
    }                                                                                              \
    TENSOR_INLINE void name##_all(int64_t *restrict y, const T *restrict x, int64_t n,             \
                                  const T *restrict v, int64_t count, const bool right) {          \
        const T above = most;                                                                      \
        int64_t i = 0, nans = 0;                                                                   \
        for (; i + SEARCH_TOGETHER <= count; i += SEARCH_TOGETHER)                                 \
            name##_some(y + i, x, n, v + i, SEARCH_TOGETHER, right);                               \
        for (; i < count; i++)                                                                     \
            name##_some(y + i, x, n, v + i, 1, right);                                             \
        for (i = 0; i < count; i++)                                                                \
            nans += v[i] != v[i];                                                                  \
        for (i = 0; nans > 0 && i < count; i++)                                                    \
            if (v[i] != v[i] && right)                                                             \
                y[i] = n;                                                                          \
            else if (v[i] != v[i])                                                                 \
                name##_some(y + i, x, n, &above, 1, true);                                         \
    }                                                                                              \
    static void name(int64_t *y, const void *row, int64_t n, const void *values, int64_t count,    \
                     bool right) {                                                                 \
        if (right)                                                                                 \
            name##_all(y, row, n, values, count, true);                                            \
        else                                                                                       \
            name##_all(y, row, n, values, count, false);                                           \
    }

SEARCH(search_f32, float, INFINITY)
SEARCH(search_f64, double, INFINITY)
SEARCH(search_i64, int64_t, 0)
SEARCH(search_i32, int32_t, 0)
SEARCH(search_i16, int16_t, 0)
SEARCH(search_i8, int8_t, 0)
SEARCH(search_u8, uint8_t, 0)

static search_row *const search_of[TAPER_DTYPE_COUNT] = {
    [TAPER_FLOAT32] = search_f32, [TAPER_FLOAT64] = search_f64, [TAPER_INT64] = search_i64,
    [TAPER_INT32] = search_i32,   [TAPER_INT16] = search_i16,   [TAPER_INT8] = search_i8,
    [TAPER_UINT8] = search_u8,    [TAPER_BOOL] = search_u8,
};

static taper_status any_searchsorted_prepare(const taper_call *call, taper_work *work) {
    const struct searchsorted_attrs *attrs = call->attrs;
    struct search_state *s = call->state;
    if (call->n_inputs != 2)
        return TAPER_UNSUPPORTED;
    const taper_tensor *rows = &call->inputs[0], *values = &call->inputs[1];
    const bool one = rows->rank == 1;
    if (rows->rank < 1 || rows->dtype != values->dtype || !tensor_is_contiguous(rows) ||
        !tensor_is_contiguous(values) || !search_of[rows->dtype] ||
        !tensor_is(call->output, TAPER_INT64, tensor_numel(values)))
        return TAPER_UNSUPPORTED;
    for (int32_t d = 0; !one && d < rows->rank - 1; d++)
        if (values->rank != rows->rank || rows->shape[d] != values->shape[d])
            return TAPER_UNSUPPORTED;
    s->row = search_of[rows->dtype];
    s->size = (int64_t)taper_dtype_size(rows->dtype);
    s->n = rows->shape[rows->rank - 1];
    s->row_step = one ? 0 : s->n * s->size;
    s->values = one ? tensor_numel(values) : values->shape[values->rank - 1];
    s->total = tensor_numel(values);
    s->right = attrs->right;
    int64_t cost = 4;
    for (int64_t n = s->n; n > 0; n /= 2)
        cost += 4;
    s->per_task = rows_per_task(cost);
    work->tasks = i64_ceil_div(s->total, s->per_task);
    work->scratch_bytes = 0;
    return TAPER_OK;
}

static taper_status any_searchsorted_run(const taper_call *call, int64_t begin, int64_t end,
                                         void *scratch) {
    const struct search_state *s = call->state;
    const char *rows = call->inputs[0].data, *values = call->inputs[1].data;
    int64_t *y = call->output->data;
    const int64_t last = i64_min(end * s->per_task, s->total);
    (void)scratch;
    for (int64_t i = begin * s->per_task, count; i < last; i += count) {
        const int64_t row = i / s->values;
        count = i64_min(last, (row + 1) * s->values) - i;
        s->row(y + i, rows + row * s->row_step, s->n, values + i * s->size, count, s->right);
    }
    return TAPER_OK;
}
