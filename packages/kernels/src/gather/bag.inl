/*
 * EMBEDDING_BAG selects rows of a table [size][cols] by indices and combines the rows of each bag
 * into one output row. Bag b has the indices from offsets[b] to offsets[b + 1] - 1. A sum adds its
 * rows one after the other, so its bits do not depend on BAG_ROWS.
 */

enum {
    BAG_ROWS = 4,          /* that are combined for each load and store of the output row */
    BAG_AHEAD = 8,         /* how many indices ahead rows of a table beyond L2 are prefetched */
    BAG_FETCHED = 1 << 10, /* bytes of each, at most: CPUs prefetch the rest of a long row */
};

struct bag_state {
    struct positions positions; /* rows of the table */
    struct positions ends;      /* offsets into the indices; the end is one */
    /* Combines the rows that indices begin to end - 1 select, into y. Returns false if an index is
     * outside of the table. */
    bool (*combine)(const struct bag_state *s, const taper_call *call, void *y, int64_t begin,
                    int64_t end);
    int64_t size, cols; /* an element's bytes, a row's elements */
    int64_t bags, bags_per_task;
    int64_t fetched; /* bytes of a row that are prefetched */
    int64_t padding; /* a bag skips this row of the table; negative: it skips none */
    bool is_mean, is_max;
};

/* Prefetches the row of index i, if there is one. */
V_INLINE void bag_fetch(const struct bag_state *s, const taper_call *call, int64_t i) {
    const int64_t count = s->ends.size - 1;
    const int64_t at = i < count ? position_at(&s->positions, call->inputs[1].data, i) : -1;
    const char *row = (const char *)call->inputs[0].data + at * s->cols * s->size;
    for (int64_t b = 0; at >= 0 && b < s->fetched; b += TAPER_ALIGNMENT)
        __builtin_prefetch(row + b);
}

#define BAG(id, T)                                                                                 \
    static void id##_bag_fold(T *restrict y, const T *const *rows, const T *scales, int64_t n,     \
                              int64_t cols, bool is_max) {                                         \
        const T *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];                            \
        if (!is_max && n == BAG_ROWS) {                                                            \
            for (int64_t j = 0; j < cols; j++)                                                     \
                y[j] = (((y[j] + a[j] * scales[0]) + b[j] * scales[1]) + c[j] * scales[2]) +       \
                       d[j] * scales[3];                                                           \
            return;                                                                                \
        }                                                                                          \
        for (int64_t r = 0; r < n; r++) {                                                          \
            const T *row = rows[r], scale = scales[r];                                             \
            if (is_max)                                                                            \
                for (int64_t j = 0; j < cols; j++)                                                 \
                    y[j] = row[j] > y[j] || row[j] != row[j] ? row[j] : y[j];                      \
            else                                                                                   \
                for (int64_t j = 0; j < cols; j++)                                                 \
                    y[j] += row[j] * scale;                                                        \
        }                                                                                          \
    }                                                                                              \
    static bool id##_bag(const struct bag_state *s, const taper_call *call, void *data,            \
                         int64_t begin, int64_t end) {                                             \
        const int64_t cols = s->cols;                                                              \
        const bool is_max = s->is_max;                                                             \
                                                                                                   \
        const T *table = call->inputs[0].data;                                                     \
        const T *weights = call->n_inputs > 3 ? call->inputs[3].data : NULL;                       \
        const T *rows[BAG_ROWS] = {table, table, table, table};                                    \
        T *y = data, scales[BAG_ROWS];                                                             \
        int64_t n = 0, count = 0;                                                                  \
        for (int64_t j = 0; j < cols; j++)                                                         \
            y[j] = is_max ? -(T)INFINITY : 0;                                                      \
        for (int64_t i = begin; i < end; i++) {                                                    \
            if (s->fetched)                                                                        \
                bag_fetch(s, call, i + BAG_AHEAD);                                                 \
            const int64_t at = position_at(&s->positions, call->inputs[1].data, i);                \
            if (at < 0)                                                                            \
                return false;                                                                      \
            if (at != s->padding) {                                                                \
                rows[n] = table + at * cols;                                                       \
                scales[n++] = weights ? weights[i] : 1;                                            \
                count++;                                                                           \
            }                                                                                      \
            if (n == BAG_ROWS || i == end - 1) {                                                   \
                id##_bag_fold(y, rows, scales, n, cols, is_max);                                   \
                n = 0;                                                                             \
            }                                                                                      \
        }                                                                                          \
        if (is_max && count == 0)                                                                  \
            memset(y, 0, (size_t)cols * sizeof *y);                                                \
        for (int64_t j = 0, last = s->is_mean && count > 1 ? cols : 0; j < last; j++)              \
            y[j] /= (T)count;                                                                      \
        return true;                                                                               \
    }

BAG(f32, float)
BAG(f64, double)

static taper_status any_embedding_bag_prepare(const taper_call *call, taper_work *work) {
    const struct bag_attrs *attrs = call->attrs;
    struct bag_state *s = call->state;
    if (call->n_inputs < 3 || call->n_inputs > 4)
        return TAPER_UNSUPPORTED;
    const taper_tensor *table = &call->inputs[0], *index = &call->inputs[1];
    const taper_tensor *offsets = &call->inputs[2];
    const taper_dtype dtype = (taper_dtype)table->dtype;
    const int64_t count = tensor_numel(index);
    s->is_mean = strcmp(attrs->mode, "mean") == 0;
    s->is_max = strcmp(attrs->mode, "max") == 0;
    if (table->rank != 2 || (!s->is_mean && !s->is_max && strcmp(attrs->mode, "sum") != 0) ||
        !positions_prepare(&s->positions, index, table->shape[0], false) ||
        !positions_prepare(&s->ends, offsets, count + 1, false) || !tensor_is_contiguous(table) ||
        !tensor_is_contiguous(index) || !tensor_is_contiguous(offsets) ||
        (call->n_inputs == 4 &&
         (s->is_mean || s->is_max || !tensor_is(&call->inputs[3], dtype, count))))
        return TAPER_UNSUPPORTED;
    s->combine = dtype == TAPER_FLOAT32 ? f32_bag : f64_bag;
    s->size = (int64_t)taper_dtype_size(dtype);
    s->cols = table->shape[1];
    s->bags = tensor_numel(offsets);
    s->fetched = tensor_numel(table) * s->size > taper_cache_bytes(2)
                     ? i64_min(s->cols * s->size, BAG_FETCHED)
                     : 0;
    s->padding = attrs->padding;
    const int64_t rows = 1 + count / i64_max(1, s->bags); /* per bag, on average; at least 1 */
    s->bags_per_task = i64_max(1, TASK_BYTES / i64_max(1, i64_times(rows, s->cols * s->size)));
    if (!tensor_is(call->output, dtype, s->bags * s->cols))
        return TAPER_UNSUPPORTED;
    *work = (taper_work){.tasks = i64_ceil_div(s->bags, s->bags_per_task)};
    return TAPER_OK;
}

static taper_status any_embedding_bag_run(const taper_call *call, int64_t begin, int64_t end,
                                          void *scratch) {
    const struct bag_state *s = call->state;
    const void *offsets = call->inputs[2].data;
    const int64_t last = i64_min(end * s->bags_per_task, s->bags), count = s->ends.size - 1;
    (void)scratch;
    for (int64_t b = begin * s->bags_per_task; b < last; b++) {
        const int64_t first = position_at(&s->ends, offsets, b);
        const int64_t next = b + 1 < s->bags ? position_at(&s->ends, offsets, b + 1) : count;
        void *y = (uint8_t *)call->output->data + b * s->cols * s->size;
        if (first < 0 || next < first || (b == 0 && first > 0) ||
            !s->combine(s, call, y, first, next))
            return TAPER_BAD_INDEX;
    }
    return TAPER_OK;
}
