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
    ROUNDED_GROUP = 32, /* the most k of a group: sums of u4 times int8 fit 16 bits */
    ROUNDED_STEP = 8,   /* groups are multiples of it: the k of a line of u4 */
    /* Bytes from the line that is read to the one that is prefetched: of one row, and of more,
     * which read B more slowly and have more of A in L1. */
    ROUNDED_AHEAD = 4096,
    ROUNDED_AHEAD_ROWS = 2048,
    ROUNDED_PAD = TAPER_ALIGNMENT, /* bytes after a row of A: of vectors that are not full */
    ROUNDED_COLS = 256, /* columns for which A is rounded at least, if there are so many */
};
/* X(rows) for each tile, which has one panel; tiles of dot instructions have two where there are
 * more rows than one tile has. */
#if V_LEN == 16
#define ROUNDED_ROWS 6
#define ROUNDED_U4_ROWS 6
#define ROUNDED_NV 2
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

#ifndef ROUNDED_NV
#define ROUNDED_NV GEMM_NV /* vectors of a row of a tile, at most */
#endif

/* A row of A is [k / group] groups: such a head, then the levels. */
typedef struct rounded_head {
    float scale, sum; /* of levels */
    int32_t start;    /* what the sums of products begin with */
} rounded_head;

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
    const int64_t bytes = k / group * (int64_t)sizeof(rounded_head) + k + ROUNDED_PAD;
    return i64_ceil_div(bytes, TAPER_ALIGNMENT) * TAPER_ALIGNMENT;
}

/*
 * Rounds a row of A: each number to the nearest multiple of m / 127, where m is the largest
 * magnitude of its group. A group of numbers below 2^-100 becomes 0. One with an infinity or NaN
 * gets the scale NaN, and so do the sums. middle: what levels of B are larger by when they are
 * multiplied.
 */
static void rounded_put(char *to, const float *a, int64_t stride, int64_t k, int64_t group,
                        int32_t middle) {
    const int64_t groups = k / group;
    float copy[ROUNDED_GROUP];
    for (int64_t g = 0; g < groups; g++, a += group * stride) {
        uint8_t *const levels = (uint8_t *)to + sizeof(rounded_head);
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
            vi_store_bytes(levels + i, level);
        }
        const float levels_sum = v_sum(v_from_int(sum));
        const rounded_head head = {.scale = nan != nan ? nan
                                            : is_zero  ? 0
                                                       : largest / 127,
                                   .sum = levels_sum,
                                   .start = -middle * (int32_t)levels_sum};
        memcpy(to, &head, sizeof head);
        to += sizeof head + group;
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

#ifdef HAS_I8_VNNI
/* Returns int8 as uint8 that are 128 larger. */
V_INLINE vi rounded_unsigned(vi x) { return _mm512_xor_si512(x, vi_set1(~0x7f7f7f7f)); }
#else
#define i8_dot_u8(sums, weights, x) (sums)
#define rounded_unsigned(x) (x)
#endif

V_INLINE int32_t rounded_word(const char *from) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Adds the products of the 8 k from `at` on to sums: of columns, in 32 bits, or of pairs of k, in
 * 16 bits (u4 without dot instructions). */
V_INLINE void rounded_step(vi sum[][ROUNDED_NV], const char *b, int64_t panel_bytes,
                           const char *const a[], int64_t row_bytes, const int at, const int rows,
                           const int vectors, const gemm_element of, const bool dots) {
    const bool is_u4 = of == GEMM_LEVEL_U4;
    const vi low = vi_set1(0x0f0f0f0f), ones = vi_set1(0x00010001);
    vi line[ROUNDED_NV] = {v_as_int(v_zero())};
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        vi weights[ROUNDED_NV], magnitudes[ROUNDED_NV];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const char *const from = b + v / GEMM_NV * panel_bytes + v % GEMM_NV * V_LEN * 4;
            if (!is_u4)
                line[v] = vi_load_words(from + half * I8_LINE);
            else if (half == 0)
                line[v] = vi_load_words(from);
            weights[v] = is_u4  ? vi_and(half == 0 ? line[v] : vi_shr(line[v], 4), low)
                         : dots ? rounded_unsigned(line[v])
                                : line[v];
            magnitudes[v] = is_u4 || dots ? weights[v] : ROUNDED_MAGNITUDES(line[v]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const vi x = vi_set1(
                rounded_word(a[i / GEMM_REACH] + i % GEMM_REACH * row_bytes + at + half * 4));
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[i][v] = dots    ? i8_dot_u8(sum[i][v], weights[v], x)
                            : is_u4 ? rounded_add_u4(sum[i][v], weights[v], x)
                                    : rounded_add_i8(sum[i][v], weights[v], magnitudes[v], x, ones);
        }
    }
}

/* Computes rows of some panels. `rows`, `panels`, `steps`, of 8 k in a group, `of` and `dots`, by
 * dot instructions, are constants wherever this is inlined; steps is 0 where it is none. */
V_INLINE void rounded_tile(const rounded_block *g, const int rows, const int panels,
                           const int steps, const gemm_element of, const bool dots) {
    const int vectors = panels * GEMM_NV;
    const int64_t groups = g->k / g->group;
    const int64_t group_bytes = g->group + (int64_t)sizeof(rounded_head);
    const int64_t size = (int64_t)taper_dtype_size(g->head.scales);
    const int step_bytes = of == GEMM_LEVEL_U4 ? I8_LINE : 2 * I8_LINE;
    const bool has_zeros = g->head.shift == GEMM_ZEROS;
    const bool has_offsets = g->head.shift == GEMM_OFFSETS;
    const char *b = g->b, *fetch = g->fetch, *a[(ROUNDED_ROWS + GEMM_REACH - 1) / GEMM_REACH];
    vf total[ROUNDED_ROWS][ROUNDED_NV], scale[ROUNDED_NV], shift[ROUNDED_NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        if (i % GEMM_REACH == 0)
            a[i / GEMM_REACH] = g->a + i * g->a_row_bytes;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            total[i][v] = v_zero();
    }
    for (int64_t at = 0, left = 0; at < groups; at++, left -= g->group) {
        if (left == 0) {
            left = g->head.rows;
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                const char *const head = b + v / GEMM_NV * g->panel_bytes;
                const char *const beside = head + GEMM_NR * size;
                const int part = v % GEMM_NV;
                scale[v] = gemm_load_scales(head, part, g->head.scales);
                shift[v] = v_zero();
                if (has_zeros)
                    shift[v] = v_neg(gemm_load_zeros(beside, part, of));
                else if (has_offsets)
                    shift[v] = gemm_load_scales(beside, part, g->head.scales);
            }
            b += g->head.floats * (int64_t)sizeof(float);
            fetch += g->fetch_head;
        }
        vi sum[ROUNDED_ROWS][ROUNDED_NV];
        int64_t row_bytes = g->a_row_bytes;
        GEMM_UNKNOWN(row_bytes);
/* A number of row i's head, in all lanes. */
#define ROUNDED_HEAD(i, of_head)                                                                   \
    vi_set1(rounded_word(a[(i) / GEMM_REACH] + (i) % GEMM_REACH * row_bytes +                      \
                         offsetof(rounded_head, of_head)))
#define ROUNDED_OF_EACH(of_row, expr)                                                              \
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {                                       \
        of_row;                                                                                    \
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) expr;                            \
    }
        ROUNDED_OF_EACH(const vi start = dots ? ROUNDED_HEAD(i, start) : vi_set1(0),
                        sum[i][v] = start)
        const int count = steps ? steps : (int)(g->group / ROUNDED_STEP);
#pragma GCC unroll 4
        for (int step = 0; step < count; step++, b += step_bytes) {
            for (int line = 0; line < step_bytes; line += I8_LINE, fetch += g->fetch_step)
                if (panels > 1 && of == GEMM_LEVEL_I8) /* into L2: L1 has no room for two more */
                    __builtin_prefetch(fetch, 0, 2);
                else
                    __builtin_prefetch(fetch, 0, 3);
            rounded_step(sum, b, g->panel_bytes, a, row_bytes,
                         (int)sizeof(rounded_head) + step * ROUNDED_STEP, rows, vectors, of, dots);
        }
        if (of == GEMM_LEVEL_U4 && !dots)
            ROUNDED_OF_EACH(const vi start = ROUNDED_HEAD(i, start),
                            sum[i][v] = vi_add(vi_madd_16(sum[i][v], vi_set1(0x00010001)), start))
        vf x[ROUNDED_ROWS][ROUNDED_NV];
        ROUNDED_OF_EACH(, x[i][v] = v_from_int(sum[i][v]))
        if (has_zeros) /* exact */
            ROUNDED_OF_EACH(const vf levels = v_as_float(ROUNDED_HEAD(i, sum)),
                            x[i][v] = v_fma(shift[v], levels, x[i][v]))
        ROUNDED_OF_EACH(const vf by = v_as_float(ROUNDED_HEAD(i, scale)),
                        total[i][v] = v_fma(x[i][v], v_mul(scale[v], by), total[i][v]))
        if (has_offsets)
            ROUNDED_OF_EACH(const vf by = v_as_float(ROUNDED_HEAD(i, scale));
                            const vf levels = v_as_float(ROUNDED_HEAD(i, sum)),
                            total[i][v] = v_fma(levels, v_mul(shift[v], by), total[i][v]))
#undef ROUNDED_OF_EACH
#undef ROUNDED_HEAD
#pragma GCC unroll 8
        for (int i = 0; i < rows; i += GEMM_REACH)
            a[i / GEMM_REACH] += group_bytes;
    }
    const vf alpha = v_set1(g->alpha);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            v_store(g->c + i * g->ldc + v * V_LEN, v_mul(alpha, total[i][v]));
}

typedef void (*rounded_fn)(const rounded_block *g);
#define ROUNDED_DEFINE(rows, steps, of)                                                            \
    static void rounded_##of##_##rows##_##steps(const rounded_block *g) {                          \
        rounded_tile(g, rows, 1, steps, GEMM_##of, false);                                         \
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

#ifdef HAS_I8_VNNI
#define ROUNDED_DEFINE_DOTS(rows, panels, of)                                                      \
    static void rounded_dots_##of##_##rows##_##panels(const rounded_block *g) {                    \
        rounded_tile(g, rows, panels, ROUNDED_GROUP / ROUNDED_STEP, GEMM_##of, true);              \
    }
#define ROUNDED_PLACE_DOTS(rows, panels, of) [rows] = rounded_dots_##of##_##rows##_##panels,
ROUNDED_EACH(ROUNDED_DEFINE_DOTS, 1, LEVEL_U4)
ROUNDED_EACH(ROUNDED_DEFINE_DOTS, 2, LEVEL_U4)
ROUNDED_EACH(ROUNDED_DEFINE_DOTS, 1, LEVEL_I8)
ROUNDED_EACH(ROUNDED_DEFINE_DOTS, 2, LEVEL_I8)
/* Indexed by whether B has 8 bits, by whether there are two panels, and by rows; of largest groups
 * alone. */
static const rounded_fn rounded_dots[2][2][ROUNDED_ROWS + 1] = {
    {{ROUNDED_EACH(ROUNDED_PLACE_DOTS, 1, LEVEL_U4)},
     {ROUNDED_EACH(ROUNDED_PLACE_DOTS, 2, LEVEL_U4)}},
    {{ROUNDED_EACH(ROUNDED_PLACE_DOTS, 1, LEVEL_I8)},
     {ROUNDED_EACH(ROUNDED_PLACE_DOTS, 2, LEVEL_I8)}}};
#endif

/* Returns tiles by their rows. */
static const rounded_fn *rounded_tiles_of(gemm_element of, int64_t group, int64_t panels,
                                          bool dots) {
#ifdef HAS_I8_VNNI
    if (dots)
        return rounded_dots[of == GEMM_LEVEL_I8][panels - 1];
#endif
    (void)dots;
    (void)panels;
    return rounded_tiles[of == GEMM_LEVEL_I8][group == ROUNDED_GROUP];
}

/* Returns whether there are tiles for a B beside an A that is rounded in such groups. */
static bool rounded_serves(const gemm_head *head, gemm_element of, int64_t group, bool dots) {
    return (of == GEMM_LEVEL_U4 || of == GEMM_LEVEL_I8) && head->inner == GEMM_INNER_NONE &&
           (dots ? group == ROUNDED_GROUP : group > 0 && group <= ROUNDED_GROUP) &&
           group % ROUNDED_STEP == 0 && head->rows % group == 0;
}

/* Returns what levels of B are larger by when tiles multiply them. */
static int32_t rounded_middle(const gemm_head *head, gemm_element of, bool dots) {
    if (of == GEMM_LEVEL_I8)
        return dots ? 128 : 0;
    return head->shift == GEMM_ZEROS ? 0 : (int32_t)head->middle;
}

/* Computes m rows and n columns; m, n >= 0. */
static void rounded_block_run(const rounded_block *block, int64_t m, int64_t n, gemm_element of,
                              bool dots) {
    const int64_t tiles =
        i64_ceil_div(m, dots || of == GEMM_LEVEL_I8 ? ROUNDED_ROWS : ROUNDED_U4_ROWS);
    for (int64_t j = 0, panels; j < n; j += panels * GEMM_NR) {
        panels = dots && tiles > 1 && n - j > GEMM_NR ? 2 : 1;
        const int64_t cols = i64_min(panels * GEMM_NR, n - j), bytes = panels * block->panel_bytes;
        const rounded_fn *const tile = rounded_tiles_of(of, block->group, panels, dots);
        rounded_block g = *block;
        g.b += j / GEMM_NR * g.panel_bytes;
        g.c += j;
        g.fetch_step = panels * I8_LINE / tiles;
        g.fetch_head = panels * g.head.floats * (int64_t)sizeof(float) / tiles;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            /* A single tile prefetches its own panel; several ones share the next ones. */
            g.fetch = g.b + (m == 1       ? ROUNDED_AHEAD
                             : tiles == 1 ? ROUNDED_AHEAD_ROWS
                                          : bytes + t * bytes / tiles);
            if (cols == panels * GEMM_NR) {
                tile[rows](&g);
            } else {
                float beside[ROUNDED_ROWS * 2 * GEMM_NR];
                rounded_block edge = g;
                edge.c = beside;
                edge.ldc = panels * GEMM_NR;
                tile[rows](&edge);
                for (int64_t r = 0; r < rows; r++)
                    memcpy(g.c + r * g.ldc, beside + r * edge.ldc, (size_t)cols * sizeof *beside);
            }
            g.a += rows * g.a_row_bytes;
            g.c += rows * g.ldc;
        }
    }
}
