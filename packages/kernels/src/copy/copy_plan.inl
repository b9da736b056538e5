/*
 * Turns a strided view into a loop over blocks. Dimensions are merged; the last becomes the columns
 * of the blocks and another becomes their rows. The other dimensions, and the blocks in the two
 * directions, are the counters of an odometer.
 */

/* A copy of element (i0, i1, ...) from src_offset + sum(i[d] * src[d]) to the offset that dst gives
 * in the same way. Strides and offsets in bytes. */
struct copy_view {
    int64_t size; /* of an element */
    int64_t src_offset, dst_offset;
    int32_t rank;
    int64_t sizes[TAPER_MAX_RANK], src[TAPER_MAX_RANK], dst[TAPER_MAX_RANK];
};

/* The loop of one view. Its blocks are numbered in the order of the odometer. */
struct copy_part {
    copy_block *block;
    struct copy_steps steps;
    int64_t src_offset, dst_offset;
    int64_t rows, cols;             /* of the whole */
    int64_t block_rows, block_cols; /* of one block; the last in its direction may be smaller */
    int64_t block_bytes;
    int64_t blocks;
    int64_t first_byte; /* where this part begins among all parts of the node, end to end */
    int32_t rank;       /* of the odometer */
    int64_t sizes[TAPER_MAX_RANK], src[TAPER_MAX_RANK], dst[TAPER_MAX_RANK];
};

/* Bytes. */
enum {
    COPY_VECTOR = 16,   /* a row or column of a square that vectors transpose */
    COPY_ROWS = 4 * 64, /* of rows that are transposed together: four cache lines */
    COPY_FILLED = 64,   /* a row of one repeated element that a square writes as fast: a line */
};

/* Drops dimensions of size 1, merges adjacent dimensions that have one common stride on both sides,
 * and treats a contiguous run of 2, 4 or 8 bytes as one element. At least one dimension stays. */
static void view_simplify(struct copy_view *v) {
    int32_t n = 0;
    for (int32_t d = 0; d < v->rank; d++) {
        if (v->sizes[d] == 1)
            continue;
        const bool merge = n > 0 && v->src[n - 1] == v->src[d] * v->sizes[d] &&
                           v->dst[n - 1] == v->dst[d] * v->sizes[d];
        n -= merge;
        v->sizes[n] = merge ? v->sizes[n] * v->sizes[d] : v->sizes[d];
        v->src[n] = v->src[d];
        v->dst[n] = v->dst[d];
        n++;
    }
    if (n > 0 && v->src[n - 1] == v->size && v->dst[n - 1] == v->size) {
        const int64_t run = v->sizes[n - 1] * v->size;
        if (run == 2 || run == 4 || run == 8) {
            v->size = run;
            n--;
        }
    }
    if (n == 0) {
        v->sizes[0] = 1;
        v->src[0] = v->dst[0] = v->size;
        n = 1;
    }
    v->rank = n;
}

/* Returns the longest dimension, except the last, whose elements are adjacent in the source; -1 if
 * there is none. */
static int32_t view_unit_dim(const struct copy_view *v) {
    int32_t unit = -1;
    for (int32_t d = 0; d < v->rank - 1; d++)
        if (v->src[d] == v->size && (unit < 0 || v->sizes[d] > v->sizes[unit]))
            unit = d;
    return unit;
}

static int32_t log2_of(int64_t power_of_two) {
    int32_t n = 0;
    while (power_of_two >> n > 1)
        n++;
    return n;
}

static void part_add_dim(struct copy_part *p, int64_t size, int64_t src, int64_t dst) {
    p->sizes[p->rank] = size;
    p->src[p->rank] = src;
    p->dst[p->rank] = dst;
    p->blocks *= size;
    p->rank++;
}

/* Returns the loop over v, which has at least one element; the caller sets first_byte. */
static void part_plan(struct copy_part *p, struct copy_view *v) {
    view_simplify(v);
    const int64_t tile = COPY_VECTOR / v->size; /* fewer rows or columns fill no square */
    const int32_t last = v->rank - 1, kind = log2_of(v->size);
    const bool filled = v->src[last] == 0 && v->sizes[last] * v->size > COPY_FILLED;
    const int32_t unit = filled ? -1 : view_unit_dim(v);
    int32_t row = last - 1, col = last;
    int64_t longest_cols = TASK_BYTES / v->size;
    p->block = strided_blocks[kind];
    if (v->dst[col] == v->size && v->src[col] == v->size) {
        p->block = block_rows;
    } else if (v->dst[col] == v->size && unit >= 0 && v->sizes[unit] >= tile &&
               v->sizes[col] >= tile) {
        p->block = transpose_blocks[kind];
        row = unit;
        longest_cols /= COPY_ROWS / v->size;
    } else if (v->dst[col] == v->size && unit >= 0 && v->sizes[unit] <= COPY_FEW) {
        row = unit;
        longest_cols /= v->sizes[unit]; /* of all rows, which are neighbours in the source */
    } else if (row >= 0 && v->sizes[col] < tile && v->sizes[row] > v->sizes[col]) {
        row = last; /* the longer inner loop */
        col = last - 1;
        longest_cols /= v->sizes[row]; /* of all rows, which are neighbours */
    }
    p->rows = row >= 0 ? v->sizes[row] : 1;
    p->cols = v->sizes[col];
    p->steps = (struct copy_steps){v->size, row >= 0 ? v->src[row] : 0, v->src[col],
                                   row >= 0 ? v->dst[row] : 0, v->dst[col]};
    p->block_cols = i64_min(p->cols, longest_cols);
    p->block_rows = i64_min(p->rows, i64_max(1, TASK_BYTES / (p->block_cols * v->size)));
    p->block_bytes = p->block_rows * p->block_cols * v->size;
    p->src_offset = v->src_offset;
    p->dst_offset = v->dst_offset;

    p->rank = 0;
    p->blocks = 1;
    for (int32_t d = 0; d < v->rank; d++)
        if (d != row && d != col)
            part_add_dim(p, v->sizes[d], v->src[d], v->dst[d]);
    /* The last two counters: part_run reads them to know which blocks are at an edge. */
    part_add_dim(p, i64_ceil_div(p->rows, p->block_rows), p->block_rows * p->steps.src_row,
                 p->block_rows * p->steps.dst_row);
    part_add_dim(p, i64_ceil_div(p->cols, p->block_cols), p->block_cols * p->steps.src_col,
                 p->block_cols * p->steps.dst_col);
}

static int64_t part_end(const struct copy_part *p) {
    return p->first_byte + p->blocks * p->block_bytes;
}

/* Returns the first block that starts at or after this byte of the node. */
static int64_t part_block_at(const struct copy_part *p, int64_t byte) {
    const int64_t within = i64_max(0, byte - p->first_byte);
    return i64_min(p->blocks, i64_ceil_div(within, p->block_bytes));
}

/* Runs the part of tasks [begin, end) that belongs to p: the blocks that start in their bytes. */
static void part_run(const struct copy_part *p, uint8_t *dst, const uint8_t *src, int64_t begin,
                     int64_t end) {
    const int64_t first = part_block_at(p, begin * TASK_BYTES);
    const int64_t count = part_block_at(p, end * TASK_BYTES) - first;
    int64_t index[TAPER_MAX_RANK];
    int64_t rest = first;
    dst += p->dst_offset;
    src += p->src_offset;
    for (int32_t d = p->rank - 1; d >= 0; d--) {
        index[d] = rest % p->sizes[d];
        rest /= p->sizes[d];
        dst += index[d] * p->dst[d];
        src += index[d] * p->src[d];
    }
    const int64_t *row = &index[p->rank - 2], *col = &index[p->rank - 1];
    for (int64_t i = 0; i < count; i++) {
        p->block(dst, src, &p->steps, i64_min(p->block_rows, p->rows - *row * p->block_rows),
                 i64_min(p->block_cols, p->cols - *col * p->block_cols));
        for (int32_t d = p->rank - 1; d >= 0; d--) {
            dst += p->dst[d];
            src += p->src[d];
            if (++index[d] < p->sizes[d])
                break;
            dst -= index[d] * p->dst[d];
            src -= index[d] * p->src[d];
            index[d] = 0;
        }
    }
}
