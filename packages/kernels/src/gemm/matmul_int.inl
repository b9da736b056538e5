/*
 * MATMUL of integers, modulo 2^32 or 2^64. gemm.c includes this file once for each dtype, with
 *     INT_ELEMENT    the unsigned type of the elements, in which overflow is defined
 *     INT_DTYPE      the dtype
 *     INT_NAME       name -> the dtype's own
 *     INT_IS_WIDE(x) not 0 where the element is not an int32, so that a product takes longer
 *     INT_NARROW     the product of two vectors of elements that are not wide
 * A block of C is added up in registers, a tile at a time. The rows of A and the columns of B that
 * meet in a tile are copied to scratch in the order in which it reads them. A few rows do not pay
 * for these copies: B is read where it lies.
 */

#ifndef TAPER_INT_SIZES
#define TAPER_INT_SIZES
enum {
    INT_ROWS = 4,        /* of a tile */
    INT_VECTORS = 2,     /* of a row of a tile */
    INT_K = 256,         /* of the sum, in registers at once: with INT_COLS columns of B in L2 */
    INT_COLS = 128,      /* of C, at most, for which a unit of work copies A */
    INT_MIN_ROWS = 64,   /* of C, in units that share columns of B: each copies these again */
    INT_FEW = 8,         /* rows, up to which B is read where it lies */
    INT_FEW_COLS = 1024, /* of C, at least, in a unit of few rows: runs that a CPU prefetches */
    INT_FEW_K = 4,       /* rows of B that are added to a row of C at once */
    INT_COST = 1 << 17,  /* a task's least, in multiply-adds: about 20 microseconds */
};
#endif

#define INT_TILE INT_NAME(tile)
#define INT_FEW_ROWS INT_NAME(few_rows)
#define INT_COPY_A INT_NAME(copy_a)
#define INT_COPY_B INT_NAME(copy_b)
#define INT_TILES INT_NAME(tiles)
#define INT_STATE INT_NAME(matmul_state)
#define INT_VECTOR INT_NAME(vector)
#define INT_LANES ((int64_t)(sizeof(INT_VECTOR) / sizeof(INT_ELEMENT)))
#define INT_TILE_COLS (INT_VECTORS * INT_LANES)

/* As wide as a vector of floats, at any address. */
typedef INT_ELEMENT INT_VECTOR
    __attribute__((vector_size(V_LEN * 4), aligned(sizeof(INT_ELEMENT)), may_alias));

struct INT_STATE {
    matmul_shape shape;
    /* Units of work, numbered [batch][column chunk][row chunk]; a task is some units in a row. */
    int64_t row_chunk, row_chunks;
    int64_t col_chunk, col_chunks;
    int64_t units, units_per_task;
    bool few; /* rows; B's rows or columns are contiguous */
};

static taper_status INT_NAME(matmul_prepare)(const taper_call *call, taper_work *work) {
    const struct matmul_attrs *attrs = call->attrs;
    struct INT_STATE *state = call->state;
    matmul_shape *s = &state->shape;
    if (call->n_inputs != 2 || attrs->code.count != 0 || attrs->alpha != 1 ||
        !matmul_shape_of(s, call, attrs, INT_DTYPE))
        return TAPER_UNSUPPORTED;
    const int64_t numel = tensor_numel(call->output);
    *work = (taper_work){.tasks = 0};
    if (numel == 0)
        return TAPER_OK;
    state->few = s->m <= INT_FEW && (s->b_col_stride == 1 || s->b_k_stride == 1);
    const int64_t element_cost = s->k + GEMM_SUM_COST;
    int64_t cols = INT_COLS;
    if (state->few)
        cols = i64_max(INT_FEW_COLS, INT_COST / (s->m * element_cost));
    cols = i64_ceil_div(s->n, i64_ceil_div(s->n, cols)); /* all about as many */
    state->col_chunk = matmul_round_up(cols, INT_TILE_COLS);
    state->col_chunks = i64_ceil_div(s->n, state->col_chunk);
    const int64_t row_cost = i64_min(s->n, state->col_chunk) * element_cost;
    const int64_t rows = i64_max(INT_MIN_ROWS, INT_COST / row_cost);
    state->row_chunk = i64_min(s->m, matmul_round_up(rows, INT_ROWS));
    state->row_chunks = i64_ceil_div(s->m, state->row_chunk);
    state->units = numel / (s->m * s->n) * state->col_chunks * state->row_chunks;
    state->units_per_task = i64_max(1, INT_COST / (state->row_chunk * row_cost));
    work->tasks = i64_ceil_div(state->units, state->units_per_task);
    const int64_t k = i64_min(s->k, INT_K), b_cols = state->few ? 0 : state->col_chunk;
    const int64_t a_rows = state->few ? INT_FEW : INT_ROWS;
    work->scratch_bytes = (size_t)((a_rows + b_cols) * k) * sizeof(INT_ELEMENT);
    return TAPER_OK;
}

/* ---- tiles ---- */

/* [k][INT_ROWS] of some rows of A, zero beyond them. Not 0 if one is wide. */
static INT_ELEMENT INT_COPY_A(INT_ELEMENT *to, const INT_ELEMENT *a, const matmul_shape *s,
                              int64_t rows, int64_t k) {
    INT_ELEMENT wide = 0;
    for (int64_t row = 0; row < INT_ROWS; row++)
        for (int64_t i = 0; i < k; i++) {
            const INT_ELEMENT x = row < rows ? a[row * s->a_row_stride + i * s->a_k_stride] : 0;
            wide |= INT_IS_WIDE(x);
            to[i * INT_ROWS + row] = x;
        }
    return wide;
}

/* [k][INT_TILE_COLS] of some columns of B, zero beyond them. Not 0 if one is wide. */
static INT_ELEMENT INT_COPY_B(INT_ELEMENT *to, const INT_ELEMENT *b, const matmul_shape *s,
                              int64_t cols, int64_t k) {
    INT_ELEMENT wide = 0;
    if (s->b_col_stride == 1 && cols == INT_TILE_COLS) {
        for (int64_t i = 0; i < k; i++, b += s->b_k_stride, to += INT_TILE_COLS)
            for (int64_t col = 0; col < INT_TILE_COLS; col++) {
                wide |= INT_IS_WIDE(b[col]);
                to[col] = b[col];
            }
        return wide;
    }
    for (int64_t col = 0; col < INT_TILE_COLS; col++)
        for (int64_t i = 0; i < k; i++) {
            const INT_ELEMENT x = col < cols ? b[i * s->b_k_stride + col * s->b_col_stride] : 0;
            wide |= INT_IS_WIDE(x);
            to[i * INT_TILE_COLS + col] = x;
        }
    return wide;
}

/* Adds up the products of a [k][INT_ROWS] by b [k][INT_TILE_COLS], as [INT_ROWS][INT_TILE_COLS]. */
V_INLINE void INT_TILE(INT_ELEMENT *sums, const INT_ELEMENT *a, const INT_ELEMENT *b, int64_t k,
                       const bool narrow) {
    INT_VECTOR sum[INT_ROWS][INT_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < INT_ROWS; i++)
#pragma GCC unroll 16
        for (int v = 0; v < INT_VECTORS; v++)
            sum[i][v] = (INT_VECTOR){0};
    for (int64_t step = 0; step < k; step++, a += INT_ROWS, b += INT_TILE_COLS) {
        INT_VECTOR line[INT_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < INT_VECTORS; v++)
            line[v] = *(const INT_VECTOR *)(b + v * INT_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < INT_ROWS; i++) {
            const INT_VECTOR ai = (INT_VECTOR){0} + a[i];
#pragma GCC unroll 16
            for (int v = 0; v < INT_VECTORS; v++)
                if (narrow)
                    sum[i][v] += INT_NARROW(line[v], ai);
                else
                    sum[i][v] += line[v] * ai;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < INT_ROWS; i++)
#pragma GCC unroll 16
        for (int v = 0; v < INT_VECTORS; v++)
            *(INT_VECTOR *)(sums + i * INT_TILE_COLS + v * INT_LANES) = sum[i][v];
}

/* Some rows and columns of one product. a, b, c: where they begin. */
static void INT_TILES(const matmul_shape *s, const INT_ELEMENT *a, const INT_ELEMENT *b,
                      INT_ELEMENT *c, int64_t rows, int64_t cols, INT_ELEMENT *scratch) {
    int64_t first = 0;
    do { /* once when there is nothing to add up: C is zero */
        const int64_t k = i64_min(INT_K, s->k - first);
        INT_ELEMENT *const b_copy = scratch + INT_ROWS * k;
        INT_ELEMENT b_wide = 0; /* of the columns copied by now */
        for (int64_t row = 0; row < rows; row += INT_ROWS) {
            const int64_t tile_rows = i64_min(INT_ROWS, rows - row);
            const INT_ELEMENT a_wide = INT_COPY_A(
                scratch, a + row * s->a_row_stride + first * s->a_k_stride, s, tile_rows, k);
            for (int64_t col = 0; col < cols; col += INT_TILE_COLS) {
                const int64_t tile_cols = i64_min(INT_TILE_COLS, cols - col);
                INT_ELEMENT *const lines = b_copy + col * k;
                if (row == 0)
                    b_wide |= INT_COPY_B(lines, b + first * s->b_k_stride + col * s->b_col_stride,
                                         s, tile_cols, k);
                INT_ELEMENT sums[INT_ROWS * INT_TILE_COLS];
                if (a_wide | b_wide)
                    INT_TILE(sums, scratch, lines, k, false);
                else
                    INT_TILE(sums, scratch, lines, k, true);
                for (int64_t i = 0; i < tile_rows; i++) {
                    INT_ELEMENT *line = c + (row + i) * s->n + col;
                    for (int64_t j = 0; j < tile_cols; j++)
                        line[j] = sums[i * INT_TILE_COLS + j] + (first > 0 ? line[j] : 0);
                }
            }
        }
        first += k;
    } while (first < s->k);
}

/* ---- a few rows ---- */

/* The same. One row of C at a time: where columns of B are contiguous, each element is a sum of
 * its own, else some rows of B are added to all of C. */
static void INT_FEW_ROWS(const matmul_shape *s, const INT_ELEMENT *a, const INT_ELEMENT *b,
                         INT_ELEMENT *c, int64_t rows, int64_t cols, INT_ELEMENT *scratch) {
    for (int64_t row = 0; row < rows; row++)
        memset(c + row * s->n, 0, (size_t)cols * sizeof *c);
    for (int64_t first = 0; first < s->k; first += INT_K) {
        const int64_t k = i64_min(INT_K, s->k - first);
        for (int64_t row = 0; row < rows; row++) {
            INT_ELEMENT *const factors = scratch + row * k;
            for (int64_t i = 0; i < k; i++)
                factors[i] = a[row * s->a_row_stride + (first + i) * s->a_k_stride];
        }
        const INT_ELEMENT *piece = b + first * s->b_k_stride;
        if (s->b_col_stride != 1) {
            for (int64_t col = 0; col < cols; col++, piece += s->b_col_stride)
                for (int64_t row = 0; row < rows; row++) {
                    INT_ELEMENT sum = 0;
                    for (int64_t i = 0; i < k; i++)
                        sum += piece[i] * scratch[row * k + i];
                    c[row * s->n + col] += sum;
                }
            continue;
        }
        for (int64_t i = 0; i < k; i += INT_FEW_K) {
            const INT_ELEMENT *lines[INT_FEW_K];
            const int64_t n = i64_min(INT_FEW_K, k - i);
            for (int64_t j = 0; j < INT_FEW_K; j++) /* beyond the last: times 0 */
                lines[j] = piece + (i + i64_min(j, n - 1)) * s->b_k_stride;
            for (int64_t row = 0; row < rows; row++) {
                const INT_ELEMENT *x = scratch + row * k + i;
                const INT_ELEMENT x0 = x[0], x1 = n > 1 ? x[1] : 0, x2 = n > 2 ? x[2] : 0,
                                  x3 = n > 3 ? x[3] : 0;
                INT_ELEMENT *restrict line = c + row * s->n;
                for (int64_t j = 0; j < cols; j++)
                    line[j] +=
                        x0 * lines[0][j] + x1 * lines[1][j] + x2 * lines[2][j] + x3 * lines[3][j];
            }
        }
    }
}

static taper_status INT_NAME(matmul_run)(const taper_call *call, int64_t begin, int64_t end,
                                         void *scratch) {
    const struct INT_STATE *state = call->state;
    const matmul_shape *s = &state->shape;
    const INT_ELEMENT *a = call->inputs[s->swapped].data, *b = call->inputs[!s->swapped].data;
    const int64_t last = i64_min(end * state->units_per_task, state->units);
    for (int64_t unit = begin * state->units_per_task; unit < last; unit++) {
        const int64_t row = unit % state->row_chunks * state->row_chunk;
        const int64_t col = unit / state->row_chunks % state->col_chunks * state->col_chunk;
        const int64_t batch = unit / (state->row_chunks * state->col_chunks);
        int64_t a_begin, b_begin;
        matmul_batch_begin(s, batch, &a_begin, &b_begin);
        (state->few ? INT_FEW_ROWS : INT_TILES)(
            s, a + a_begin + row * s->a_row_stride, b + b_begin + col * s->b_col_stride,
            (INT_ELEMENT *)call->output->data + (batch * s->m + row) * s->n + col,
            i64_min(state->row_chunk, s->m - row), i64_min(state->col_chunk, s->n - col), scratch);
    }
    return TAPER_OK;
}

#undef INT_TILE
#undef INT_FEW_ROWS
#undef INT_COPY_A
#undef INT_COPY_B
#undef INT_TILES
#undef INT_STATE
#undef INT_VECTOR
#undef INT_LANES
#undef INT_TILE_COLS
#undef INT_ELEMENT
#undef INT_DTYPE
#undef INT_NAME
#undef INT_IS_WIDE
#undef INT_NARROW
