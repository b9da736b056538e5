/*
 * One row of C, where the rows of B are read in place. Some of them are read side by side, each in
 * a run of many columns, as CPUs prefetch memory: what a tile reads of a row is a cache line or
 * two, and the next row is often in another page. An element's bits are those of a tile, since its
 * products are added in the same order.
 */
enum {
    GEMM_ROW_COLS = 512, /* whose sums stay in L1 */
    GEMM_ROW_LINES = 8,  /* rows of B that are read side by side */
};

/* Adds the products of `lines` rows of B, from a[k] * b[k][0] on, to n sums. first: the sums are 0.
 * lines is constant where this is inlined. */
V_INLINE void gemm_row_lines(float *sums, const float *a, int64_t a_step, const float *b,
                             int64_t b_step, int64_t n, bool first, const int lines) {
    vf factor[GEMM_ROW_LINES];
#pragma GCC unroll 8
    for (int l = 0; l < lines; l++)
        factor[l] = v_set1(a[l * a_step]);
    int64_t j = 0;
    for (; j + V_LEN <= n; j += V_LEN) {
        vf x = first ? v_zero() : v_load(sums + j);
#pragma GCC unroll 8
        for (int l = 0; l < lines; l++)
            x = v_fma(factor[l], v_load(b + l * b_step + j), x);
        v_store(sums + j, x);
    }
    if (j < n) {
        vf x = first ? v_zero() : v_load_n(sums + j, n - j);
#pragma GCC unroll 8
        for (int l = 0; l < lines; l++)
            x = v_fma(factor[l], v_load_n(b + l * b_step + j, n - j), x);
        v_store_n(sums + j, x, n - j);
    }
}

/* Computes n columns of the block's row; n, k >= 0. */
static void gemm_row_run(const gemm_block *g, int64_t n) {
    float sums[GEMM_ROW_COLS];
    const int64_t a_step = g->a_k_stride, b_step = g->b_k_stride;
    for (int64_t j = 0, cols; j < n; j += cols) {
        cols = i64_min(GEMM_ROW_COLS, n - j);
        const float *a = g->a, *b = g->b + j;
        float *const c = g->c + j;
        int64_t k = 0;
        if (g->k < GEMM_ROW_LINES)
            memset(sums, 0, sizeof sums);
        for (; k + GEMM_ROW_LINES <= g->k; k += GEMM_ROW_LINES)
            gemm_row_lines(sums, a + k * a_step, a_step, b + k * b_step, b_step, cols, k == 0,
                           GEMM_ROW_LINES);
        for (; k < g->k; k++)
            gemm_row_lines(sums, a + k * a_step, a_step, b + k * b_step, b_step, cols, false, 1);
        if (g->accumulate || g->alpha != 1)
            for (int64_t i = 0; i < cols; i += V_LEN) {
                const int64_t rest = i64_min(V_LEN, cols - i);
                const vf x = v_load_n(sums + i, rest), alpha = v_set1(g->alpha);
                const vf y =
                    g->accumulate ? v_fma(alpha, x, v_load_n(c + i, rest)) : v_mul(alpha, x);
                v_store_n(sums + i, y, rest);
            }
        const tile_fused fused = fused_at(g->fused, j, j);
        fused_store(&fused, false, sums, cols, 1, cols, c, g->ldc);
    }
}
