/*
 * Blocks of a product whose A is rounded to int8 and whose B has levels of 4 or 8 bits in blocks
 * (element.h). A group is some consecutive k of a row of A, which have one scale; a run is the k of
 * a group that lie in one block of B, where each column has one scale, too. The products of a run
 * are added up as integers, exactly; runs, and then groups, are added as floats in the order of k:
 *
 *     part = fma(levels of A * (levels of B - zero), scale of B, part)
 *     sum = fma(part, scale of A, sum)
 *
 * So an element's bits depend neither on m, n or the tiles around it, nor on the level but for
 * levels without a fused v_fma.
 */

enum {
    ROUNDED_FEW = 2,   /* rows whose sums wait for each other, so that there are twice as many */
    ROUNDED_UNIT = 32, /* the k of most runs: sums of u4 times int8 fit 16 bits */
    ROUNDED_STEP = 8,  /* runs are multiples of it: the k of a line of u4 */
    ROUNDED_LONGEST = 1 << 16, /* of runs: sums of products fit 32 bits */
/* Bytes from the line that is read to the one that is prefetched: for few rows, and for more,
 * whose instructions keep the CPU from looking so far ahead itself. */
#if V_LEN == 16
    ROUNDED_FETCHED = 4, /* up to so many rows are few */
    ROUNDED_AHEAD = 512,
    ROUNDED_AHEAD_ROWS = 8192,
    ROUNDED_LEVEL = 2, /* into L2: fewer lines at once are on their way to L1 */
#else
    ROUNDED_FETCHED = 1,
    ROUNDED_AHEAD = 4096,
    ROUNDED_AHEAD_ROWS = 8192,
    ROUNDED_LEVEL = 3,
#endif
    ROUNDED_PAD = TAPER_ALIGNMENT, /* bytes after a row of A: of vectors that are not full */
    ROUNDED_L2 = 256 << 10,        /* bytes of panels that one tile of rows after the other reads */
    ROUNDED_COLS = 256, /* columns for which A is rounded at least, if there are so many */
};
/* X(rows) for each tile, which has one panel: those of dot instructions, whose A stays in L1, and
 * others. Of these, levels have what their CPUs gain by: ROUNDED_TO_ONE and ROUNDED_TO_SEVERAL are
 * the tiles for such runs. */
#define ROUNDED_DOTS_ROWS 8
#define ROUNDED_DOTS_EACH(X, ...) GEMM_ROWS_6(X, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)
#if V_LEN == 16
#define ROUNDED_ROWS 6
#define ROUNDED_U4_ROWS 6
#define ROUNDED_EACH(X, ...) GEMM_ROWS_6(X, __VA_ARGS__)
#define ROUNDED_TO_ONE ANY
#define ROUNDED_TO_SEVERAL ANY
#elif V_LEN == 8 || V_REGISTERS == 32
#define ROUNDED_ROWS 4
#define ROUNDED_U4_ROWS 3 /* compilers spill sums of 4 */
#define ROUNDED_EACH(X, ...) GEMM_ROWS_3(X, __VA_ARGS__) X(4, __VA_ARGS__)
#define ROUNDED_TO_ONE ONE
#define ROUNDED_TO_SEVERAL SEVERAL
#else
#define ROUNDED_ROWS 2
#define ROUNDED_U4_ROWS 2
#define ROUNDED_EACH(X, ...) GEMM_ROWS_2(X, __VA_ARGS__)
#define ROUNDED_TO_ONE ONE
#define ROUNDED_TO_SEVERAL ANY
#endif

/*
 * A row of A is groups of runs. A run is what the sums of its products begin with, an int32, then
 * its levels, then their sum, a float. A group ends with its scale.
 */
enum { ROUNDED_WORD = 4 };

/* The runs that a tile is for: any, one unit, or several units. */
typedef enum rounded_runs { ROUNDED_ANY, ROUNDED_ONE, ROUNDED_SEVERAL, ROUNDED_KINDS } rounded_runs;

typedef struct rounded_block {
    const char *a;
    int64_t a_row_bytes;
    int64_t k, group, run;
    const char *b; /* panels, `panel_bytes` apart */
    int64_t panel_bytes;
    gemm_head head;
    float *c; /* C[i][j] at c[i * ldc + j] */
    int64_t ldc;
    float alpha;
    int64_t ahead; /* bytes from a line of B that is read to what is prefetched */
} rounded_block;

/* Returns the k of a run. */
static int64_t rounded_run(const gemm_head *head, int64_t group) {
    return i64_min(head->rows, group);
}

static int64_t rounded_row_bytes(const gemm_head *head, int64_t k, int64_t group) {
    const int64_t words = 2 * (k / rounded_run(head, group)) + k / group;
    return i64_ceil_div(k + words * ROUNDED_WORD + ROUNDED_PAD, TAPER_ALIGNMENT) * TAPER_ALIGNMENT;
}

/* Loads up to V_LEN numbers of a row, of which there are `left`. */
V_INLINE vf rounded_load(const float *from, int64_t stride, int64_t left) {
    if (stride == 1)
        return left < V_LEN ? v_load_n(from, left) : v_load(from);
    float x[V_LEN] = {0};
    for (int64_t j = 0; j < V_LEN && j < left; j++)
        x[j] = from[j * stride];
    return v_load(x);
}

/*
 * Rounds a row of A: each number to the nearest multiple of m / 127, where m is the largest
 * magnitude of its group. A group of numbers below 2^-100 becomes 0. One with an infinity or NaN
 * gets the scale NaN, and so do the sums. middle: what levels of B are larger by when they are
 * multiplied.
 */
static void rounded_put(char *to, const float *a, int64_t stride, int64_t k, int64_t group,
                        int64_t run, int32_t middle) {
    for (int64_t at = 0; at < k; at += group) {
        vf most = v_zero(), wrong = v_zero();
        for (int64_t i = 0; i < group; i += V_LEN) {
            const vf x = rounded_load(a + i * stride, stride, group - i);
            most = v_max(most, v_abs(x));
            wrong = v_fma(x, v_zero(), wrong); /* NaN if a number is not finite */
        }
        const float largest = v_hmax(most), nan = v_sum(wrong);
        const bool is_zero = nan != nan || largest < 0x1p-100f;
        const vf factor = v_set1(is_zero ? 0 : 127 / largest);
        for (int64_t first = 0; first < group; first += run, a += run * stride) {
            uint8_t *const levels = (uint8_t *)to + ROUNDED_WORD;
            vi sum = vi_set1(0);
            for (int64_t i = 0; i < run; i += V_LEN) {
                const vf x = rounded_load(a + i * stride, stride, run - i);
                const vi level = is_zero ? vi_set1(0) : v_to_int(v_mul(x, factor));
                sum = vi_add(sum, level);
                vi_store_bytes(levels + i, level);
            }
            const float levels_sum = v_sum(v_from_int(sum));
            const int32_t start = -middle * (int32_t)levels_sum;
            memcpy(to, &start, sizeof start);
            memcpy(levels + run, &levels_sum, sizeof levels_sum);
            to += run + 2 * ROUNDED_WORD;
        }
        const float scale = nan != nan ? nan : is_zero ? 0 : largest / 127;
        memcpy(to, &scale, sizeof scale);
        to += ROUNDED_WORD;
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

V_INLINE int32_t rounded_word(const char *from) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

V_INLINE void rounded_skip(const char *a[], int64_t bytes, const int rows) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += GEMM_REACH)
        a[i / GEMM_REACH] += bytes;
}

#ifdef HAS_I8_VNNI
/* Returns int8 as uint8 that are 128 larger. */
V_INLINE vi rounded_unsigned(vi x) { return _mm512_xor_si512(x, vi_set1(~0x7f7f7f7f)); }
/* Adds the products of weights, of which none is negative, and the 4 int8 at x. */
V_INLINE vi rounded_dot(vi sums, vi weights, const char *x) {
#ifdef TAPER_EMULATED
    return i8_dot_u8(sums, weights, vi_set1(rounded_word(x)));
#else
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sums)
            : "v"(weights), "m"(*(const int32_t *)(const void *)x));
    return sums;
#endif
}
#else
#define rounded_dot(sums, weights, x) (sums)
#define rounded_unsigned(x) (x)
#endif

typedef vi rounded_sums[ROUNDED_DOTS_ROWS][GEMM_NV];

/* Adds the products of the 8 k from `at` on to sums, those of the last 4 to `second`: of columns,
 * in 32 bits, or of pairs of k, in 16 bits (u4 without dot instructions). */
V_INLINE void rounded_step(rounded_sums first, rounded_sums second, const char *b,
                           const char *const a[], int64_t row_bytes, const int at, const int rows,
                           const gemm_element of, const bool dots) {
    const bool is_u4 = of == GEMM_LEVEL_U4;
    const vi low = vi_set1(0x0f0f0f0f), ones = vi_set1(0x00010001);
    vi line[GEMM_NV] = {v_as_int(v_zero())};
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        vi(*const sum)[GEMM_NV] = half == 0 ? first : second;
        vi weights[GEMM_NV], magnitudes[GEMM_NV];
#pragma GCC unroll 4
        for (int v = 0; v < GEMM_NV; v++) {
            const char *const from = b + v * V_LEN * 4;
            if (!is_u4)
                line[v] = vi_load_words(from + half * I8_LINE);
            else if (half == 0)
                line[v] = vi_load_words(from);
            weights[v] = is_u4  ? vi_and(half == 0 ? line[v] : vi_shr(line[v], 4), low)
                         : dots ? rounded_unsigned(line[v])
                                : line[v];
            magnitudes[v] = is_u4 || dots ? weights[v] : ROUNDED_MAGNITUDES(line[v]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const char *const from = a[i / GEMM_REACH] + i % GEMM_REACH * row_bytes + at + half * 4;
            const vi x = dots ? vi_set1(0) : vi_set1(rounded_word(from));
#pragma GCC unroll 4
            for (int v = 0; v < GEMM_NV; v++)
                sum[i][v] = dots    ? rounded_dot(sum[i][v], weights[v], from)
                            : is_u4 ? rounded_add_u4(sum[i][v], weights[v], x)
                                    : rounded_add_i8(sum[i][v], weights[v], magnitudes[v], x, ones);
        }
    }
}

/* Computes rows of a panel. `rows`, `runs`, `of` and `dots`, by dot instructions, are constants
 * wherever this is inlined. */
V_INLINE void rounded_tile(const rounded_block *g, const int rows, const rounded_runs runs,
                           const gemm_element of, const bool dots) {
    const int steps = runs == ROUNDED_ANY ? 1 : ROUNDED_UNIT / ROUNDED_STEP;
    const int64_t size = (int64_t)taper_dtype_size(g->head.scales);
    const int step_bytes = of == GEMM_LEVEL_U4 ? I8_LINE : 2 * I8_LINE;
    const bool in_pairs = of == GEMM_LEVEL_U4 && !dots;
    const bool alternates = dots && rows <= ROUNDED_FEW;
    const bool has_zeros = g->head.shift == GEMM_ZEROS;
    const bool has_offsets = g->head.shift == GEMM_OFFSETS;
    const char *b = g->b;
    const int64_t ahead = g->ahead;
    const char *a[(ROUNDED_DOTS_ROWS + GEMM_REACH - 1) / GEMM_REACH];
    vf scale[GEMM_NV], shift[GEMM_NV];
    /* In memory: registers hold the sums of runs and the parts. */
    float sums[ROUNDED_DOTS_ROWS * GEMM_NR] __attribute__((aligned(TAPER_ALIGNMENT)));
    float *total = sums;
    int64_t row_bytes = g->a_row_bytes;
    GEMM_UNKNOWN(total);
/* Repeats a statement for each row, and an expression for each of its vectors. */
#define ROUNDED_OF_EACH(of_row, expr)                                                              \
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++) {                                      \
        of_row;                                                                                    \
        _Pragma("GCC unroll 4") for (int v = 0; v < GEMM_NV; v++) expr;                            \
    }
/* The word of row i, so many bytes on, in all lanes. */
#define ROUNDED_SPREAD(i, bytes)                                                                   \
    vi_set1(rounded_word(a[(i) / GEMM_REACH] + (i) % GEMM_REACH * row_bytes + (bytes)))
#define ROUNDED_TOTAL(i, v) (total + (i) * GEMM_NR + (v) * V_LEN)
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += GEMM_REACH)
        a[i / GEMM_REACH] = g->a + i * g->a_row_bytes;
    ROUNDED_OF_EACH(, v_store(ROUNDED_TOTAL(i, v), v_zero()))
    for (int64_t at = 0, left = 0; at < g->k; at += g->group) {
        vf part[ROUNDED_DOTS_ROWS][GEMM_NV];
        ROUNDED_OF_EACH(, part[i][v] = v_zero())
        for (int64_t first = 0; first < g->group; first += g->run, left -= g->run) {
            if (left == 0) {
                left = g->head.rows;
                /* Not all lines begin behind heads: without those of heads, some are not fetched.
                 */
                __builtin_prefetch(b + ahead, 0, ROUNDED_LEVEL);
#pragma GCC unroll 4
                for (int v = 0; v < GEMM_NV; v++) {
                    const char *const beside = b + GEMM_NR * size;
                    scale[v] = gemm_load_scales(b, v, g->head.scales);
                    shift[v] = v_zero();
                    if (has_zeros)
                        shift[v] = v_neg(gemm_load_zeros(beside, v, of));
                    else if (has_offsets)
                        shift[v] = gemm_load_scales(beside, v, g->head.scales);
                }
                b += g->head.floats * (int64_t)sizeof(float);
            }
            rounded_sums sum, pairs, second;
            GEMM_UNKNOWN(row_bytes);
            ROUNDED_OF_EACH(const vi start = ROUNDED_SPREAD(i, 0), sum[i][v] = start)
            if (alternates)
                ROUNDED_OF_EACH(, second[i][v] = vi_set1(0))
            int64_t k = g->run;
            do {
                if (in_pairs)
                    ROUNDED_OF_EACH(, pairs[i][v] = vi_set1(0))
                do {
                    GEMM_UNKNOWN(row_bytes);
#pragma GCC unroll 4
                    for (int step = 0; step < steps; step++, b += step_bytes) {
                        for (int l = 0; l < step_bytes; l += I8_LINE)
                            __builtin_prefetch(b + l + ahead, 0, ROUNDED_LEVEL);
                        rounded_step(in_pairs ? pairs : sum,
                                     in_pairs     ? pairs
                                     : alternates ? second
                                                  : sum,
                                     b, a, row_bytes, ROUNDED_WORD + step * ROUNDED_STEP, rows, of,
                                     dots);
                    }
                    rounded_skip(a, steps * ROUNDED_STEP, rows);
                    k -= steps * ROUNDED_STEP;
                } while (runs == ROUNDED_ANY && (in_pairs ? k % ROUNDED_UNIT != 0 : k > 0));
                if (in_pairs)
                    ROUNDED_OF_EACH(, sum[i][v] = vi_add(
                                          sum[i][v], vi_madd_16(pairs[i][v], vi_set1(0x00010001))))
            } while (runs != ROUNDED_ONE && in_pairs && k > 0);
            if (alternates)
                ROUNDED_OF_EACH(, sum[i][v] = vi_add(sum[i][v], second[i][v]))
            vf x[ROUNDED_DOTS_ROWS][GEMM_NV];
            ROUNDED_OF_EACH(, x[i][v] = v_from_int(sum[i][v]))
            if (has_zeros) /* exact for up to 2^13 k */
                ROUNDED_OF_EACH(const vf levels = v_as_float(ROUNDED_SPREAD(i, ROUNDED_WORD)),
                                x[i][v] = v_fma(shift[v], levels, x[i][v]))
            ROUNDED_OF_EACH(, part[i][v] = v_fma(x[i][v], scale[v], part[i][v]))
            if (has_offsets)
                ROUNDED_OF_EACH(const vf levels = v_as_float(ROUNDED_SPREAD(i, ROUNDED_WORD)),
                                part[i][v] = v_fma(levels, shift[v], part[i][v]))
            rounded_skip(a, 2 * ROUNDED_WORD, rows);
        }
        ROUNDED_OF_EACH(
            const vf by = v_as_float(ROUNDED_SPREAD(i, 0)),
            v_store(ROUNDED_TOTAL(i, v), v_fma(part[i][v], by, v_load(ROUNDED_TOTAL(i, v)))))
        rounded_skip(a, ROUNDED_WORD, rows);
    }
    const vf alpha = v_set1(g->alpha);
    ROUNDED_OF_EACH(
        , v_store(g->c + i * g->ldc + v * V_LEN, v_mul(alpha, v_load(ROUNDED_TOTAL(i, v)))))
#undef ROUNDED_OF_EACH
#undef ROUNDED_SPREAD
#undef ROUNDED_TOTAL
}

typedef void (*rounded_fn)(const rounded_block *g);
#define ROUNDED_DEFINE(rows, name, runs, of, dots)                                                 \
    static void rounded_##name##_##of##_##runs##_##rows(const rounded_block *g) {                  \
        rounded_tile(g, rows, ROUNDED_##runs, GEMM_##of, dots);                                    \
    }
#define ROUNDED_PLACE(rows, name, runs, of) [rows] = rounded_##name##_##of##_##runs##_##rows,
ROUNDED_EACH(ROUNDED_DEFINE, plain, ANY, LEVEL_U4, false)
ROUNDED_EACH(ROUNDED_DEFINE, plain, ANY, LEVEL_I8, false)
#if V_LEN < 16
ROUNDED_EACH(ROUNDED_DEFINE, plain, ONE, LEVEL_U4, false)
ROUNDED_EACH(ROUNDED_DEFINE, plain, ONE, LEVEL_I8, false)
#if V_LEN == 8 || V_REGISTERS == 32
ROUNDED_EACH(ROUNDED_DEFINE, plain, SEVERAL, LEVEL_U4, false)
#endif
#endif
/* Indexed by whether B has 8 bits, by the kind of runs, and by rows. */
static const rounded_fn rounded_tiles[2][ROUNDED_KINDS][ROUNDED_ROWS + 1] = {
    {{ROUNDED_EACH(ROUNDED_PLACE, plain, ANY, LEVEL_U4)},
     {ROUNDED_EACH(ROUNDED_PLACE, plain, ROUNDED_TO_ONE, LEVEL_U4)},
     {ROUNDED_EACH(ROUNDED_PLACE, plain, ROUNDED_TO_SEVERAL, LEVEL_U4)}},
    {{ROUNDED_EACH(ROUNDED_PLACE, plain, ANY, LEVEL_I8)},
     {ROUNDED_EACH(ROUNDED_PLACE, plain, ROUNDED_TO_ONE, LEVEL_I8)},
     {ROUNDED_EACH(ROUNDED_PLACE, plain, ANY, LEVEL_I8)}}};
#ifdef HAS_I8_VNNI
ROUNDED_DOTS_EACH(ROUNDED_DEFINE, dots, ANY, LEVEL_U4, true)
ROUNDED_DOTS_EACH(ROUNDED_DEFINE, dots, ONE, LEVEL_U4, true)
ROUNDED_DOTS_EACH(ROUNDED_DEFINE, dots, ANY, LEVEL_I8, true)
ROUNDED_DOTS_EACH(ROUNDED_DEFINE, dots, ONE, LEVEL_I8, true)
static const rounded_fn rounded_dots[2][ROUNDED_KINDS][ROUNDED_DOTS_ROWS + 1] = {
    {{ROUNDED_DOTS_EACH(ROUNDED_PLACE, dots, ANY, LEVEL_U4)},
     {ROUNDED_DOTS_EACH(ROUNDED_PLACE, dots, ONE, LEVEL_U4)},
     {ROUNDED_DOTS_EACH(ROUNDED_PLACE, dots, ANY, LEVEL_U4)}},
    {{ROUNDED_DOTS_EACH(ROUNDED_PLACE, dots, ANY, LEVEL_I8)},
     {ROUNDED_DOTS_EACH(ROUNDED_PLACE, dots, ONE, LEVEL_I8)},
     {ROUNDED_DOTS_EACH(ROUNDED_PLACE, dots, ANY, LEVEL_I8)}}};
#endif

/* Returns tiles by their rows. */
static const rounded_fn *rounded_tiles_of(gemm_element of, int64_t run, bool dots) {
    const rounded_runs kind = run == ROUNDED_UNIT       ? ROUNDED_ONE
                              : run % ROUNDED_UNIT == 0 ? ROUNDED_SEVERAL
                                                        : ROUNDED_ANY;
#ifdef HAS_I8_VNNI
    if (dots)
        return rounded_dots[of == GEMM_LEVEL_I8][kind];
#endif
    (void)dots;
    return rounded_tiles[of == GEMM_LEVEL_I8][kind];
}

/* Returns whether there are tiles for a B of k rows beside an A that is rounded in such groups. */
static bool rounded_serves(const gemm_head *head, gemm_element of, int64_t k, int64_t group) {
    if ((of != GEMM_LEVEL_U4 && of != GEMM_LEVEL_I8) || head->inner != GEMM_INNER_NONE ||
        group <= 0 || k % group != 0)
        return false;
    const int64_t run = rounded_run(head, group);
    return run % ROUNDED_STEP == 0 && run <= ROUNDED_LONGEST && group % run == 0 &&
           head->rows % run == 0;
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
    const rounded_fn *const tile = rounded_tiles_of(of, block->run, dots);
    const int64_t most = dots                  ? ROUNDED_DOTS_ROWS
                         : of == GEMM_LEVEL_I8 ? ROUNDED_ROWS
                                               : ROUNDED_U4_ROWS;
    const int64_t tiles = i64_ceil_div(m, most), bytes = block->panel_bytes;
    const int64_t chunk = tiles == 1 ? n : i64_max(1, ROUNDED_L2 / bytes) * GEMM_NR;
    rounded_block g = *block;
    g.ahead = m <= ROUNDED_FETCHED ? ROUNDED_AHEAD : ROUNDED_AHEAD_ROWS;
    for (int64_t j = 0; j < n; j += chunk) {
        const int64_t end = i64_min(n, j + chunk);
        g.a = block->a;
        for (int64_t t = 0, row = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            for (int64_t col = j; col < end; col += GEMM_NR) {
                const int64_t cols = i64_min(GEMM_NR, end - col);
                float beside[ROUNDED_DOTS_ROWS * GEMM_NR];
                g.b = block->b + col / GEMM_NR * bytes;
                g.c = block->c + row * block->ldc + col;
                if (cols == GEMM_NR) {
                    tile[rows](&g);
                    continue;
                }
                float *const c = g.c;
                g.c = beside;
                g.ldc = GEMM_NR;
                tile[rows](&g);
                g.ldc = block->ldc;
                for (int64_t r = 0; r < rows; r++)
                    memcpy(c + r * g.ldc, beside + r * GEMM_NR, (size_t)cols * sizeof *beside);
            }
            g.a += rows * g.a_row_bytes;
            row += rows;
        }
    }
}
