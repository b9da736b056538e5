/*
 * MATMUL of integers, modulo 2^32 or 2^64, and of float64. gemm.c includes this file once for each
 * dtype, after typed_tile.inl, whose macros it uses, with
 *     TYPED_DTYPE   the dtype
 * The rows of A and the columns of B that meet in a tile are copied to scratch in the order in
 * which it reads them. A few rows do not pay for these copies: B is read where it lies.
 */

#ifndef TAPER_TYPED_SIZES
#define TAPER_TYPED_SIZES
enum {
    TYPED_FEW = 8,         /* rows, up to which B is read where it lies */
    TYPED_FEW_COLS = 1024, /* of C, at least, in a unit of few rows: runs that a CPU prefetches */
    TYPED_FEW_K = 4,       /* rows of B that are added to a row of C at once */
    TYPED_PARTS = 8,       /* of a sum of its own, so that it is a loop of vectors */
};
#endif

#define TYPED_FEW_ROWS TYPED_NAME(few_rows)
#define TYPED_COPY_A TYPED_NAME(copy_a)
#define TYPED_TILES TYPED_NAME(tiles)
#define TYPED_STATE TYPED_NAME(matmul_state)

struct TYPED_STATE {
    matmul_shape shape;
    /* Units of work, numbered [batch][column chunk][row chunk]; a task is some units in a row. */
    int64_t row_chunk, row_chunks;
    int64_t col_chunk, col_chunks;
    int64_t units, units_per_task;
    bool few; /* rows; B's rows or columns are contiguous */
    taper_program epilogue;
    /* Scratch, in bytes from its start: A and B, sums that may not lie in the output before the
     * epilogue, then the epilogue's scratch. */
    size_t sums_scratch, epilogue_scratch;
};

static taper_status TYPED_NAME(matmul_prepare)(const taper_call *call, taper_work *work) {
    const struct matmul_attrs *attrs = call->attrs;
    struct TYPED_STATE *state = call->state;
    matmul_shape *s = &state->shape;
    if (call->n_inputs < 2 || (attrs->alpha != 1 && TYPED_DTYPE != TAPER_FLOAT64) ||
        !matmul_shape_of(s, call, attrs, TYPED_DTYPE))
        return TAPER_UNSUPPORTED;
    taper_program *p = &state->epilogue;
    const taper_status status =
        PROGRAM.prepare(p, &attrs->code, &attrs->args, &attrs->scalars, call->inputs + 2,
                        call->n_inputs - 2, call->output, TYPED_DTYPE);
    if (status != TAPER_OK)
        return status;
    const int64_t numel = tensor_numel(call->output);
    *work = (taper_work){.tasks = 0};
    if (numel == 0)
        return TAPER_OK;
    state->few = s->m <= TYPED_FEW && (s->b_col_stride == 1 || s->b_k_stride == 1);
    const int64_t element_cost = s->k + GEMM_SUM_COST;
    int64_t cols = TYPED_COLS;
    if (state->few)
        cols = i64_max(TYPED_FEW_COLS, TYPED_COST / (s->m * element_cost));
    cols = i64_ceil_div(s->n, i64_ceil_div(s->n, cols)); /* all about as many */
    state->col_chunk = matmul_round_up(cols, TYPED_TILE_COLS);
    state->col_chunks = i64_ceil_div(s->n, state->col_chunk);
    const int64_t row_cost = i64_min(s->n, state->col_chunk) * element_cost;
    const int64_t rows = i64_max(TYPED_MIN_ROWS, TYPED_COST / row_cost);
    state->row_chunk = i64_min(s->m, matmul_round_up(rows, TYPED_ROWS));
    state->row_chunks = i64_ceil_div(s->m, state->row_chunk);
    state->units = numel / (s->m * s->n) * state->col_chunks * state->row_chunks;
    state->units_per_task = i64_max(1, TYPED_COST / (state->row_chunk * row_cost));
    work->tasks = i64_ceil_div(state->units, state->units_per_task);
    const int64_t k = i64_min(s->k, TYPED_K), b_cols = state->few ? 0 : state->col_chunk;
    const int64_t a_rows = state->few ? TYPED_FEW : TYPED_ROWS;
    state->sums_scratch = (size_t)matmul_round_up(
        (a_rows + b_cols) * k * (int64_t)sizeof(TYPED_ELEMENT), TAPER_ALIGNMENT);
    const int64_t sums = p->over ? state->row_chunk * state->col_chunk : 0;
    state->epilogue_scratch =
        state->sums_scratch +
        (size_t)matmul_round_up(sums * (int64_t)sizeof(TYPED_ELEMENT), TAPER_ALIGNMENT);
    work->scratch_bytes = state->epilogue_scratch + p->scratch_bytes;
    return TAPER_OK;
}

/* ---- tiles ---- */

/* [k][TYPED_ROWS] of some rows of A, zero beyond them. Not 0 if one is wide. */
static uint64_t TYPED_COPY_A(TYPED_ELEMENT *to, const TYPED_ELEMENT *a, const matmul_shape *s,
                             int64_t rows, int64_t k) {
    uint64_t wide = 0;
    if (s->a_row_stride == 1 && rows == TYPED_ROWS) { /* rows side by side, as A is transposed */
        for (int64_t i = 0; i < k; i++)
            for (int64_t row = 0; row < TYPED_ROWS; row++) {
                const TYPED_ELEMENT x = a[row + i * s->a_k_stride];
                wide |= TYPED_IS_WIDE(x);
                to[i * TYPED_ROWS + row] = x;
            }
        return wide;
    }
    for (int64_t row = 0; row < TYPED_ROWS; row++)
        for (int64_t i = 0; i < k; i++) {
            const TYPED_ELEMENT x = row < rows ? a[row * s->a_row_stride + i * s->a_k_stride] : 0;
            wide |= TYPED_IS_WIDE(x);
            to[i * TYPED_ROWS + row] = x;
        }
    return wide;
}

/* Some rows and columns of one product. a, b, c: where they begin; ldc: from row to row of c. */
static void TYPED_TILES(const matmul_shape *s, const TYPED_ELEMENT *a, const TYPED_ELEMENT *b,
                        TYPED_ELEMENT *c, int64_t ldc, int64_t rows, int64_t cols,
                        TYPED_ELEMENT *scratch) {
    int64_t first = 0;
    do { /* once when there is nothing to add up: C is zero */
        const int64_t k = i64_min(TYPED_K, s->k - first);
        TYPED_ELEMENT *const b_copy = scratch + TYPED_ROWS * k;
        const uint64_t b_wide = TYPED_COPY_B(b_copy, TYPED_TILE_COLS * k, b + first * s->b_k_stride,
                                             s->b_k_stride, s->b_col_stride, cols, k);
        for (int64_t row = 0; row < rows; row += TYPED_ROWS) {
            const int64_t tile_rows = i64_min(TYPED_ROWS, rows - row);
            const uint64_t a_wide = TYPED_COPY_A(
                scratch, a + row * s->a_row_stride + first * s->a_k_stride, s, tile_rows, k);
            for (int64_t col = 0; col < cols; col += TYPED_TILE_COLS) {
                const int64_t tile_cols = i64_min(TYPED_TILE_COLS, cols - col);
                const TYPED_ELEMENT *const lines = b_copy + col * k;
                TYPED_ELEMENT sums[TYPED_ROWS * TYPED_TILE_COLS];
                if (a_wide | b_wide)
                    TYPED_TILE(sums, scratch, lines, k, false);
                else
                    TYPED_TILE(sums, scratch, lines, k, true);
                TYPED_NAME(put)(c + row * ldc + col, ldc, sums, tile_rows, tile_cols, first == 0);
            }
        }
        first += k;
    } while (first < s->k);
}

/* ---- a few rows ---- */

/* The same. One row of C at a time: where columns of B are contiguous, each element is a sum of
 * its own, else some rows of B are added to all of C. */
static void TYPED_FEW_ROWS(const matmul_shape *s, const TYPED_ELEMENT *a, const TYPED_ELEMENT *b,
                           TYPED_ELEMENT *c, int64_t ldc, int64_t rows, int64_t cols,
                           TYPED_ELEMENT *scratch) {
    for (int64_t row = 0; row < rows; row++)
        memset(c + row * ldc, 0, (size_t)cols * sizeof *c);
    for (int64_t first = 0; first < s->k; first += TYPED_K) {
        const int64_t k = i64_min(TYPED_K, s->k - first);
        for (int64_t row = 0; row < rows; row++) {
            TYPED_ELEMENT *const factors = scratch + row * k;
            for (int64_t i = 0; i < k; i++)
                factors[i] = a[row * s->a_row_stride + (first + i) * s->a_k_stride];
        }
        const TYPED_ELEMENT *piece = b + first * s->b_k_stride;
        if (s->b_col_stride != 1) {
            for (int64_t col = 0; col < cols; col++, piece += s->b_col_stride)
                for (int64_t row = 0; row < rows; row++) {
                    const TYPED_ELEMENT *x = scratch + row * k;
                    TYPED_ELEMENT parts[TYPED_PARTS] = {0}, sum = 0;
                    int64_t i = 0;
                    for (; i + TYPED_PARTS <= k; i += TYPED_PARTS)
                        for (int64_t j = 0; j < TYPED_PARTS; j++)
                            parts[j] += piece[i + j] * x[i + j];
                    for (; i < k; i++)
                        sum += piece[i] * x[i];
                    for (int64_t j = 0; j < TYPED_PARTS; j++)
                        sum += parts[j];
                    c[row * ldc + col] += sum;
                }
            continue;
        }
        for (int64_t i = 0, n; i < k; i += n) {
            n = k - i < TYPED_FEW_K ? 1 : TYPED_FEW_K;
            const TYPED_ELEMENT *lines[TYPED_FEW_K];
            for (int64_t j = 0; j < n; j++)
                lines[j] = piece + (i + j) * s->b_k_stride;
            for (int64_t row = 0; row < rows; row++) {
                const TYPED_ELEMENT *x = scratch + row * k + i;
                TYPED_ELEMENT *restrict line = c + row * ldc;
                if (n == 1)
                    for (int64_t j = 0; j < cols; j++)
                        line[j] += x[0] * lines[0][j];
                else
                    for (int64_t j = 0; j < cols; j++)
                        line[j] += x[0] * lines[0][j] + x[1] * lines[1][j] + x[2] * lines[2][j] +
                                   x[3] * lines[3][j];
            }
        }
    }
}

static taper_status TYPED_NAME(matmul_run)(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    const struct matmul_attrs *attrs = call->attrs;
    const struct TYPED_STATE *state = call->state;
    const matmul_shape *s = &state->shape;
    const TYPED_ELEMENT *a = call->inputs[s->swapped].data, *b = call->inputs[!s->swapped].data;
    const int64_t last = i64_min(end * state->units_per_task, state->units);
    for (int64_t unit = begin * state->units_per_task; unit < last; unit++) {
        const int64_t row = unit % state->row_chunks * state->row_chunk;
        const int64_t col = unit / state->row_chunks % state->col_chunks * state->col_chunk;
        const int64_t batch = unit / (state->row_chunks * state->col_chunks);
        const int64_t rows = i64_min(state->row_chunk, s->m - row);
        const int64_t cols = i64_min(state->col_chunk, s->n - col);
        int64_t a_begin, b_begin;
        matmul_batch_begin(s, batch, &a_begin, &b_begin);
        const matmul_place sums = matmul_place_of(&state->epilogue, call, s, batch * s->m + row,
                                                  col, cols, (char *)scratch + state->sums_scratch);
        TYPED_ELEMENT *const c = sums.data;
        (state->few ? TYPED_FEW_ROWS : TYPED_TILES)(s, a + a_begin + row * s->a_row_stride,
                                                    b + b_begin + col * s->b_col_stride, c,
                                                    sums.stride, rows, cols, scratch);
        for (int64_t i = 0; attrs->alpha != 1 && i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                c[i * sums.stride + j] =
                    (TYPED_ELEMENT)((double)c[i * sums.stride + j] * attrs->alpha);
        matmul_finish(&state->epilogue, call, s, batch * s->m + row, rows, col, cols, sums,
                      (char *)scratch + state->epilogue_scratch);
    }
    return TAPER_OK;
}

#undef TYPED_FEW_ROWS
#undef TYPED_COPY_A
#undef TYPED_TILES
#undef TYPED_STATE
#undef TYPED_DTYPE
