/* The inner copies, of blocks of rows x cols elements. */

/* Strides in bytes. */
struct copy_steps {
    int64_t size; /* of an element: 1, 2, 4 or 8 */
    int64_t src_row, src_col, dst_row, dst_col;
};

typedef void copy_block(uint8_t *dst, const uint8_t *src, const struct copy_steps *steps,
                        int64_t rows, int64_t cols);

/* At most so many rows are interleaved or separated in one loop. */
enum { COPY_FEW = 4 };

/* Rows contiguous on both sides. */
static void block_rows(uint8_t *dst, const uint8_t *src, const struct copy_steps *steps,
                       int64_t rows, int64_t cols) {
    const int64_t bytes = cols * steps->size;
    for (int64_t r = 0; r < rows; r++)
        bytes_copy(dst + r * steps->dst_row, src + r * steps->src_row, bytes);
}

#define BITS 8
#include "copy/element.inl"
#define BITS 16
#include "copy/element.inl"
#define BITS 32
#include "copy/element.inl"
#define BITS 64
#include "copy/element.inl"

/* By log2 of the element size. */
static copy_block *const strided_blocks[] = {block_strided_8, block_strided_16, block_strided_32,
                                             block_strided_64};
static copy_block *const transpose_blocks[] = {block_transpose_8, block_transpose_16,
                                               block_transpose_32, block_transpose_64};
