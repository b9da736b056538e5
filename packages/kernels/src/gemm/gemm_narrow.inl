/*
 * Blocks of a float32 product whose B is narrower (element.h), in the same panels as in
 * gemm_f32.inl. The sums are the same, so C has the same bits as if B were float32.
 *
 * Where few tiles of rows read B, they widen it in registers, which reads fewer bytes. For more
 * rows the panels of a tile are widened into scratch just before the tile.
 */

enum {
    GEMM_NARROW_ROWS = 3 * GEMM_WIDE_MR, /* up to this many rows, widening again costs less */
    /* The same for levels: with 16 registers the scales of a tile are read again for each line. */
    GEMM_LEVEL_ROWS = V_REGISTERS == 16 ? GEMM_WIDE_MR : GEMM_NARROW_ROWS,
};

/* X(rows, panels, of) for all tiles that gemm_narrow_panels chooses, with at most GEMM_WIDE_MR
 * rows. */
#if V_LEN == 16
#define GEMM_ONE_ROWS(X, of) X(1, 1, of) X(1, 4, of)
#define GEMM_FEW_ROWS(X, of) GEMM_ROWS_6(X, 1, of) GEMM_ROWS_3(X, 2, of) GEMM_ROWS_6(X, 4, of)
#elif V_LEN == 8
#define GEMM_ONE_ROWS(X, of) X(1, 1, of) X(1, 2, of)
#define GEMM_FEW_ROWS(X, of) GEMM_ROWS_2(X, 1, of) GEMM_ROWS_2(X, 2, of)
#else /* of 16 registers one panel has enough sums */
#if V_REGISTERS == 32
#define GEMM_ONE_ROWS(X, of) X(1, 1, of) X(1, 2, of)
#else
#define GEMM_ONE_ROWS(X, of) X(1, 1, of)
#endif
#define GEMM_FEW_ROWS(X, of) GEMM_ROWS_1(X, 1, of) GEMM_ROWS_1(X, 2, of)
#endif

#define GEMM_NARROW_TILE(rows, panels, of)                                                         \
    static void gemm_tile_##of##_##rows##x##panels(const gemm_block *g, const float *prefetch,     \
                                                   int64_t prefetch_step) {                        \
        gemm_tile(g, prefetch, prefetch_step, rows, (panels) * GEMM_NR, GEMM_##of);                \
    }
#define GEMM_NARROW_TILES(of, dtypes, floats, lines, unit, rows, ...)                              \
    GEMM_##rows##_ROWS(GEMM_NARROW_TILE, of)
GEMM_NARROW(GEMM_NARROW_TILES)
#define GEMM_NARROW_PLACE(rows, panels, of)                                                        \
    [GEMM_##of][panels][rows] = gemm_tile_##of##_##rows##x##panels,
#define GEMM_NARROW_PLACES(of, dtypes, floats, lines, unit, rows, ...)                             \
    GEMM_##rows##_ROWS(GEMM_NARROW_PLACE, of)
static const gemm_tile_fn gemm_narrow_tiles[][GEMM_WIDE_PANELS + 1][GEMM_WIDE_MR + 1] = {
    GEMM_NARROW(GEMM_NARROW_PLACES)};

/* Returns whether m rows need a block's `packed`, for panels of floats. */
static bool gemm_widens(int64_t m, gemm_element of) {
    if (of == GEMM_F32)
        return false;
    if (!gemm_narrow_tiles[of][1][GEMM_WIDE_MR])
        return m > 1;
    return m > (gemm_has_levels(of) ? GEMM_LEVEL_ROWS : GEMM_NARROW_ROWS);
}

V_INLINE void gemm_widen_lines(float *to, const float *from, const gemm_head *head, int64_t k,
                               int64_t runs, const gemm_element of) {
    const int lines = gemm_lines(of);
    const float *at = from;
    for (int64_t run = 0, left = 0; run < runs; run++, left--) {
        gemm_scales scales;
        if (gemm_has_levels(of)) {
            if (left == 0) {
                at = from;
                left = head->blocks;
                from += head->floats;
            }
            gemm_read_head(&scales, head, at, from, 0, GEMM_NV, of);
            from += head->inner_floats;
        }
        for (int64_t i = 0; i < k; i += lines, from += gemm_floats(of, lines))
#pragma GCC unroll 32
            for (int l = 0; l < lines; l++, to += GEMM_NR)
                for (int v = 0; v < GEMM_NV; v++)
                    v_store(to + v * V_LEN, gemm_value(from, v, l, &scales, v, of));
    }
}

/* Widens panels: block->b -> block->packed [panels][k][16], where k is the sum over all runs. */
static void gemm_widen(const gemm_block *block, int64_t panels, gemm_element of) {
    const int64_t runs = block->jumps + 1;
    for (int64_t p = 0; p < panels; p++) {
        const float *from = block->b + p * block->b_panel_stride;
        float *to = block->packed + p * runs * block->k * GEMM_NR;
#define GEMM_WIDEN(name, ...)                                                                      \
    if (of == GEMM_##name)                                                                         \
        gemm_widen_lines(to, from, &block->head, block->k, runs, GEMM_##name);
        GEMM_NARROW(GEMM_WIDEN)
    }
}

/* Returns how many of the remaining panels the next tiles of this many rows take. Every tile adds
 * code: at the edge those of two panels are for few rows, which have few sums. */
static int64_t gemm_narrow_panels(int64_t rows, int64_t left, gemm_element of) {
    if (left >= GEMM_WIDE_PANELS && gemm_narrow_tiles[of][GEMM_WIDE_PANELS][rows])
        return GEMM_WIDE_PANELS;
    return left >= 2 && gemm_narrow_tiles[of][2][rows] ? 2 : 1;
}

/* Does what gemm_block_run does, for a plain matrix A. */
static void gemm_narrow_block_run(const gemm_block *block, int64_t m, int64_t n, gemm_element of) {
    if (m <= 0)
        return;
    for (int64_t j = 0, width; j < n; j += width) {
        const int64_t left = i64_ceil_div(n - j, GEMM_NR);
        const int64_t tiles = i64_ceil_div(m, GEMM_WIDE_MR);
        width = gemm_widens(m, of) ? gemm_next_width(m, n - j, GEMM_COLS)
                                   : gemm_narrow_panels(i64_ceil_div(m, tiles), left, of) * GEMM_NR;
        const int64_t panels = i64_ceil_div(width, GEMM_NR);
        const int64_t cols = i64_min(width, n - j);
        gemm_block g = *block;
        g.b += j / GEMM_NR * g.b_panel_stride;
        g.c += j;
        g.fused = fused_at(g.fused, j, j);
        if (gemm_widens(m, of)) {
            gemm_widen(&g, panels, of);
            g.b_next = g.b + panels * g.b_panel_stride;
            g.b = g.packed;
            g.k *= g.jumps + 1;
            g.jumps = 0;
            g.b_panel_stride = g.k * GEMM_NR;
            g.b_k_stride = GEMM_NR;
            gemm_block_run(&g, m, cols);
            continue;
        }
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            const gemm_tile_fn tile = gemm_narrow_tiles[of][panels][rows];
            if (cols == width && !g.fused.then)
                tile(&g, g.b, g.b_k_stride);
            else
                gemm_tile_beside(tile, &g, g.b, g.b_k_stride, rows, width, cols);
            gemm_move(&g, rows * g.a_row_stride, rows * g.ldc);
        }
    }
}
