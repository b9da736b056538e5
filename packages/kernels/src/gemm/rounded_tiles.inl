/*
 * The tiles of gemm_rounded.inl. gemm.c includes this file once for each kind of instruction, with
 *     ROUNDED_NAME    name -> the kind's own
 *     ROUNDED_TARGET  an attribute of functions that use the instruction, or nothing
 *     ROUNDED_DOTS    1 if there is ROUNDED_DOT, else 0
 *     ROUNDED_DOT     (sums, weights, four) -> sums + the products of 4 unsigned weights of each
 *                     column and 4 int8 of A, in 32 bits; undefined where there is no such
 *                     instruction
 *     ROUNDED_ROWS    of a tile, which has one panel: its sums fill the registers
 *     ROUNDED_U4_ROWS the same for weights of 4 bits
 *     ROUNDED_EACH    X(rows, ...) for each tile
 */

/* Adds the products of the 8 k from `at` on to sums: of columns, in 32 bits, or without
 * ROUNDED_DOT of pairs of k of u4, in 16 bits. ROUNDED_DOT reads int8 weights as 128 more. */
V_INLINE ROUNDED_TARGET void ROUNDED_NAME(step)(vi sum[][GEMM_NV], const char *b,
                                                const char *const a[], int64_t row_bytes,
                                                const int at, const int rows,
                                                const gemm_element of) {
    const bool is_u4 = of == GEMM_LEVEL_U4;
    const vi low = vi_set1(0x0f0f0f0f);
    vi line[GEMM_NV] = {v_as_int(v_zero())};
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        vi weights[GEMM_NV];
#ifndef ROUNDED_DOT
        const vi ones = vi_set1(0x00010001);
        vi magnitudes[GEMM_NV];
#endif
#pragma GCC unroll 4
        for (int v = 0; v < GEMM_NV; v++) {
            if (!is_u4)
                line[v] = vi_load_words(b + half * I8_LINE + v * V_LEN * 4);
            else if (half == 0)
                line[v] = vi_load_words(b + v * V_LEN * 4);
            weights[v] = is_u4 ? vi_and(half == 0 ? line[v] : vi_shr(line[v], 4), low) : line[v];
#ifdef ROUNDED_DOT
            if (!is_u4)
                weights[v] = rounded_shift(line[v]);
#else
            magnitudes[v] = is_u4 ? weights[v] : ROUNDED_MAGNITUDES(line[v]);
#endif
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const char *const from =
                a[i / GEMM_REACH] + i % GEMM_REACH * row_bytes + ROUNDED_HEAD + at + half * 4;
#ifdef ROUNDED_DOT
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++)
                sum[i][v] = ROUNDED_DOT(sum[i][v], weights[v], from);
#else
            int32_t four;
            memcpy(&four, from, sizeof four);
            const vi x = vi_set1(four);
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++)
                sum[i][v] = is_u4 ? rounded_add_u4(sum[i][v], weights[v], x)
                                  : rounded_add_i8(sum[i][v], weights[v], magnitudes[v], x, ones);
#endif
        }
    }
}

/* Computes rows of one panel. `rows`, `usual` and `of` are constants wherever this is inlined.
 * usual: groups are the largest, and weights have neither zero points, but 8 if they are of 4 bits,
 * nor offsets. */
V_INLINE ROUNDED_TARGET void ROUNDED_NAME(tile)(const rounded_block *g, const int rows,
                                                const bool usual, const gemm_element of) {
    const bool is_u4 = of == GEMM_LEVEL_U4;
    const int64_t groups = g->k / g->group, size = (int64_t)taper_dtype_size(g->head.scales);
    const int step_bytes = is_u4 ? I8_LINE : 2 * I8_LINE;
    const bool has_zeros = usual ? is_u4 && !ROUNDED_DOTS : is_u4 || g->head.shift == GEMM_ZEROS;
    const bool has_offsets = !usual && g->head.shift == GEMM_OFFSETS;
    const char *b = g->b, *fetch = g->fetch, *a[(ROUNDED_ROWS + GEMM_REACH - 1) / GEMM_REACH];
    vf total[ROUNDED_ROWS][GEMM_NV], scale[GEMM_NV], zero[GEMM_NV], offset[GEMM_NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        if (i % GEMM_REACH == 0)
            a[i / GEMM_REACH] = g->a + i * g->a_row_bytes;
#pragma GCC unroll 4
        for (int v = 0; v < GEMM_NV; v++)
            total[i][v] = v_zero();
    }
    for (int64_t at = 0, left = 0; at < groups; at++, left -= g->group) {
        if (left == 0) {
            left = g->head.rows;
            const char *beside = b + GEMM_NR * size;
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++) {
                scale[v] = gemm_load_scales(b, v, g->head.scales);
                zero[v] = v_set1(-g->head.middle);
                offset[v] = v_zero();
                if (!usual && g->head.shift == GEMM_ZEROS)
                    zero[v] = v_neg(gemm_load_zeros(beside, v, of));
                else if (has_offsets)
                    offset[v] = gemm_load_scales(beside, v, g->head.scales);
            }
            b += g->head.floats * (int64_t)sizeof(float);
            fetch += g->fetch_head;
        }
        vi sum[ROUNDED_ROWS][GEMM_NV];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++)
                sum[i][v] = vi_set1(0);
        int64_t row_bytes = g->a_row_bytes;
        GEMM_UNKNOWN(row_bytes);
        const int count = (int)((usual ? ROUNDED_GROUP : g->group) / ROUNDED_STEP);
#pragma GCC unroll 4
        for (int step = 0; step < count; step++, b += step_bytes) {
            for (int line = 0; line < step_bytes; line += I8_LINE, fetch += g->fetch_step)
                __builtin_prefetch(fetch, 0, 3);
            ROUNDED_NAME(step)(sum, b, a, row_bytes, step * ROUNDED_STEP, rows, of);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float own[2];
            memcpy(own, a[i / GEMM_REACH] + i % GEMM_REACH * row_bytes, sizeof own);
            const vf by = v_set1(own[0]), levels = v_set1(own[1]);
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++) {
                vi whole = sum[i][v];
#ifdef ROUNDED_DOT
                if (!is_u4 || usual) /* 128 or 8 times the levels of A */
                    whole = vi_sub(whole, vi_shl(v_to_int(levels), is_u4 ? 3 : 7));
#else
                if (is_u4)
                    whole = vi_madd_16(whole, vi_set1(0x00010001));
#endif
                vf x = v_from_int(whole);
                if (has_zeros) /* exact */
                    x = v_fma(zero[v], levels, x);
                total[i][v] = v_fma(x, v_mul(scale[v], by), total[i][v]);
                if (has_offsets)
                    total[i][v] = v_fma(levels, v_mul(offset[v], by), total[i][v]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i += GEMM_REACH)
            a[i / GEMM_REACH] += ROUNDED_HEAD + (usual ? ROUNDED_GROUP : g->group);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < GEMM_NV; v++)
            v_store(g->c + i * g->ldc + v * V_LEN, v_mul(v_set1(g->alpha), total[i][v]));
}

#define ROUNDED_DEFINE(rows, usual, of)                                                            \
    static ROUNDED_TARGET void ROUNDED_NAME(of##_##rows##_##usual)(const rounded_block *g) {       \
        ROUNDED_NAME(tile)(g, rows, usual, GEMM_##of);                                             \
    }
#define ROUNDED_PLACE(rows, usual, of) [rows] = ROUNDED_NAME(of##_##rows##_##usual),
ROUNDED_EACH(ROUNDED_DEFINE, 0, LEVEL_U4)
ROUNDED_EACH(ROUNDED_DEFINE, 1, LEVEL_U4)
ROUNDED_EACH(ROUNDED_DEFINE, 0, LEVEL_I8)
ROUNDED_EACH(ROUNDED_DEFINE, 1, LEVEL_I8)
/* Indexed by whether B has 8 bits, by whether the block is usual, and by rows. */
static const rounded_fn ROUNDED_NAME(tiles)[2][2][ROUNDED_ROWS + 1] = {
    {{ROUNDED_EACH(ROUNDED_PLACE, 0, LEVEL_U4)}, {ROUNDED_EACH(ROUNDED_PLACE, 1, LEVEL_U4)}},
    {{ROUNDED_EACH(ROUNDED_PLACE, 0, LEVEL_I8)}, {ROUNDED_EACH(ROUNDED_PLACE, 1, LEVEL_I8)}}};

static void ROUNDED_NAME(run)(const rounded_block *block, int64_t m, int64_t n, gemm_element of) {
    const int64_t tiles = i64_ceil_div(m, of == GEMM_LEVEL_U4 ? ROUNDED_U4_ROWS : ROUNDED_ROWS);
    const bool usual = block->group == ROUNDED_GROUP && block->head.shift == GEMM_SYMMETRIC &&
                       block->head.middle == (of == GEMM_LEVEL_U4 ? 8 : 0);
    for (int64_t j = 0; j < n; j += GEMM_NR) {
        const int64_t cols = i64_min(GEMM_NR, n - j);
        rounded_block g = *block;
        g.b += j / GEMM_NR * g.panel_bytes;
        g.c += j;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            /* A single tile prefetches its own panel; several ones share the next panel. */
            g.fetch = tiles == 1 ? g.b + (m == 1 ? ROUNDED_AHEAD : ROUNDED_AHEAD_ROWS)
                                 : g.b + g.panel_bytes + t * g.panel_bytes / tiles;
            g.fetch_step = I8_LINE / tiles;
            g.fetch_head = g.head.floats * (int64_t)sizeof(float) / tiles;
            const rounded_fn tile = ROUNDED_NAME(tiles)[of == GEMM_LEVEL_I8][usual][rows];
            if (cols == GEMM_NR) {
                tile(&g);
            } else {
                float beside[ROUNDED_ROWS * GEMM_NR];
                rounded_block edge = g;
                edge.c = beside;
                edge.ldc = GEMM_NR;
                tile(&edge);
                for (int64_t r = 0; r < rows; r++)
                    memcpy(g.c + r * g.ldc, beside + r * GEMM_NR, (size_t)cols * sizeof *beside);
            }
            g.a += rows * g.a_row_bytes;
            g.c += rows * g.ldc;
        }
    }
}

#undef ROUNDED_NAME
#undef ROUNDED_TARGET
#undef ROUNDED_DOT
#undef ROUNDED_DOTS
#undef ROUNDED_ROWS
#undef ROUNDED_U4_ROWS
#undef ROUNDED_EACH
#undef ROUNDED_DEFINE
#undef ROUNDED_PLACE
