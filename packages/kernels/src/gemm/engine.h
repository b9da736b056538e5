/*
 * The engine of matrix products, float32: blocks C[m][n] (+)= alpha * A[m][k] * B[k][n].
 *
 * B is in panels of 16 columns, [ceil(n/16)][k][16], zero beyond n: one cache line per k, and the
 * same bytes on every level. A block is computed in tiles of some rows and some panels, whose sums
 * are in registers. Every tile adds the products of an element in the order of k, so that an
 * element's bits do not depend on m, n or the tiles around it.
 *
 * It is compiled once per level, in gemm.c; convolutions, attention and recurrent layers call it
 * through a table. gemm_f32.inl has the tiles and dot_f32.inl the dot products.
 */
#ifndef TAPER_GEMM_ENGINE_H
#define TAPER_GEMM_ENGINE_H

#include "common/tensor.h"
#include "isa/isa.h"
#include "map/fused.h"
#include "simd/simd.h"

enum {
    GEMM_NR = 16,              /* columns in a panel; the file format fixes this */
    GEMM_NV = GEMM_NR / V_LEN, /* vectors in a panel */
    /* Widths of tiles are multiples of these columns. */
    GEMM_COLS = V_LEN < GEMM_NR / 2 ? GEMM_NR : GEMM_NR / 2,
};

/* Costs of a product apart from its multiply-adds, in multiply-adds; work is split into tasks by
 * them. */
enum {
    GEMM_SUM_COST = 8,      /* an element of C: storing it, and starting the next sum */
    GEMM_EPILOGUE_COST = 6, /* the addition of a float32: MICROOP_ADDITION */
    GEMM_LINE_COST = 16,    /* an element of B: loading it from L3 */
};

/*
 * The tiles of a level: GEMM_MR rows of GEMM_PANELS panels where there is enough of both. For few
 * rows a tile has GEMM_WIDE_PANELS, which gives enough independent sums to cover the latency of an
 * FMA; tiles at the right edge have fewer. GEMM_TILES(X) has X(width, MOST) for each width of a
 * tile in columns: GEMM_ROWS_MOST of these fill the registers with sums, a line of B and an element
 * of A; there is a tile for every smaller number of rows too.
 *
 * Of the shapes that fill the registers, the best has the fewest instructions per FMA, not the
 * fewest bytes: where two threads share a core, each has half of its decoder but seldom waits for
 * L2. Per k, a tile of 9 x 3 vectors takes 27 FMAs and 12 loads, one of 14 x 2 takes 28 and 16. In
 * tiles of up to one and a half vectors the FMAs themselves load the element of A: a tile of 14 x 1
 * takes 14 FMAs and 1 load, and one of 14 x 1.5 takes 21 cycles on Zen 4 in place of 23.
 *
 * With vectors of 8 or 16 lanes there are tiles that leave out the second half of a last panel
 * without columns there: groups of 24 channels would else cost as much as 32. Of 16 lanes they
 * compute the lower 8, which takes half the time on CPUs whose units have 256 bits.
 */
#define GEMM_ROWS_1(X, ...) X(1, __VA_ARGS__)
#define GEMM_ROWS_2(X, ...) GEMM_ROWS_1(X, __VA_ARGS__) X(2, __VA_ARGS__)
#define GEMM_ROWS_3(X, ...) GEMM_ROWS_2(X, __VA_ARGS__) X(3, __VA_ARGS__)
#define GEMM_ROWS_4(X, ...) GEMM_ROWS_3(X, __VA_ARGS__) X(4, __VA_ARGS__)
#define GEMM_ROWS_5(X, ...) GEMM_ROWS_4(X, __VA_ARGS__) X(5, __VA_ARGS__)
#define GEMM_ROWS_6(X, ...) GEMM_ROWS_5(X, __VA_ARGS__) X(6, __VA_ARGS__)
#define GEMM_ROWS_9(X, ...)                                                                        \
    GEMM_ROWS_6(X, __VA_ARGS__)                                                                    \
    X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__)
#define GEMM_ROWS_14(X, ...)                                                                       \
    GEMM_ROWS_9(X, __VA_ARGS__)                                                                    \
    X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__) X(13, __VA_ARGS__) X(14, __VA_ARGS__)
#if V_LEN == 16 /* 32 registers */
enum { GEMM_MR = 9, GEMM_PANELS = 3, GEMM_WIDE_MR = 6, GEMM_WIDE_PANELS = 4, GEMM_MAX_MR = 14 };
#define GEMM_TILES(X) X(8, 14) X(16, 14) X(24, 14) X(32, 14) X(40, 9) X(48, 9) X(56, 6) X(64, 6)
/* Those of pairs (pairs_bf16.h), whose panels are whole. */
#define GEMM_PAIRS_TILES(X) X(16, 9) X(32, 9) X(48, 9) X(64, 6)
#elif V_LEN == 8 /* 16 registers */
enum { GEMM_MR = 6, GEMM_PANELS = 1, GEMM_WIDE_MR = 2, GEMM_WIDE_PANELS = 2, GEMM_MAX_MR = 6 };
#define GEMM_TILES(X) X(8, 6) X(16, 6) X(24, 4) X(32, 2)
#elif V_REGISTERS == 32 /* 4 lanes: 5 x 4 sums, 4 of B, 5 of A */
enum { GEMM_MR = 5, GEMM_PANELS = 1, GEMM_WIDE_MR = 1, GEMM_WIDE_PANELS = 2, GEMM_MAX_MR = 5 };
#define GEMM_TILES(X) X(16, 5) X(32, 1)
#else /* 4 lanes, 16 registers: 3 x 4 sums, 3 of A, 1 of B */
enum { GEMM_MR = 3, GEMM_PANELS = 1, GEMM_WIDE_MR = 1, GEMM_WIDE_PANELS = 2, GEMM_MAX_MR = 3 };
#define GEMM_TILES(X) X(16, 3) X(32, 1)
#endif

typedef enum gemm_b_form {
    GEMM_B_PANELS, /* packed: [panels][k][16] */
    GEMM_B_ROWS,   /* rows contiguous: read in place, except a last panel that is not full */
    GEMM_B_ANY     /* the panels of a tile are packed just before the tile */
} gemm_b_form;

/* The distance from the end of one run of k to the start of the next. */
typedef struct gemm_jump {
    int64_t a; /* in elements */
    int64_t b; /* in lines of k */
} gemm_jump;

/* What a block of levels begins with, beside a scale for each column (element.h). */
typedef enum gemm_shift { GEMM_SYMMETRIC, GEMM_ZEROS, GEMM_OFFSETS } gemm_shift;
/* What each of some blocks has for each column, if these blocks have their scales and offsets in
 * common: factors of them. U6 has 16 lowest 4 bits and then 16 highest 2 bits. */
typedef enum gemm_inner {
    GEMM_INNER_NONE,
    GEMM_INNER_U6,
    GEMM_INNER_I8,
    GEMM_INNER_E4M3
} gemm_inner;
typedef struct gemm_head {
    int32_t scales; /* taper_dtype; uint8 for e8m0 */
    gemm_shift shift;
    gemm_inner inner;
    float middle;         /* the level that stands for 0 where there are no zero points */
    int64_t floats;       /* its size */
    int64_t inner_floats; /* of the factors of a block */
    int64_t blocks;       /* that it is for, one behind the other */
    int64_t rows, stride; /* of k, and in floats, from one head to the next; 0: none */
} gemm_head;

/*
 * Operands of a block, and of a tile in it. If the last fields are zero, A and C are plain
 * matrices. In a convolution they are not: k is split into runs, each contiguous in A, and the rows
 * belong to image rows, each with evenly spaced rows of A.
 */
typedef struct gemm_block {
    const float *a; /* A[i][k] at a[i * a_row_stride + k * a_k_stride] */
    int64_t a_row_stride;
    int64_t a_k_stride;
    const float *b; /* B[k][16p + j] at b[p * b_panel_stride + k * b_k_stride + j * b_col_stride] */
    int64_t b_panel_stride;
    int64_t b_k_stride;
    int64_t b_col_stride; /* 1 except for GEMM_B_ANY */
    float *packed;        /* scratch [GEMM_WIDE_PANELS][k][16], except for GEMM_B_PANELS */
    int64_t k;            /* in a run */
    float *c;             /* C[i][j] at c[i * ldc + j] */
    int64_t ldc;
    float alpha;
    gemm_b_form b_form;
    bool accumulate;         /* C += instead of C = */
    bool pairs;              /* A and B are bfloat16, and each k is two of them (pairs_bf16.inl) */
    tile_fused fused;        /* of C's first element */
    int64_t jumps;           /* further runs; GEMM_B_PANELS only */
    const gemm_jump *jump;   /* [jumps]; NULL where runs are blocks of levels (element.h) */
    gemm_head head;          /* of these */
    const float *b_next;     /* the panels that are read next; NULL: those that follow in memory */
    int64_t more_image_rows; /* further image rows, of m rows of A each */
    int64_t a_image_row_stride;
    int64_t c_image_row_stride;
} gemm_block;

/*
 * C[m][n] = alpha * A[m][k] * B[k][n] by dot products, where rows of A and columns of B lie
 * contiguous along k. Each element is one vector of partial sums, added up in a fixed order.
 */
typedef struct dot_block {
    const float *a; /* A[i][k] at a[i * a_row_stride + k] */
    int64_t a_row_stride;
    const void *b; /* B[k][j] at b[j * b_col_stride + k] */
    int64_t b_col_stride;
    int64_t k;
    float *c; /* C[i][j] at c[i * ldc + j] */
    int64_t ldc;
    float alpha;
} dot_block;

typedef struct gemm_table {
    /* Computes the block's m rows (of each image row) and n columns; m, n, k >= 0. */
    void (*block)(const gemm_block *block, int64_t m, int64_t n);
    /* to[r * to_stride + c] = from[r * row_stride + c * col_stride]. */
    void (*copy)(float *to, int64_t to_stride, const float *from, int64_t row_stride,
                 int64_t col_stride, int64_t rows, int64_t cols);
    /* B[kk][j] at b[kk * k_stride + j * n_stride] -> packed [ceil(n/16)][k][16], zero beyond n. */
    void (*pack_b)(float *packed, const float *b, int64_t k_stride, int64_t n_stride, int64_t k,
                   int64_t n);
} gemm_table;

extern const gemm_table TAPER_ISA_SYM(taper_gemm_engine);
#define GEMM TAPER_ISA_SYM(taper_gemm_engine)

/*
 * C[m][n] = alpha * A * B, or += with accumulate; m, n, k >= 0.
 *   a         A[i][k] at a[i * a_row_stride + k * a_k_stride]
 *   packed_b  [ceil(n/16)][k][16]
 *   c         C[i][j] at c[i * ldc + j]
 */
V_INLINE void gemm_f32_block(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row_stride,
                             int64_t a_k_stride, const float *packed_b, float alpha, float *c,
                             int64_t ldc, bool accumulate) {
    const gemm_block block = {.a = a,
                              .a_row_stride = a_row_stride,
                              .a_k_stride = a_k_stride,
                              .b = packed_b,
                              .b_panel_stride = k * GEMM_NR,
                              .b_k_stride = GEMM_NR,
                              .b_col_stride = 1,
                              .k = k,
                              .c = c,
                              .ldc = ldc,
                              .alpha = alpha,
                              .accumulate = accumulate};
    GEMM.block(&block, m, n);
}

#endif /* TAPER_GEMM_ENGINE_H */
