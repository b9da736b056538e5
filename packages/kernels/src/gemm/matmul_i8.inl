/*
 * MATMUL of bytes with sums in int32: how the work is split, and the epilogue, whose result may
 * have any dtype. Blocks of C are computed in scratch, because the output has other elements.
 */

enum {
    I8_A_BYTES = 256 << 10, /* of A in a unit: with the panels of a tile in L2 */
    I8_C_ITEMS = 32 << 10,  /* of C in a unit */
    I8_MAX_COLS = 512,      /* of a unit */
    I8_STEP = 4 * GEMM_NR,  /* columns of the widest tiles */
    I8_MIN_COLS = 128,      /* of a unit, if there are so many: A is put once for each unit */
    /* Costs in multiply-adds, as for float32 (engine.h): four times as many fit the time. */
    I8_SUM_COST = 16,
    I8_EPILOGUE_COST = 24,
    I8_LINE_COST = 20,     /* a byte of B: loading it from L3 */
    I8_TASK_COST = 1 << 21 /* the smallest task: about 5 microseconds */
};

/* The types of a row of the kernel table: of the output, A, B, and extras. */
#define I8_PRODUCT TENSOR(D_ANY), TENSOR(D_I8 | D_U8), STORED(D_I8, S_PLAIN | S_DOTS), TENSOR(D_ANY)

struct i8_matmul_state {
    taper_program epilogue;
    matmul_shape shape;
    int64_t groups; /* of 4 k */
    int64_t a_row_bytes;
    /* Units of work, numbered [batch][row chunk][column chunk]; a task is consecutive units. */
    int64_t row_chunk, row_chunks;
    int64_t col_chunk, col_chunks;
    int64_t units, units_per_task;
    /* Scratch, in bytes from its start: A, B, C, then the epilogue's scratch. */
    size_t b_scratch, c_scratch, epilogue_scratch;
};

static bool i8_accumulates(const char *accumulate) {
    return accumulate && strcmp(accumulate, "int32") == 0;
}

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
                        call->inputs + 2, call->n_inputs - 2, call->output, TAPER_INT32, NULL);
    if (status != TAPER_OK)
        return status;
    const int64_t numel = tensor_numel(call->output);
    *work = (taper_work){.tasks = 0};
    if (numel == 0)
        return TAPER_OK;
    state->groups = i64_ceil_div(s->k, I8_GROUP);
    state->a_row_bytes = i8_row_bytes(engine, state->groups);

    const int64_t most = i64_max(1, I8_A_BYTES / state->a_row_bytes / I8_ROWS) * I8_ROWS;
    int64_t rows = i64_ceil_div(s->m, i64_ceil_div(s->m, most));
    const int64_t element_cost =
        s->k + I8_SUM_COST + I8_EPILOGUE_COST * state->epilogue.cost / GEMM_EPILOGUE_COST;
    const int64_t col_cost = i64_plus(i64_times(rows, element_cost), I8_LINE_COST * s->k);
    int64_t cols = i64_ceil_div(I8_TASK_COST, col_cost);
    if (rows > I8_ROWS)
        cols = i64_max(cols, I8_MIN_COLS);
    cols = i64_min(cols, I8_MAX_COLS);
    cols = i64_ceil_div(s->n, i64_ceil_div(s->n, cols)); /* all about as many */
    const int64_t step = rows > I8_FEW_ROWS ? I8_STEP : GEMM_NR;
    state->col_chunk = i64_min(matmul_round_up(cols, step), matmul_round_up(s->n, GEMM_NR));
    state->col_chunks = i64_ceil_div(s->n, state->col_chunk);
    rows = i64_min(rows, i64_max(1, I8_C_ITEMS / state->col_chunk / I8_ROWS) * I8_ROWS);
    state->row_chunks = i64_ceil_div(s->m, rows);
    state->row_chunk = i64_ceil_div(s->m, state->row_chunks);
    state->units = numel / (s->m * s->n) * state->col_chunks * state->row_chunks;
    const int64_t unit_cost =
        i64_times(i64_min(state->col_chunk, s->n),
                  i64_plus(i64_times(state->row_chunk, element_cost), I8_LINE_COST * s->k));
    state->units_per_task = i64_max(1, I8_TASK_COST / i64_max(1, unit_cost));
    work->tasks = i64_ceil_div(state->units, state->units_per_task);

    const int64_t line = TAPER_ALIGNMENT;
    state->b_scratch = (size_t)(state->row_chunk * state->a_row_bytes);
    state->c_scratch = state->b_scratch;
    if (!s->packed)
        state->c_scratch += (size_t)(state->col_chunk / GEMM_NR * i8_panel_bytes(state->groups));
    const int64_t c_bytes = state->row_chunk * state->col_chunk * (int64_t)sizeof(int32_t);
    state->epilogue_scratch = state->c_scratch + (size_t)matmul_round_up(c_bytes, line);
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* Packs columns of B[k][n], as engine_i8.h says. */
static void i8_pack_b(int8_t *to, const int8_t *b, int64_t k_stride, int64_t col_stride, int64_t k,
                      int64_t n) {
    for (int64_t col = 0; col < n; col += GEMM_NR, b += GEMM_NR * col_stride) {
        const int64_t cols = i64_min(GEMM_NR, n - col);
        int32_t sums[GEMM_NR] = {0};
        int8_t *const head = to;
        to += I8_LINE;
        for (int64_t first = 0; first < k; first += I8_GROUP, to += I8_LINE) {
            const int8_t *from = b + first * k_stride;
            const int64_t width = i64_min(I8_GROUP, k - first);
            if (cols < GEMM_NR || width < I8_GROUP)
                memset(to, 0, I8_LINE);
            if (k_stride == 1 && width == I8_GROUP)
                for (int64_t j = 0; j < cols; j++)
                    memcpy(to + j * I8_GROUP, from + j * col_stride, I8_GROUP);
            else
                for (int64_t i = 0; i < width; i++)
                    for (int64_t j = 0; j < cols; j++)
                        to[j * I8_GROUP + i] = from[i * k_stride + j * col_stride];
            for (int64_t j = 0; j < GEMM_NR; j++)
                sums[j] += (to[4 * j] + to[4 * j + 1]) + (to[4 * j + 2] + to[4 * j + 3]);
        }
        memcpy(head, sums, sizeof sums);
    }
}

/* Writes rows of A, each with zeros up to a whole group. */
static void i8_put_rows(const i8_engine *engine, char *to, int64_t to_row, const char *a,
                        int64_t row_stride, int64_t k_stride, int64_t k, int64_t rows,
                        bool is_signed) {
    static const char zeros[I8_GROUP];
    const int64_t past = i64_ceil_div(k, I8_GROUP) * I8_GROUP - k;
    for (int64_t r = 0; r < rows; r++, to += to_row, a += row_stride) {
        engine->put(to, a, k_stride, k, is_signed);
        engine->put(to + k * engine->a_bytes, zeros, 1, past, is_signed);
    }
}

/*
 * Computes a block of the output from A, which is in scratch: rows [row, row + m), columns
 * [col, col + n) of an output [rows][out_cols]. c: scratch for whole panels; epilogue: scratch of
 * the program.
 */
static void i8_finish(const i8_engine *engine, const i8_block *block, const taper_program *p,
                      const taper_call *call, int64_t row, int64_t m, int64_t col, int64_t n,
                      int64_t out_cols, void *epilogue) {
    i8_block g = *block;
    const int64_t panels = i64_ceil_div(n, GEMM_NR);
    const int64_t size = (int64_t)taper_dtype_size(call->output->dtype);
    char *out = (char *)call->output->data + (row * out_cols + col) * size;
    if (p->count == 0 && n % GEMM_NR == 0) { /* the output has whole panels of int32 */
        g.c = (int32_t *)(void *)out;
        g.ldc = out_cols;
        engine->block(&g, m, panels);
        return;
    }
    g.ldc = panels * GEMM_NR;
    engine->block(&g, m, panels);
    if (p->count == 0) {
        for (int64_t r = 0; r < m; r++)
            memcpy(out + r * out_cols * size, g.c + r * g.ldc, (size_t)(n * size));
        return;
    }
    if (n == out_cols && n != g.ldc) { /* whole rows without gaps are one run for the program */
        for (int64_t r = 1; r < m; r++)
            memmove(g.c + r * n, g.c + r * g.ldc, (size_t)n * sizeof *g.c);
        g.ldc = n;
    }
    PROGRAM.run_from(p, call->inputs + 2, row, row + m, col, col + n, g.c, g.ldc, out, out_cols,
                     epilogue);
}

static taper_status i8_matmul_run(const taper_call *call, int64_t begin, int64_t end,
                                  void *scratch) {
    const struct i8_matmul_state *state = call->state;
    const matmul_shape *s = &state->shape;
    const i8_engine *engine = call->kernel->data;
    char *const memory = scratch;
    const int64_t last = i64_min(end * state->units_per_task, state->units);
    i8_block g = {.a = memory,
                  .a_row_bytes = state->a_row_bytes,
                  .groups = state->groups,
                  .c = (int32_t *)(void *)(memory + state->c_scratch),
                  .is_signed = call->inputs[0].dtype == TAPER_INT8};
    int64_t put = -1; /* the rows that are in scratch */
    for (int64_t unit = begin * state->units_per_task; unit < last; unit++) {
        const int64_t col = unit % state->col_chunks * state->col_chunk;
        const int64_t rows_of = unit / state->col_chunks;
        const int64_t row = rows_of % state->row_chunks * state->row_chunk;
        const int64_t batch = rows_of / state->row_chunks;
        const int64_t m = i64_min(state->row_chunk, s->m - row);
        const int64_t n = i64_min(state->col_chunk, s->n - col);
        int64_t a_begin, b_begin;
        matmul_batch_begin(s, batch, &a_begin, &b_begin);
        if (put != rows_of)
            i8_put_rows(engine, memory, state->a_row_bytes,
                        (const char *)call->inputs[0].data + a_begin + row * s->a_row_stride,
                        s->a_row_stride, s->a_k_stride, s->k, m, g.is_signed);
        put = rows_of;
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
    return TAPER_OK;
}

#define i8_matmul_vnni_prepare i8_matmul_prepare
#define i8_matmul_vnni_run i8_matmul_run
