/* CUMSUM: float32 is summed in double, as the chain is as long as the axis; int64 wraps. */

static taper_status cumsum_prepare(const taper_call *call, taper_dtype dtype, taper_work *work) {
    const struct cumsum_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    axis_spans *s = call->state;
    const bool scalar = x->rank == 0; /* the only axis of a scalar is 0 */
    if (call->n_inputs != 1 || attrs->axis < 0 || attrs->axis >= x->rank + scalar ||
        !tensor_is(x, dtype, tensor_numel(x)) || !tensor_is(call->output, dtype, tensor_numel(x)))
        return TAPER_UNSUPPORTED;
    *s = axis_split(tensor_count(x, 0, attrs->axis), scalar ? 1 : x->shape[attrs->axis],
                    tensor_count(x, attrs->axis + 1, x->rank), INT64_MAX);
    work->tasks = axis_tasks(s);
    work->scratch_bytes = (size_t)s->tile * sizeof(double);
    return TAPER_OK;
}

/* Four at a time, so that the chain through the total is one addition in four. */
static void f32_cumsum_row(float *y, const float *x, int64_t n) {
    double total = 0.0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const double a = (double)x[i], ab = a + (double)x[i + 1], c = (double)x[i + 2];
        const double abcd = ab + (c + (double)x[i + 3]);
        y[i] = (float)(total + a);
        y[i + 1] = (float)(total + ab);
        y[i + 2] = (float)(total + (ab + c));
        y[i + 3] = (float)(total += abcd);
    }
    for (; i < n; i++)
        y[i] = (float)(total += (double)x[i]);
}

static taper_status f32_cumsum_prepare(const taper_call *call, taper_work *work) {
    return cumsum_prepare(call, TAPER_FLOAT32, work);
}

static taper_status f32_cumsum_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const axis_spans *s = call->state;
    double *restrict total = scratch;
    for (int64_t i = axis_first(s, begin); i < axis_last(s, end); i++) {
        const axis_span at = axis_span_at(s, i);
        const int64_t start = at.outer * s->n * s->inner + at.column;
        const float *x = (const float *)call->inputs[0].data + start;
        float *y = (float *)call->output->data + start;
        if (s->inner == 1) {
            f32_cumsum_row(y, x, s->n);
            continue;
        }
        memset(total, 0, (size_t)at.width * sizeof *total);
        for (int64_t k = 0; k < s->n; k++, x += s->inner, y += s->inner)
            for (int64_t j = 0; j < at.width; j++)
                y[j] = (float)(total[j] += (double)x[j]);
    }
    return TAPER_OK;
}

static taper_status i64_cumsum_prepare(const taper_call *call, taper_work *work) {
    return cumsum_prepare(call, TAPER_INT64, work);
}

/* The row above holds the totals so far. */
static taper_status i64_cumsum_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const axis_spans *s = call->state;
    (void)scratch;
    for (int64_t i = axis_first(s, begin); i < axis_last(s, end); i++) {
        const axis_span at = axis_span_at(s, i);
        const int64_t start = at.outer * s->n * s->inner + at.column;
        const uint64_t *x = (const uint64_t *)call->inputs[0].data + start;
        uint64_t *y = (uint64_t *)call->output->data + start;
        for (int64_t k = 0; k < s->n; k++, x += s->inner, y += s->inner)
            for (int64_t j = 0; j < at.width; j++)
                y[j] = x[j] + (k > 0 ? y[j - s->inner] : 0);
    }
    return TAPER_OK;
}
