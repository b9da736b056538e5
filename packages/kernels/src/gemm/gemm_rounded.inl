/*
 * Blocks of a product whose A is rounded to int8 and whose B has levels of 4 or 8 bits in blocks
 * (element.h). A group is up to 32 consecutive k of a row of A; it has one scale, and so has each
 * column of B for these k. The products of a group are added up as integers, exactly, and the sums
 * times both scales as floats, in the order of k:
 *
 *     sum = fma(levels of A * (levels of B - zero), scale of A * scale of B, sum)
 *
 * So an element's bits depend neither on m, n or the tiles around it, nor on the level but for
 * levels without a fused v_fma.
 */

enum {
    ROUNDED_GROUP = 32,   /* the most k of a group: sums of u4 times int8 fit 16 bits */
    ROUNDED_STEP = 8,     /* groups are multiples of it: the k of a line of u4 */
    ROUNDED_AHEAD = 2048, /* bytes from the line that is read to the one that is prefetched */
    ROUNDED_PAD = TAPER_ALIGNMENT, /* bytes after a row of A: of vectors that are not full */
    ROUNDED_COLS = 256, /* columns for which A is rounded at least, if there are so many */
};
/* X(rows) for each tile; it has one panel, whose sums fill the registers. */
#if V_LEN == 16
#define ROUNDED_ROWS 6
#define ROUNDED_U4_ROWS 6
#define ROUNDED_EACH(X, ...) GEMM_ROWS_6(X, __VA_ARGS__)
#elif V_LEN == 8 || V_REGISTERS == 32
#define ROUNDED_ROWS 4
#define ROUNDED_U4_ROWS 3 /* compilers spill sums of 4 */
#define ROUNDED_EACH(X, ...) GEMM_ROWS_3(X, __VA_ARGS__) X(4, __VA_ARGS__)
#else
#define ROUNDED_ROWS 2
#define ROUNDED_U4_ROWS 2
#define ROUNDED_EACH(X, ...) GEMM_ROWS_2(X, __VA_ARGS__)
#endif

/* A row of A is [k / group] scales, as many sums of levels, both float, and k levels. */
typedef struct rounded_block {
    const char *a;
    int64_t a_row_bytes;
    int64_t k, group;
    const char *b; /* panels, `panel_bytes` apart */
    int64_t panel_bytes;
    gemm_head head;
    float *c; /* C[i][j] at c[i * ldc + j] */
    int64_t ldc;
    float alpha;
    const char *fetch;  /* what a tile prefetches meanwhile: */
    int64_t fetch_step; /* so many bytes further for each line that it reads */
    int64_t fetch_head; /* and for each head */
} rounded_block;

static int64_t rounded_row_bytes(int64_t k, int64_t group) {
    const int64_t bytes = 2 * (k / group) * (int64_t)sizeof(float) + k + ROUNDED_PAD;
    return i64_ceil_div(bytes, TAPER_ALIGNMENT) * TAPER_ALIGNMENT;
}

/*
 * Rounds a row of A: each number to the nearest multiple of m / 127, where m is the largest
 * magnitude of its group. A group of numbers below 2^-100 becomes 0. One with an infinity or NaN
 * gets the scale NaN, and so do the sums.
 */
static void rounded_put(char *to, const float *a, int64_t stride, int64_t k, int64_t group) {
    const int64_t groups = k / group;
    float *const scales = (float *)(void *)to, *const sums = scales + groups;
    int8_t *levels = (int8_t *)(void *)(sums + groups);
    float copy[ROUNDED_GROUP];
    for (int64_t g = 0; g < groups; g++, levels += group, a += group * stride) {
        const float *from = a;
        if (stride != 1) {
            for (int64_t i = 0; i < group; i++)
                copy[i] = a[i * stride];
            from = copy;
        }
        vf most = v_zero(), wrong = v_zero();
        for (int64_t i = 0; i < group; i += V_LEN) {
            const vf x = group - i < V_LEN ? v_load_n(from + i, group - i) : v_load(from + i);
            most = v_max(most, v_abs(x));
            wrong = v_fma(x, v_zero(), wrong); /* NaN if a number is not finite */
        }
        const float largest = v_hmax(most), nan = v_sum(wrong);
        const bool is_zero = nan != nan || largest < 0x1p-100f;
        const vf factor = v_set1(is_zero ? 0 : 127 / largest);
        vi sum = vi_set1(0);
        for (int64_t i = 0; i < group; i += V_LEN) {
            const vf x = group - i < V_LEN ? v_load_n(from + i, group - i) : v_load(from + i);
            const vi level = is_zero ? vi_set1(0) : v_to_int(v_mul(x, factor));
            sum = vi_add(sum, level);
            vi_store_bytes((uint8_t *)levels + i, level);
        }
        scales[g] = nan != nan ? nan : is_zero ? 0 : largest / 127;
        sums[g] = v_sum(v_from_int(sum));
    }
}

/*
 * sums of pairs, of 16 bits, + the products of u4 and int8; and sums + the products of int8, of
 * which the weights' magnitudes are given, too. In assembly as in engine_i8.h: compilers compute
 * the products of a whole tile first.
 */
#if V_LEN == 8
V_INLINE vi rounded_add_u4(vi sums, vi weights, vi x) {
    vi products;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
            : "+x"(sums), "=&x"(products)
            : "x"(weights), "x"(x));
    return sums;
}
V_INLINE vi rounded_add_i8(vi sums, vi weights, vi magnitudes, vi x, vi ones) {
    vi products;
    __asm__("vpsignb %2, %4, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %5, %1, %1\n\t"
            "vpaddd %1, %0, %0"
            : "+x"(sums), "=&x"(products)
            : "x"(weights), "x"(magnitudes), "x"(x), "xm"(ones));
    return sums;
}
#define ROUNDED_MAGNITUDES(x) _mm256_abs_epi8(x)
#else
V_INLINE vi rounded_add_u4(vi sums, vi weights, vi x) {
    return vi_add_16(sums, vi_pairs_u7(weights, x));
}
V_INLINE vi rounded_add_i8(vi sums, vi weights, vi magnitudes, vi x, vi ones) {
    (void)magnitudes;
    return vi_add(sums, vi_madd_16(vi_pairs_i8(weights, x), ones));
}
#define ROUNDED_MAGNITUDES(x) (x)
#endif

/* Adds the products of the 8 k from `at` on to sums: of pairs of k, in 16 bits (u4), or of columns,
 * in 32 bits (i8). */
V_INLINE void rounded_step(vi sum[][GEMM_NV], const char *b, const char *const a[],
                           int64_t row_bytes, const int at, const int rows, const gemm_element of) {
    const bool is_u4 = of == GEMM_LEVEL_U4;
    const vi low = vi_set1(0x0f0f0f0f), ones = vi_set1(0x00010001);
    vi line[GEMM_NV] = {v_as_int(v_zero())};
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        vi weights[GEMM_NV], magnitudes[GEMM_NV];
#pragma GCC unroll 4
        for (int v = 0; v < GEMM_NV; v++) {
            if (!is_u4)
                line[v] = vi_load_words(b + half * I8_LINE + v * V_LEN * 4);
            else if (half == 0)
                line[v] = vi_load_words(b + v * V_LEN * 4);
            weights[v] = is_u4 ? vi_and(half == 0 ? line[v] : vi_shr(line[v], 4), low) : line[v];
            magnitudes[v] = is_u4 ? weights[v] : ROUNDED_MAGNITUDES(line[v]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, a[i / GEMM_REACH] + i % GEMM_REACH * row_bytes + at + half * 4,
                   sizeof four);
            const vi x = vi_set1(four);
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++)
                sum[i][v] = is_u4 ? rounded_add_u4(sum[i][v], weights[v], x)
                                  : rounded_add_i8(sum[i][v], weights[v], magnitudes[v], x, ones);
        }
    }
}

/* Computes rows of one panel. `rows`, `steps`, of 8 k in a group, and `of` are constants wherever
 * this is inlined; steps is 0 where it is none. */
V_INLINE void rounded_tile(const rounded_block *g, const int rows, const int steps,
                           const gemm_element of) {
    const int64_t groups = g->k / g->group, size = (int64_t)taper_dtype_size(g->head.scales);
    const int step_bytes = of == GEMM_LEVEL_U4 ? I8_LINE : 2 * I8_LINE;
    const bool has_zeros = of == GEMM_LEVEL_U4 || g->head.shift == GEMM_ZEROS;
    const bool has_offsets = g->head.shift == GEMM_OFFSETS;
    const char *b = g->b, *fetch = g->fetch, *a[(ROUNDED_ROWS + GEMM_REACH - 1) / GEMM_REACH];
    const float *scales = (const float *)(const void *)g->a;
    vf total[ROUNDED_ROWS][GEMM_NV], scale[GEMM_NV], zero[GEMM_NV], offset[GEMM_NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        if (i % GEMM_REACH == 0)
            a[i / GEMM_REACH] = g->a + i * g->a_row_bytes + 2 * groups * (int64_t)sizeof *scales;
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
                if (g->head.shift == GEMM_ZEROS)
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
        const int count = steps ? steps : (int)(g->group / ROUNDED_STEP);
#pragma GCC unroll 4
        for (int step = 0; step < count; step++, b += step_bytes) {
            for (int line = 0; line < step_bytes; line += I8_LINE, fetch += g->fetch_step)
                __builtin_prefetch(fetch, 0, 3);
            rounded_step(sum, b, a, row_bytes, step * ROUNDED_STEP, rows, of);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i += GEMM_REACH)
            a[i / GEMM_REACH] += g->group;
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const float *const own = scales + at + i * (g->a_row_bytes / (int64_t)sizeof *own);
            const vf by = v_set1(own[0]), levels = v_set1(own[groups]);
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++) {
                vi whole = sum[i][v];
                if (of == GEMM_LEVEL_U4)
                    whole = vi_madd_16(whole, vi_set1(0x00010001));
                vf x = v_from_int(whole);
                if (has_zeros) /* exact */
                    x = v_fma(zero[v], levels, x);
                total[i][v] = v_fma(x, v_mul(scale[v], by), total[i][v]);
                if (has_offsets)
                    total[i][v] = v_fma(levels, v_mul(offset[v], by), total[i][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < GEMM_NV; v++)
            v_store(g->c + i * g->ldc + v * V_LEN, v_mul(v_set1(g->alpha), total[i][v]));
}

typedef void (*rounded_fn)(const rounded_block *g);
#define ROUNDED_DEFINE(rows, steps, of)                                                            \
    static void rounded_##of##_##rows##_##steps(const rounded_block *g) {                          \
        rounded_tile(g, rows, steps, GEMM_##of);                                                   \
    }
#define ROUNDED_PLACE(rows, steps, of) [rows] = rounded_##of##_##rows##_##steps,
ROUNDED_EACH(ROUNDED_DEFINE, 0, LEVEL_U4)
ROUNDED_EACH(ROUNDED_DEFINE, 4, LEVEL_U4)
ROUNDED_EACH(ROUNDED_DEFINE, 0, LEVEL_I8)
ROUNDED_EACH(ROUNDED_DEFINE, 4, LEVEL_I8)
/* Indexed by whether B has 8 bits, by whether a group is the largest, and by rows. */
static const rounded_fn rounded_tiles[2][2][ROUNDED_ROWS + 1] = {
    {{ROUNDED_EACH(ROUNDED_PLACE, 0, LEVEL_U4)}, {ROUNDED_EACH(ROUNDED_PLACE, 4, LEVEL_U4)}},
    {{ROUNDED_EACH(ROUNDED_PLACE, 0, LEVEL_I8)}, {ROUNDED_EACH(ROUNDED_PLACE, 4, LEVEL_I8)}}};

/* Returns whether there are tiles for a B beside an A that is rounded in such groups. */
static bool rounded_serves(const gemm_head *head, gemm_element of, int64_t group) {
    return (of == GEMM_LEVEL_U4 || of == GEMM_LEVEL_I8) && head->inner == GEMM_INNER_NONE &&
           group > 0 && group <= ROUNDED_GROUP && group % ROUNDED_STEP == 0 &&
           head->rows % group == 0;
}

/* Computes m rows and n columns; m, n >= 0. */
static void rounded_block_run(const rounded_block *block, int64_t m, int64_t n, gemm_element of) {
    const int64_t tiles = i64_ceil_div(m, of == GEMM_LEVEL_U4 ? ROUNDED_U4_ROWS : ROUNDED_ROWS);
    for (int64_t j = 0; j < n; j += GEMM_NR) {
        const int64_t cols = i64_min(GEMM_NR, n - j);
        rounded_block g = *block;
        g.b += j / GEMM_NR * g.panel_bytes;
        g.c += j;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            /* A single tile prefetches its own panel; several ones share the next panel. */
            g.fetch =
                tiles == 1 ? g.b + ROUNDED_AHEAD : g.b + g.panel_bytes + t * g.panel_bytes / tiles;
            g.fetch_step = I8_LINE / tiles;
            g.fetch_head = g.head.floats * (int64_t)sizeof(float) / tiles;
            const rounded_fn tile =
                rounded_tiles[of == GEMM_LEVEL_I8][g.group == ROUNDED_GROUP][rows];
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
