/*
 * C[m][n] = alpha * A[m][k] * B[k][n] by dot products, where rows of A and columns of B are
 * contiguous along k. For few rows this costs less than packing B, which is read once, in order.
 * Each element is one vector of partial sums, added up in a fixed order: its bits do not depend on
 * m, n or on the tiles around it.
 */
#include "gemm/engine.h"

enum { DOT_MR = V_REGISTERS == 32 ? 4 : 2, DOT_NR = 4 };

V_INLINE void dot_step(vf sum[DOT_MR][DOT_NR], const vf *a, const vf *b, const int rows,
                       const int cols) {
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            sum[i][j] = v_fma(a[i], b[j], sum[i][j]);
}

/* rows and cols are constants wherever this is inlined: the sums live in registers. */
V_INLINE void dot_tile(const dot_block *d, const int rows, const int cols) {
    vf sum[DOT_MR][DOT_NR], a[DOT_MR], b[DOT_NR];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            sum[i][j] = v_zero();
    int64_t k = 0;
    for (; k + V_LEN <= d->k; k += V_LEN) {
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            a[i] = v_load(d->a + i * d->a_row_stride + k);
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            b[j] = v_load(d->b + j * d->b_col_stride + k);
        dot_step(sum, a, b, rows, cols);
    }
    if (k < d->k) {
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            a[i] = v_load_n(d->a + i * d->a_row_stride + k, d->k - k);
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            b[j] = v_load_n(d->b + j * d->b_col_stride + k, d->k - k);
        dot_step(sum, a, b, rows, cols);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            d->c[i * d->ldc + j] = d->alpha * v_sum(sum[i][j]);
}

#define DOT_DEFINE_TILE(rows, cols)                                                                \
    static void dot_tile_##rows##x##cols(const dot_block *d) { dot_tile(d, rows, cols); }
#if V_REGISTERS == 32
#define DOT_TILES(X, cols) X(1, cols) X(2, cols) X(3, cols) X(4, cols)
#else
#define DOT_TILES(X, cols) X(1, cols) X(2, cols)
#endif
DOT_TILES(DOT_DEFINE_TILE, 1)
DOT_TILES(DOT_DEFINE_TILE, 4)
static const struct {
    void (*edge)(const dot_block *d); /* one column */
    void (*main)(const dot_block *d); /* DOT_NR columns */
} dot_tiles[] = {
#define DOT_TILE_PAIR(rows, cols) [rows] = {dot_tile_##rows##x1, dot_tile_##rows##x##cols},
    DOT_TILES(DOT_TILE_PAIR, 4)};

/* Computes the m rows and n columns of the block; m, n, k >= 0. */
static void dot_block_run(const dot_block *block, int64_t m, int64_t n) {
    const int64_t tiles = i64_ceil_div(m, DOT_MR);
    dot_block d = *block; /* one copy for all columns: a tile's loads would wait for it */
    for (int64_t j = 0, cols; j < n; j += cols) {
        cols = n - j >= DOT_NR ? DOT_NR : 1;
        d.a = block->a;
        d.b = block->b + j * d.b_col_stride;
        d.c = block->c + j;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            (cols == 1 ? dot_tiles[rows].edge : dot_tiles[rows].main)(&d);
            d.a += rows * d.a_row_stride;
            d.c += rows * d.ldc;
        }
    }
}
