/*
 * The tiles of the engine (engine.h), and the blocks that consist of them.
 */

#include <string.h>

#include "gemm/element.h"

/* C has all of the tile's columns. Meanwhile the k lines from `prefetch` on, a step apart, are
 * prefetched to L2. */
typedef void (*gemm_tile_fn)(const gemm_block *g, const float *prefetch, int64_t prefetch_step);

enum {
    /* Values of k in an iteration. With SSE the sums leave no register for those of the next k. */
    GEMM_UNROLL = V_LEN == 4 && V_REGISTERS == 16 ? 1 : 4,
    /* The same of tiles with so many sums, which need no more. Every tile adds code. */
    GEMM_MANY_SUMS = 12,
    GEMM_UNROLL_MANY = GEMM_UNROLL < 2 ? GEMM_UNROLL : 2,
    GEMM_REACH = 3,      /* rows of A from one pointer: x86 scales its index by 0, 1 and 2 */
    GEMM_AHEAD = 3 << 8, /* how many floats ahead narrow panels are prefetched: CPUs prefetch too
                            little of so slow a stream, and 3 KB was the best of 1 to 8 KB */
    /* The same of tiles of few rows, whose stream is as fast as memory with 32 registers. */
    GEMM_FAST_ROWS = V_LEN == 16 ? 3 : 0,
    GEMM_AHEAD_FAST = 1 << 8,
    GEMM_CACHE_LINE = 16, /* in floats */
    GEMM_POINTERS = (GEMM_MAX_MR + GEMM_REACH - 1) / GEMM_REACH,
};

/* Hides from the compiler how an address is computed. Otherwise it keeps the parts of the address
 * in registers, which the sums need. */
#define GEMM_UNKNOWN(x) __asm__("" : "+r"(x))

typedef vf gemm_sums[GEMM_MAX_MR][GEMM_WIDE_PANELS * GEMM_NV];

/* The scales and shifts of a tile's columns in a block of levels (element.h). */
typedef struct gemm_scales {
    vf scale[GEMM_WIDE_PANELS * GEMM_NV], shift[GEMM_WIDE_PANELS * GEMM_NV];
} gemm_scales;

/* Loads vector v of 16 numbers of a dtype of scales. */
V_INLINE vf gemm_load_float_scales(const char *from, const int v, int32_t dtype) {
    if (dtype == TAPER_FLOAT32)
        return v_load((const float *)(const void *)from + v * V_LEN);
    const uint16_t *half = (const uint16_t *)(const void *)from + v * V_LEN;
    return dtype == TAPER_FLOAT16 ? v_load_f16(half) : v_load_bf16(half);
}

V_INLINE vf gemm_load_scales(const char *from, const int v, int32_t dtype) {
    return dtype == TAPER_UINT8 ? v_load_e8m0((const int8_t *)from + v * V_LEN)
                                : gemm_load_float_scales(from, v, dtype);
}

/* Loads vector v of 16 factors. */
V_INLINE vf gemm_load_factors(const char *from, const int v, gemm_inner inner) {
    if (inner == GEMM_INNER_U6)
        return v_fma(v_load_u2(from + GEMM_NR / 2, v), v_set1(16), v_load_u4(from, v));
    const int8_t *bytes = (const int8_t *)from + v * V_LEN;
    return inner == GEMM_INNER_I8 ? v_load_i8(bytes) : v_load_e4m3(bytes);
}

/* Loads vector v of 16 zero points of such levels. */
V_INLINE vf gemm_load_zeros(const char *from, const int v, const gemm_element of) {
    if (of == GEMM_LEVEL_I8)
        return v_load_i8((const int8_t *)from + v * V_LEN);
    return of == GEMM_LEVEL_U2 ? v_load_u2(from, v) : v_load_u4(from, v);
}

/* Reads what gemm_read_head reads where scales have factors: once for all tiles, since it is long.
 */
__attribute__((noinline)) static void gemm_read_factors(gemm_scales *to, const gemm_head *head,
                                                        const float *b, const float *inner,
                                                        int64_t panel_stride, int vectors,
                                                        float unit) {
    const int64_t size = (int64_t)taper_dtype_size(head->scales);
    for (int v = 0; v < vectors; v++) {
        const int part = v % GEMM_NV;
        const char *from = (const char *)(b + v / GEMM_NV * panel_stride);
        const char *factors = (const char *)(inner + v / GEMM_NV * panel_stride);
        vf scale = gemm_load_scales(from, part, head->scales), shift = v_set1(0);
        if (head->inner != GEMM_INNER_NONE)
            scale = v_mul(scale, gemm_load_factors(factors, part, head->inner));
        if (head->shift == GEMM_OFFSETS) {
            factors += head->inner_floats * (int64_t)sizeof(float) / 2;
            shift = v_mul(gemm_load_scales(from + GEMM_NR * size, part, head->scales),
                          gemm_load_factors(factors, part, head->inner));
        }
        to->scale[v] = v_mul(scale, v_set1(unit));
        to->shift[v] = v_fma(scale, v_set1(-head->middle), shift);
    }
}

/* Reads what the panels from b on have for a block whose factors begin at `inner`. */
V_INLINE void gemm_read_head(gemm_scales *to, const gemm_head *head, const float *b,
                             const float *inner, int64_t panel_stride, const int vectors,
                             const gemm_element of) {
    if (head->inner != GEMM_INNER_NONE || head->scales == TAPER_UINT8) {
        gemm_scales read; /* nothing has the address of `to`, so that it stays in registers */
        gemm_read_factors(&read, head, b, inner, panel_stride, vectors, gemm_unit(of));
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            to->scale[v] = read.scale[v];
            to->shift[v] = read.shift[v];
        }
        return;
    }
    const int64_t size = head->scales == TAPER_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    const vf unit = v_set1(gemm_unit(of)), minus_middle = v_set1(-head->middle);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        const int part = v % GEMM_NV;
        const char *from = (const char *)(b + v / GEMM_NV * panel_stride);
        const char *beside = from + GEMM_NR * size;
        const vf scale = gemm_load_float_scales(from, part, head->scales);
        to->scale[v] = v_mul(scale, unit);
        if (head->shift == GEMM_OFFSETS) {
            const vf offset = gemm_load_float_scales(beside, part, head->scales);
            to->shift[v] = v_fma(scale, minus_middle, offset);
            continue;
        }
        vf minus_zero = minus_middle;
        if (head->shift == GEMM_ZEROS)
            minus_zero = v_neg(gemm_load_zeros(beside, part, of));
        to->shift[v] = v_mul(scale, minus_zero);
    }
}

/* Returns the values of vector v of a line, which is vector `at` of the tile. */
V_INLINE vf gemm_value(const float *line, const int v, const int k, const gemm_scales *scales,
                       const int at, const gemm_element of) {
    const vf loaded = gemm_load(line, v, k, of);
    return gemm_has_levels(of) ? v_fma(loaded, scales->scale[at], scales->shift[at]) : loaded;
}

/* Returns the vectors in `width` columns. */
V_INLINE int gemm_vectors(int width) { return (width + V_LEN - 1) / V_LEN; }

/* Returns whether vector v of `width` columns has them only in its lower half. Compilers see first
 * that none has, and then compute addresses as if there were no halves. */
V_INLINE bool gemm_is_low(int v, int width) {
    return width % V_LEN != 0 && (v + 1) * V_LEN > width;
}

/* Loads vector v of `width` floats. */
V_INLINE vf gemm_load_part(const float *from, const int v, const int width) {
    return gemm_is_low(v, width) ? v_load_low(from + v * V_LEN) : v_load(from + v * V_LEN);
}

V_INLINE vf gemm_add(vf a, vf b, vf sum, const gemm_element of) {
    return of == GEMM_PAIRS ? pairs_accumulate(a, b, sum) : v_accumulate(a, b, sum);
}

V_INLINE vf gemm_add_spread(const float *a, vf b, vf sum, const gemm_element of) {
    return of == GEMM_PAIRS ? pairs_accumulate(v_set1(*a), b, sum) : v_accumulate_spread(a, b, sum);
}

/* Adds the products of one k, `ahead` of what a and b point at. rows, width, ahead and `of` are
 * constants wherever this is inlined: the sums live in registers. */
V_INLINE void gemm_step(gemm_sums sum, const float *const a[], int64_t row_stride, const float *b,
                        int64_t panel_stride, const gemm_scales *scales, const int ahead,
                        const int rows, const int width, const gemm_element of) {
    const int vectors = gemm_vectors(width);
    vf line[GEMM_WIDE_PANELS * GEMM_NV];
    b += gemm_has_levels(of) ? 0 : gemm_floats(of, ahead);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++)
        line[v] =
            v_in_register(gemm_is_low(v, width) ? v_load_low(b + v * panel_stride)
                                                : gemm_value(b + v / GEMM_NV * panel_stride,
                                                             v % GEMM_NV, ahead, scales, v, of));
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        const float *at = a[i / GEMM_REACH] + i % GEMM_REACH * row_stride + ahead;
        if (width < 2 * V_LEN) {
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++)
                sum[i][v] = gemm_is_low(v, width) ? v_accumulate_spread_low(at, line[v], sum[i][v])
                                                  : gemm_add_spread(at, line[v], sum[i][v], of);
            continue;
        }
        const vf ai = v_set1(*at);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            sum[i][v] = gemm_is_low(v, width) ? v_accumulate_low(ai, line[v], sum[i][v])
                                              : gemm_add(ai, line[v], sum[i][v], of);
    }
}

/* Prefetches the part of its narrow panels that a tile reads some iterations later. */
V_INLINE void gemm_fetch_ahead(const float *b, int64_t panel_stride, const int panels,
                               const int rows, const int unroll, const gemm_element of) {
#pragma GCC unroll 16
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 16
        for (int i = 0; i < gemm_floats(of, unroll); i += GEMM_CACHE_LINE)
            if (rows <= GEMM_FAST_ROWS)
                __builtin_prefetch(b + p * panel_stride + i + GEMM_AHEAD_FAST, 0, 2);
            else
                __builtin_prefetch(b + p * panel_stride + i + GEMM_AHEAD);
}

V_INLINE void gemm_advance(const float *a[], int64_t elements, const int rows) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += GEMM_REACH)
        a[i / GEMM_REACH] += elements;
}

/* Repeats the statements for every sum of a tile. */
#define gemm_each(expr)                                                                            \
    do {                                                                                           \
        _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                    \
            _Pragma("GCC unroll 16") for (int v = 0; v < vectors; v++) sum[i][v] = (expr);         \
    } while (0)

V_INLINE void gemm_tile(const gemm_block *g, const float *prefetch, int64_t prefetch_step,
                        const int rows, const int width, const gemm_element of) {
    const int vectors = gemm_vectors(width), panels = (width + GEMM_NR - 1) / GEMM_NR;
    gemm_sums sum;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            sum[i][v] = v_zero();

    const float *a[GEMM_POINTERS], *b = g->b;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += GEMM_REACH)
        a[i / GEMM_REACH] = g->a + i * g->a_row_stride;
    /* Levels are whole words of lines, and their A is dense. */
    const bool dense =
        gemm_has_levels(of) || (g->a_k_stride == 1 && g->b_k_stride == gemm_floats(of, 1));
    /* A wide tile prefetches nothing; a narrow one prefetches what it reads later. */
    const bool fetches = (of == GEMM_F32 || of == GEMM_PAIRS) && panels <= GEMM_PANELS;
    const int unroll = gemm_has_levels(of)                ? gemm_lines(of)
                       : rows * vectors >= GEMM_MANY_SUMS ? GEMM_UNROLL_MANY
                                                          : GEMM_UNROLL;
    gemm_scales scales;
    const float *head = b;
    int64_t left = 0; /* blocks of this head */
    for (int64_t run = 0;; run++) {
        int64_t k = g->k;
        if (gemm_has_levels(of)) {
            if (left == 0) {
                head = b;
                left = g->head.blocks;
                b += g->head.floats;
            }
            left--;
            gemm_read_head(&scales, &g->head, head, b, g->b_panel_stride, vectors, of);
            b += g->head.inner_floats;
        }
        for (; dense && k >= unroll; k -= unroll) {
            int64_t row_stride = g->a_row_stride, panel_stride = g->b_panel_stride;
            GEMM_UNKNOWN(row_stride);
            GEMM_UNKNOWN(panel_stride);
            GEMM_UNKNOWN(b);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i += GEMM_REACH)
                GEMM_UNKNOWN(a[i / GEMM_REACH]);
#pragma GCC unroll 32
            for (int u = 0; u < unroll; u++) {
                gemm_step(sum, a, row_stride, b, panel_stride, &scales, u, rows, width, of);
                if (fetches) {
                    __builtin_prefetch(prefetch, 0, 2);
                    prefetch += prefetch_step;
                }
            }
            if (of != GEMM_F32 && !fetches)
                gemm_fetch_ahead(b, panel_stride, panels, rows, unroll, of);
            gemm_advance(a, unroll, rows);
            b += gemm_floats(of, unroll);
        }
        for (; !gemm_has_levels(of) && k > 0; k--) {
            gemm_step(sum, a, g->a_row_stride, b, g->b_panel_stride, &scales, 0, rows, width, of);
            if (fetches) {
                __builtin_prefetch(prefetch, 0, 2);
                prefetch += prefetch_step;
            }
            gemm_advance(a, g->a_k_stride, rows);
            b += g->b_k_stride;
        }
        if (run == g->jumps)
            break;
        if (gemm_has_levels(of)) /* blocks lie one behind the other */
            continue;
        gemm_advance(a, g->jump[run].a, rows);
        b += g->jump[run].b * g->b_k_stride;
    }

    const int64_t ldc = g->ldc;
    if (g->accumulate)
        gemm_each(v_fma(v_set1(g->alpha), sum[i][v], gemm_load_part(g->c + i * ldc, v, width)));
    else if (g->alpha != 1)
        gemm_each(v_mul(v_set1(g->alpha), sum[i][v]));
    if (g->fused.bias)
        gemm_each(v_add(sum[i][v], gemm_load_part(g->fused.bias, v, width)));
    if (g->fused.residual)
        gemm_each(
            v_add(sum[i][v], gemm_load_part(g->fused.residual + i * g->fused.stride, v, width)));
    if (g->fused.bounded)
        gemm_each(fused_clamp(&g->fused, sum[i][v]));
    float *c = g->c;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, c += ldc)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++)
            if (gemm_is_low(v, width))
                v_store_low(c + v * V_LEN, sum[i][v]);
            else
                v_store(c + v * V_LEN, sum[i][v]);
}

#define GEMM_DEFINE_TILE(rows, width)                                                              \
    static void gemm_tile_##rows##x##width(const gemm_block *g, const float *prefetch,             \
                                           int64_t prefetch_step) {                                \
        gemm_tile(g, prefetch, prefetch_step, rows, width, GEMM_F32);                              \
    }
#define GEMM_DEFINE_TILES(width, most) GEMM_ROWS_##most(GEMM_DEFINE_TILE, width)
GEMM_TILES(GEMM_DEFINE_TILES)
#define GEMM_PLACE_TILE(rows, width) [rows] = gemm_tile_##rows##x##width,
#define GEMM_PLACE_TILES(width, most)                                                              \
    [(width) / GEMM_COLS] = {most, {GEMM_ROWS_##most(GEMM_PLACE_TILE, width)}},
typedef struct gemm_tiles_of {
    int64_t most_rows;
    gemm_tile_fn tile[GEMM_MAX_MR + 1];
} gemm_tiles_of;
/* Indexed by multiples of GEMM_COLS, then by rows. */
static const gemm_tiles_of gemm_tiles[] = {GEMM_TILES(GEMM_PLACE_TILES)};

#ifdef HAS_PAIRS
#define GEMM_DEFINE_PAIRS(rows, width)                                                             \
    static void gemm_pairs_##rows##x##width(const gemm_block *g, const float *prefetch,            \
                                            int64_t prefetch_step) {                               \
        gemm_tile(g, prefetch, prefetch_step, rows, width, GEMM_PAIRS);                            \
    }
#define GEMM_DEFINE_PAIRS_OF(width, most) GEMM_ROWS_##most(GEMM_DEFINE_PAIRS, width)
GEMM_PAIRS_TILES(GEMM_DEFINE_PAIRS_OF)
#define GEMM_PLACE_PAIRS(rows, width) [rows] = gemm_pairs_##rows##x##width,
#define GEMM_PLACE_PAIRS_OF(width, most)                                                           \
    [(width) / GEMM_COLS] = {most, {GEMM_ROWS_##most(GEMM_PLACE_PAIRS, width)}},
static const gemm_tiles_of gemm_pairs[] = {GEMM_PAIRS_TILES(GEMM_PLACE_PAIRS_OF)};
#endif

static const gemm_tiles_of *gemm_tiles_for(bool pairs) {
#ifdef HAS_PAIRS
    if (pairs)
        return gemm_pairs;
#endif
    (void)pairs;
    return gemm_tiles;
}

/* ---- packing ---- */

/* to[c * to_stride + r] = from[r * from_stride + c] for r < rows <= V_LEN, c < cols <= V_LEN. */
V_INLINE void gemm_transpose_square(float *to, int64_t to_stride, const float *from,
                                    int64_t from_stride, int64_t rows, int64_t cols) {
    vf lines[V_LEN];
    if (rows == V_LEN && cols == V_LEN) {
        for (int l = 0; l < V_LEN; l++)
            lines[l] = v_load(from + l * from_stride);
        v_transpose(lines);
        for (int l = 0; l < V_LEN; l++)
            v_store(to + l * to_stride, lines[l]);
    } else {
        for (int l = 0; l < V_LEN; l++)
            lines[l] = l < rows ? v_load_n(from + l * from_stride, cols) : v_zero();
        v_transpose(lines);
        for (int l = 0; l < cols; l++)
            v_store_n(to + l * to_stride, lines[l], rows);
    }
}

static void gemm_transpose(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                           int64_t rows, int64_t cols) {
    for (int64_t c = 0; c < cols; c += V_LEN)
        for (int64_t r = 0; r < rows; r += V_LEN)
            gemm_transpose_square(to + c * to_stride + r, to_stride, from + r * from_stride + c,
                                  from_stride, i64_min(V_LEN, rows - r), i64_min(V_LEN, cols - c));
}

/* to[r * to_stride + c] = from[r * row_stride + c * col_stride]. */
static void gemm_copy(float *to, int64_t to_stride, const float *from, int64_t row_stride,
                      int64_t col_stride, int64_t rows, int64_t cols) {
    if (row_stride == 1 && col_stride != 1) {
        gemm_transpose(to, to_stride, from, col_stride, cols, rows);
        return;
    }
    for (int64_t r = 0; r < rows; r++, to += to_stride, from += row_stride) {
        int64_t c = 0;
        if (col_stride == 1) {
            for (; c + V_LEN <= cols; c += V_LEN)
                v_store(to + c, v_load(from + c));
            if (c + V_LEN / 2 <= cols) {
                memcpy(to + c, from + c, V_LEN / 2 * sizeof *to);
                c += V_LEN / 2;
            }
        }
        for (; c < cols; c++)
            to[c] = from[c * col_stride];
    }
}

/* Packs the rows of two panels: a row of B gives two adjacent cache lines at once, which the CPU
 * fetches together. */
static void gemm_pack_two_panels(float *packed, const float *b, int64_t k_stride, int64_t k) {
    for (int64_t kk = 0; kk < k; kk++, packed += GEMM_NR, b += k_stride)
        for (int v = 0; v < GEMM_NR; v += V_LEN) {
            v_store(packed + v, v_load(b + v));
            v_store(packed + k * GEMM_NR + v, v_load(b + GEMM_NR + v));
        }
}

/* B[kk][j] at b[kk * k_stride + j * n_stride] -> packed [ceil(n/16)][k][16], zero beyond n. */
static void gemm_pack_b(float *packed, const float *b, int64_t k_stride, int64_t n_stride,
                        int64_t k, int64_t n) {
    int64_t j = 0;
    if (n_stride == 1)
        for (; j + 2 * GEMM_NR <= n; j += 2 * GEMM_NR, packed += 2 * k * GEMM_NR, b += 2 * GEMM_NR)
            gemm_pack_two_panels(packed, b, k_stride, k);
    for (; j < n; j += GEMM_NR, packed += k * GEMM_NR, b += GEMM_NR * n_stride) {
        const int64_t width = i64_min(GEMM_NR, n - j);
        if (width < GEMM_NR)
            memset(packed, 0, (size_t)(k * GEMM_NR) * sizeof *packed);
        gemm_copy(packed, GEMM_NR, b, k_stride, n_stride, k, width);
    }
}

/* ---- blocks ---- */

/* Computes a tile outside of C and copies it: C has only its first cols columns, or there is more
 * to do after the sums. */
static void gemm_tile_beside(gemm_tile_fn tile, gemm_block *g, const float *prefetch,
                             int64_t prefetch_step, int64_t rows, int64_t width, int64_t cols) {
    float beside[GEMM_MAX_MR * GEMM_WIDE_PANELS * GEMM_NR];
    const bool whole = cols == width;
    float *const c = g->c;
    const int64_t ldc = g->ldc;
    const float *const bias = g->fused.bias, *const residual = g->fused.residual;
    const bool bounded = g->fused.bounded;
    if (g->accumulate) {
        memset(beside, 0, sizeof beside);
        fused_copy(beside, width, c, ldc, rows, cols);
    }
    g->c = beside;
    g->ldc = width;
    if (!whole) { /* the tile would read beyond the last column */
        g->fused.bias = g->fused.residual = NULL;
        g->fused.bounded = false;
    }
    tile(g, prefetch, prefetch_step);
    g->c = c;
    g->ldc = ldc;
    g->fused.bias = bias;
    g->fused.residual = residual;
    g->fused.bounded = bounded;
    fused_store(&g->fused, whole, beside, width, rows, cols, c, ldc);
}

/*
 * Spreads the prefetches of the next panels, which are in L3 or memory, evenly over the tiles of
 * the present ones. Tile t of `tiles` fetches from *line on, *step floats further at each k; both
 * keep their values where it has nothing to fetch. share: the floats of a line of k that one tile
 * fetches.
 */
static void gemm_next_lines(const gemm_block *block, const float *next, int64_t panels, int64_t t,
                            int64_t tiles, int64_t share, const float **line, int64_t *step) {
    const int64_t k = block->k * (block->jumps + 1);
    if (block->b_panel_stride == k * GEMM_NR) { /* in one run */
        *step = share;
        *line = next + t * share * k;
        return;
    }
    /* Otherwise the lines of a panel are a step apart, if they are cache lines: the last tiles
     * fetch one panel each.
     */
    const int64_t panel = panels - (tiles - t);
    if (panel < 0)
        return;
    if (block->b_col_stride == 1)
        *step = block->b_k_stride;
    else if (block->b_col_stride == block->k && block->b_k_stride == 1)
        *step = GEMM_NR;
    else
        return;
    *line = next + panel * block->b_panel_stride;
}

/* Moves to the tile whose C begins `elements` further on, in the same columns. */
V_INLINE void gemm_move(gemm_block *g, int64_t a, int64_t elements) {
    g->a += a;
    g->c += elements;
    g->fused = fused_at(g->fused, 0, elements);
}

/* Returns the width of the next tiles of m rows, a multiple of `step`, if so many columns are left.
 */
static int64_t gemm_next_width(int64_t m, int64_t cols, int64_t step) {
    const int64_t left = i64_ceil_div(cols, GEMM_NR);
    const int64_t needed = i64_ceil_div(cols, step) * step;
    int64_t panels = i64_min(left, GEMM_PANELS);
    if (m <= GEMM_WIDE_MR && left >= GEMM_WIDE_PANELS)
        panels = GEMM_WIDE_PANELS;
    /* At the end, two panels and two are faster than three and one. */
    else if (GEMM_PANELS > 1 && left > 1 && left % GEMM_PANELS == 1)
        panels = GEMM_PANELS - 1;
    const int64_t width = panels * GEMM_NR;
    return needed == GEMM_NR + GEMM_COLS ? needed : i64_min(needed, width);
}

#include "gemm/row_f32.inl"

/* Computes the block's m rows (of each image row) and n columns; m, n, k >= 0. */
static void gemm_block_run(const gemm_block *block, int64_t m, int64_t n) {
    if (m <= 0)
        return;
    if (m == 1 && block->b_form == GEMM_B_ROWS) {
        gemm_row_run(block, n);
        return;
    }
    const gemm_tiles_of *const all = gemm_tiles_for(block->pairs);
    gemm_block g = *block;
    for (int64_t j = 0, width; j < n; j += width) {
        width = gemm_next_width(m, n - j, block->pairs ? GEMM_NR : GEMM_COLS);
        const int64_t kind = width / GEMM_COLS, panels = i64_ceil_div(width, GEMM_NR);
        const gemm_tile_fn *tile = all[kind].tile;
        /* Tiles have about equal heights: 10 rows are split into 5 and 5, not 9 and 1. */
        const int64_t image_row_tiles = i64_ceil_div(m, all[kind].most_rows);
        const int64_t least_rows = m / image_row_tiles,
                      low_tiles = image_row_tiles - m % image_row_tiles;
        const int64_t tiles = image_row_tiles * (block->more_image_rows + 1);
        const int64_t share = i64_ceil_div(panels * GEMM_NR, tiles);
        const int64_t cols = i64_min(width, n - j);
        g.a = block->a;
        g.b = block->b + j / GEMM_NR * block->b_panel_stride;
        g.b_panel_stride = block->b_panel_stride;
        g.b_k_stride = block->b_k_stride;
        g.c = block->c + j;
        g.fused = fused_at(block->fused, j, j);
        const bool last = block->b_next && j + width >= n;
        const float *next = last ? block->b_next : g.b + panels * g.b_panel_stride;
        if (g.b_form == GEMM_B_ANY || (g.b_form == GEMM_B_ROWS && cols < width)) {
            gemm_pack_b(g.packed, g.b, g.b_k_stride, g.b_col_stride, g.k, cols);
            g.b = g.packed;
            g.b_panel_stride = g.k * GEMM_NR;
            g.b_k_stride = GEMM_NR;
        }
        for (int64_t t = 0, i = 0; t < tiles; t++, i++) {
            if (i == image_row_tiles) {
                i = 0;
                gemm_move(&g, g.a_image_row_stride - m * g.a_row_stride,
                          g.c_image_row_stride - m * g.ldc);
            }
            const int64_t rows = least_rows + (i >= low_tiles);
            const float *line = g.b;
            int64_t step = g.b_k_stride;
            if (tiles > 1 && (j + width < n || last))
                gemm_next_lines(block, next, panels, t, tiles, share, &line, &step);
            if (cols == width && !g.fused.then)
                tile[rows](&g, line, step);
            else
                gemm_tile_beside(tile[rows], &g, line, step, rows, width, cols);
            gemm_move(&g, rows * g.a_row_stride, rows * g.ldc);
        }
    }
}
