/*
 * Blocks of a float32 product whose B is float16 or bfloat16, in panels as gemm_f32.inl has them.
 * Widening is exact and the sums are the same: so are the bits of C, as if B had been float32.
 *
 * Where few tiles of rows read B they widen it in registers: a row costs half of the bytes. For
 * more rows the panels of a tile are widened into scratch when their turn comes.
 */

enum { GEMM_HALF_ROWS = 3 * GEMM_WIDE_MR }; /* up to which widening once more costs less */

/* X(rows, panels) for all that gemm_next_panels gives at most GEMM_WIDE_MR rows. */
#if V_LEN == 16
#define GEMM_FEW_ROWS(X) GEMM_ROWS_6(X, 1) GEMM_ROWS_6(X, 2) GEMM_ROWS_6(X, 3) GEMM_ROWS_6(X, 4)
#elif V_LEN == 8
#define GEMM_FEW_ROWS(X) GEMM_ROWS_2(X, 1) GEMM_ROWS_2(X, 2)
#else
#define GEMM_FEW_ROWS(X) GEMM_ROWS_1(X, 1) GEMM_ROWS_1(X, 2)
#endif

#define GEMM_DEFINE_F16_TILE(rows, panels)                                                         \
    static void gemm_f16_tile_##rows##x##panels(const gemm_block *g, const float *prefetch,        \
                                                int64_t prefetch_step) {                           \
        gemm_tile(g, prefetch, prefetch_step, rows, panels, GEMM_F16);                             \
    }
#define GEMM_DEFINE_BF16_TILE(rows, panels)                                                        \
    static void gemm_bf16_tile_##rows##x##panels(const gemm_block *g, const float *prefetch,       \
                                                 int64_t prefetch_step) {                          \
        gemm_tile(g, prefetch, prefetch_step, rows, panels, GEMM_BF16);                            \
    }
#define GEMM_F16_TILE(rows, panels) [GEMM_F16][panels][rows] = gemm_f16_tile_##rows##x##panels,
#define GEMM_BF16_TILE(rows, panels) [GEMM_BF16][panels][rows] = gemm_bf16_tile_##rows##x##panels,
GEMM_FEW_ROWS(GEMM_DEFINE_F16_TILE)
GEMM_FEW_ROWS(GEMM_DEFINE_BF16_TILE)
static const gemm_tile_fn gemm_half_tiles[][GEMM_WIDE_PANELS + 1][GEMM_WIDE_MR + 1] = {
    GEMM_FEW_ROWS(GEMM_F16_TILE) GEMM_FEW_ROWS(GEMM_BF16_TILE)};

/* Whether m rows need a block's `packed`, for panels of floats. */
static bool gemm_widens(int64_t m, gemm_element of) { return of != GEMM_F32 && m > GEMM_HALF_ROWS; }

/* Panels of k lines each: block->b -> block->packed [panels][k][16]. */
static void gemm_widen(const gemm_block *block, int64_t panels, gemm_element of) {
    float *to = block->packed;
    for (int64_t p = 0; p < panels; p++) {
        const float *from = block->b + p * block->b_panel_stride;
        for (int64_t k = 0; k < block->k; k++, from += GEMM_NR / 2, to += GEMM_NR)
            for (int v = 0; v < GEMM_NV; v++)
                v_store(to + v * V_LEN, of == GEMM_F16 ? gemm_load(from, v, GEMM_F16)
                                                       : gemm_load(from, v, GEMM_BF16));
    }
}

/* As gemm_block_run, for a plain matrix A. */
static void gemm_half_block_run(const gemm_block *block, int64_t m, int64_t n, gemm_element of) {
    if (m <= 0)
        return;
    for (int64_t j = 0, panels; j < n; j += panels * GEMM_NR) {
        panels = gemm_next_panels(gemm_widens(m, of) ? m : 1, i64_ceil_div(n - j, GEMM_NR));
        const int64_t cols = i64_min(panels * GEMM_NR, n - j);
        gemm_block g = *block;
        g.b += j / GEMM_NR * g.b_panel_stride;
        g.c += j;
        g.fused = fused_at(g.fused, j, j);
        if (gemm_widens(m, of)) {
            gemm_widen(&g, panels, of);
            g.b_next = g.b + panels * g.b_panel_stride;
            g.b = g.packed;
            g.b_panel_stride = g.k * GEMM_NR;
            g.b_k_stride = GEMM_NR;
            gemm_block_run(&g, m, cols);
            continue;
        }
        const int64_t tiles = i64_ceil_div(m, GEMM_WIDE_MR);
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            const gemm_tile_fn tile = gemm_half_tiles[of][panels][rows];
            if (cols == panels * GEMM_NR && !g.fused.then)
                tile(&g, g.b, g.b_k_stride);
            else
                gemm_tile_beside(tile, &g, g.b, g.b_k_stride, rows, panels, cols);
            gemm_move(&g, rows * g.a_row_stride, rows * g.ldc);
        }
    }
}
