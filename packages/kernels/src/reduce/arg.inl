/* ARGMAX, ARGMIN: position of the first extreme; NaN is more extreme than any number. */

static taper_status arg_prepare(const taper_call *call, taper_dtype dtype, taper_work *work) {
    const struct arg_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    axis_spans *s = call->state;
    if (call->n_inputs != 1 || !tensor_is(x, dtype, tensor_numel(x)))
        return TAPER_UNSUPPORTED;
    /* The only axis of a scalar is 0. */
    const bool scalar = x->rank == 0;
    if (attrs->axis < 0 || attrs->axis >= x->rank + scalar)
        return TAPER_UNSUPPORTED;
    const int64_t n = scalar ? 1 : x->shape[attrs->axis];
    *s = axis_split(tensor_count(x, 0, attrs->axis), n, tensor_count(x, attrs->axis + 1, x->rank),
                    (int64_t)taper_dtype_size(dtype), INT64_MAX);
    if (n == 0 || !tensor_is(call->output, TAPER_INT64, s->outer * s->inner))
        return TAPER_UNSUPPORTED;
    work->tasks = axis_tasks(s);
    work->scratch_bytes = (size_t)s->tile * sizeof(int64_t);
    return TAPER_OK;
}

/* One pass with vectors finds the extreme, and a second ends at its position. */
V_INLINE int64_t f32_arg_row(const row_op op, const float *x, int64_t n) {
    const float extreme = row_fold_block(op, x, n);
    const bool nan = extreme != extreme;
    int64_t i = 0;
    for (; i + V_LEN <= n; i += V_LEN) {
        const vf v = v_load(x + i);
        if (vm_any(nan ? v_isnan(v) : v_eq(v, v_set1(extreme))))
            break;
    }
    while (i < n - 1 && !(nan ? x[i] != x[i] : x[i] == extreme))
        i++;
    return i;
}

V_INLINE int64_t f64_arg_row(const row_op op, const double *x, int64_t n) {
    const double extreme = row_fold_block_double(op, x, n);
    int64_t i = 0;
    while (i < n - 1 && !(extreme != extreme ? x[i] != x[i] : x[i] == extreme))
        i++;
    return i;
}

#define FLOAT_ARG(id, T)                                                                           \
    V_INLINE void id##_arg(const row_op op, const axis_spans *s, const axis_span *at, const T *x,  \
                           T *restrict best, int64_t *restrict index) {                            \
        if (s->inner == 1) {                                                                       \
            *index = id##_arg_row(op, x, s->n);                                                    \
            return;                                                                                \
        }                                                                                          \
        for (int64_t j = 0; j < at->width; j++) {                                                  \
            best[j] = x[j];                                                                        \
            index[j] = 0;                                                                          \
        }                                                                                          \
        for (int64_t i = 1; i < s->n; i++)                                                         \
            for (int64_t j = 0; j < at->width; j++) {                                              \
                const T v = x[i * s->inner + j], b = best[j];                                      \
                const bool beyond = (op == ROW_MAX ? v > b : v < b) || (v != v && b == b);         \
                best[j] = beyond ? v : b;                                                          \
                index[j] = beyond ? i : index[j];                                                  \
            }                                                                                      \
    }
FLOAT_ARG(f32, float)
FLOAT_ARG(f64, double)

V_INLINE int64_t int_place(const taper_dtype dtype, const void *x, int64_t n, int64_t value) {
    switch (dtype) {
    case TAPER_INT64:
        return int64_t_place(x, n, value);
    case TAPER_INT32:
        return int32_t_place(x, n, (int32_t)value);
    case TAPER_INT8:
        return int8_t_place(x, n, (int8_t)value);
    default:
        return uint8_t_place(x, n, (uint8_t)value);
    }
}

V_INLINE void int_arg(const row_op op, const taper_dtype dtype, const axis_spans *s,
                      const axis_span *at, const void *x, int64_t *restrict best,
                      int64_t *restrict index) {
    if (s->inner == 1) {
        *index = int_place(dtype, x, s->n, int_row(op, dtype, x, s->n));
        return;
    }
    for (int64_t j = 0; j < at->width; j++) {
        best[j] = int_load(dtype, x, j);
        index[j] = 0;
    }
    for (int64_t i = 1; i < s->n; i++)
        for (int64_t j = 0; j < at->width; j++) {
            const int64_t v = int_load(dtype, x, i * s->inner + j);
            const bool beyond = op == ROW_MAX ? v > best[j] : v < best[j];
            best[j] = beyond ? v : best[j];
            index[j] = beyond ? i : index[j];
        }
}

V_INLINE taper_status arg_run(const row_op op, const taper_dtype dtype, const taper_call *call,
                              int64_t begin, int64_t end, void *scratch) {
    const axis_spans *s = call->state;
    const char *x = call->inputs[0].data;
    int64_t *index = call->output->data;
    for (int64_t i = axis_first(s, begin); i < axis_last(s, end); i++) {
        const axis_span at = axis_span_at(s, i);
        const char *p =
            x + (at.outer * s->n * s->inner + at.column) * (int64_t)taper_dtype_size(dtype);
        int64_t *out = index + at.outer * s->inner + at.column;
        if (dtype == TAPER_FLOAT32)
            f32_arg(op, s, &at, (const float *)p, scratch, out);
        else if (dtype == TAPER_FLOAT64)
            f64_arg(op, s, &at, (const double *)p, scratch, out);
        else
            int_arg(op, dtype, s, &at, p, scratch, out);
    }
    return TAPER_OK;
}

#define ARG_KERNEL(name, op, dtype)                                                                \
    static taper_status name##_prepare(const taper_call *call, taper_work *work) {                 \
        return arg_prepare(call, dtype, work);                                                     \
    }                                                                                              \
    static taper_status name##_run(const taper_call *call, int64_t begin, int64_t end,             \
                                   void *scratch) {                                                \
        return arg_run(op, dtype, call, begin, end, scratch);                                      \
    }

ARG_KERNEL(f32_argmax, ROW_MAX, TAPER_FLOAT32)
ARG_KERNEL(f32_argmin, ROW_MIN, TAPER_FLOAT32)
ARG_KERNEL(f64_argmax, ROW_MAX, TAPER_FLOAT64)
ARG_KERNEL(f64_argmin, ROW_MIN, TAPER_FLOAT64)
ARG_KERNEL(i64_argmax, ROW_MAX, TAPER_INT64)
ARG_KERNEL(i64_argmin, ROW_MIN, TAPER_INT64)
ARG_KERNEL(i32_argmax, ROW_MAX, TAPER_INT32)
ARG_KERNEL(i32_argmin, ROW_MIN, TAPER_INT32)
ARG_KERNEL(u8_argmax, ROW_MAX, TAPER_UINT8)
ARG_KERNEL(u8_argmin, ROW_MIN, TAPER_UINT8)
ARG_KERNEL(i8_argmax, ROW_MAX, TAPER_INT8)
ARG_KERNEL(i8_argmin, ROW_MIN, TAPER_INT8)
