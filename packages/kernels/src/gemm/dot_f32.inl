/*
 * C[m][n] = alpha * A[m][k] * B[k][n] by dot products, where rows of A and columns of B are
 * contiguous along k. For few rows this costs less than packing B, which is read once, in order.
 * Each element is one vector of partial sums, added up in a fixed order: its bits do not depend on
 * m, n or on the tiles around it. B may be stored as narrower numbers, which are widened in
 * registers.
 */
#include "gemm/engine.h"
#include "simd/stored.h"

/* Of 16 registers 12 have sums, 3 have vectors of A, and one has a vector of B. */
enum { DOT_MR = V_REGISTERS == 32 ? 4 : 3, DOT_NR = 4 };

/* Adds the products of V_LEN numbers of k, or of n fewer. */
V_INLINE void dot_step(vf sum[DOT_MR][DOT_NR], const dot_block *d, const int32_t stored, int64_t k,
                       int64_t n, const int rows, const int cols) {
    vf a[DOT_MR];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        const float *const at = d->a + i * d->a_row_stride + k;
        a[i] = n < V_LEN ? v_load_n(at, n) : v_load(at);
    }
#pragma GCC unroll 4
    for (int j = 0; j < cols; j++) {
        const int64_t at = j * d->b_col_stride + k;
        const vf b =
            n < V_LEN ? v_load_stored_n(stored, d->b, at, n) : v_load_stored(stored, d->b, at);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            sum[i][j] = v_fma(a[i], b, sum[i][j]);
    }
}

/* stored, rows and cols are constants wherever this is inlined: the sums live in registers. */
V_INLINE void dot_tile(const dot_block *d, const int32_t stored, const int rows, const int cols) {
    vf sum[DOT_MR][DOT_NR];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            sum[i][j] = v_zero();
    int64_t k = 0;
    for (; k + V_LEN <= d->k; k += V_LEN)
        dot_step(sum, d, stored, k, V_LEN, rows, cols);
    if (k < d->k)
        dot_step(sum, d, stored, k, d->k - k, rows, cols);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        float total[DOT_NR];
        if (cols == DOT_NR)
            v_sum_4(sum[i], total);
        else
            total[0] = v_sum(sum[i][0]);
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            d->c[i * d->ldc + j] = d->alpha * total[j];
    }
}

V_INLINE void dot_rows(const dot_block *d, const int32_t stored, int64_t rows, const int cols) {
    if (rows == 1)
        dot_tile(d, stored, 1, cols);
    else if (rows == 2)
        dot_tile(d, stored, 2, cols);
    else if (rows == 3)
        dot_tile(d, stored, 3, cols);
    else
        dot_tile(d, stored, DOT_MR, cols);
}

/* Computes the m rows and n columns of the block; m, n, k >= 0. `stored` is B's taper_dtype, a
 * constant wherever this is inlined. */
V_INLINE void dot_block_run(const dot_block *block, const int32_t stored, int64_t m, int64_t n) {
    const int64_t tiles = i64_ceil_div(m, DOT_MR), size = v_stored_size(stored);
    dot_block d = *block; /* one copy for all columns: a tile's loads would wait for it */
    for (int64_t j = 0, cols; j < n; j += cols) {
        cols = n - j >= DOT_NR ? DOT_NR : 1;
        d.a = block->a;
        d.b = (const char *)block->b + j * d.b_col_stride * size;
        d.c = block->c + j;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            if (cols == 1)
                dot_rows(&d, stored, rows, 1);
            else
                dot_rows(&d, stored, rows, DOT_NR);
            d.a += rows * d.a_row_stride;
            d.c += rows * d.ldc;
        }
    }
}
