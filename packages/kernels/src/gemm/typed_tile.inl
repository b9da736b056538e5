/*
 * Tiles of sums of products in registers, of integers or of float64. A family includes this file
 * once for each dtype, with
 *     TYPED_ELEMENT          the elements' type; of integers the unsigned one, in which overflow is
 *                            defined
 *     TYPED_NAME             name -> the dtype's own
 *     TYPED_ADD(sum, x, y)   the sum and the product of two vectors
 *     TYPED_IS_WIDE(x)       not 0 where TYPED_ADD_NARROW does not take the element
 *     TYPED_ADD_NARROW       as TYPED_ADD, in less time
 * and undefines these after the files that use the tiles.
 */

#ifndef TAPER_TYPED_TILE
#define TAPER_TYPED_TILE
enum {
    TYPED_ROWS = 4,       /* of a tile */
    TYPED_VECTORS = 2,    /* of a row of a tile */
    TYPED_K = 256,        /* of the sum, in registers at once: with TYPED_COLS columns of B in L2 */
    TYPED_COLS = 128,     /* of C, at most, for which a unit of work copies A */
    TYPED_MIN_ROWS = 64,  /* of C, in units that share columns of B: each copies these again */
    TYPED_COST = 1 << 17, /* a task's least, in multiply-adds: about 20 microseconds */
};
#endif

#define TYPED_TILE TYPED_NAME(tile)
#define TYPED_COPY_B TYPED_NAME(copy_b)
#define TYPED_VECTOR TYPED_NAME(vector)
#define TYPED_LANES ((int64_t)(sizeof(TYPED_VECTOR) / sizeof(TYPED_ELEMENT)))
#define TYPED_TILE_COLS (TYPED_VECTORS * TYPED_LANES)

/* As wide as a vector of floats, at any address. */
typedef TYPED_ELEMENT TYPED_VECTOR
    __attribute__((vector_size(V_LEN * 4), aligned(sizeof(TYPED_ELEMENT)), may_alias));

/* Copies k rows of some columns of B to tiles of [k][TYPED_TILE_COLS], which begin `tile` elements
 * apart, with zeros beyond the columns. Not 0 if an element is wide. */
static uint64_t TYPED_COPY_B(TYPED_ELEMENT *to, int64_t tile, const TYPED_ELEMENT *b,
                             int64_t k_stride, int64_t col_stride, int64_t cols, int64_t k) {
    uint64_t wide = 0;
    const int64_t whole = col_stride == 1 ? cols - cols % TYPED_TILE_COLS : 0;
    for (int64_t i = 0; i < k && whole; i++) /* along the rows, which may be far from each other */
        for (int64_t col = 0; col < whole; col += TYPED_TILE_COLS) {
            const TYPED_ELEMENT *const from = b + i * k_stride + col;
            TYPED_ELEMENT *const line = to + col / TYPED_TILE_COLS * tile + i * TYPED_TILE_COLS;
            for (int64_t j = 0; j < TYPED_TILE_COLS; j++) {
                wide |= TYPED_IS_WIDE(from[j]);
                line[j] = from[j];
            }
        }
    for (int64_t col = whole; col < cols; col += TYPED_TILE_COLS) {
        TYPED_ELEMENT *const lines = to + col / TYPED_TILE_COLS * tile;
        for (int64_t j = 0; j < TYPED_TILE_COLS; j++)
            for (int64_t i = 0; i < k; i++) {
                const TYPED_ELEMENT x =
                    col + j < cols ? b[i * k_stride + (col + j) * col_stride] : 0;
                wide |= TYPED_IS_WIDE(x);
                lines[i * TYPED_TILE_COLS + j] = x;
            }
    }
    return wide;
}

/* Adds up the products of a [k][TYPED_ROWS] by b [k][TYPED_TILE_COLS], as
 * [TYPED_ROWS][TYPED_TILE_COLS]. */
V_INLINE void TYPED_TILE(TYPED_ELEMENT *sums, const TYPED_ELEMENT *a, const TYPED_ELEMENT *b,
                         int64_t k, const bool narrow) {
    TYPED_VECTOR sum[TYPED_ROWS][TYPED_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < TYPED_ROWS; i++)
#pragma GCC unroll 16
        for (int v = 0; v < TYPED_VECTORS; v++)
            sum[i][v] = (TYPED_VECTOR){0};
    for (int64_t step = 0; step < k; step++, a += TYPED_ROWS, b += TYPED_TILE_COLS) {
        TYPED_VECTOR line[TYPED_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < TYPED_VECTORS; v++)
            line[v] = *(const TYPED_VECTOR *)(b + v * TYPED_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < TYPED_ROWS; i++) {
            const TYPED_VECTOR ai = a[i] - (TYPED_VECTOR){0}; /* keeps -0 */
#pragma GCC unroll 16
            for (int v = 0; v < TYPED_VECTORS; v++)
                sum[i][v] = narrow ? TYPED_ADD_NARROW(sum[i][v], line[v], ai)
                                   : TYPED_ADD(sum[i][v], line[v], ai);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < TYPED_ROWS; i++)
#pragma GCC unroll 16
        for (int v = 0; v < TYPED_VECTORS; v++)
            *(TYPED_VECTOR *)(sums + i * TYPED_TILE_COLS + v * TYPED_LANES) = sum[i][v];
}

/* Adds a tile to `rows` x `cols` elements of C, or begins their sums with it. */
static void TYPED_NAME(put)(TYPED_ELEMENT *c, int64_t ldc, const TYPED_ELEMENT *sums, int64_t rows,
                            int64_t cols, bool begin) {
    for (int64_t i = 0; i < rows; i++, c += ldc, sums += TYPED_TILE_COLS)
        for (int64_t j = 0; j < cols; j++)
            c[j] = begin ? sums[j] : sums[j] + c[j];
}
