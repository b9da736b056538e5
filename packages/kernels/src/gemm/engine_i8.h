/*
 * The engine of products of bytes, int8 or uint8 times int8, with sums in int32: blocks
 * C[m][n] = A[m][k] * B[k][n]. Sums are exact modulo 2^32, so that every tile, split and level
 * gives the same bits.
 *
 * B is in panels of 16 columns (TAPER_DOTS): a cache line of 16 int32, the sums of the columns, and
 * then a line for each group of 4 k, [16 columns][4 k], zero beyond K and N. A dot instruction
 * multiplies such a line by 4 activations that are the same in all its lanes.
 *
 * A is put into scratch first, in rows of groups as the dot instruction of the engine wants them,
 * unless its rows are such groups: this costs a byte's copy for n products.
 *
 * There is one engine for each kind of dot instruction of a level; gemm_i8.inl has the tiles. An
 * engine may have a faster one for activations from 0 to 127, whose products with int8 can be
 * added in pairs in 16 bits. That one may narrow others to these (joined_i8.inl). Which one
 * computes some rows depends on these rows' activations alone, and no bit depends on it.
 */
#ifndef TAPER_ENGINE_I8_H
#define TAPER_ENGINE_I8_H

#include "gemm/engine.h"
#include "map/requantize.h"
#include "simd/simd.h"

enum {
    I8_GROUP = 4,                 /* k of a line */
    I8_LINE = GEMM_NR * I8_GROUP, /* bytes of a line */
    I8_ROW_PAD = TAPER_ALIGNMENT, /* bytes after a row of A, so that rows spread over L1's sets */
    I8_ROWS = 6,                  /* of a tile in registers */
    I8_JOIN_WORTH = 24,           /* rows for which it pays to look at the weights first */
    I8_JOIN_LINES = 4096,         /* of a panel of such a product, at most */
    I8_NARROW_LINES = 32,         /* of a panel, for which it pays to narrow the activations */
    I8_NARROW_WORTH = 384,        /* the same of all panels */
};

typedef struct i8_block {
    const char *a;       /* [m] rows, of `groups` groups as the engine's put() wrote them */
    int64_t a_row_bytes; /* from row to row */
    /* Where `rows` is not NULL, row i begins at rows[i], and its groups are in `runs` of as many
     * each, run_step bytes from run to run. For engines that are `direct`. */
    const char *const *rows;
    int64_t runs, run_step;
    const int8_t *b; /* [panels][1 + groups][64] */
    int64_t groups;
    int32_t *c; /* C[i][j] at c[i * ldc + j], whole panels */
    int64_t ldc;
    bool is_signed; /* A was int8 */
    /* Of narrowed rows, which narrow() fills: else `rests` is NULL. */
    int32_t base;          /* A is this much smaller than the activations */
    const uint16_t *rests; /* [m][i8_rest_items]: where it is 128 smaller still, or larger */
    int8_t *by_k;          /* scratch of a panel, [k][16] */
    /* Where it is not NULL the tiles store bytes, not C, from row and column of it on. */
    const program_requantization *to;
    int64_t row, col;
} i8_block;

typedef struct i8_engine {
    int64_t a_bytes; /* of an activation in A */
    int64_t rows;    /* of a tile: a multiple of these is best for block() */
    /* Writes n activations of A, from from[i * stride]; false if the engine takes no such ones, but
     * narrowed. */
    bool (*put)(void *to, const void *from, int64_t stride, int64_t n, bool is_signed);
    /* Returns whether rows of n bytes, `row` bytes apart, are what put() would write. */
    bool (*reads)(const void *from, int64_t row, int64_t rows, int64_t n, bool is_signed);
    /* Computes m rows and whole panels; m, panels >= 0. */
    void (*block)(const i8_block *block, int64_t m, int64_t panels);
    /* Makes m rows of A, which put() wrote, rows from 0 to 127, and fills the block; false if that
     * is not worth it: then A is put again. spare: i8_spare_bytes. May be NULL. */
    bool (*narrow)(i8_block *block, char *rows, int64_t m, char *spare);
    /* Called before and after the blocks of a task. May be NULL. */
    void (*begin)(void);
    void (*end)(void);
    bool direct;                /* A may be in several runs */
    bool requantizes;           /* the tiles can store bytes, where i8_requantizes() says so */
    const struct i8_engine *u7; /* for activations from 0 to 127, of at most a_bytes; or NULL */
} i8_engine;

/* Returns the bytes of a panel. */
V_INLINE int64_t i8_panel_bytes(int64_t groups) { return (1 + groups) * I8_LINE; }

/* Moves the block's A on by some rows. */
V_INLINE void i8_skip_rows(i8_block *block, int64_t rows) {
    block->a += rows * block->a_row_bytes;
    block->rows += block->rows ? rows : 0;
}

/* Returns the bytes from row to row of A. */
V_INLINE int64_t i8_row_bytes(const i8_engine *engine, int64_t groups) {
    const int64_t bytes = groups * I8_GROUP * engine->a_bytes;
    return i64_ceil_div(bytes, TAPER_ALIGNMENT) * TAPER_ALIGNMENT + I8_ROW_PAD;
}

/* Returns the items of the list of a row that is narrowed: how many activations are 128 larger, and
 * smaller, the k of the former from the front and of the latter from the end. */
V_INLINE int64_t i8_rest_items(int64_t groups) { return 2 + groups; }

/* Returns whether the engine may narrow m rows that n columns are multiplied by. */
V_INLINE bool i8_narrows(const i8_engine *engine, int64_t m, int64_t n, int64_t groups) {
    return engine->narrow && m >= I8_JOIN_WORTH && groups >= I8_NARROW_LINES &&
           groups <= I8_JOIN_LINES && i64_ceil_div(n, GEMM_NR) * groups >= I8_NARROW_WORTH;
}

/* Returns whether there are tiles that store bytes for all of m rows. */
V_INLINE bool i8_requantizes(const i8_engine *engine, int64_t m) {
    return engine->requantizes && m >= (I8_ROWS - 1) * i64_ceil_div(m, I8_ROWS);
}

/* Returns the bytes that narrow() needs in scratch for m rows. */
V_INLINE int64_t i8_spare_bytes(const i8_engine *engine, int64_t m, int64_t n, int64_t groups) {
    if (!engine->u7 || !i8_narrows(engine->u7, m, n, groups))
        return 0;
    const int64_t lists = m * i8_rest_items(groups) * (int64_t)sizeof(uint16_t);
    return groups * I8_LINE + i64_ceil_div(lists, TAPER_ALIGNMENT) * TAPER_ALIGNMENT;
}

/*
 * sums + the products of neighbours, of 16 bits, and of bytes of which one is from 0 to 127. In
 * assembly, as v_accumulate: compilers compute the products of a whole tile first, and then have
 * no registers for its sums.
 */
#if V_LEN == 8
V_INLINE vi i8_dot_16(vi sums, vi a, vi b) {
    vi products;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
            : "+x"(sums), "=&x"(products)
            : "x"(a), "xm"(b));
    return sums;
}
V_INLINE vi i8_dot_u7(vi sums, vi a, vi b) {
    static const int16_t ones[2 * V_LEN]
        __attribute__((aligned(32))) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    vi products;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
            : "+x"(sums), "=&x"(products)
            : "x"(a), "x"(b), "m"(ones));
    return sums;
}
/* i8_dot_u7 of two lines [line][part] and a row of sums, where the products of the lines can be
 * added in 16 bits. a: the activations of the two lines. All of it is one block of assembly,
 * because compilers load the activations of all rows first, and then have no registers for their
 * sums. */
V_INLINE void i8_dots_u7(vi sums[2], const char *a, vi b[2][2]) {
    static const int16_t ones[2 * V_LEN]
        __attribute__((aligned(32))) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int32_t *const lines = (const int32_t *)(const void *)a;
    vi first, second, products, more;
    __asm__("vpbroadcastd %6, %2\n\tvpbroadcastd %7, %3\n\t"
            "vpmaddubsw %8, %2, %4\n\tvpmaddubsw %10, %3, %5\n\tvpaddw %5, %4, %4\n\t"
            "vpmaddwd %12, %4, %4\n\tvpaddd %4, %0, %0\n\t"
            "vpmaddubsw %9, %2, %2\n\tvpmaddubsw %11, %3, %3\n\tvpaddw %3, %2, %2\n\t"
            "vpmaddwd %12, %2, %2\n\tvpaddd %2, %1, %1"
            : "+x"(sums[0]), "+x"(sums[1]), "=&x"(first), "=&x"(second), "=&x"(products),
              "=&x"(more)
            : "m"(lines[0]), "m"(lines[1]), "x"(b[0][0]), "x"(b[0][1]), "x"(b[1][0]), "x"(b[1][1]),
              "m"(ones));
}
#else
V_INLINE vi i8_dot_16(vi sums, vi a, vi b) { return vi_add(sums, vi_madd_16(a, b)); }
#define i8_dot_u7 VI_DOT_U7
#endif

/* The engine of widened bytes, which every CPU of the level can run; that of AVX-512 VNNI, and that
 * of AMX. */
extern const i8_engine TAPER_ISA_SYM(taper_i8_widened);
#define I8_WIDENED TAPER_ISA_SYM(taper_i8_widened)
#if V_LEN == 16
#define HAS_I8_VNNI
extern const i8_engine TAPER_ISA_SYM(taper_i8_vnni);
#define I8_VNNI TAPER_ISA_SYM(taper_i8_vnni)
extern const i8_engine TAPER_ISA_SYM(taper_i8_amx);
#define I8_AMX TAPER_ISA_SYM(taper_i8_amx)
/* sums + the products of 4 bytes from 0 to 255 and int8. In assembly, as i8_dot_16. */
V_INLINE vi i8_dot_u8(vi sums, vi a, vi b) {
#ifdef TAPER_EMULATED
    return _mm512_dpbusd_epi32(sums, a, b);
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "vm"(b));
    return sums;
#endif
}
#endif

#endif /* TAPER_ENGINE_I8_H */
