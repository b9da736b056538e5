/* The GROUPED_MATMUL kernel: multiplies each run of rows by its own matrix; an input holds the ends
 * of the runs. */

struct grouped_state {
    struct matmul_state product; /* of all rows by one matrix; its units are column chunks */
    int64_t groups, group_stride;
    bool ends_32; /* int32, else int64 */
};

static taper_status f32_grouped_matmul_prepare(const taper_call *call, taper_work *work) {
    struct grouped_state *state = call->state;
    const taper_tensor *a = &call->inputs[0], *b = &call->inputs[1], *ends = &call->inputs[2];
    const taper_tensor *output = call->output;
    if (call->n_inputs != 3 || a->dtype != TAPER_FLOAT32 || b->dtype != TAPER_FLOAT32 ||
        output->dtype != TAPER_FLOAT32 || a->rank != 2 || b->rank != 3 || output->rank != 2 ||
        ends->rank != 1 || !tensor_is_contiguous(output) || !tensor_is_contiguous(ends) ||
        (ends->dtype != TAPER_INT32 && ends->dtype != TAPER_INT64) || a->shape[1] != b->shape[1] ||
        ends->shape[0] != b->shape[0] || output->shape[0] != a->shape[0] ||
        output->shape[1] != b->shape[2])
        return TAPER_UNSUPPORTED;
    *state = (struct grouped_state){.groups = b->shape[0],
                                    .group_stride = b->strides[0],
                                    .ends_32 = ends->dtype == TAPER_INT32};
    state->product.alpha = 1.0f;
    state->product.fused = program_fuses_nothing;
    matmul_shape *s = &state->product.shape;
    *s = (matmul_shape){.m = a->shape[0],
                        .n = b->shape[2],
                        .k = a->shape[1],
                        .a_row_stride = a->strides[0],
                        .a_k_stride = a->strides[1],
                        .b_k_stride = b->strides[1],
                        .b_col_stride = b->strides[2]};
    if (s->m * s->n == 0) {
        *work = (taper_work){.tasks = 1}; /* the ends are checked even then */
        return TAPER_OK;
    }
    /* The number of rows of an average group decides how B is read. */
    const int64_t rows = s->m;
    s->m = i64_max(1, rows / i64_max(1, state->groups));
    matmul_choose(&state->product, matmul_best(&state->product.shape));
    matmul_split(&state->product);
    state->product.dot = false;
    s->m = rows;

    const int64_t floats = sizeof(float), line = TAPER_ALIGNMENT;
    state->product.b_scratch =
        (size_t)matmul_round_up(matmul_a_floats(&state->product) * floats, line);
    work->scratch_bytes = state->product.b_scratch +
                          (size_t)matmul_round_up(matmul_b_floats(&state->product) * floats, line);
    /* The rows of a group are known only in the run, so a task is some columns of every group. */
    work->tasks = state->product.col_chunks;
    return TAPER_OK;
}

static taper_status f32_grouped_matmul_run(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    const struct grouped_state *state = call->state;
    const matmul_shape *s = &state->product.shape;
    const float *a = call->inputs[0].data, *b = call->inputs[1].data;
    const int32_t *ends_32 = call->inputs[2].data;
    const int64_t *ends_64 = call->inputs[2].data;
    const taper_call product = {
        .inputs = call->inputs, .output = call->output, .n_inputs = 2, .state = call->state};
    int64_t put = -1;
    matmul_part part = {.col = begin * state->product.col_chunk};
    part.cols = i64_min(end * state->product.col_chunk, s->n) - part.col;
    if (begin == end)
        return TAPER_OK;
    for (int64_t g = 0; g < state->groups; g++) {
        const int64_t last = state->ends_32 ? ends_32[g] : ends_64[g];
        if (last < part.row || last > s->m)
            return TAPER_BAD_INDEX;
        part.rows = last - part.row;
        if (part.rows > 0 && part.cols > 0)
            matmul_tiles(&product, &part, a, b + g * state->group_stride, scratch, &put);
        part.row = last;
    }
    if (part.cols == 0)
        return TAPER_OK;
    float *c = (float *)call->output->data + part.row * s->n + part.col;
    for (int64_t row = part.row; row < s->m; row++, c += s->n)
        memset(c, 0, (size_t)part.cols * sizeof *c);
    return TAPER_OK;
}
