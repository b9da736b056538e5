/*
 * Blocks of a product whose A is rounded to int8 and whose B has levels of 4 or 8 bits in blocks
 * (element.h). A group is up to 32 consecutive k of a row of A; it has one scale, and so has each
 * column of B for these k. The products of a group are added up as integers, exactly, and the sums
 * times both scales as floats, in the order of k:
 *
 *     sum = fma(levels of A * (levels of B - zero), scale of A * scale of B, sum)
 *
 * So an element's bits depend neither on m, n or the tiles around it, nor on the level but for
 * levels without a fused v_fma. rounded_tiles.inl has the tiles.
 */

enum {
    ROUNDED_GROUP = 32,               /* the most k of a group: sums of u4 times int8 fit 16 bits */
    ROUNDED_HEAD = 2 * sizeof(float), /* bytes of a group of A before its levels */
    ROUNDED_STEP = 8,                 /* groups are multiples of it: the k of a line of u4 */
    /* Bytes from the line that is read to the one that is prefetched: of one row, and of more,
     * which read B more slowly and have more of A in L1. */
    ROUNDED_AHEAD = 4096,
    ROUNDED_AHEAD_ROWS = 2048,
    ROUNDED_PAD = TAPER_ALIGNMENT, /* bytes after a row of A: of vectors that are not full */
    ROUNDED_COLS = 256, /* columns for which A is rounded at least, if there are so many */
};
/* A row of A is [k / group] groups, each of a scale and the sum of its levels, both float, and the
 * levels. */
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
    const int64_t bytes = k / group * (ROUNDED_HEAD + group) + ROUNDED_PAD;
    return i64_ceil_div(bytes, TAPER_ALIGNMENT) * TAPER_ALIGNMENT;
}

/*
 * Rounds a row of A: each number to the nearest multiple of m / 127, where m is the largest
 * magnitude of its group. A group of numbers below 2^-100 becomes 0. One with an infinity or NaN
 * gets the scale NaN, and so do the sums.
 */
static void rounded_put(char *to, const float *a, int64_t stride, int64_t k, int64_t group) {
    float copy[ROUNDED_GROUP];
    for (int64_t g = 0; g < k / group; g++, to += ROUNDED_HEAD + group, a += group * stride) {
        uint8_t *const levels = (uint8_t *)to + ROUNDED_HEAD;
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
        const float head[] = {nan != nan ? nan
                              : is_zero  ? 0
                                         : largest / 127,
                              v_sum(v_from_int(sum))};
        memcpy(to, head, sizeof head);
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
/* int8 as uint8 that are 128 more. */
V_INLINE vi rounded_shift(vi a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }

/* sums + the products of 4 unsigned weights of each column and the 4 int8 at `four`. In assembly,
 * because compilers broadcast the four in an instruction of its own. */
#ifdef TAPER_EMULATED
V_INLINE vi rounded_dot(vi sums, vi weights, const char *four) {
    int32_t x;
    memcpy(&x, four, sizeof x);
    return _mm512_dpbusd_epi32(sums, weights, vi_set1(x));
}
#else
V_INLINE vi rounded_dot(vi sums, vi weights, const char *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sums)
            : "v"(weights), "m"(*(const int32_t *)(const void *)four));
    return sums;
}
#endif
#endif

/* Returns whether there are tiles for a B beside an A that is rounded in such groups. */
static bool rounded_serves(const gemm_head *head, gemm_element of, int64_t group) {
    return (of == GEMM_LEVEL_U4 || of == GEMM_LEVEL_I8) && head->inner == GEMM_INNER_NONE &&
           group > 0 && group <= ROUNDED_GROUP && group % ROUNDED_STEP == 0 &&
           head->rows % group == 0;
}

typedef void (*rounded_fn)(const rounded_block *g);

/* How blocks of m rows and n columns are computed; m, n >= 0. */
typedef struct rounded_engine {
    void (*run)(const rounded_block *block, int64_t m, int64_t n, gemm_element of);
} rounded_engine;
