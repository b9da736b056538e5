/* The MATMUL kernel: how B is read, how the work is split, and the epilogue. */

#define PROGRAM TAPER_ISA_SYM(taper_program_engine)

enum {
    /* Longer sums are added up in pieces through C, so that the rows of A and the panels of B of a
     * tile stay in L2. */
    MATMUL_KC = 2048,
    /* When B is read in place, the sum is split into pieces of 64 rows of B, which are read side by
     * side in runs of all columns of the part. A sum of up to 128 is not split, because
     * registers hold it to its end. */
    MATMUL_ROWS_KC = 64,
    MATMUL_ROWS_MAX_KC = 128,
    /* Bytes of L2 for each column of B, and for each of a row's floats in A and in C, that are
     * computed before the epilogue: with 2 MB of L2 these are 512 columns, and 110 rows of 2048 or
     * 320 of 512. */
    MATMUL_L2_PER_COL = 4 << 10,
    MATMUL_L2_PER_A = 8,
    MATMUL_L2_PER_PAIR = 3, /* the same for a number of A as bfloat16, of which more rows pay off */
    MATMUL_L2_PER_C = 4,
    MATMUL_L2_PER_ROUNDED = 2, /* the same for each byte of a row of A that is rounded */
    MATMUL_L2 = 1 << 20,       /* if the system does not tell */
    /* Dot products are chosen for at most MATMUL_DOT_ROWS rows. For more than MATMUL_DOT_FEW rows a
     * sum must be MATMUL_DOT_LENGTH times as long as there are rows, because each sum ends with one
     * over lanes. */
    MATMUL_DOT_ROWS = 32,
    MATMUL_DOT_FEW = 4,
    MATMUL_DOT_LENGTH = 16,
    MATMUL_IN_PLACE_TILES = 4, /* up to so many tiles of rows, B is not packed */
    MATMUL_PAD = 16, /* floats after a row of A in scratch, so that rows spread over L1's sets */
    MATMUL_WAITING_COLS = 128,  /* of sums in scratch, for the epilogue, which has a cost per row */
    MATMUL_TASK_COST = 1 << 19, /* the smallest task, in multiply-adds: about 5 microseconds */
};

/* How B is read. Dot products add the terms of a sum in another order, and reading B in place
 * splits a sum into pieces of other lengths, so the bits depend on the variant. A packed B has only
 * the variant "panels". */
enum { MATMUL_DOT = 1, MATMUL_IN_PLACE, MATMUL_PACKING, MATMUL_PANELS };
static const taper_variant matmul_variants[] = {
    {"dot", true, DOT_MR, DOT_NR},                      /* B's columns are contiguous */
    {"in_place", true, GEMM_MR, GEMM_PANELS * GEMM_NR}, /* B's rows are contiguous */
    {"packing", true, GEMM_MR, GEMM_PANELS * GEMM_NR},  /* panels of B are packed just before use */
    {"panels", false, GEMM_MR, GEMM_PANELS * GEMM_NR},  /* B is stored in panels */
    {0},
};

struct matmul_state {
    taper_program epilogue; /* without what is fused */
    program_fused fused;
    matmul_shape shape;
    float alpha;
    bool dot;                   /* computes dot products */
    int64_t group;              /* k of A that are rounded to int8 together; 0: they are floats */
    bool halves;                /* A is rounded to bfloat16, */
    bool pairs;                 /* and dot instructions multiply it */
    gemm_b_form b_form;         /* otherwise */
    int64_t k_piece;            /* of the sum, in registers at once */
    int64_t max_rows, max_cols; /* of C, computed before the epilogue */
    /* Units of work, numbered [batch][column chunk][row chunk], or if A is rounded [batch][row
     * chunk][column chunk]; a task is consecutive units. */
    int64_t row_chunk, row_chunks;
    int64_t col_chunk, col_chunks;
    int64_t units, units_per_task;
    /* Scratch, in bytes from its start: A, B, sums that may not lie in the output before the
     * epilogue, then the epilogue's scratch. */
    size_t b_scratch, sums_scratch, epilogue_scratch;
};

/* A rectangle of one product's C, computed by one call of the engine. */
typedef struct matmul_part {
    int64_t batch;
    int64_t row, rows;
    int64_t col, cols;
} matmul_part;

/* ---- prepare ---- */

/* Columns of a tile. */
static int64_t matmul_step(const matmul_shape *s) {
    return GEMM_NR * (s->m <= GEMM_WIDE_MR ? GEMM_WIDE_PANELS : GEMM_PANELS);
}

/* Returns the variant for a node where the call asks for none. */
static int32_t matmul_best(const matmul_shape *s) {
    if (s->packed)
        return MATMUL_PANELS;
    /* The sum over lanes costs a few instructions for each element of C, and packing costs some for
     * each vector of B, so dot products are faster for few rows. */
    if (s->b_k_stride == 1 && s->b_col_stride != 1 && s->m <= MATMUL_DOT_ROWS &&
        (s->m <= MATMUL_DOT_FEW || s->m * MATMUL_DOT_LENGTH <= s->k))
        return MATMUL_DOT;
    /* Packing pays off where several tiles of rows use the result. */
    return s->b_col_stride == 1 && s->m <= MATMUL_IN_PLACE_TILES * GEMM_MAX_MR ? MATMUL_IN_PLACE
                                                                               : MATMUL_PACKING;
}

static bool matmul_serves(const matmul_shape *s, int32_t variant) {
    switch (variant) {
    case MATMUL_DOT:
        return !s->packed && s->b_k_stride == 1;
    case MATMUL_IN_PLACE:
        return !s->packed && s->b_col_stride == 1;
    case MATMUL_PACKING:
        return !s->packed;
    default:
        return variant == MATMUL_PANELS && s->packed;
    }
}

static bool matmul_can_round(const matmul_shape *s, int64_t group) {
    return s->packed && !s->swapped && rounded_serves(&s->b_head, s->b_element, s->k, group);
}

/* What kernels of dot instructions point to: they compute products of rounded rows alone, of bytes
 * or of bfloat16. */
typedef enum matmul_dots { MATMUL_NO_DOTS, MATMUL_BYTES, MATMUL_PAIRS } matmul_dots_of;
#ifdef HAS_I8_VNNI
static const matmul_dots_of matmul_by_dots = MATMUL_BYTES;
#endif
#ifdef HAS_PAIRS
static const matmul_dots_of matmul_by_pairs = MATMUL_PAIRS;
#endif

static bool matmul_has(const taper_call *call, matmul_dots_of kind) {
    const matmul_dots_of *const dots = call->kernel->data;
    return dots && *dots == kind;
}

static bool matmul_has_dots(const taper_call *call) { return matmul_has(call, MATMUL_BYTES); }

/* Reads whether A is rounded to bfloat16; false if this kernel cannot compute what that says. */
static bool matmul_can_halve(struct matmul_state *state, const taper_call *call) {
    const matmul_shape *s = &state->shape;
    const struct matmul_attrs *attrs = call->attrs;
    const char *dtype = attrs->activation_dtype;
    state->halves = dtype && dtype[0] != 0;
    state->pairs = matmul_has(call, MATMUL_PAIRS);
    if (!state->halves)
        return !state->pairs;
    return strcmp(dtype, "bfloat16") == 0 && !state->group && s->b_element == GEMM_BF16 &&
           !s->swapped && (!state->pairs || s->k % 2 == 0);
}

static void matmul_choose(struct matmul_state *state, int32_t variant) {
    const matmul_shape *s = &state->shape;
    state->dot = variant == MATMUL_DOT;
    state->b_form = variant == MATMUL_PANELS     ? GEMM_B_PANELS
                    : variant == MATMUL_IN_PLACE ? GEMM_B_ROWS
                                                 : GEMM_B_ANY;
    const int64_t known = taper_cache_bytes(2), l2 = known > 0 ? known : MATMUL_L2;
    const int64_t step = matmul_step(s);
    state->max_cols = i64_max(2, l2 / MATMUL_L2_PER_COL / step) * step;
    if (state->b_form == GEMM_B_ROWS && s->m == 1) /* in runs of many columns */
        state->max_cols = i64_max(state->max_cols, GEMM_ROW_COLS / step * step);
    state->k_piece = i64_min(s->k, MATMUL_KC);
    if (state->group)
        state->k_piece = s->k;
    else if (s->b_head.rows) /* whole blocks */
        state->k_piece = i64_max(1, state->k_piece / s->b_head.rows) * s->b_head.rows;
    const int64_t row =
        (state->pairs ? MATMUL_L2_PER_PAIR : MATMUL_L2_PER_A) * i64_min(state->k_piece, MATMUL_KC) +
        MATMUL_L2_PER_C * state->max_cols;
    state->max_rows = i64_max(1, l2 / row / GEMM_MR) * GEMM_MR;
    if (state->group) { /* rows of A are rounded once for all columns; B is read panel by panel */
        const int64_t rounded =
            MATMUL_L2_PER_ROUNDED * rounded_row_bytes(&s->b_head, s->k, state->group);
        state->max_rows = i64_max(1, l2 / rounded / GEMM_MR) * GEMM_MR;
    }
    if (state->b_form == GEMM_B_ROWS && s->k > MATMUL_ROWS_MAX_KC)
        state->k_piece = MATMUL_ROWS_KC;
}

static int64_t matmul_round_up(int64_t n, int64_t to) { return i64_ceil_div(n, to) * to; }

static void matmul_split(struct matmul_state *state) {
    const matmul_shape *s = &state->shape;
    /* Many rows are split too. If B is packed in the run, each chunk packs it again. */
    const int64_t most_rows = state->group ? state->max_rows : state->max_rows / 2;
    state->row_chunks = s->m > state->max_rows ? i64_ceil_div(s->m, most_rows) : 1;
    state->row_chunk = i64_ceil_div(s->m, state->row_chunks);
    state->row_chunks = i64_ceil_div(s->m, state->row_chunk);

    /* In multiply-adds: writing an element and what the epilogue does to it; reading B. */
    const int64_t element_cost =
        s->k + GEMM_SUM_COST + GEMM_EPILOGUE_COST * state->epilogue.cost / MICROOP_ADDITION;
    const int64_t col_cost = state->row_chunk * element_cost + GEMM_LINE_COST * s->k;
    const int64_t step = matmul_step(s);
    int64_t cols = matmul_round_up(i64_ceil_div(MATMUL_TASK_COST, col_cost), step);
    if (state->group)
        cols = i64_max(cols, ROUNDED_COLS);
    cols = i64_min(cols, state->max_cols);
    cols = matmul_round_up(i64_ceil_div(s->n, i64_ceil_div(s->n, cols)), step);
    state->col_chunk = cols;
    state->col_chunks = i64_ceil_div(s->n, cols);

    int64_t batches = 1;
    for (int32_t d = 0; d < s->batch_dims; d++)
        batches *= s->batch[d].size;
    state->units = batches * state->col_chunks * state->row_chunks;
    state->units_per_task = i64_max(1, MATMUL_TASK_COST / (i64_min(cols, s->n) * col_cost));
}

/* An A that is strided along k is copied where its columns are read many times. */
static bool matmul_copies_a(const struct matmul_state *state) {
    const matmul_shape *s = &state->shape;
    return s->a_k_stride != 1 && !state->group && !state->halves && (s->m > 1 || s->b_head.rows) &&
           state->b_form != GEMM_B_ROWS;
}

/* Numbers of A in a word that is multiplied, and the words from row to row of A rounded to
 * bfloat16.
 */
static int64_t matmul_per_word(const struct matmul_state *state) { return state->pairs ? 2 : 1; }
static int64_t matmul_put_stride(const struct matmul_state *state) {
    return state->shape.k / matmul_per_word(state) + MATMUL_PAD;
}

/* The most rows of C that are computed before the epilogue. */
static int64_t matmul_block_rows(const struct matmul_state *state) {
    return state->dot ? MATMUL_DOT_ROWS : state->max_rows;
}

/* Floats of scratch for A and for B. */
static int64_t matmul_a_floats(const struct matmul_state *state) {
    const matmul_shape *s = &state->shape;
    const int64_t rows = i64_min(s->m, matmul_block_rows(state));
    if (state->dot)
        return s->a_k_stride == 1 ? 0 : rows * s->k;
    if (state->group)
        return rows * rounded_row_bytes(&s->b_head, s->k, state->group) / (int64_t)sizeof(float);
    if (state->halves)
        return rows * matmul_put_stride(state);
    return matmul_copies_a(state) ? rows * (state->k_piece + MATMUL_PAD) : 0;
}

static int64_t matmul_b_floats(const struct matmul_state *state) {
    const matmul_shape *s = &state->shape;
    if (state->dot || state->group ||
        (state->b_form == GEMM_B_PANELS && (state->pairs || !gemm_widens(s->m, s->b_element))))
        return 0;
    return GEMM_WIDE_PANELS * state->k_piece * GEMM_NR;
}

/* The same for sums. */
static int64_t matmul_sums(const struct matmul_state *state) {
    const matmul_shape *s = &state->shape;
    return state->epilogue.over ? i64_min(s->m, matmul_block_rows(state)) * state->max_cols : 0;
}

/* Work of the variant beyond m * n * k multiply-adds; see taper_work. */
static void matmul_weigh(const struct matmul_state *state, taper_work *work) {
    const matmul_shape *s = &state->shape;
    const int64_t batches = state->units / (state->col_chunks * state->row_chunks);
    const int64_t outputs = i64_times(batches, i64_times(s->m, s->n)), moved = 2 * sizeof(float);
    int64_t flops, floats = 0; /* of one product's: flops for each output, floats */
    if (state->dot) {
        /* A tile with nearly two loads for each multiply-add takes one and a half times as long. */
        flops = 2 * (matmul_round_up(s->k, V_LEN) - s->k + V_LEN) + s->k;
        if (s->a_k_stride != 1)
            floats = i64_times(s->m, i64_times(s->k, state->col_chunks));
    } else {
        const int64_t panels = matmul_round_up(s->n, GEMM_NR);
        const int64_t idle = matmul_round_up(s->n, GEMM_COLS) - s->n;
        flops = s->n > 0 ? i64_times(2 * idle, s->k) / s->n : 0;
        if (state->b_form == GEMM_B_ANY)
            /* Once from where B is, then from cache: a quarter of the time. */
            floats = i64_times(panels, i64_times(s->k, 3 + state->row_chunks)) / 4;
        if (matmul_copies_a(state) || state->halves)
            floats = i64_plus(floats, i64_times(s->m, i64_times(s->k, state->col_chunks)));
        if (state->k_piece > 0) /* C, for each piece except the last */
            floats =
                i64_plus(floats, i64_times(s->m * s->n, i64_ceil_div(s->k, state->k_piece) - 1));
    }
    work->extra_flops = i64_times(outputs, flops);
    work->scratch_traffic = i64_times(batches, i64_times(floats, moved));
}

static taper_status f32_matmul_prepare(const taper_call *call, taper_work *work) {
    const struct matmul_attrs *attrs = call->attrs;
    struct matmul_state *state = call->state;
    if (call->n_inputs < 2 || !matmul_shape_of(&state->shape, call, attrs, TAPER_FLOAT32))
        return TAPER_UNSUPPORTED;
    const int32_t variant = call->variant ? call->variant : matmul_best(&state->shape);
    state->group = attrs->activation_group;
    const bool dots = matmul_has_dots(call);
    if (!matmul_serves(&state->shape, variant) || (dots && !state->group) ||
        !matmul_can_halve(state, call) ||
        (state->group && !matmul_can_round(&state->shape, state->group)))
        return TAPER_UNSUPPORTED;
    matmul_choose(state, variant);
    state->fused = program_fuses_nothing;
    /* Only tiles fuse an epilogue, and only where C has the layout of the output. */
    const bool tiles = !state->dot && !state->shape.swapped && !state->group;
    const taper_status status =
        tiles ? PROGRAM.prepare_fused(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                                      call->inputs + 2, call->n_inputs - 2, call->output,
                                      &state->fused, state->k_piece >= state->shape.k)
              : PROGRAM.prepare(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                                call->inputs + 2, call->n_inputs - 2, call->output, TAPER_FLOAT32);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){.variant = state->pairs || dots ? 0 : variant};
        return TAPER_OK;
    }
    state->alpha = (float)attrs->alpha;
    matmul_split(state);
    if (state->epilogue.over)
        state->max_cols = i64_max(state->col_chunk, i64_min(state->max_cols, MATMUL_WAITING_COLS));

    const int64_t floats = sizeof(float), line = TAPER_ALIGNMENT;
    state->b_scratch = (size_t)matmul_round_up(matmul_a_floats(state) * floats, line);
    state->sums_scratch =
        state->b_scratch + (size_t)matmul_round_up(matmul_b_floats(state) * floats, line);
    state->epilogue_scratch =
        state->sums_scratch + (size_t)matmul_round_up(matmul_sums(state) * floats, line);
    work->tasks = i64_ceil_div(state->units, state->units_per_task);
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    work->variant = state->pairs || dots ? 0 : variant; /* these kernels have none */
    matmul_weigh(state, work);
    return TAPER_OK;
}

/* ---- run ---- */

/* Where the sums of a part of C lie until the epilogue, their rows `stride` elements apart. */
typedef struct matmul_place {
    void *data;
    int64_t stride;
} matmul_place;

/* Returns the place of the sums from (row, col) on, in the output or in scratch. */
static matmul_place matmul_place_of(const taper_program *p, const taper_call *call,
                                    const matmul_shape *s, int64_t row, int64_t col, int64_t cols,
                                    void *scratch) {
    if (p->over)
        return (matmul_place){scratch, cols};
    const int64_t size = (int64_t)taper_dtype_size(call->output->dtype);
    return (matmul_place){(char *)call->output->data + (row * s->n + col) * size, s->n};
}

/* Runs an epilogue on a part of C. */
static void matmul_finish(const taper_program *p, const taper_call *call, const matmul_shape *s,
                          int64_t row, int64_t rows, int64_t col, int64_t cols, matmul_place sums,
                          char *scratch) {
    if (p->count == 0)
        return;
    const taper_tensor *extras = call->inputs + 2;
    const int64_t n = s->n;
    char *c = call->output->data;
    if (!s->swapped) {
        PROGRAM.run(p, extras, row, row + rows, col, col + cols, sums.data, sums.stride,
                    c + (row * n + col) * p->output_size, n, scratch);
        return;
    }
    /* The program's rows are not the rows of this product: a run of columns here is a run of
     * elements there. */
    for (int64_t r = row; r < row + rows; r++) {
        const char *from = (const char *)sums.data + (r - row) * sums.stride * p->product_size;
        for (int64_t e = r * n + col, end = e + cols; e < end;) {
            const int64_t first = e / p->cols, c0 = e - first * p->cols;
            const int64_t whole = c0 == 0 ? (end - e) / p->cols : 0;
            const int64_t c1 = whole ? p->cols : i64_min(p->cols, c0 + end - e);
            PROGRAM.run(p, extras, first, first + i64_max(1, whole), c0, c1, from, p->cols,
                        c + e * p->output_size, p->cols, scratch);
            from += i64_max(1, whole) * (c1 - c0) * p->product_size;
            e += i64_max(1, whole) * (c1 - c0);
        }
    }
}

static matmul_place matmul_sums_at(const taper_call *call, int64_t row, int64_t col, int64_t cols,
                                   char *scratch) {
    const struct matmul_state *state = call->state;
    return matmul_place_of(&state->epilogue, call, &state->shape, row, col, cols,
                           scratch + state->sums_scratch);
}

static void matmul_epilogue(const taper_call *call, int64_t row, int64_t rows, int64_t col,
                            int64_t cols, matmul_place sums, char *scratch) {
    const struct matmul_state *state = call->state;
    matmul_finish(&state->epilogue, call, &state->shape, row, rows, col, cols, sums,
                  scratch + state->epilogue_scratch);
}

/* a, b: those of the part's batch. put: see matmul_rounded. */
static void matmul_tiles(const taper_call *call, const matmul_part *part, const float *a,
                         const float *b, char *scratch, int64_t *put) {
    const struct matmul_state *state = call->state;
    const matmul_shape *s = &state->shape;
    const int64_t per_word = matmul_per_word(state), put_stride = matmul_put_stride(state);
    gemm_block g = {.b_form = state->b_form,
                    .b_panel_stride = s->packed ? gemm_line_offset(s->k, s->b_k_stride, &s->b_head)
                                                : GEMM_NR * s->b_col_stride,
                    .b_k_stride = s->b_k_stride * per_word,
                    .b_col_stride = s->b_col_stride,
                    .packed = (float *)(scratch + state->b_scratch),
                    .pairs = state->pairs,
                    .head = s->b_head,
                    .alpha = state->alpha};
    b += part->col / GEMM_NR * g.b_panel_stride;

    const int64_t blocks = i64_ceil_div(part->rows, state->max_rows);
    int64_t row = part->row;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t rows = (part->rows + block) / blocks, c_row = part->batch * s->m + row;
        const matmul_place sums = matmul_sums_at(call, c_row, part->col, part->cols, scratch);
        g.c = sums.data;
        g.ldc = sums.stride;
        for (int64_t r = 0; state->halves && *put != c_row && r < rows; r++)
            pairs_put((float *)scratch + r * put_stride, a + (row + r) * s->a_row_stride,
                      s->a_k_stride, s->k, state->pairs);
        *put = c_row;
        int64_t k = 0;
        do { /* once if there is nothing to add up, so that C becomes zero */
            const int64_t piece = i64_min(state->k_piece, s->k - k);
            g.k = piece;
            g.a = a + row * s->a_row_stride + k * s->a_k_stride;
            g.a_row_stride = s->a_row_stride;
            g.a_k_stride = s->a_k_stride;
            g.b = b + gemm_line_offset(k, s->b_k_stride, &s->b_head);
            g.accumulate = k > 0;
            g.fused = (tile_fused){.bounded = false};
            if (k + piece >= s->k)
                g.fused = program_fused_at(&state->fused, call->inputs + 2, s->n, c_row, part->col);
            if (state->halves) {
                g.a = (const float *)scratch + k / per_word;
                g.a_row_stride = put_stride;
                g.a_k_stride = 1;
            } else if (matmul_copies_a(state)) {
                g.a_row_stride = g.k + MATMUL_PAD;
                g.a_k_stride = 1;
                gemm_copy((float *)scratch, g.a_row_stride, g.a, s->a_row_stride, s->a_k_stride,
                          rows, g.k);
                g.a = (const float *)scratch;
            }
            if (s->b_head.rows) {
                g.k = s->b_head.rows / s->b_head.blocks;
                g.jumps = piece / g.k - 1;
            }
            g.k /= per_word;
            if (s->b_element == GEMM_F32 || state->pairs)
                gemm_block_run(&g, rows, part->cols);
            else
                gemm_narrow_block_run(&g, rows, part->cols, s->b_element);
            k += piece;
        } while (k < s->k);
        matmul_epilogue(call, c_row, rows, part->col, part->cols, sums, scratch);
        row += rows;
    }
}

static void matmul_dot(const taper_call *call, const matmul_part *part, const float *a,
                       const float *b, char *scratch, int64_t *put) {
    (void)put;
    const struct matmul_state *state = call->state;
    const matmul_shape *s = &state->shape;
    const int64_t last = part->row + part->rows;
    for (int64_t row = part->row, rows; row < last; row += rows) {
        rows = i64_min(last - row, MATMUL_DOT_ROWS);
        const int64_t c_row = part->batch * s->m + row;
        const matmul_place sums = matmul_sums_at(call, c_row, part->col, part->cols, scratch);
        dot_block d = {.a = a + row * s->a_row_stride,
                       .a_row_stride = s->a_row_stride,
                       .b = b + part->col * s->b_col_stride,
                       .b_col_stride = s->b_col_stride,
                       .k = s->k,
                       .c = sums.data,
                       .ldc = sums.stride,
                       .alpha = state->alpha};
        if (s->a_k_stride != 1) {
            gemm_copy((float *)scratch, s->k, d.a, s->a_row_stride, s->a_k_stride, rows, s->k);
            d.a = (const float *)scratch;
            d.a_row_stride = s->k;
        }
        dot_block_run(&d, TAPER_FLOAT32, rows, part->cols);
        matmul_epilogue(call, c_row, rows, part->col, part->cols, sums, scratch);
    }
}

/* Rounds rows of A, unless scratch has them: `put` is the first of the rows that it has, or -1. */
static void matmul_rounded(const taper_call *call, const matmul_part *part, const float *a,
                           const float *b, char *scratch, int64_t *put) {
    const struct matmul_state *state = call->state;
    const matmul_shape *s = &state->shape;
    rounded_block g = {.a = scratch,
                       .a_row_bytes = rounded_row_bytes(&s->b_head, s->k, state->group),
                       .k = s->k,
                       .group = state->group,
                       .run = rounded_run(&s->b_head, state->group),
                       .panel_bytes = s->k / s->b_head.rows * s->b_head.stride * (int64_t)sizeof *b,
                       .head = s->b_head,
                       .alpha = state->alpha};
    g.b = (const char *)b + part->col / GEMM_NR * g.panel_bytes;
    const bool dots = matmul_has_dots(call);
    const int32_t middle = rounded_middle(&s->b_head, s->b_element, dots);
    const int64_t c_row = part->batch * s->m + part->row;
    if (*put != c_row)
        for (int64_t r = 0; r < part->rows; r++)
            rounded_put(scratch + r * g.a_row_bytes, a + (part->row + r) * s->a_row_stride,
                        s->a_k_stride, s->k, state->group, g.run, middle);
    *put = c_row;
    const matmul_place sums = matmul_sums_at(call, c_row, part->col, part->cols, scratch);
    g.c = sums.data;
    g.ldc = sums.stride;
    rounded_block_run(&g, part->rows, part->cols, s->b_element, dots);
    matmul_epilogue(call, c_row, part->rows, part->col, part->cols, sums, scratch);
}

/* The largest part that begins at `unit` and ends before `last`: whole columns of row chunks, or
 * some row chunks of one column chunk; if A is rounded, some column chunks of one row chunk.
 * Returns the unit after it. */
static int64_t matmul_next_part(const struct matmul_state *state, int64_t unit, int64_t last,
                                matmul_part *part) {
    const matmul_shape *s = &state->shape;
    const int64_t most_cols = i64_max(1, state->max_cols / state->col_chunk);
    int64_t row, col, row_units = 1, col_units = 1;
    if (state->group) {
        col = unit % state->col_chunks;
        row = unit / state->col_chunks % state->row_chunks;
        col_units = i64_min(i64_min(last - unit, state->col_chunks - col), most_cols);
    } else {
        row = unit % state->row_chunks;
        col = unit / state->row_chunks % state->col_chunks;
        row_units = i64_min(state->row_chunks - row, last - unit);
        if (row_units == state->row_chunks)
            col_units = i64_max(
                1, i64_min(i64_min((last - unit) / row_units, state->col_chunks - col), most_cols));
    }
    part->batch = unit / (state->row_chunks * state->col_chunks);
    part->row = row * state->row_chunk;
    part->rows = i64_min(row_units * state->row_chunk, s->m - part->row);
    part->col = col * state->col_chunk;
    part->cols = i64_min(col_units * state->col_chunk, s->n - part->col);
    return unit + row_units * col_units;
}

static taper_status f32_matmul_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const struct matmul_state *state = call->state;
    const matmul_shape *s = &state->shape;
    const int64_t last = i64_min(end * state->units_per_task, state->units);
    int64_t put = -1;
    for (int64_t unit = begin * state->units_per_task; unit < last;) {
        matmul_part part;
        unit = matmul_next_part(state, unit, last, &part);
        const float *a = call->inputs[0].data, *b = call->inputs[1].data;
        if (s->swapped) {
            a = call->inputs[1].data;
            b = call->inputs[0].data;
        }
        int64_t a_begin, b_begin;
        matmul_batch_begin(s, part.batch, &a_begin, &b_begin);
        (state->group ? matmul_rounded
         : state->dot ? matmul_dot
                      : matmul_tiles)(call, &part, a + a_begin, b + b_begin, scratch, &put);
    }
    return TAPER_OK;
}

#define f32_matmul_vnni_prepare f32_matmul_prepare
#define f32_matmul_vnni_run f32_matmul_run
#define f32_matmul_bf16_prepare f32_matmul_prepare
#define f32_matmul_bf16_run f32_matmul_run
