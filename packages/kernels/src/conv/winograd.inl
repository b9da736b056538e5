/*
 * Winograd convolution, 3x3 of stride 1: F(2x2, 3x3) and F(4x4, 3x3). A tile of output pixels is
 * a bilinear form of the n x n positions of x below it, n = tile + 2, and of the weight:
 *
 *     y = At [(G w Gt) * (Bt d B)] A
 *
 * summed over channels, with n * n products for tile * tile * 9. G w Gt is the weight as the plan
 * stores it. Each of its n * n matrices [C][O] is the second operand of one matrix product, whose
 * rows are the tiles of a block.
 *
 * The matrices are those of Cook and Toom at the points 0, infinity and +-1, or +-5/8 and +-11/8:
 * all constants are exact, and pairs of points about 1 keep the rounding errors of F(4x4) at about
 * twice those of direct sums, where the usual +-1 and +-2 make it 5 times (Barabasz et al., "Error
 * analysis and improving the accuracy of Winograd convolution for DNNs", 2020, search such points).
 */

enum {
    WINOGRAD_L2 = 320 << 10,     /* floats of a block, before and after the products */
    WINOGRAD_L3 = 2 << 20,       /* and of one that goes through L3 */
    WINOGRAD_MATRIX = 128 << 10, /* floats of each of its matrices, in L2 while it is multiplied */
    WINOGRAD_RESIDENT = 256 << 10, /* floats of a weight that stays in L2 from block to block */
    WINOGRAD_LEAST = 32 << 10, /* floats of a block beside it that keep the cost of a block small */
    WINOGRAD_COLS = 144,       /* the most in a chunk */
    WINOGRAD_L3_COLS = 512,
    WINOGRAD_MIN_COLS = 64,
    WINOGRAD_PAD = GEMM_NR, /* between rows: powers of two would share few sets of L1 */
};

struct winograd_state {
    taper_program epilogue;
    int64_t batch, in, out;       /* channels of x and of the output */
    int64_t tile;                 /* pixels along a dim */
    window_dim dims[WINDOW_DIMS]; /* the first of one element */
    /* Units of work: [block of tiles][chunk of columns]. */
    int64_t tile_rows, tile_cols, tiles; /* of an image, and of all */
    int64_t block, blocks;               /* tiles in a block */
    int64_t cols, chunks;                /* columns in a chunk, whole panels */
    /* Floats from one tile to the next and from one matrix to the next. */
    int64_t a_row, a_matrix, c_row, c_matrix;
    /* Scratch, in bytes from its start: zeros, the tiles of x, the products, a row of tiles that
     * may not lie in the output before the epilogue, the epilogue's. */
    size_t a_scratch, c_scratch, sums_scratch, epilogue_scratch;
};

/* ---- prepare ---- */

/* Returns false if the tensors are not those of a float32 node with this tile. */
static bool winograd_shape_of(struct winograd_state *s, const taper_call *call, int64_t tile) {
    const struct conv_attrs *attrs = call->attrs;
    if (call->n_inputs < 2 || attrs->groups != 1 ||
        call->inputs[1].format != (tile == 2 ? TAPER_WINOGRAD_2 : TAPER_WINOGRAD_4))
        return false;
    const taper_tensor *x = &call->inputs[0], *output = call->output;
    if (!window_dims(s->dims, x, output, TAPER_FLOAT32, &attrs->kernel, &attrs->stride,
                     &attrs->padding, 0, &attrs->dilation) ||
        attrs->kernel.count != 2 || !windows_fit(s->dims, &attrs->padding))
        return false;
    for (int32_t d = WINDOW_DIMS - 2; d < WINDOW_DIMS; d++)
        if (s->dims[d].kernel != 3 || s->dims[d].stride != 1 || s->dims[d].dilation != 1)
            return false;
    s->batch = x->shape[0];
    s->in = x->shape[3];
    s->out = output->shape[3];
    s->tile = tile;
    int64_t numel = (tile + 2) * (tile + 2);
    return s->in > 0 && s->out > 0 && !__builtin_mul_overflow(numel, s->in, &numel) &&
           !__builtin_mul_overflow(numel, i64_ceil_div(s->out, GEMM_NR) * GEMM_NR, &numel) &&
           tensor_is(&call->inputs[1], TAPER_FLOAT32, numel);
}

static void winograd_split(struct winograd_state *s) {
    const int64_t n = s->tile + 2, points = n * n;
    const int64_t columns = i64_ceil_div(s->out, GEMM_NR) * GEMM_NR;
    s->tile_rows = i64_ceil_div(s->dims[1].out, s->tile);
    s->tile_cols = i64_ceil_div(s->dims[2].out, s->tile);
    s->tiles = s->batch * s->tile_rows * s->tile_cols;

    const int64_t cost = i64_times(points * s->tiles, s->in * columns);
    const int64_t units = i64_max(1, i64_min(CONV_UNITS, cost / CONV_UNIT_COST));
    int64_t most = i64_min(columns, WINOGRAD_COLS);
    const int64_t weight = i64_times(points * s->in, columns);
    const bool resident = weight <= WINOGRAD_RESIDENT;
    /* Beside a weight that stays in cache, a block of about its size is read from a nearer cache.
     */
    const int64_t floats = resident ? i64_max(WINOGRAD_LEAST, weight) : WINOGRAD_L2;
    s->block = floats / (points * (s->in + most));
    /* Where most reads from L3 would be of the weight, which each block reads again, the tiles may
     * go through L3 instead: they are written and read once. */
    if (s->block < s->tiles && s->block < s->in * columns / (2 * (s->in + columns))) {
        most = i64_min(columns, WINOGRAD_L3_COLS);
        s->block = i64_max(
            s->block, i64_min(WINOGRAD_L3 / (points * (s->in + most)), WINOGRAD_MATRIX / s->in));
    }
    s->blocks = i64_ceil_div(s->tiles, i64_max(GEMM_MR, s->block));
    /* Where the weight stays in cache, blocks have fewer tiles. Elsewhere each block reads all of
     * the weight again. */
    if (resident)
        s->blocks = i64_max(s->blocks, i64_min(units, s->tiles));
    s->block = i64_ceil_div(s->tiles, s->blocks);
    s->blocks = i64_ceil_div(s->tiles, s->block);

    const int64_t least = i64_max(WINOGRAD_MIN_COLS, columns / i64_ceil_div(units, s->blocks));
    s->cols = conv_part(columns / GEMM_NR, i64_min(most, least) / GEMM_NR) * GEMM_NR;
    s->cols =
        i64_min(columns, i64_ceil_div(s->cols, GEMM_PANELS * GEMM_NR) * GEMM_PANELS * GEMM_NR);
    s->chunks = i64_ceil_div(columns, s->cols);
}

static taper_status winograd_prepare(const taper_call *call, taper_work *work, int64_t tile) {
    const struct conv_attrs *attrs = call->attrs;
    struct winograd_state *s = call->state;
    if (!winograd_shape_of(s, call, tile))
        return TAPER_UNSUPPORTED;
    const taper_status status =
        PROGRAM.prepare(&s->epilogue, &attrs->code, &attrs->args, &attrs->scalars, call->inputs + 2,
                        call->n_inputs - 2, call->output, TAPER_FLOAT32);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){0};
        return TAPER_OK;
    }
    winograd_split(s);
    const int64_t points = (tile + 2) * (tile + 2), floats = sizeof(float);
    s->a_row = i64_ceil_div(s->in, GEMM_NR) * GEMM_NR + WINOGRAD_PAD;
    s->a_matrix = s->block * s->a_row + WINOGRAD_PAD;
    s->c_row = s->cols + WINOGRAD_PAD;
    s->c_matrix = s->block * s->c_row + WINOGRAD_PAD;
    s->a_scratch = conv_aligned(s->in * floats);
    s->c_scratch = s->a_scratch + conv_aligned(points * s->a_matrix * floats);
    s->sums_scratch = s->c_scratch + conv_aligned(points * s->c_matrix * floats);
    const int64_t pixels = i64_min(s->block, s->tile_cols) * tile * tile;
    s->epilogue_scratch =
        s->sums_scratch + (s->epilogue.over ? conv_aligned(pixels * s->cols * floats) : 0);
    work->tasks = s->blocks * s->chunks;
    work->scratch_bytes = s->epilogue_scratch + s->epilogue.scratch_bytes;
    return TAPER_OK;
}

static taper_status f32_conv_winograd_2x2_prepare(const taper_call *call, taper_work *work) {
    return winograd_prepare(call, work, 2);
}

static taper_status f32_conv_winograd_4x4_prepare(const taper_call *call, taper_work *work) {
    return winograd_prepare(call, work, 4);
}

/* ---- transforms ---- */

/* tile is a constant wherever the following are inlined. */

/* Computes d = Bt d, for elements that are a step apart. The points, 0, a, -a, b, -b, are those of
 * the format. */
V_INLINE void winograd_in(vf *d, const int step, const int tile) {
    const vf d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    if (tile == 2) {
        d[0] = v_sub(d2, d0);
        d[step] = v_add(d2, d1);
        d[2 * step] = v_sub(d2, d1);
        d[3 * step] = v_sub(d3, d1);
        return;
    }
    const float a = 0.625f, b = 1.375f;
    const vf aa = v_set1(-a * a), bb = v_set1(-b * b), product = v_set1(a * a * b * b);
    const vf sum = v_set1(-a * a - b * b), d4 = d[4 * step], d5 = d[5 * step];
    const vf even_a = v_fma(bb, d2, d4), odd_a = v_fma(bb, d1, d3);
    const vf even_b = v_fma(aa, d2, d4), odd_b = v_fma(aa, d1, d3);
    d[0] = v_fma(product, d0, v_fma(sum, d2, d4));
    d[step] = v_fma(v_set1(a), odd_a, even_a);
    d[2 * step] = v_fma(v_set1(-a), odd_a, even_a);
    d[3 * step] = v_fma(v_set1(b), odd_b, even_b);
    d[4 * step] = v_fma(v_set1(-b), odd_b, even_b);
    d[5 * step] = v_fma(product, d1, v_fma(sum, d3, d5));
}

/* Computes the first `tile` elements of m = At m, for elements that are a step apart. */
V_INLINE void winograd_out(vf *m, const int step, const int tile) {
    const vf even_a = v_add(m[step], m[2 * step]), odd_a = v_sub(m[step], m[2 * step]);
    if (tile == 2) {
        m[0] = v_add(m[0], even_a);
        m[step] = v_add(odd_a, m[3 * step]);
        return;
    }
    const float a = 0.625f, b = 1.375f;
    const vf even_b = v_add(m[3 * step], m[4 * step]), odd_b = v_sub(m[3 * step], m[4 * step]);
    const vf m5 = m[5 * step];
    m[0] = v_add(m[0], v_add(even_a, even_b));
    m[step] = v_fma(v_set1(b), odd_b, v_mul(v_set1(a), odd_a));
    m[2 * step] = v_fma(v_set1(b * b), even_b, v_mul(v_set1(a * a), even_a));
    m[3 * step] = v_fma(v_set1(b * b * b), odd_b, v_fma(v_set1(a * a * a), odd_a, m5));
}

enum { WINOGRAD_MAX = 6 }; /* n of the largest tile */

/* to[(i * n + j) * matrix] = (Bt d B)[i][j] of the first `lanes` channels, d[i][j] = *at[i][j]. */
V_INLINE void winograd_in_lanes(float *to, int64_t matrix, const float *const *at, int64_t channel,
                                int64_t lanes, const bool all, const int tile) {
    const int n = tile + 2;
    vf d[WINOGRAD_MAX * WINOGRAD_MAX];
#pragma GCC unroll 16
    for (int j = 0; j < n; j++) {
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            const float *from = at[i * n + j] + channel;
            d[i * n + j] = all ? v_load(from) : v_load_n(from, lanes);
        }
        winograd_in(d + j, n, tile);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        winograd_in(d + i * n, 1, tile);
#pragma GCC unroll 16
        for (int j = 0; j < n; j++) {
            float *p = to + (i * n + j) * matrix + channel;
            if (all)
                v_store(p, d[i * n + j]);
            else
                v_store_n(p, d[i * n + j], lanes);
        }
    }
}

V_INLINE void winograd_in_tile(float *to, int64_t matrix, const float *const *at, int64_t channels,
                               const int tile) {
    int64_t c = 0;
    for (; c + V_LEN <= channels; c += V_LEN)
        winograd_in_lanes(to, matrix, at, c, V_LEN, true, tile);
    if (c < channels)
        winograd_in_lanes(to, matrix, at, c, channels - c, false, tile);
}

/* *to[i * tile + j] = (At m A)[i][j] of the first `lanes` columns, m[i][j] = from[(i * n + j) *
 * matrix]. */
V_INLINE void winograd_out_lanes(float *const *to, const float *from, int64_t matrix, int64_t col,
                                 int64_t lanes, const bool all, const int tile) {
    const int n = tile + 2;
    vf m[WINOGRAD_MAX * WINOGRAD_MAX];
#pragma GCC unroll 16
    for (int j = 0; j < n; j++) {
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            m[i * n + j] = v_load(from + (i * n + j) * matrix + col);
        winograd_out(m + j, n, tile);
    }
#pragma GCC unroll 16
    for (int i = 0; i < tile; i++) {
        winograd_out(m + i * n, 1, tile);
#pragma GCC unroll 16
        for (int j = 0; j < tile; j++) {
            float *p = to[i * tile + j] + col;
            if (all)
                v_store(p, m[i * n + j]);
            else
                v_store_n(p, m[i * n + j], lanes);
        }
    }
}

V_INLINE void winograd_out_tile(float *const *to, const float *from, int64_t matrix, int64_t cols,
                                const int tile) {
    int64_t c = 0;
    for (; c + V_LEN <= cols; c += V_LEN)
        winograd_out_lanes(to, from, matrix, c, V_LEN, true, tile);
    if (c < cols)
        winograd_out_lanes(to, from, matrix, c, cols - c, false, tile);
}

/* ---- run ---- */

/* The first output pixel of a tile. */
typedef struct winograd_place {
    int64_t image, row, col;
} winograd_place;

static winograd_place winograd_place_of(const struct winograd_state *s, int64_t index) {
    const int64_t row = index / s->tile_cols;
    return (winograd_place){row / s->tile_rows, row % s->tile_rows * s->tile,
                            index % s->tile_cols * s->tile};
}

/* Transforms tiles [first, last) of x into the operands of the products. */
V_INLINE void winograd_gather(const taper_call *call, int64_t first, int64_t last, char *scratch,
                              const int tile) {
    const struct winograd_state *s = call->state;
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const int n = tile + 2;
    const float *zeros = (const float *)scratch;
    float *to = (float *)(scratch + s->a_scratch);
    for (int64_t t = first; t < last; t++, to += s->a_row) {
        const winograd_place p = winograd_place_of(s, t);
        const float *image = (const float *)call->inputs[0].data + p.image * h->in * w->in * s->in;
        const float *at[WINOGRAD_MAX * WINOGRAD_MAX];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                const int64_t y = p.row - h->low + i, x = p.col - w->low + j;
                const bool inside = y >= 0 && y < h->in && x >= 0 && x < w->in;
                at[i * n + j] = inside ? image + (y * w->in + x) * s->in : zeros;
            }
        winograd_in_tile(to, s->a_matrix, at, s->in, tile);
    }
}

/* Computes the products of `tiles` tiles with the columns [col, col + cols). */
static void winograd_products(const taper_call *call, int64_t tiles, int64_t col, int64_t cols,
                              char *scratch) {
    const struct winograd_state *s = call->state;
    const int64_t points = (s->tile + 2) * (s->tile + 2), panel = s->in * GEMM_NR;
    gemm_block g = {
        .a = (const float *)(scratch + s->a_scratch),
        .a_row_stride = s->a_row,
        .a_k_stride = 1,
        .b = (const float *)call->inputs[1].data + col / GEMM_NR * panel,
        .b_panel_stride = panel,
        .b_k_stride = GEMM_NR,
        .b_col_stride = 1,
        .k = s->in,
        .c = (float *)(scratch + s->c_scratch),
        .ldc = s->c_row,
        .alpha = 1,
    };
    const int64_t matrix = i64_ceil_div(s->out, GEMM_NR) * panel;
    for (int64_t i = 0; i < points; i++) {
        g.b_next = i < points - 1 ? g.b + matrix : NULL;
        GEMM.block(&g, tiles, i64_ceil_div(cols, GEMM_COLS) * GEMM_COLS);
        g.a += s->a_matrix;
        g.b += matrix;
        g.c += s->c_matrix;
    }
}

/* Writes the columns [col, col + cols) of the output's pixels in tiles [first, last) of one tile
 * row. */
V_INLINE void winograd_scatter(const taper_call *call, int64_t first, int64_t last, int64_t col,
                               int64_t cols, float *from, char *scratch, const int tile) {
    const struct winograd_state *s = call->state;
    const winograd_place begin = winograd_place_of(s, first);
    const int64_t rows = i64_min(tile, s->dims[1].out - begin.row), width = s->dims[2].out;
    const int64_t row = (begin.image * s->dims[1].out + begin.row) * width + begin.col;
    const int64_t pixels = i64_min((last - first) * tile, width - begin.col);
    const taper_program *p = &s->epilogue;
    float *const corner = (float *)call->output->data + row * s->out + col;
    float *const sums = p->over ? (float *)(scratch + s->sums_scratch) : corner;
    const int64_t sums_pixel = p->over ? cols : s->out;
    const int64_t sums_row = (p->over ? pixels : width) * sums_pixel;
    for (int64_t t = 0; t < last - first; t++, from += s->c_row) {
        float *to[WINOGRAD_MAX * WINOGRAD_MAX];
        for (int i = 0; i < tile; i++)
            for (int j = 0; j < tile; j++) {
                const int64_t x = t * tile + j;
                /* Elements beyond the output are written over the tile's products. */
                to[i * tile + j] =
                    i < rows && x < pixels ? sums + i * sums_row + x * sums_pixel : from;
            }
        winograd_out_tile(to, from, s->c_matrix, cols, tile);
    }
    if (p->count == 0)
        return;
    const bool whole = pixels == width; /* then the rows are one run */
    for (int64_t i = 0; i < (whole ? 1 : rows); i++)
        PROGRAM.run(p, call->inputs + 2, row + i * width,
                    row + i * width + (whole ? rows * width : pixels), col, col + cols,
                    sums + i * sums_row, sums_pixel, corner + i * width * s->out, s->out,
                    scratch + s->epilogue_scratch);
}

V_INLINE taper_status winograd_run(const taper_call *call, int64_t begin, int64_t end,
                                   char *scratch, const int tile) {
    const struct winograd_state *s = call->state;
    memset(scratch, 0, (size_t)s->in * sizeof(float));
    int64_t gathered = -1; /* the block whose tiles are in scratch */
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t block = unit / s->chunks, col = unit % s->chunks * s->cols;
        const int64_t first = block * s->block;
        const int64_t last = i64_min(first + s->block, s->tiles);
        const int64_t cols = i64_min(s->cols, s->out - col);
        if (block != gathered)
            winograd_gather(call, first, last, scratch, tile);
        gathered = block;
        winograd_products(call, last - first, col, cols, scratch);
        float *from = (float *)(scratch + s->c_scratch);
        for (int64_t t = first, next; t < last; t = next) {
            next = i64_min(last, (t / s->tile_cols + 1) * s->tile_cols);
            winograd_scatter(call, t, next, col, cols, from, scratch, tile);
            from += (next - t) * s->c_row;
        }
    }
    return TAPER_OK;
}

static taper_status f32_conv_winograd_2x2_run(const taper_call *call, int64_t begin, int64_t end,
                                              void *scratch) {
    return winograd_run(call, begin, end, scratch, 2);
}

static taper_status f32_conv_winograd_4x4_run(const taper_call *call, int64_t begin, int64_t end,
                                              void *scratch) {
    return winograd_run(call, begin, end, scratch, 4);
}
