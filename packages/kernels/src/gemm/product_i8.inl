/*
 * What kernels of products of bytes share: the types of their operands, the costs by which they
 * split the work, packing, and the epilogue, whose result may have any dtype. Blocks of C are
 * computed in scratch, because the output has other elements.
 */

enum {
    I8_A_BYTES = 512 << 10, /* of A in a unit, of 16 bits: those of 8 bits stay in L2 */
    I8_C_ITEMS = 32 << 10,  /* of C in a unit */
    I8_MAX_COLS = 512,      /* of a unit */
    I8_STEP = 4 * GEMM_NR,  /* columns of the widest tiles */
    I8_TILE_COLS = V_LEN == 16 ? I8_STEP : GEMM_NR, /* of those of this level */
    I8_TILE_C = V_LEN == 16 ? 4 << 10 : 3 << 10, /* items of C that wait in L1 for the epilogue */
    I8_MIN_COLS = 128, /* of a unit, if there are so many: A is put once for each unit */
    /* Costs in multiply-adds, as for float32 (engine.h): four times as many fit the time. */
    I8_SUM_COST = 16,
    I8_EPILOGUE_COST = 24,
    I8_LINE_COST = 20,     /* a byte of B: loading it from L3 */
    I8_TASK_COST = 1 << 21 /* the smallest task: about 5 microseconds */
};

/* The types of a row of the kernel table: of the output, A, B, and extras. */
#define I8_PRODUCT TENSOR(D_ANY), TENSOR(D_I8 | D_U8), STORED(D_I8, S_PLAIN | S_DOTS), TENSOR(D_ANY)

static bool i8_accumulates(const char *accumulate) {
    return accumulate && strcmp(accumulate, "int32") == 0;
}

/* Returns the engine to try first. */
static const i8_engine *i8_first_engine(const i8_engine *engine) {
    return engine->u7 ? engine->u7 : engine;
}

static void i8_begin(const i8_engine *engine) {
    if (engine->begin)
        engine->begin();
}

static void i8_end(const i8_engine *engine) {
    if (engine->end)
        engine->end();
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

/* Prefetches what the epilogue of a block reads and writes: a line of each row, too far apart for
 * the CPU's own prefetching. */
static void i8_fetch_block(const taper_program *p, const taper_call *call, int64_t row, int64_t m,
                           int64_t col, int64_t out_cols) {
    for (int32_t i = -1; i < p->n_inputs - p->first; i++) { /* -1: the output */
        const taper_tensor *t = i < 0 ? call->output : &call->inputs[2 + i];
        if (i >= 0 && (!p->inputs[p->first + i].flat || p->inputs[p->first + i].every_row))
            continue;
        const int64_t size = (int64_t)taper_dtype_size(t->dtype);
        const char *at = (const char *)t->data + (row * out_cols + col) * size;
        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < I8_TILE_COLS * size; c += TAPER_ALIGNMENT)
                __builtin_prefetch(at + r * out_cols * size + c, 0, 3);
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
    if (p->in_panels &&
        m >= PROGRAM_PANEL_ROWS) { /* some columns at a time, whose sums stay in L1 */
        const int64_t parts = i64_ceil_div(m, I8_TILE_C / I8_TILE_COLS);
        program_requantization to;
        const bool in_registers = engine->requantizes && n % GEMM_NR == 0 &&
                                  PROGRAM.requantization(p, call->inputs + 2, row, col, n, &to);
        to.out = out;
        to.out_row = out_cols;
        const int64_t rows = i64_ceil_div(i64_ceil_div(m, parts), engine->rows) * engine->rows;
        for (int64_t r = 0, some; r < m; r += some, i8_skip_rows(&g, some)) {
            some = m - r < rows + engine->rows ? m - r : rows; /* no part of less than a tile */
            g.rests = block->rests ? block->rests + r * i8_rest_items(g.groups) : NULL;
            g.b = block->b;
            g.to = in_registers && i8_requantizes(engine, some) ? &to : NULL;
            g.row = r;
            for (int64_t c = 0; c < n; c += I8_TILE_COLS) {
                const int64_t cols = i64_min(I8_TILE_COLS, n - c);
                const int64_t now = i64_ceil_div(cols, GEMM_NR);
                g.ldc = now * GEMM_NR;
                if (!g.to)
                    i8_fetch_block(p, call, row + r, some, col + c, out_cols);
                g.col = c;
                engine->block(&g, some, now);
                if (!g.to)
                    PROGRAM.run(p, call->inputs + 2, row + r, row + r + some, col + c,
                                col + c + cols, g.c, g.ldc, out + (r * out_cols + c) * size,
                                out_cols, epilogue);
                g.b += now * i8_panel_bytes(g.groups);
            }
        }
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
    PROGRAM.run(p, call->inputs + 2, row, row + m, col, col + n, g.c, g.ldc, out, out_cols,
                epilogue);
}
