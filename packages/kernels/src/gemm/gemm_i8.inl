/*
 * The tiles of one engine of engine_i8.h. gemm.c includes this file once for each kind of dot
 * instruction, with
 *     I8_NAME      name -> the kind's own
 *     I8_TARGET    an attribute of functions that use the instruction, or nothing
 *     I8_PARTS     vectors of a line: those of a row of a panel's sums
 *     I8_PAIRS     whether a column has two adjacent sums, of even and of odd pairs of k
 *     I8_A         the unsigned type of 4 activations
 *     I8_LOAD      (line, part) -> the vector of weights
 *     I8_SPREAD    4 activations -> the vector with them for each column
 *     I8_DOT       (sums, activations, weights) -> sums
 *     I8_SHIFTED   whether int8 activations are stored as uint8, 128 larger
 *     I8_BYTES     whether activations are stored as they are, which must be 0 to 127
 *     I8_JOINS     whether joined_i8.inl computes many rows, and narrows their activations
 *     I8_DIRECT    whether A may be in several runs
 *     I8_REQUANTIZES whether tiles may store bytes
 *     I8_WIDENS    whether weights that many rows read are widened once, into memory: for 8 lanes
 */

#ifndef I8_SIZES
#define I8_SIZES
enum {
    I8_VECTORS = V_REGISTERS == 32 ? 4 : 2, /* of a row of a tile, at most */
    I8_FETCH = 2048, /* bytes ahead of the line that few rows read from memory */
    I8_LOOK = 4096,  /* bytes whose bounds are found at once */
};
#ifdef TAPER_EMULATED /* inlined tiles of emulated instructions take compilers many minutes */
#define I8_INLINE static __attribute__((noinline))
#define I8_UNROLL
#else
#define I8_INLINE V_INLINE
#define I8_UNROLL _Pragma("GCC unroll 16")
#endif
/* For few rows a tile reads one panel, in one stream; for the fewest, several lines at once. */
#define I8_EACH_ROWS(X, ...) GEMM_ROWS_6(X, __VA_ARGS__)
#if V_REGISTERS == 32
#define I8_FEW_ROWS 4
#define I8_EACH_FEW(X, ...) GEMM_ROWS_3(X, __VA_ARGS__) X(4, __VA_ARGS__)
#else
#define I8_FEW_ROWS 1
#define I8_EACH_FEW(X, ...) GEMM_ROWS_1(X, __VA_ARGS__)
#endif

/* Stores the sums of neighbours of two vectors, V_LEN of them. */
V_INLINE void i8_store_pairs(int32_t *to, vi a, vi b) {
#if V_LEN == 8
    vi_store(to, _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8));
#elif V_LEN == 4 && defined(__SSE4_1__) && !defined(TAPER_SCALAR)
    vi_store(to, _mm_hadd_epi32(a, b));
#elif V_LEN == 4 && defined(__ARM_NEON) && !defined(TAPER_SCALAR)
    vi_store(to, vpaddq_s32(a, b));
#else
    uint32_t sums[2 * V_LEN];
    vi_store((int32_t *)sums, a);
    vi_store((int32_t *)sums + V_LEN, b);
    for (int j = 0; j < V_LEN; j++)
        to[j] = (int32_t)(sums[2 * j] + sums[2 * j + 1]);
#endif
}
#endif

/* Computes `vectors` vectors of the sums of some rows: parts of one panel, or all of some. In each
 * step it takes `lines` lines, with sums of their own. The numbers are constants wherever this is
 * inlined: the sums are in registers. kind: of what requantizes them, or -1. */
I8_INLINE I8_TARGET void I8_NAME(tile)(const i8_block *g, const int rows, const int vectors,
                                       const int lines, const bool fetches, const int kind) {
    const int64_t panel = i8_panel_bytes(g->groups);
    vi sum[I8_ROWS][8];
    vi more[3][I8_ROWS][8]; /* of lines beyond the first */
#define I8_EACH(expr)                                                                              \
    I8_UNROLL for (int i = 0; i < rows; i++) I8_UNROLL for (int v = 0; v < vectors; v++) expr
    I8_UNROLL
    for (int v = 0; v < vectors; v++) {
        vi begin = vi_set1(0);
        if (I8_SHIFTED && g->is_signed)
            begin = vi_sub(begin,
                           vi_shl(vi_load((const int32_t *)(const void *)(g->b + v * panel)), 7));
        if (kind >= 0 && g->to->less)
            begin = vi_sub(begin, vi_load(g->to->less + g->col + v * V_LEN));
        I8_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i][v] = begin;
    }
    I8_UNROLL
    for (int l = 1; l < lines; l++)
        I8_EACH(more[l - 1][i][v] = vi_set1(0));
    const char *a = g->a;
    const int8_t *b = g->b + I8_LINE;
#if I8_DIRECT
    const char *at[I8_ROWS];
    I8_UNROLL
    for (int i = 0; i < rows; i++)
        at[i] = g->rows ? g->rows[i] : a + i * g->a_row_bytes;
    const int64_t runs = g->rows ? g->runs : 1, groups = g->groups / runs;
    int64_t run = 0, k = 0;
    (void)a;
#define I8_ROW(i) (at[i] + k)
#define I8_NEXT_ROW_GROUPS(n) (k += (n) * (int64_t)sizeof(I8_A))
next_run:;
#else
    const int64_t groups = g->groups;
#define I8_ROW(i) (a + i * g->a_row_bytes)
#define I8_NEXT_ROW_GROUPS(n) (a += (n) * (int64_t)sizeof(I8_A))
#endif
    int64_t group = 0;
#define I8_STEP(to, l)                                                                             \
    {                                                                                              \
        vi weights[8];                                                                             \
        I8_UNROLL for (int v = 0; v < vectors; v++) weights[v] =                                   \
            I8_LOAD(b + v / I8_PARTS * panel + (l) * I8_LINE, v % I8_PARTS);                       \
        I8_UNROLL for (int i = 0; i < rows; i++) {                                                 \
            I8_A x;                                                                                \
            memcpy(&x, I8_ROW(i) + (l) * (int64_t)sizeof x, sizeof x);                             \
            const vi spread = I8_SPREAD(x);                                                        \
            I8_UNROLL for (int v = 0; v < vectors; v++) to[i][v] =                                 \
                I8_DOT(to[i][v], spread, weights[v]);                                              \
        }                                                                                          \
    }
    for (; group + lines <= groups; group += lines) {
        I8_STEP(sum, 0)
        I8_UNROLL
        for (int l = 1; l < lines; l++)
            I8_STEP(more[l - 1], l)
        if (fetches) {
            I8_UNROLL
            for (int l = 0; l < lines; l++)
                __builtin_prefetch(b + l * I8_LINE + I8_FETCH, 0, 3);
        }
        I8_NEXT_ROW_GROUPS(lines);
        b += lines * I8_LINE;
    }
    for (; lines > 1 && group < groups; group++) {
        I8_STEP(sum, 0)
        I8_NEXT_ROW_GROUPS(1);
        b += I8_LINE;
    }
#if I8_DIRECT
    if (++run < runs) {
        k = run * g->run_step;
        goto next_run;
    }
#endif
#undef I8_ROW
#undef I8_NEXT_ROW_GROUPS
    I8_UNROLL
    for (int l = 1; l < lines; l++)
        I8_EACH(sum[i][v] = vi_add(sum[i][v], more[l - 1][i][v]));
#undef I8_STEP
#if I8_PAIRS
    I8_UNROLL
    for (int i = 0; i < rows; i++) {
        I8_UNROLL
        for (int v = 0; v < vectors; v += 2)
            i8_store_pairs(g->c + i * g->ldc + v * (V_LEN / 2), sum[i][v], sum[i][v + 1]);
    }
#else
#if I8_REQUANTIZES
    if (kind >= 0) {
        requantize_tile(g->to, sum, g->row, g->col, rows, vectors, kind);
        return;
    }
#endif
    I8_EACH(vi_store(g->c + i * g->ldc + v * V_LEN, sum[i][v]));
#endif
#undef I8_EACH
}

#define I8_DEFINE(rows, name, vectors, lines, fetches)                                             \
    static I8_TARGET void I8_NAME(name##_##rows)(const i8_block *g) {                              \
        I8_NAME(tile)(g, rows, vectors, lines, fetches, -1);                                       \
    }
#define I8_PLACE(rows, name, ...) [rows] = I8_NAME(name##_##rows),

typedef void (*I8_NAME(fn))(const i8_block *g);

I8_EACH_FEW(I8_DEFINE, few, I8_PARTS, (I8_FEW_ROWS > 1 && I8_PARTS == 1 ? 4 : 1), true)
static const I8_NAME(fn) I8_NAME(few)[] = {I8_EACH_FEW(I8_PLACE, few)};
I8_EACH_ROWS(I8_DEFINE, wide, I8_VECTORS, 1, false)
static const I8_NAME(fn) I8_NAME(wide)[] = {I8_EACH_ROWS(I8_PLACE, wide)};
#if V_REGISTERS == 32 && I8_PARTS <= 2
I8_EACH_ROWS(I8_DEFINE, two, 2, 1, false)
static const I8_NAME(fn) I8_NAME(two)[] = {I8_EACH_ROWS(I8_PLACE, two)};
#endif
#if V_REGISTERS == 32 && I8_PARTS == 1
I8_EACH_ROWS(I8_DEFINE, one, 1, 1, false)
static const I8_NAME(fn) I8_NAME(one)[] = {I8_EACH_ROWS(I8_PLACE, one)};
#endif

#if I8_REQUANTIZES
/* The tiles that store bytes, by what they add, and by rows less I8_ROWS - 1. */
#define I8_DEFINE_BYTES_OF(name, vectors, rows, kind)                                              \
    static I8_TARGET void I8_NAME(name##_##rows##_##kind)(const i8_block *g) {                     \
        I8_NAME(tile)(g, rows, vectors, 1, false, kind);                                           \
    }
#define I8_DEFINE_BYTES(name, vectors)                                                             \
    I8_DEFINE_BYTES_OF(name, vectors, 5, 0)                                                        \
    I8_DEFINE_BYTES_OF(name, vectors, 5, 1)                                                        \
    I8_DEFINE_BYTES_OF(name, vectors, 5, 2)                                                        \
    I8_DEFINE_BYTES_OF(name, vectors, 6, 0)                                                        \
    I8_DEFINE_BYTES_OF(name, vectors, 6, 1)                                                        \
    I8_DEFINE_BYTES_OF(name, vectors, 6, 2)                                                        \
    static const I8_NAME(fn)                                                                       \
        I8_NAME(name)[REQUANTIZE_KINDS][2] = {{I8_NAME(name##_5_0), I8_NAME(name##_6_0)},          \
                                              {I8_NAME(name##_5_1), I8_NAME(name##_6_1)},          \
                                              {I8_NAME(name##_5_2), I8_NAME(name##_6_2)}};
I8_DEFINE_BYTES(wide_bytes, 4)
I8_DEFINE_BYTES(two_bytes, 2)
I8_DEFINE_BYTES(one_bytes, 1)
#undef I8_DEFINE_BYTES_OF
#undef I8_DEFINE_BYTES

/* Computes the bytes of whole panels and of m rows, for which i8_requantizes() is true. */
static void I8_NAME(bytes)(const i8_block *block, int64_t m, int64_t panels) {
    const int64_t tiles = i64_ceil_div(m, I8_ROWS);
    for (int64_t part = 0, vectors; part < panels; part += vectors) {
        vectors = panels - part >= 4 ? 4 : panels - part >= 2 ? 2 : 1;
        const I8_NAME(fn) *const tile = (vectors == 4   ? I8_NAME(wide_bytes)
                                         : vectors == 2 ? I8_NAME(two_bytes)
                                                        : I8_NAME(one_bytes))[block->to->kind];
        i8_block g = *block;
        g.b += part * i8_panel_bytes(g.groups);
        g.col += part * GEMM_NR;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            tile[rows - I8_ROWS + 1](&g);
            i8_skip_rows(&g, rows);
            g.row += rows;
        }
    }
}
#endif

#if I8_WIDENS
/*
 * Weights that many rows read are widened once, into memory, in the order in which a vector has a
 * pair of k of 8 columns: then a tile has the columns of a panel, and no sums of neighbours at its
 * end, which takes as long as the products of few k.
 */
enum {
    I8_WIDEN_WORTH = 36,  /* rows for which it pays */
    I8_WIDEN_LINES = 128, /* of a panel, at most: 16 KiB */
};

/* Widens a line to [2 pairs of k][2 halves of the columns]. */
V_INLINE void i8_widen_line(vi to[4], const int8_t *line) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m256 a = v_as_float(vi_widen_i8(line + 32 * half)); /* [4 columns][2 pairs] */
        const __m256 b = v_as_float(vi_widen_i8(line + 32 * half + 16));
        const vi first = v_as_int(_mm256_shuffle_ps(a, b, 0x88));
        const vi second = v_as_int(_mm256_shuffle_ps(a, b, 0xdd));
        to[half] = _mm256_permute4x64_epi64(first, 0xd8);
        to[2 + half] = _mm256_permute4x64_epi64(second, 0xd8);
    }
}

/* Computes the sums of some rows and a panel. wide: [groups] lines as i8_widen_line wrote them. */
I8_INLINE void i8_wide_tile(const i8_block *g, const vi *wide, const int rows) {
    vi sum[I8_ROWS][2];
#define I8_EACH(expr)                                                                              \
    I8_UNROLL for (int i = 0; i < rows; i++) I8_UNROLL for (int v = 0; v < 2; v++) expr
    I8_EACH(sum[i][v] = vi_set1(0));
    const char *a = g->a;
    for (const vi *end = wide + 4 * g->groups; wide < end; wide += 2, a += 2 * sizeof(int16_t)) {
        const vi weights[2] = {wide[0], wide[1]};
        I8_UNROLL
        for (int i = 0; i < rows; i++) {
            int32_t pair;
            memcpy(&pair, a + i * g->a_row_bytes, sizeof pair);
            const vi spread = vi_set1(pair);
            I8_UNROLL
            for (int v = 0; v < 2; v++)
                sum[i][v] = i8_dot_16(sum[i][v], spread, weights[v]);
        }
    }
    I8_EACH(vi_store(g->c + i * g->ldc + v * V_LEN, sum[i][v]));
#undef I8_EACH
}

#define I8_DEFINE_WIDE(rows, ...)                                                                  \
    static void i8_wide_##rows(const i8_block *g, const vi *wide) { i8_wide_tile(g, wide, rows); }
I8_EACH_ROWS(I8_DEFINE_WIDE, )
#undef I8_DEFINE_WIDE
#define I8_PLACE_WIDE(rows, ...) [rows] = i8_wide_##rows,
static void (*const i8_wide_tiles[])(const i8_block *g,
                                     const vi *wide) = {I8_EACH_ROWS(I8_PLACE_WIDE, )};
#undef I8_PLACE_WIDE

static void i8_wide_block(const i8_block *block, int64_t m, int64_t panels) {
    vi wide[4 * I8_WIDEN_LINES];
    const int64_t tiles = i64_ceil_div(m, I8_ROWS);
    const int8_t *b = block->b;
    for (int64_t panel = 0; panel < panels; panel++) {
        b += I8_LINE; /* the sums */
        for (int64_t group = 0; group < block->groups; group++, b += I8_LINE)
            i8_widen_line(wide + 4 * group, b);
        i8_block g = *block;
        g.c += panel * GEMM_NR;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            i8_wide_tiles[rows](&g, wide);
            i8_skip_rows(&g, rows);
            g.c += rows * g.ldc;
        }
    }
}
#endif

#if I8_JOINS
#include "gemm/joined_i8.inl"
#endif

static void I8_NAME(block)(const i8_block *block, int64_t m, int64_t panels) {
    if (m <= 0)
        return;
#if I8_REQUANTIZES
    if (block->to) {
        I8_NAME(bytes)(block, m, panels);
        return;
    }
#endif
#if I8_JOINS
    if (block->rests || (m >= I8_JOIN_WORTH && block->groups <= I8_JOIN_LINES)) {
        I8_NAME(join_block)(block, m, panels);
        return;
    }
#endif
#if I8_WIDENS
    if (m >= I8_WIDEN_WORTH && block->groups <= I8_WIDEN_LINES) {
        i8_wide_block(block, m, panels);
        return;
    }
#endif
    const bool few = m <= I8_FEW_ROWS;
    const int64_t tiles = i64_ceil_div(m, I8_ROWS), parts = panels * I8_PARTS;
    for (int64_t part = 0, vectors; part < parts; part += vectors) {
        const I8_NAME(fn) *tile = few ? I8_NAME(few) : I8_NAME(wide);
        vectors = few ? I8_PARTS : I8_VECTORS;
#if V_REGISTERS == 32 && I8_PARTS <= 2
        if (!few && parts - part < I8_VECTORS) {
            tile = I8_NAME(two);
            vectors = 2;
        }
#endif
#if V_REGISTERS == 32 && I8_PARTS == 1
        if (!few && parts - part == 1) {
            tile = I8_NAME(one);
            vectors = 1;
        }
#endif
        i8_block g = *block;
        g.b += part / I8_PARTS * i8_panel_bytes(g.groups) + part % I8_PARTS * (I8_LINE / I8_PARTS);
        g.c += part * (GEMM_NR / I8_PARTS);
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t rows = (m + t) / tiles;
            tile[rows](&g);
            i8_skip_rows(&g, rows);
            g.c += rows * g.ldc;
        }
    }
}

static bool I8_NAME(put)(void *to, const void *from, int64_t stride, int64_t n, bool is_signed) {
    const int8_t *s = from;
    const uint8_t *u = from;
    int64_t i = 0;
#if I8_BYTES
    uint8_t *t = to;
    uint64_t seen = 0;
    (void)s;
    (void)is_signed;
    for (uint64_t some; stride == 1 && i + (int64_t)sizeof some <= n; i += sizeof some) {
        memcpy(&some, u + i, sizeof some);
        memcpy(t + i, &some, sizeof some);
        seen |= some;
    }
    for (; i < n; i++) {
        t[i] = u[i * stride];
        seen |= t[i];
    }
    return (seen & 0x8080808080808080) == 0;
#elif I8_SHIFTED
    uint8_t *t = to;
    const uint8_t shift = is_signed ? 128 : 0;
    (void)s;
    if (stride == 1)
        for (; i < n; i++)
            t[i] = u[i] ^ shift;
    else
        for (; i < n; i++)
            t[i] = u[i * stride] ^ shift;
    return true;
#else
    int16_t *t = to;
    const vi kept = vi_set1(is_signed ? -1 : 0x00ff00ff);
    for (; stride == 1 && i + 2 * V_LEN <= n; i += 2 * V_LEN)
        vi_store((int32_t *)(void *)(t + i), vi_and(vi_widen_i8(s + i), kept));
    for (; i < n; i++)
        t[i] = is_signed ? (int16_t)s[i * stride] : (int16_t)u[i * stride];
    return true;
#endif
}

static bool I8_NAME(reads)(const void *from, int64_t row, int64_t rows, int64_t n, bool is_signed) {
#if I8_BYTES
    uint8_t seen = 0;
    const int64_t some = row == n ? i64_max(1, I8_LOOK / i64_max(1, n)) : 1; /* rows of a run */
    (void)is_signed;
    for (int64_t r = 0; r < rows && seen < 128; r += some) {
        const uint8_t *const u = (const uint8_t *)from + r * row;
        for (int64_t i = 0; i < i64_min(some, rows - r) * n; i++)
            seen |= u[i];
    }
    return seen < 128;
#else
    (void)from;
    (void)row;
    (void)rows;
    (void)n;
    return I8_SHIFTED && !is_signed;
#endif
}

#undef I8_NAME
#undef I8_TARGET
#undef I8_PARTS
#undef I8_PAIRS
#undef I8_A
#undef I8_LOAD
#undef I8_SPREAD
#undef I8_DOT
#undef I8_SHIFTED
#undef I8_BYTES
#undef I8_JOINS
#undef I8_DIRECT
#undef I8_REQUANTIZES
#undef I8_WIDENS
#undef I8_DEFINE
#undef I8_PLACE
