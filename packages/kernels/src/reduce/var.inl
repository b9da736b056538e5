/* VAR: computes the mean, then the sum of squared differences from it, corrected for the mean's
 * rounding. */

V_INLINE void var_columns(const struct reduce_state *s, const span *first, const span *second,
                          const float *center, const float *x) {
    const int64_t width = first->width, stride = s->spans.inner, n = s->spans.n;
    for (int64_t begin = 0; begin < n; begin += PART_ROWS) {
        const int64_t end = i64_min(begin + PART_ROWS, n);
        for (int64_t j = 0; j < width; j += V_LEN) {
            const int64_t lanes = i64_min(V_LEN, width - j);
            const vf c = v_load_n(center + j, lanes);
            vf d1 = v_zero(), d2 = v_zero();
            for (int64_t r = begin; r < end; r++) {
                const float *p = x + r * stride + j;
                const vf d = v_sub(lanes == V_LEN ? v_load(p) : v_load_n(p, lanes), c);
                d1 = v_add(d1, d);
                d2 = v_fma(d, d, d2);
            }
            v_store(first->part + j, d1);
            v_store(second->part + j, d2);
        }
        for (int64_t j = 0; j < width; j++) {
            first->f64[j] += (double)first->part[j];
            second->f64[j] += (double)second->part[j];
        }
    }
}

static taper_status f32_var_prepare(const taper_call *call, taper_work *work) {
    const struct var_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[0];
    struct reduce_state *s = call->state;
    if (call->n_inputs != 1 || !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !reduce_plan(s, call, &attrs->axes, work) ||
        !tensor_is(call->output, TAPER_FLOAT32, s->kept.count * reduce_outputs(s, s->spans.inner)))
        return TAPER_UNSUPPORTED;
    const double divisor = (double)s->count - attrs->correction;
    s->divisor = divisor < 0.0 ? 0.0 : divisor; /* NaN stays NaN */
    work->tasks = axis_tasks(&s->spans);
    work->scratch_bytes = 2 * (size_t)s->spans.tile * sizeof(double) + 3 * PART_BYTES;
    return TAPER_OK;
}

static taper_status f32_var_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct reduce_state *s = call->state;
    const int64_t tile = s->spans.tile;
    const double count = (double)s->count;
    float *part = (float *)((double *)scratch + 2 * tile);
    span first = {.f64 = scratch, .part = part};
    span second = {.f64 = first.f64 + tile, .part = part + PART_LENGTH};
    float *center = part + 2 * PART_LENGTH;
    for (int64_t i = axis_first(&s->spans, begin); i < axis_last(&s->spans, end); i++) {
        const axis_span at = axis_span_at(&s->spans, i);
        const float *x = (const float *)call->inputs[0].data + span_offset(s, &at);
        float *y = (float *)call->output->data + span_output(s, &at);
        first.width = second.width = at.width;
        memset(first.f64, 0, (size_t)at.width * sizeof(double));
        for (int64_t t = 0; t < s->reduced.count; t++)
            (s->along_row ? f32_sum_rows : f32_sum_columns)(s, &first,
                                                            x + loops_offset(&s->reduced, t));
        f32_sum_join(s, &first);
        const int64_t outputs = reduce_outputs(s, at.width);
        for (int64_t j = 0; j < outputs; j++)
            center[j] = (float)(first.f64[j] / count);
        for (int64_t j = at.width - 1; s->neighbours > 1 && j > 0; j--) /* to each column */
            center[j] = center[j / s->neighbours];

        memset(first.f64, 0, (size_t)at.width * sizeof(double));
        memset(second.f64, 0, (size_t)at.width * sizeof(double));
        for (int64_t t = 0; t < s->reduced.count; t++) {
            const float *p = x + loops_offset(&s->reduced, t);
            for (int64_t j = 0; s->along_row && j < at.width; j++) {
                const row_moments about =
                    row_moments_about(center[j], p + j * s->spans.n, s->spans.n);
                first.f64[j] += about.first;
                second.f64[j] += about.second;
            }
            if (!s->along_row)
                var_columns(s, &first, &second, center, p);
        }
        f32_sum_join(s, &first);
        f32_sum_join(s, &second);
        for (int64_t j = 0; j < outputs; j++) {
            const double squares = second.f64[j] - first.f64[j] * first.f64[j] / count;
            y[j] = (float)((squares < 0.0 ? 0.0 : squares) / s->divisor);
        }
    }
    return TAPER_OK;
}
