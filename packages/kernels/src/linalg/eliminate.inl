/*
 * Gaussian elimination with partial pivoting, of elements of type T; linalg.c includes it for each.
 * NAME makes names of T's functions, SIZE is the absolute value.
 */

/* Copies an [n, m] matrix to rows without gaps. */
static void NAME(read)(const T *from, int64_t row_stride, int64_t col_stride, int64_t n, int64_t m,
                       T *to) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < m; c++)
            to[r * m + c] = from[r * row_stride + c * col_stride];
}

/* Row `to` of m elements minus `factor` times row `from`. */
static inline void NAME(subtract)(T *restrict to, const T *restrict from, T factor, int64_t m) {
    for (int64_t c = 0; c < m; c++)
        to[c] -= factor * from[c];
}

/* Replaces the [n, m] right sides b by the x of a @ x = b; a is overwritten. Returns false if a
 * pivot is 0: then a is singular. */
static bool NAME(eliminate)(T *a, int64_t n, T *b, int64_t m) {
    for (int64_t k = 0; k < n; k++) {
        int64_t pivot = k;
        for (int64_t r = k + 1; r < n; r++)
            pivot = SIZE(a[r * n + k]) > SIZE(a[pivot * n + k]) ? r : pivot;
        if (a[pivot * n + k] == 0)
            return false;
        for (int64_t c = k; pivot != k && c < n; c++) {
            const T one = a[k * n + c];
            a[k * n + c] = a[pivot * n + c];
            a[pivot * n + c] = one;
        }
        for (int64_t c = 0; pivot != k && c < m; c++) {
            const T one = b[k * m + c];
            b[k * m + c] = b[pivot * m + c];
            b[pivot * m + c] = one;
        }
        for (int64_t r = k + 1; r < n; r++) {
            const T factor = a[r * n + k] / a[k * n + k];
            NAME(subtract)(a + r * n + k + 1, a + k * n + k + 1, factor, n - k - 1);
            NAME(subtract)(b + r * m, b + k * m, factor, m);
        }
    }
    for (int64_t k = n - 1; k >= 0; k--) {
        for (int64_t c = 0; c < m; c++)
            b[k * m + c] /= a[k * n + k];
        for (int64_t r = 0; r < k; r++)
            NAME(subtract)(b + r * m, b + k * m, a[r * n + k], m);
    }
    return true;
}

/* Computes matrices begin..end of the batch. */
static taper_status NAME(run)(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct linalg_state *s = call->state;
    const struct linalg_attrs *attrs = call->attrs;
    const taper_tensor *a = &call->inputs[0], *b = call->n_inputs > 1 ? &call->inputs[1] : NULL;
    T *copy = scratch;
    begin *= s->per_task;
    end = i64_min(end * s->per_task, s->count);
    for (int64_t i = begin; i < end; i++) {
        T *x = (T *)call->output->data + i * s->n * s->m;
        NAME(read)((const T *)a->data + matrix_offset(a, call->output, i), a->strides[a->rank - 2],
                   a->strides[a->rank - 1], s->n, s->n, copy);
        if (b)
            NAME(read)((const T *)b->data + matrix_offset(b, call->output, i),
                       b->strides[b->rank - 2], b->strides[b->rank - 1], s->n, s->m, x);
        for (int64_t c = 0; !b && c < s->n * s->n; c++)
            x[c] = c % (s->n + 1) == 0 ? 1 : 0;
        if (NAME(eliminate)(copy, s->n, x, s->m))
            continue;
        if (attrs->check)
            return TAPER_BAD_INDEX;
        for (int64_t c = 0; c < s->n * s->m; c++)
            x[c] = (T)NAN;
    }
    return TAPER_OK;
}
