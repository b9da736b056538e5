/*
 * Convolution as a matrix product: each output pixel is a row of A, whose k runs over the taps of
 * its window. The rows are not gathered: the tiles of the matrix product read them from x, or from
 * a zero-padded copy of the part of x that a block of pixels needs.
 */

enum {
    CONV_SOURCE = 144 << 10, /* floats of x that a block may read: 0.6 of the 1 MB of a small L2 */
    CONV_MAX_SOURCE = 1 << 28, /* the most that a block of one pixel may read */
    CONV_RESIDENT = 128 << 10, /* floats of a weight that stays in L2 from block to block: 0.5 MB */
    /* Longer sums are added up in pieces, which are whole runs or parts of one. The rows of A and
     * the panels of B of a tile, 57 floats for each k, are then 1.2 MB. Pieces are longer than
     * MATMUL_KC because each piece reads and writes C once more, whose pixels are not adjacent. */
    CONV_KC = 5120,
    CONV_UNITS = 8,              /* the fewest units of a large node: two for each of 4 threads */
    CONV_UNIT_COST = 1 << 20,    /* the smallest unit, in multiply-adds: about 12 microseconds */
    CONV_LARGEST_COST = 1 << 28, /* about the largest unit: a run can end only between units */
    CONV_COPY_WAIT = 4 << 10,    /* floats that are copied while a unit waits for the first of x */
    CONV_MOST_WEIGHED = 1 << 14, /* outputs of a dim; beside more, borders hardly matter */
    CONV_MIN_COLS = 64,          /* for the epilogue, which has a cost per row */
    CONV_MAX_COLS = 512,         /* as MATMUL's with 2 MB of L2: their panels go through it once */
};

/* How taps outside of x are treated. Both variants add the same products in the same order;
 * "padded" also adds zeros. But sums of more than CONV_KC terms are split at other places, and a
 * zero times an infinite weight is NaN. */
enum { CONV_PADDED = 1, CONV_CLIPPED };
#define CONV_TILE GEMM_MR, GEMM_PANELS *GEMM_NR
static const taper_variant conv_variants[] = {
    {"padded", true, CONV_TILE},  /* x is copied, with zeros around it */
    {"clipped", true, CONV_TILE}, /* the tap is left out */
    {0},
};
static const taper_variant conv_transpose_variants[] = {{"padded", false, CONV_TILE}, {0}};

struct conv_state {
    taper_program epilogue; /* without what is fused */
    program_fused fused;
    conv_shape shape;
    /* Units of work, numbered [image][slice][row block][width block][chunk of channels]. */
    int64_t rows, row_blocks;     /* output rows in a block */
    int64_t width, width_blocks;  /* of a block; less than a row only where rows is 1 */
    int64_t groups, cols, chunks; /* a chunk: some groups, or some columns of the only one */
    int64_t units;
    /* Scratch, in bytes from its start: jumps, the copy of x, the packed weight, sums that may not
     * lie in the output before the epilogue, the epilogue's scratch. */
    size_t source_scratch, weight_scratch, sums_scratch, epilogue_scratch;
};

/* ---- prepare ---- */

/* Returns how many floats of x a block of these sizes reads, at most CONV_MAX_SOURCE + 1. */
static int64_t conv_source_floats(const conv_shape *s, int64_t rows, int64_t width) {
    const int64_t sizes[] = {conv_span_count(s, 0, 1), conv_span_count(s, 1, rows),
                             conv_span_count(s, 2, width)};
    int64_t floats = i64_max(1, s->in);
    for (int32_t d = 0; d < WINDOW_DIMS; d++)
        if (__builtin_mul_overflow(floats, sizes[d], &floats) || floats > CONV_MAX_SOURCE)
            return CONV_MAX_SOURCE + 1;
    return floats;
}

/* Returns the largest block, at most `limit` along a dim, whose part of x stays in cache. */
static int64_t conv_largest(const conv_shape *s, bool rows, int64_t width, int64_t limit) {
    int64_t least = 1;
    while (least < limit) {
        const int64_t middle = least + (limit - least + 1) / 2;
        const int64_t floats =
            rows ? conv_source_floats(s, middle, width) : conv_source_floats(s, 1, middle);
        if (floats <= CONV_SOURCE)
            least = middle;
        else
            limit = middle - 1;
    }
    return least;
}

/* Returns the size of about equal parts of n, at most `most`. */
static int64_t conv_part(int64_t n, int64_t most) {
    return i64_ceil_div(n, i64_ceil_div(n, i64_max(1, most)));
}

static void conv_split(struct conv_state *state) {
    const conv_shape *s = &state->shape;
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    /* Multiply-adds per element. */
    const int64_t k =
        conv_rows(s) + GEMM_SUM_COST + GEMM_EPILOGUE_COST * state->epilogue.cost / MICROOP_ADDITION;
    const int64_t slices = s->batch * s->dims[0].out;
    const int64_t whole = i64_times(slices * h->out * w->out * s->outputs / CONV_UNITS, k);
    const int64_t unit_cost = i64_min(i64_max(CONV_UNIT_COST, whole), CONV_LARGEST_COST);
    state->width = conv_part(w->out, conv_largest(s, false, 0, w->out));
    state->rows = state->width == w->out ? conv_largest(s, true, w->out, h->out) : 1;
    const int64_t row = state->width * s->outputs; /* elements of the output */
    /* A weight that stays in cache allows blocks of fewer rows. Otherwise each block reads all of
     * the weight again. */
    if (conv_rows(s) * s->out <= CONV_RESIDENT)
        state->rows = i64_min(state->rows, i64_ceil_div(unit_cost, i64_times(row, k)));
    state->rows = conv_part(h->out, state->rows);
    state->row_blocks = i64_ceil_div(h->out, state->rows);
    state->width_blocks = i64_ceil_div(w->out, state->width);

    int64_t cols = i64_ceil_div(unit_cost, i64_times(state->rows * state->width, k));
    cols = i64_min(i64_max(cols, CONV_MIN_COLS), CONV_MAX_COLS);
    if (s->groups == 1) {
        state->groups = 1;
        cols = conv_part(i64_ceil_div(s->out, GEMM_NR), cols / GEMM_NR) * GEMM_NR;
        state->cols =
            i64_min(s->out, i64_ceil_div(cols, GEMM_PANELS * GEMM_NR) * GEMM_PANELS * GEMM_NR);
        state->chunks = i64_ceil_div(s->out, state->cols);
    } else {
        state->groups = conv_part(s->groups, i64_max(1, cols / s->out));
        state->cols = s->out;
        state->chunks = i64_ceil_div(s->groups, state->groups);
    }
    state->units = slices * state->row_blocks * state->width_blocks * state->chunks;
}

static size_t conv_aligned(int64_t bytes) {
    return (size_t)i64_ceil_div(bytes, TAPER_ALIGNMENT) * TAPER_ALIGNMENT;
}

/* The time of an image row of `width` outputs, in multiply-adds of a vector for each k and column
 * vector: its outputs, and one more in each tile, which reads B, with 16 lanes; a load takes less
 * of the time of narrower ones. A tile of one output waits for its sums as long as one of two. */
static double conv_tile_time(int64_t width) {
    const int64_t tiles = i64_ceil_div(width, GEMM_MR);
    return (double)i64_max(width, 2 * tiles) + (double)tiles * V_LEN / GEMM_NR;
}

/* The multiply-adds that clipping a group's weight column adds, in the time of others; below 0 if
 * it leaves out more. */
static double conv_clip_cost(const conv_shape *s) {
    double slices = 0, rows = 0, pixels = 0; /* of outputs and their taps */
    for (int d = 0; d < WINDOW_DIMS; d++)
        if (s->dims[d].out > CONV_MOST_WEIGHED)
            return 0;
    for (int64_t z = 0; z < s->dims[0].out; z++) {
        const conv_inside taps = conv_inside_of(s, 0, z);
        slices += (double)(taps.end - taps.first);
    }
    for (int64_t y = 0, end; y < s->dims[1].out; y = end) {
        const conv_inside taps = conv_inside_of(s, 1, y);
        end = conv_same_taps(s, 1, y, s->dims[1].out);
        rows += (double)((taps.end - taps.first) * (end - y));
    }
    for (int64_t x = 0, end; x < s->dims[2].out; x = end) {
        const conv_inside taps = conv_inside_of(s, 2, x);
        end = conv_same_taps(s, 2, x, s->dims[2].out);
        pixels += (double)(taps.end - taps.first) * conv_tile_time(end - x);
    }
    const double whole = (double)conv_taps(s) * (double)(s->dims[0].out * s->dims[1].out) *
                         conv_tile_time(s->dims[2].out);
    return (slices * rows * pixels - whole) * (double)s->in * (double)s->batch;
}

/* Work of the variant beyond the products; see taper_work. */
static void conv_weigh(const struct conv_state *state, int64_t source_floats, taper_work *work) {
    const conv_shape *s = &state->shape;
    const int64_t columns = i64_ceil_div(s->out, GEMM_NR) * GEMM_NR, moved = 2 * sizeof(float);
    const int64_t pixels = s->batch * s->dims[0].out * s->dims[1].out * s->dims[2].out;
    const int64_t computed = i64_ceil_div(s->out, GEMM_COLS) * GEMM_COLS;
    const int64_t idle = i64_times(computed - s->out, s->groups);
    int64_t floats = 0; /* of a unit */
    if (s->padded)      /* whole rows: a quarter of the time */
        floats = i64_times(source_floats, s->groups == 1 ? 1 : state->groups) / 4 + CONV_COPY_WAIT;
    if (!s->packed)
        floats = i64_plus(floats, i64_times(conv_rows(s), i64_times(columns, state->groups)));
    work->extra_flops = i64_times(pixels, i64_times(idle, 2 * conv_rows(s)));
    if (s->clipped) {
        const double flops = 2 * conv_clip_cost(s) * (double)computed * (double)s->groups;
        work->extra_flops += (int64_t)(flops > 1e15 ? 1e15 : flops < -1e15 ? -1e15 : flops);
    }
    work->scratch_traffic = i64_times(state->units, i64_times(floats, moved));
}

static taper_status conv_prepare(const taper_call *call, taper_work *work, bool transposed) {
    const struct conv_attrs *attrs = call->attrs;
    struct conv_state *state = call->state;
    conv_shape *s = &state->shape;
    if (!conv_shape_of(s, call, attrs, transposed, false))
        return TAPER_UNSUPPORTED;
    const taper_status status = PROGRAM.prepare_fused(
        &state->epilogue, &attrs->code, &attrs->args, &attrs->scalars, call->inputs + 2,
        call->n_inputs - 2, call->output, &state->fused, conv_rows(s) <= CONV_KC);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){.variant = call->variant ? call->variant : CONV_PADDED};
        return TAPER_OK;
    }
    bool clips = call->variant == CONV_CLIPPED;
    for (int32_t d = 0; d < WINDOW_DIMS && !transposed && !call->variant; d++)
        clips = clips || (s->padded && s->dims[d].kernel > 1 && s->dims[d].dilation > 1);
    const int32_t variant = clips ? CONV_CLIPPED : CONV_PADDED;
    s->clipped = clips && s->padded;
    s->padded = s->padded && !clips;
    if (s->in == 0) /* nothing to add up, however many taps */
        for (int32_t d = 0; d < WINDOW_DIMS; d++)
            s->dims[d].kernel = 1;
    conv_split(state);
    const int64_t floats = conv_source_floats(s, state->rows, state->width);
    if (floats > CONV_MAX_SOURCE)
        return TAPER_UNSUPPORTED;
    const int64_t panels = i64_ceil_div(state->cols, GEMM_NR) * GEMM_NR;
    state->source_scratch = conv_aligned(conv_taps(s) * (int64_t)sizeof(gemm_jump));
    state->weight_scratch =
        state->source_scratch + (s->padded ? conv_aligned(floats * (int64_t)sizeof(float)) : 0);
    state->sums_scratch =
        state->weight_scratch +
        (s->packed ? 0 : conv_aligned(conv_rows(s) * panels * (int64_t)sizeof(float)));
    const int64_t pixels = state->epilogue.over ? state->rows * state->width : 0;
    state->epilogue_scratch =
        state->sums_scratch +
        conv_aligned(pixels * state->groups * state->cols * (int64_t)sizeof(float));
    work->tasks = state->units;
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    work->variant = variant;
    conv_weigh(state, floats, work);
    return TAPER_OK;
}

static taper_status f32_conv_prepare(const taper_call *call, taper_work *work) {
    return conv_prepare(call, work, false);
}

static taper_status f32_conv_transpose_prepare(const taper_call *call, taper_work *work) {
    return conv_prepare(call, work, true);
}

/* ---- run ---- */

/* The outputs of a unit along each spatial dim, [begin, end), and the positions of x they read. */
typedef struct conv_block {
    int64_t image;
    int64_t begin[WINDOW_DIMS], end[WINDOW_DIMS];
    conv_span spans[WINDOW_DIMS];
} conv_block;

static conv_block conv_block_at(const struct conv_state *state, int64_t index) {
    const conv_shape *s = &state->shape;
    const int64_t counts[] = {s->dims[0].out, state->row_blocks, state->width_blocks};
    const int64_t sizes[] = {1, state->rows, state->width};
    conv_block block;
    for (int32_t d = WINDOW_DIMS - 1; d >= 0; d--) {
        block.begin[d] = index % counts[d] * sizes[d];
        block.end[d] = i64_min(block.begin[d] + sizes[d], s->dims[d].out);
        index /= counts[d];
    }
    block.image = index;
    for (int32_t d = 0; d < WINDOW_DIMS; d++)
        block.spans[d] = s->padded ? conv_span_of(s, d, block.begin[d], block.end[d])
                                   : (conv_span){0, s->dims[d].in, 1};
    return block;
}

/* Index of the output's pixel (z, y, x). */
static int64_t conv_pixel(const conv_shape *s, int64_t image, int64_t z, int64_t y, int64_t x) {
    return ((image * s->dims[0].out + z) * s->dims[1].out + y) * s->dims[2].out + x;
}

/* Where the sums of a unit go: in the output or in scratch; strides in elements. */
typedef struct conv_sums {
    float *data;           /* of the unit's first pixel and channel */
    int64_t y, x, channel; /* these */
    int64_t row, pixel;    /* to the next */
    tile_fused fused;      /* of the first element */
} conv_sums;

/* The panels of some columns of a group, and those that are read next. */
typedef struct conv_panels {
    const float *data, *next;
} conv_panels;

/* Columns of the output, from output channel `channel` on: those of one phase of a block. b: their
 * panels; jump: room for the jumps. */
static void conv_phase(const conv_shape *s, const conv_axis axes[WINDOW_DIMS],
                       const conv_source *from, conv_panels b, const conv_sums *to, int64_t channel,
                       int64_t cols, gemm_jump *jump) {
    const conv_axis *h = &axes[1], *w = &axes[2];
    const int64_t col = channel - to->channel;
    const int64_t first = (h->first - to->y) * to->row + (w->first - to->x) * to->pixel + col;
    const conv_runs runs = conv_runs_of(s, axes, from, jump);
    gemm_block g = {
        .a = from->data + runs.a,
        .a_row_stride = w->at_step * from->pixel,
        .a_k_stride = 1,
        .b = b.data + runs.b * GEMM_NR,
        .b_panel_stride = conv_rows(s) * GEMM_NR,
        .b_k_stride = GEMM_NR,
        .b_col_stride = 1,
        .k = runs.k,
        .c = to->data + first,
        .ldc = w->step * to->pixel,
        .alpha = 1,
        .more_image_rows = h->count - 1,
        .a_image_row_stride = h->at_step * from->row,
        .c_image_row_stride = h->step * to->row,
    };
    /* A piece of the sum is some whole runs of k, or a part of one. */
    const int64_t parts = i64_max(1, i64_ceil_div(runs.k, CONV_KC));
    const int64_t part = i64_ceil_div(runs.k, parts);
    const int64_t piece = i64_max(1, CONV_KC / i64_max(1, runs.k));
    for (int64_t run = 0; run < runs.count; run += piece) {
        g.jumps = i64_min(piece, runs.count - run) - 1;
        g.jump = jump + run;
        for (int64_t i = 0; i < parts; i++) {
            g.k = i64_min(part, runs.k - i * part);
            g.accumulate = run > 0 || i > 0;
            if (run + piece >= runs.count && i == parts - 1) {
                g.fused = fused_at(to->fused, col, first);
                g.b_next = b.next;
            }
            g.fused.stride = g.ldc;
            GEMM.block(&g, w->count, cols);
            g.a += g.k;
            g.b += g.k * GEMM_NR;
        }
        for (int64_t i = run; i < i64_min(run + piece, runs.count - 1); i++) {
            g.a += jump[i].a + (i > run ? runs.k : 0);
            g.b += (jump[i].b + (i > run ? runs.k : 0)) * GEMM_NR;
        }
    }
}

static conv_panels conv_panels_of(const struct conv_state *state, const float *weight,
                                  int64_t group, int64_t col, int64_t cols, char *scratch) {
    const conv_shape *s = &state->shape;
    const int64_t k = conv_rows(s), of_group = i64_ceil_div(s->out, GEMM_NR) * GEMM_NR * k;
    if (s->packed) {
        const float *const panels = weight + group * of_group + col * k;
        return (conv_panels){panels, group + 1 < s->groups ? panels + of_group : NULL};
    }
    float *packed = (float *)(scratch + state->weight_scratch);
    GEMM.pack_b(packed, weight + group * s->out + col, s->outputs, 1, k, cols);
    return (conv_panels){packed, NULL};
}

/* Columns of the output, from output channel `channel` on: those of a block. */
static void conv_group(const conv_shape *s, const conv_block *block, const conv_source *from,
                       conv_panels b, const conv_sums *to, int64_t channel, int64_t cols,
                       gemm_jump *jump) {
    conv_axis axes[WINDOW_DIMS];
    axes[0] = conv_axis_of(s, 0, &block->spans[0], block->begin[0], block->end[0], 0);
    for (int64_t y = block->begin[1], end_y; y < block->end[1]; y = end_y) {
        end_y = conv_same_taps(s, 1, y, block->end[1]);
        for (int64_t x = block->begin[2], end_x; x < block->end[2]; x = end_x) {
            end_x = conv_same_taps(s, 2, x, block->end[2]);
            for (int64_t i = 0; i < conv_phases(s, 1, end_y - y); i++)
                for (int64_t j = 0; j < conv_phases(s, 2, end_x - x); j++) {
                    axes[1] = conv_axis_of(s, 1, &block->spans[1], y, end_y, i);
                    axes[2] = conv_axis_of(s, 2, &block->spans[2], x, end_x, j);
                    conv_phase(s, axes, from, b, to, channel, cols, jump);
                }
        }
    }
}

static void conv_unit(const taper_call *call, const conv_block *block, int64_t chunk, bool copied,
                      char *scratch) {
    const struct conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const float *x = call->inputs[0].data;
    x += block->image * s->dims[0].in * s->dims[1].in * s->dims[2].in * s->channels;
    conv_source from = {x, s->dims[1].in * s->dims[2].in * s->channels, s->dims[2].in * s->channels,
                        s->channels};
    if (s->padded && copied) {
        from.data = (const float *)(scratch + state->source_scratch);
        from.pixel = s->in;
        from.row = block->spans[2].count * from.pixel;
        from.slice = block->spans[1].count * from.row;
    }

    const taper_program *p = &state->epilogue;
    const int64_t group = s->groups == 1 ? 0 : chunk * state->groups;
    const int64_t col = s->groups == 1 ? chunk * state->cols : 0;
    const int64_t cols = i64_min(state->cols, s->out - col);
    const int64_t last = i64_min(group + state->groups, s->groups);
    const int64_t c0 = group * s->out + col, c1 = c0 + (last - group - 1) * s->out + cols;
    const int64_t row =
        conv_pixel(s, block->image, block->begin[0], block->begin[1], block->begin[2]);
    float *const output = (float *)call->output->data + row * s->outputs + c0;
    conv_sums to = {.data = output,
                    .y = block->begin[1],
                    .x = block->begin[2],
                    .channel = c0,
                    .row = s->dims[2].out * s->outputs,
                    .pixel = s->outputs,
                    .fused =
                        program_fused_at(&state->fused, call->inputs + 2, s->outputs, row, c0)};
    if (p->over) {
        to.data = (float *)(scratch + state->sums_scratch);
        to.pixel = c1 - c0;
        to.row = (block->end[2] - block->begin[2]) * to.pixel;
    }
    for (int64_t g = group; g < last; g++) {
        if (s->padded && !(copied && s->groups == 1))
            from = conv_copy(s, (float *)(scratch + state->source_scratch), x + g * s->in,
                             block->spans);
        else if (!s->padded)
            from.data = x + g * s->in;
        const conv_panels b = conv_panels_of(state, call->inputs[1].data, g, col, cols, scratch);
        conv_group(s, block, &from, b, &to, g * s->out + col, cols, (gemm_jump *)scratch);
    }
    const int64_t rows = (block->end[1] - block->begin[1]) * (block->end[2] - block->begin[2]);
    if (p->count > 0)
        PROGRAM.run(p, call->inputs + 2, row, row + rows, c0, c1, to.data, to.pixel, output,
                    s->outputs, scratch + state->epilogue_scratch);
}

static taper_status f32_conv_run(const taper_call *call, int64_t begin, int64_t end,
                                 void *scratch) {
    const struct conv_state *state = call->state;
    int64_t copied = -1; /* the block whose part of x is now in scratch */
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t index = unit / state->chunks;
        const conv_block block = conv_block_at(state, index);
        conv_unit(call, &block, unit % state->chunks, index == copied, scratch);
        copied = index;
    }
    return TAPER_OK;
}

static taper_status f32_conv_transpose_run(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    return f32_conv_run(call, begin, end, scratch);
}
