/*
 * MATMUL of bytes with sums in int32: how the work is split, and the epilogue, whose result may
 * have any dtype. Blocks of C are computed in scratch, because the output has other elements.
 */

struct i8_matmul_state {
    taper_program epilogue;
    matmul_shape shape;
    int64_t groups; /* of 4 k */
    int64_t a_row_bytes;
    /* Units of work, numbered [batch][row chunk][column chunk]; a task is consecutive units. */
    int64_t row_chunk, row_chunks;
    int64_t col_chunk, col_chunks;
    int64_t units, units_per_task;
    /* Scratch, in bytes from its start: A, what narrows it, B, C, then the epilogue's scratch. */
    size_t spare_scratch, b_scratch, c_scratch, epilogue_scratch;
};

static taper_status i8_matmul_prepare(const taper_call *call, taper_work *work) {
    const struct matmul_attrs *attrs = call->attrs;
    struct i8_matmul_state *state = call->state;
    matmul_shape *s = &state->shape;
    const i8_engine *engine = call->kernel->data;
    if (call->n_inputs < 2 || attrs->alpha != 1 || !i8_accumulates(attrs->accumulate) ||
        !matmul_shape_of(s, call, attrs, TAPER_INT8))
        return TAPER_UNSUPPORTED;
    const taper_status status =
        PROGRAM.prepare(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                        call->inputs + 2, call->n_inputs - 2, call->output, TAPER_INT32);
    if (status != TAPER_OK)
        return status;
    const int64_t numel = tensor_numel(call->output);
    *work = (taper_work){.tasks = 0};
    if (numel == 0)
        return TAPER_OK;
    state->groups = i64_ceil_div(s->k, I8_GROUP);
    state->a_row_bytes = i8_row_bytes(engine, state->groups);

    const int64_t most = i64_max(1, I8_A_BYTES / state->a_row_bytes / engine->rows) * engine->rows;
    int64_t rows = i64_ceil_div(s->m, i64_ceil_div(s->m, most));
    const int64_t element_cost =
        s->k + I8_SUM_COST +
        I8_EPILOGUE_COST * state->epilogue.cost / (GEMM_EPILOGUE_COST * MICROOP_ADDITION);
    const int64_t col_cost = i64_plus(i64_times(rows, element_cost), I8_LINE_COST * s->k);
    int64_t cols = i64_ceil_div(I8_TASK_COST, col_cost);
    if (rows > engine->rows)
        cols = i64_max(cols, I8_MIN_COLS);
    cols = i64_min(cols, I8_MAX_COLS);
    cols = i64_ceil_div(s->n, i64_ceil_div(s->n, cols)); /* all about as many */
    const int64_t step = rows > I8_FEW_ROWS ? I8_STEP : GEMM_NR;
    state->col_chunk = i64_min(matmul_round_up(cols, step), matmul_round_up(s->n, GEMM_NR));
    state->col_chunks = i64_ceil_div(s->n, state->col_chunk);
    rows = i64_min(rows, i64_max(1, I8_C_ITEMS / state->col_chunk / engine->rows) * engine->rows);
    state->row_chunks = i64_ceil_div(s->m, rows);
    state->row_chunk = i64_ceil_div(s->m, state->row_chunks);
    state->units = numel / (s->m * s->n) * state->col_chunks * state->row_chunks;
    const int64_t unit_cost =
        i64_times(i64_min(state->col_chunk, s->n),
                  i64_plus(i64_times(state->row_chunk, element_cost), I8_LINE_COST * s->k));
    state->units_per_task = i64_max(1, I8_TASK_COST / i64_max(1, unit_cost));
    work->tasks = i64_ceil_div(state->units, state->units_per_task);

    const int64_t line = TAPER_ALIGNMENT;
    state->spare_scratch = (size_t)(state->row_chunk * state->a_row_bytes);
    state->b_scratch = state->spare_scratch +
                       (size_t)i8_spare_bytes(engine, state->row_chunk, s->n, state->groups);
    state->c_scratch = state->b_scratch;
    if (!s->packed)
        state->c_scratch += (size_t)(state->col_chunk / GEMM_NR * i8_panel_bytes(state->groups));
    const int64_t c_bytes = state->row_chunk * state->col_chunk * (int64_t)sizeof(int32_t);
    state->epilogue_scratch = state->c_scratch + (size_t)matmul_round_up(c_bytes, line);
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* Writes rows of A, each with zeros up to a whole group; false if the engine takes no such ones. */
static bool i8_put_rows(const i8_engine *engine, i8_block *g, char *to, char *spare, const char *a,
                        int64_t row_stride, int64_t k_stride, int64_t k, int64_t rows,
                        bool narrows) {
    static const char zeros[I8_GROUP];
    const int64_t past = g->groups * I8_GROUP - k;
    const bool is_signed = g->is_signed;
    bool takes = true;
    char *const first = to;
    for (int64_t r = 0; r < rows; r++, to += g->a_row_bytes, a += row_stride) {
        takes &= engine->put(to, a, k_stride, k, is_signed);
        if (!takes && !narrows)
            return false;
        if (past > 0)
            engine->put(to + k * engine->a_bytes, zeros, 1, past, is_signed);
    }
    return takes || engine->narrow(g, first, rows, spare);
}

static taper_status i8_matmul_run(const taper_call *call, int64_t begin, int64_t end,
                                  void *scratch) {
    const struct i8_matmul_state *state = call->state;
    const matmul_shape *s = &state->shape;
    const i8_engine *const widest = call->kernel->data, *engine = widest;
    char *const memory = scratch;
    const int64_t last = i64_min(end * state->units_per_task, state->units);
    i8_block g = {.groups = state->groups,
                  .c = (int32_t *)(void *)(memory + state->c_scratch),
                  .is_signed = call->inputs[0].dtype == TAPER_INT8};
    int64_t put = -1; /* the rows that are in scratch */
    i8_begin(widest);
    for (int64_t unit = begin * state->units_per_task; unit < last; unit++) {
        const int64_t col = unit % state->col_chunks * state->col_chunk;
        const int64_t rows_of = unit / state->col_chunks;
        const int64_t row = rows_of % state->row_chunks * state->row_chunk;
        const int64_t batch = rows_of / state->row_chunks;
        const int64_t m = i64_min(state->row_chunk, s->m - row);
        const int64_t n = i64_min(state->col_chunk, s->n - col);
        int64_t a_begin, b_begin;
        matmul_batch_begin(s, batch, &a_begin, &b_begin);
        const char *const a = (const char *)call->inputs[0].data + a_begin + row * s->a_row_stride;
        for (engine = put == rows_of ? engine : i8_first_engine(widest); put != rows_of;) {
            g.a = memory;
            g.a_row_bytes = state->a_row_bytes;
            g.rests = NULL;
            if (s->a_k_stride == 1 && s->k % I8_GROUP == 0 &&
                engine->reads(a, s->a_row_stride, m, s->k, g.is_signed)) {
                g.a = a;
                g.a_row_bytes = s->a_row_stride;
                put = rows_of;
            } else if (i8_put_rows(engine, &g, memory, memory + state->spare_scratch, a,
                                   s->a_row_stride, s->a_k_stride, s->k, m,
                                   i8_narrows(engine, m, s->n, g.groups))) {
                put = rows_of;
            } else {
                engine = widest;
            }
        }
        g.b = call->inputs[1].data;
        if (s->packed) {
            g.b += col / GEMM_NR * i8_panel_bytes(g.groups);
        } else {
            int8_t *const packed = (int8_t *)(memory + state->b_scratch);
            i8_pack_b(packed, g.b + b_begin + col * s->b_col_stride, s->b_k_stride, s->b_col_stride,
                      s->k, n);
            g.b = packed;
        }
        i8_finish(engine, &g, &state->epilogue, call, batch * s->m + row, m, col, n, s->n,
                  memory + state->epilogue_scratch);
    }
    i8_end(widest);
    return TAPER_OK;
}

#define i8_matmul_amx_prepare i8_matmul_prepare
#define i8_matmul_amx_run i8_matmul_run
#define i8_matmul_vnni_prepare i8_matmul_prepare
#define i8_matmul_vnni_run i8_matmul_run
