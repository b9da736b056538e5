/*
 * Many rows of activations from 0 to 127, or of which most are so after a number is subtracted
 * that is the same for all. gemm_i8.inl includes this file for vectors of 8 lanes.
 *
 * Products of such activations fit 16 bits even in sums of four, if the magnitudes of the four
 * weights add up to at most 258. Most weights of networks are that small: then two lines take three
 * multiplications where one takes two.
 *
 * Other activations are narrowed: x = base + y + 128 s, where y is from 0 to 127 and s is -1, 0 or
 * 1. The activations of most tensors lie near their mean, so that few have an s; y takes the place
 * of x. Sums begin with base times the sums of the weights, and with 128 times the weights where s
 * is 1, less those where it is -1. All of it is exact.
 */
enum {
    I8_JOINED = 258,
    I8_JOIN_ROWS = 4, /* of a tile */
    I8_JOIN_K = 128,  /* lines of a panel that all rows read before the next: 8 KiB of L1 */
    I8_SOME = 16,     /* rows whose mean tells that of all */
    I8_MANY = 8,      /* one of so many activations may have an s: with more, widening is as fast */
    I8_SURE = 8,      /* rows without any s that are counted, too: before that nothing is known */
    I8_ONCE = 255     /* int8 whose sum fits 16 bits */
};

/* ---- activations ---- */

/* Writes the bits of the activations that are 128 or more after base is subtracted, and of those
 * that are less than it, of 32; puts y in their place. */
V_INLINE uint32_t I8_NAME(narrow_some)(char *x, vi flip, vi base, uint32_t *below) {
    const vi bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)x), flip);
    const vi less = _mm256_sub_epi8(bytes, base);
    _mm256_storeu_si256((__m256i *)(void *)x, _mm256_and_si256(less, _mm256_set1_epi8(127)));
    *below =
        ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(bytes, base), bytes));
    return (uint32_t)_mm256_movemask_epi8(less);
}

/* Writes the positions of the bits to to[0], to[step]... Returns how many there are. */
V_INLINE int64_t I8_NAME(list_bits)(uint16_t *to, int64_t step, uint32_t bits, int64_t first) {
    int64_t n = 0;
    for (; bits; bits &= bits - 1)
        to[n++ * step] = (uint16_t)(first + __builtin_ctz(bits));
    return n;
}

/* Returns the base: y is around the middle, if the mean of some rows is that far from the least
 * number. */
static int32_t I8_NAME(base_of)(const i8_block *g, const char *rows, int64_t m) {
    const int64_t k = g->groups * I8_GROUP, some = i64_min(m, I8_SOME);
    int64_t sum = 0;
    for (int64_t r = 0; r < some; r++) {
        const uint8_t *const row = (const uint8_t *)rows + r * g->a_row_bytes;
        for (int64_t i = 0; i < k; i++)
            sum += row[i] ^ (g->is_signed ? 128 : 0);
    }
    return (int32_t)i64_min(i64_max(0, sum / (some * k) - 64), 128);
}

static bool I8_NAME(narrow)(i8_block *g, char *rows, int64_t m, char *spare) {
    const int64_t k = g->groups * I8_GROUP, list = i8_rest_items(g->groups);
    const int32_t base = I8_NAME(base_of)(g, rows, m);
    const vi flip = _mm256_set1_epi8(g->is_signed ? -128 : 0);
    const vi bases = _mm256_set1_epi8((char)base);
    uint16_t *rest = (uint16_t *)(void *)(spare + g->groups * I8_LINE);
    g->base = g->is_signed ? base - 128 : base;
    g->by_k = (int8_t *)spare;
    g->rests = rest;
    int64_t found = 0;
    for (int64_t r = 0; r < m; r++, rest += list) {
        int64_t up = 0, down = 0;
        for (int64_t i = 0; i < k; i += 32) {
            uint32_t below, out;
            out = I8_NAME(narrow_some)(rows + r * g->a_row_bytes + i, flip, bases, &below);
            if (k - i < 32)
                out &= (1u << (k - i)) - 1;
            if (out == 0)
                continue;
            if (up + down + __builtin_popcount(out) > g->groups)
                return false;
            up += I8_NAME(list_bits)(rest + 2 + up, 1, out & ~below, i);
            down += I8_NAME(list_bits)(rest + list - 1 - down, -1, out & below, i);
        }
        rest[0] = (uint16_t)up;
        rest[1] = (uint16_t)down;
        found += up + down;
        if (found * I8_MANY > (r + I8_SURE) * k)
            return false;
    }
    return true;
}

/* ---- weights ---- */

/* Lists the pairs of some lines of a panel: those that can be multiplied at once from the front,
 * the others from the end. Returns how many the former are. */
static int64_t I8_NAME(list_joins)(const int8_t *b, int64_t lines, uint16_t *pairs) {
    int64_t joined = 0, others = lines / 2;
    for (int64_t pair = 0; pair < lines / 2; pair++, b += 2 * I8_LINE) {
        vi over = vi_set1(0);
        I8_UNROLL
        for (int part = 0; part < I8_PARTS; part++) {
            const vi ones = _mm256_set1_epi8(1);
            const vi first = _mm256_abs_epi8(I8_LOAD(b, part));
            const vi second = _mm256_abs_epi8(I8_LOAD(b + I8_LINE, part));
            const vi sums = _mm256_add_epi16(_mm256_maddubs_epi16(first, ones),
                                             _mm256_maddubs_epi16(second, ones));
            over = vi_or(over, _mm256_cmpgt_epi16(sums, _mm256_set1_epi16(I8_JOINED)));
        }
        const int64_t joins = _mm256_testz_si256(over, over);
        pairs[joins ? joined : others - 1] = (uint16_t)pair;
        joined += joins;
        others -= 1 - joins;
    }
    return joined;
}

/* Writes lines [16 columns][4 k] as [4 k][16 columns]. */
static void I8_NAME(put_by_k)(int8_t *to, const int8_t *b, int64_t groups) {
    const vi bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (const int8_t *end = b + groups * I8_LINE; b < end; b += I8_LINE, to += I8_LINE) {
        const vi first = _mm256_shuffle_epi8(vi_load_parts(b, I8_LINE / 2), bytes);
        const vi second = _mm256_shuffle_epi8(vi_load_parts(b + I8_LINE / 4, I8_LINE / 2), bytes);
        const vi low = _mm256_unpacklo_epi32(first, second);
        const vi high = _mm256_unpackhi_epi32(first, second);
        vi_store((int32_t *)(void *)to, _mm256_permute4x64_epi64(low, 0xd8));
        vi_store((int32_t *)(void *)(to + I8_LINE / 2), _mm256_permute4x64_epi64(high, 0xd8));
    }
}

/* ---- sums ---- */

/* Adds 128 times the weights of n k to the sums of a row, or subtracts them. */
V_INLINE void I8_NAME(add_rest)(vi sums[2], const int8_t *by_k, const uint16_t *at, int64_t n,
                                const bool subtracts) {
    for (int64_t now; n > 0; n -= now, at += now) {
        now = i64_min(n, I8_ONCE);
        vi sum = vi_set1(0);
        for (int64_t i = 0; i < now; i++)
            sum = vi_add_16(sum, vi_widen_i8(by_k + at[i] * GEMM_NR));
        const vi low = vi_shl(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sum)), 7);
        const vi high = vi_shl(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(sum, 1)), 7);
        sums[0] = subtracts ? vi_sub(sums[0], low) : vi_add(sums[0], low);
        sums[1] = subtracts ? vi_sub(sums[1], high) : vi_add(sums[1], high);
    }
}

/* Stores what the sums of narrowed rows and a panel begin with. */
static void I8_NAME(begin)(const i8_block *g, int64_t m) {
    const int32_t *const sums = (const int32_t *)(const void *)g->b;
    const int64_t list = i8_rest_items(g->groups);
    const uint16_t *rest = g->rests;
    vi bases[2];
    for (int v = 0; v < 2; v++)
        bases[v] = _mm256_mullo_epi32(vi_load(sums + v * V_LEN), vi_set1(g->base));
    for (int64_t r = 0; r < m; r++, rest += list) {
        vi row[2] = {bases[0], bases[1]};
        I8_NAME(add_rest)(row, g->by_k, rest + 2, rest[0], false);
        I8_NAME(add_rest)(row, g->by_k, rest + list - rest[1], rest[1], true);
        vi_store(g->c + r * g->ldc, row[0]);
        vi_store(g->c + r * g->ldc + V_LEN, row[1]);
    }
}

/* Some lines of a panel, and the rows that are multiplied by them. */
typedef struct I8_NAME(join) {
    const char *a; /* activations of the first line */
    int64_t a_row_bytes;
    const int8_t *b; /* the first line */
    int64_t lines;
    uint16_t pairs[I8_JOIN_K / 2]; /* as of list_joins */
    int64_t joined;
    int32_t *c;
    int64_t ldc;
} I8_NAME(join);

/* Adds the products of one line to sums [rows][parts]. a: the activations of the line. */
I8_INLINE void I8_NAME(add_line)(vi (*sum)[I8_PARTS], const char *a, int64_t row, const int8_t *b,
                                 const int rows) {
    vi weights[I8_PARTS];
    I8_UNROLL
    for (int v = 0; v < I8_PARTS; v++)
        weights[v] = I8_LOAD(b, v);
    I8_UNROLL
    for (int i = 0; i < rows; i++) {
        I8_A x;
        memcpy(&x, a + i * row, sizeof x);
        const vi spread = I8_SPREAD(x);
        I8_UNROLL
        for (int v = 0; v < I8_PARTS; v++)
            sum[i][v] = I8_DOT(sum[i][v], spread, weights[v]);
    }
}

/* Computes the sums of some rows. adds: to those that are in c. */
I8_INLINE void I8_NAME(join_tile)(const I8_NAME(join) * g, const int rows, const bool adds) {
    enum { STEP = sizeof(I8_A) };
    vi sum[I8_JOIN_ROWS][I8_PARTS];
    const int64_t row = g->a_row_bytes;
#define I8_EACH(expr)                                                                              \
    I8_UNROLL for (int i = 0; i < rows; i++) I8_UNROLL for (int v = 0; v < I8_PARTS; v++) expr
    I8_EACH(sum[i][v] = adds ? vi_load(g->c + i * g->ldc + v * V_LEN) : vi_set1(0));
    int64_t p = 0;
    for (; p < g->joined; p++) {
        const char *const a = g->a + 2 * STEP * (int64_t)g->pairs[p];
        const int8_t *const b = g->b + 2 * I8_LINE * (int64_t)g->pairs[p];
        vi weights[2][I8_PARTS];
        I8_UNROLL
        for (int v = 0; v < 2 * I8_PARTS; v++)
            weights[v / I8_PARTS][v % I8_PARTS] = I8_LOAD(b + v / I8_PARTS * I8_LINE, v % I8_PARTS);
        I8_UNROLL
        for (int i = 0; i < rows; i++)
            i8_dots_u7(sum[i], a + i * row, weights);
    }
    for (; p < g->lines / 2; p++) {
        const char *const a = g->a + 2 * STEP * (int64_t)g->pairs[p];
        const int8_t *const b = g->b + 2 * I8_LINE * (int64_t)g->pairs[p];
        I8_NAME(add_line)(sum, a, row, b, rows);
        I8_NAME(add_line)(sum, a + STEP, row, b + I8_LINE, rows);
    }
    if (g->lines % 2)
        I8_NAME(add_line)(sum, g->a + STEP * (g->lines - 1), row, g->b + I8_LINE * (g->lines - 1),
                          rows);
    I8_EACH(vi_store(g->c + i * g->ldc + v * V_LEN, sum[i][v]));
#undef I8_EACH
}

#define I8_DEFINE_JOIN(rows, ...)                                                                  \
    static void I8_NAME(join_##rows)(const I8_NAME(join) * g) {                                    \
        I8_NAME(join_tile)(g, rows, false);                                                        \
    }                                                                                              \
    static void I8_NAME(join_more_##rows)(const I8_NAME(join) * g) {                               \
        I8_NAME(join_tile)(g, rows, true);                                                         \
    }
GEMM_ROWS_3(I8_DEFINE_JOIN, )
I8_DEFINE_JOIN(4, )
#undef I8_DEFINE_JOIN
#define I8_PLACE_JOIN(rows, ...) [rows] = {I8_NAME(join_##rows), I8_NAME(join_more_##rows)},
static void (*const I8_NAME(joins)[][2])(const I8_NAME(join) * g) = {GEMM_ROWS_3(I8_PLACE_JOIN, )
                                                                         I8_PLACE_JOIN(4, )};
#undef I8_PLACE_JOIN

/* Computes the sums of m rows and of some lines of a panel, from `first` on. */
static void I8_NAME(join_lines)(const i8_block *block, int64_t m, int64_t first, int64_t lines,
                                bool adds) {
    const int64_t tiles = i64_ceil_div(m, I8_JOIN_ROWS);
    I8_NAME(join)
    g = {.a = block->a + first * (int64_t)sizeof(I8_A),
         .a_row_bytes = block->a_row_bytes,
         .b = block->b + (1 + first) * I8_LINE,
         .lines = lines,
         .c = block->c,
         .ldc = block->ldc};
    g.joined = I8_NAME(list_joins)(g.b, lines, g.pairs);
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t rows = (m + t) / tiles;
        I8_NAME(joins)[rows][adds](&g);
        g.a += rows * g.a_row_bytes;
        g.c += rows * g.ldc;
    }
}

static void I8_NAME(join_block)(const i8_block *block, int64_t m, int64_t panels) {
    for (int64_t panel = 0; panel < panels; panel++) {
        i8_block g = *block;
        g.b += panel * i8_panel_bytes(g.groups);
        g.c += panel * GEMM_NR;
        if (g.rests) {
            I8_NAME(put_by_k)(g.by_k, g.b + I8_LINE, g.groups);
            I8_NAME(begin)(&g, m);
        }
        int64_t first = 0;
        do { /* once where there is nothing to add up */
            const int64_t lines = i64_min(I8_JOIN_K, g.groups - first);
            I8_NAME(join_lines)(&g, m, first, lines, g.rests || first > 0);
            first += lines;
        } while (first < g.groups);
    }
}
