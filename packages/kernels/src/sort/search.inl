/* SEARCHSORTED: counts the elements of a sorted row that come before a value. NaN comes after
 * numbers. */

typedef int64_t search_row(const void *row, int64_t n, const void *values, int64_t i, bool right);

struct search_state {
    search_row *row;
    int64_t size;     /* of an element */
    int64_t n;        /* of a row */
    int64_t row_step; /* from row to row: 0 where all values share one */
    int64_t values;   /* per row */
    int64_t total, per_task;
    bool right;
};

/* BEFORE(a, b): whether a comes before b. */
#define SEARCH(name, T, BEFORE)                                                                    \
    static int64_t name(const void *row, int64_t n, const void *values, int64_t i, bool right) {   \
        const T *x = row, v = ((const T *)values)[i];                                              \
        int64_t first = 0;                                                                         \
        while (n > 0) {                                                                            \
            const int64_t half = n / 2;                                                            \
            const T a = x[first + half];                                                           \
            const bool behind = right ? !BEFORE(v, a) : BEFORE(a, v);                              \
            first = behind ? first + half + 1 : first;                                             \
            n = behind ? n - half - 1 : half;                                                      \
        }                                                                                          \
        return first;                                                                              \
    }
#define LESS(a, b) ((a) < (b))
#define LESS_FLOAT(a, b) ((a) < (b) || ((b) != (b) && (a) == (a)))

SEARCH(search_f32, float, LESS_FLOAT)
SEARCH(search_f64, double, LESS_FLOAT)
SEARCH(search_i64, int64_t, LESS)
SEARCH(search_i32, int32_t, LESS)
SEARCH(search_i16, int16_t, LESS)
SEARCH(search_i8, int8_t, LESS)
SEARCH(search_u8, uint8_t, LESS)

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
    const char *rows = call->inputs[0].data;
    int64_t *y = call->output->data;
    const int64_t last = i64_min(end * s->per_task, s->total);
    (void)scratch;
    for (int64_t i = begin * s->per_task; i < last; i++)
        y[i] = s->row(rows + (s->row_step ? i / s->values * s->row_step : 0), s->n,
                      call->inputs[1].data, i, s->right);
    return TAPER_OK;
}
