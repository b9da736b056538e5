/*
 * The 2-D copies that know the element size. Included once per size, with BITS defined: 8, 16, 32
 * or 64.
 *
 * Elements move through memcpy of a constant size: plain loads and stores, at any alignment.
 */
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define SIZED(name) PASTE(name, BITS)

/* Always inlined, so that constant steps give vector code. */
V_INLINE void SIZED(strided_row)(uint8_t *restrict dst, int64_t dst_col,
                                 const uint8_t *restrict src, int64_t src_col, int64_t cols) {
    for (int64_t c = 0; c < cols; c++)
        memcpy(dst + c * dst_col, src + c * src_col, BITS / 8);
}

/* Copies 2, 3 or 4 rows whose elements become adjacent, such as the pixels of several planes. rows
 * is constant where this is inlined. */
V_INLINE void SIZED(interleave)(uint8_t *restrict dst, const uint8_t *restrict src, int64_t src_row,
                                int64_t cols, const int rows) {
    enum { SIZE = BITS / 8 };
    const uint8_t *const a = src, *const b = a + src_row;
    const uint8_t *const c = a + (rows > 2 ? 2 * src_row : 0);
    const uint8_t *const d = a + (rows > 3 ? 3 * src_row : 0);
    for (int64_t i = 0; i < cols; i++) {
        memcpy(dst + i * rows * SIZE, a + i * SIZE, SIZE);
        memcpy(dst + (i * rows + 1) * SIZE, b + i * SIZE, SIZE);
        if (rows > 2)
            memcpy(dst + (i * rows + 2) * SIZE, c + i * SIZE, SIZE);
        if (rows > 3)
            memcpy(dst + (i * rows + 3) * SIZE, d + i * SIZE, SIZE);
    }
}

/* The reverse: elements that are adjacent become 2, 3 or 4 rows. */
V_INLINE void SIZED(separate)(uint8_t *dst, int64_t dst_row, const uint8_t *restrict src,
                              int64_t cols, const int rows) {
    enum { SIZE = BITS / 8 };
    uint8_t *restrict const a = dst, *restrict const b = dst + dst_row;
    uint8_t *restrict const c = dst + (rows > 2 ? 2 * dst_row : 0);
    uint8_t *restrict const d = dst + (rows > 3 ? 3 * dst_row : 0);
    for (int64_t i = 0; i < cols; i++) {
        memcpy(a + i * SIZE, src + i * rows * SIZE, SIZE);
        memcpy(b + i * SIZE, src + (i * rows + 1) * SIZE, SIZE);
        if (rows > 2)
            memcpy(c + i * SIZE, src + (i * rows + 2) * SIZE, SIZE);
        if (rows > 3)
            memcpy(d + i * SIZE, src + (i * rows + 3) * SIZE, SIZE);
    }
}

static void SIZED(block_strided)(uint8_t *dst, const uint8_t *src, const struct copy_steps *steps,
                                 int64_t rows, int64_t cols) {
    enum { SIZE = BITS / 8 };
    const bool few = rows >= 2 && rows <= COPY_FEW;
    if (few && steps->dst_row == SIZE && steps->src_col == SIZE && steps->dst_col == rows * SIZE) {
        if (rows == 2)
            SIZED(interleave)(dst, src, steps->src_row, cols, 2);
        else if (rows == 3)
            SIZED(interleave)(dst, src, steps->src_row, cols, 3);
        else
            SIZED(interleave)(dst, src, steps->src_row, cols, 4);
        return;
    }
    if (few && steps->src_row == SIZE && steps->dst_col == SIZE && steps->src_col == rows * SIZE) {
        if (rows == 2)
            SIZED(separate)(dst, steps->dst_row, src, cols, 2);
        else if (rows == 3)
            SIZED(separate)(dst, steps->dst_row, src, cols, 3);
        else
            SIZED(separate)(dst, steps->dst_row, src, cols, 4);
        return;
    }
    for (int64_t r = 0; r < rows; r++, dst += steps->dst_row, src += steps->src_row) {
        if (steps->dst_col != SIZE)
            SIZED(strided_row)(dst, steps->dst_col, src, steps->src_col, cols);
        else if (steps->src_col == 0) /* broadcast */
            SIZED(strided_row)(dst, SIZE, src, 0, cols);
        else if (steps->src_col == -SIZE) /* flipped */
            SIZED(strided_row)(dst, SIZE, src, -SIZE, cols);
        else if (steps->src_col ==
                 2 * SIZE) /* every other element, as rotary embeddings read them */
            SIZED(strided_row)(dst, SIZE, src, 2 * SIZE, cols);
        else
            SIZED(strided_row)(dst, SIZE, src, steps->src_col, cols);
    }
}

/*
 * A tile: N rows, N columns in each 16-byte part of a vector. In the source a tile's row is N
 * pieces of 16 bytes down a column; log2(N) rounds of interleaving vector i with vector i + N/2
 * transpose each part. A narrow tile stores only the first part.
 */
V_INLINE void SIZED(transpose_tile)(uint8_t *dst, int64_t dst_row, const uint8_t *src,
                                    int64_t src_col, const bool wide) {
    enum { N = 128 / BITS };
    vi a[N], b[N];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
        a[i] = vi_load_parts(src + i * src_col, wide ? N * src_col : 0);
#pragma GCC unroll 16
    for (int round = 1; round < N; round *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < N / 2; i++) {
            b[2 * i] = SIZED(vi_zip_low)(a[i], a[i + N / 2]);
            b[2 * i + 1] = SIZED(vi_zip_high)(a[i], a[i + N / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) /* not memcpy: it would go through memory */
            a[i] = b[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
        if (wide)
            vi_store((void *)(dst + i * dst_row), a[i]);
        else
            memcpy(dst + i * dst_row, &a[i], 16);
}

/* Copies a constant number of rows of all columns. A tile at the edge is shifted back over the one
 * before it. */
V_INLINE void SIZED(transpose_strip)(uint8_t *dst, const uint8_t *src,
                                     const struct copy_steps *steps, int64_t cols,
                                     const int64_t rows, const bool wide) {
    enum { SIZE = BITS / 8, N = 128 / BITS };
    const int64_t src_col = steps->src_col, dst_row = steps->dst_row;
    const int64_t tile_cols = wide ? V_LEN * 4 / SIZE : N;
    for (int64_t c = 0; c < cols; c += tile_cols) {
        const int64_t col = i64_min(c, cols - tile_cols);
        for (int64_t r = 0; r < rows; r += N)
            SIZED(transpose_tile)(dst + r * dst_row + col * SIZE, dst_row,
                                  src + r * SIZE + col * src_col, src_col, wide);
    }
}

/* Reads strips of the source that are one cache line wide once, line by line, and appends to as
 * many rows of the destination. */
V_INLINE void SIZED(transpose)(uint8_t *dst, const uint8_t *src, const struct copy_steps *steps,
                               int64_t rows, int64_t cols, const bool wide) {
    enum { SIZE = BITS / 8, N = 128 / BITS, LINE = 64 / SIZE };
    int64_t r = 0;
    for (; r + LINE <= rows; r += LINE)
        SIZED(transpose_strip)(dst + r * steps->dst_row, src + r * SIZE, steps, cols, LINE, wide);
    for (; r < rows; r += N) {
        const int64_t row = i64_min(r, rows - N);
        SIZED(transpose_strip)(dst + row * steps->dst_row, src + row * SIZE, steps, cols, N, wide);
    }
}

/* Rows are adjacent in the source. */
static void SIZED(block_transpose)(uint8_t *dst, const uint8_t *src, const struct copy_steps *steps,
                                   int64_t rows, int64_t cols) {
    enum { SIZE = BITS / 8, N = 128 / BITS };
    assert(steps->src_row == SIZE && steps->dst_col == SIZE);
    if (rows < N || cols < N)
        SIZED(block_strided)(dst, src, steps, rows, cols);
    else if (cols < V_LEN * 4 / SIZE)
        SIZED(transpose)(dst, src, steps, rows, cols, false);
    else
        SIZED(transpose)(dst, src, steps, rows, cols, true);
}

#undef PASTE_
#undef PASTE
#undef SIZED
#undef BITS
