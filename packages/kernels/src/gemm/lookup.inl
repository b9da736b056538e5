/* The INDEX_SELECT kernel of columns of a matrix in blocks (element.h), such as the rows of a table
 * that a product reads, too. It decodes the panel of each column. */

struct lookup_state {
    struct positions positions;
    gemm_head head;
    gemm_element element;
    int64_t k, count;
    int64_t panel_floats;
};

static taper_status f32_lookup_prepare(const taper_call *call, taper_work *work) {
    const struct lookup_attrs *attrs = call->attrs;
    struct lookup_state *s = call->state;
    if (call->n_inputs != 2)
        return TAPER_UNSUPPORTED;
    const taper_tensor *b = &call->inputs[0], *index = &call->inputs[1];
    s->element = gemm_element_of(b);
    if (s->element == GEMM_ELEMENTS || !gemm_has_levels(s->element) || attrs->axis != 1 ||
        b->rank != 3 || !tensor_is_contiguous(b) || !tensor_is_contiguous(index))
        return TAPER_UNSUPPORTED;
    s->k = b->logical[0];
    s->count = tensor_numel(index);
    s->panel_floats =
        b->shape[1] * b->shape[2] * (int64_t)taper_dtype_size(b->dtype) / (int64_t)sizeof(float);
    if (b->shape[0] != i64_ceil_div(b->logical[1], GEMM_NR) ||
        !gemm_find_head(&s->head, b, s->element, s->k) ||
        !positions_prepare(&s->positions, index, b->logical[1], attrs->wrap) ||
        !tensor_is(call->output, TAPER_FLOAT32, s->k * s->count))
        return TAPER_UNSUPPORTED;
    work->tasks = s->count;
    work->scratch_bytes = (size_t)(s->k * GEMM_NR) * sizeof(float);
    return TAPER_OK;
}

static taper_status f32_lookup_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const struct lookup_state *s = call->state;
    const float *panel = scratch;
    const int64_t rows = s->head.rows / s->head.blocks;
    for (int64_t i = begin; i < end; i++) {
        const int64_t at = position_at(&s->positions, call->inputs[1].data, i);
        if (at < 0)
            return TAPER_BAD_INDEX;
        const gemm_block block = {.b = (const float *)call->inputs[0].data +
                                       at / GEMM_NR * s->panel_floats,
                                  .packed = scratch,
                                  .k = rows,
                                  .jumps = s->k / rows - 1,
                                  .head = s->head};
        gemm_widen(&block, 1, s->element);
        float *y = (float *)call->output->data + i;
        for (int64_t k = 0; k < s->k; k++)
            y[k * s->count] = panel[k * GEMM_NR + at % GEMM_NR];
    }
    return TAPER_OK;
}
