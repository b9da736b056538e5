/*
 * Convolution of bytes with sums in int32, as products of bytes (gemm/engine_i8.h): the windows of
 * a block of pixels are put into scratch, a row for each pixel, which costs a byte's copy for as
 * many products as there are outputs. What pads is 0.
 *
 * Where each channel is a group, the products are added up directly, channel beside channel.
 */

struct i8_conv_state {
    taper_program epilogue;
    conv_shape shape;
    int64_t lines; /* groups of 4 k */
    int64_t a_row_bytes;
    /* Units of work, numbered [row chunk][group][column chunk]; rows are the pixels of the batch.
     */
    int64_t rows, row_chunk, row_chunks;
    int64_t col_chunk, col_chunks;
    int64_t units;
    /* Scratch, in bytes from its start: A, B, C, then the epilogue's scratch. */
    size_t b_scratch, c_scratch, epilogue_scratch;
    size_t tap_scratch, zero_scratch; /* of depthwise convolutions: what taps read, and zeros */
};

/* The part of prepare that both kernels share. */
static taper_status i8_conv_begin(const taper_call *call, taper_work *work) {
    const struct conv_attrs *attrs = call->attrs;
    struct i8_conv_state *state = call->state;
    conv_shape *s = &state->shape;
    if (!i8_accumulates(attrs->accumulate) || !conv_shape_of(s, call, attrs, false, true))
        return TAPER_UNSUPPORTED;
    const taper_status status =
        PROGRAM.prepare(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                        call->inputs + 2, call->n_inputs - 2, call->output, TAPER_INT32, NULL);
    *work = (taper_work){.tasks = 0};
    state->rows = s->batch * s->dims[0].out * s->dims[1].out * s->dims[2].out;
    return status;
}

static taper_status i8_conv_prepare(const taper_call *call, taper_work *work) {
    struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const i8_engine *engine = call->kernel->data;
    const taper_status status = i8_conv_begin(call, work);
    if (status != TAPER_OK || tensor_numel(call->output) == 0)
        return status;
    const int64_t k = conv_rows(s);
    state->lines = i64_ceil_div(k, I8_GROUP);
    state->a_row_bytes = i8_row_bytes(engine, state->lines);
    const int64_t most = i64_max(1, I8_A_BYTES / state->a_row_bytes / I8_ROWS) * I8_ROWS;
    const int64_t cost =
        k + I8_SUM_COST +
        I8_EPILOGUE_COST * state->epilogue.cost / (GEMM_EPILOGUE_COST * MICROOP_ADDITION);
    const int64_t columns = i64_min(s->out, I8_MAX_COLS);
    int64_t rows = i64_ceil_div(I8_TASK_COST, i64_times(i64_times(columns, s->groups), cost));
    rows = i64_ceil_div(rows, I8_ROWS) * I8_ROWS;
    rows = i64_min(rows, i64_max(1, I8_C_ITEMS / columns / I8_ROWS) * I8_ROWS);
    rows = i64_min(i64_min(rows, most), state->rows);
    state->row_chunks = i64_ceil_div(state->rows, rows);
    state->row_chunk = i64_ceil_div(state->rows, state->row_chunks);
    state->col_chunks = i64_ceil_div(s->out, I8_MAX_COLS);
    state->col_chunk = i64_ceil_div(i64_ceil_div(s->out, state->col_chunks), GEMM_NR) * GEMM_NR;
    state->col_chunks = i64_ceil_div(s->out, state->col_chunk);
    state->units = state->row_chunks * s->groups * state->col_chunks;
    work->tasks = state->units;

    state->b_scratch = conv_aligned(state->row_chunk * state->a_row_bytes);
    state->c_scratch = state->b_scratch;
    if (!s->packed)
        state->c_scratch += (size_t)(state->col_chunk / GEMM_NR * i8_panel_bytes(state->lines));
    state->epilogue_scratch = state->c_scratch + conv_aligned(state->row_chunk * state->col_chunk *
                                                              (int64_t)sizeof(int32_t));
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* Returns the position of a pixel's first tap along each dim, and its image. */
static int64_t i8_conv_pixel(const conv_shape *s, int64_t row, int64_t at[WINDOW_DIMS]) {
    for (int d = WINDOW_DIMS - 1; d >= 0; d--) {
        const window_dim *w = &s->dims[d];
        at[d] = row % w->out * w->stride - w->low;
        row /= w->out;
    }
    return row;
}

/* Puts the window of one pixel, [taps][channels of a group] and zeros up to a whole line; false if
 * the engine takes no such activations. */
static bool i8_conv_put(const i8_engine *engine, const conv_shape *s, char *to, const char *x,
                        int64_t row, int64_t lines, bool is_signed) {
    static const char zero[1];
    int64_t at[WINDOW_DIMS], first[WINDOW_DIMS], last[WINDOW_DIMS];
    const int64_t image = i8_conv_pixel(s, row, at);
    for (int d = 0; d < WINDOW_DIMS; d++)
        last[d] = window_taps(&s->dims[d], at[d], &first[d]);
    const window_dim *slice = &s->dims[0], *line = &s->dims[1], *w = &s->dims[2];
    const int64_t step = engine->a_bytes, taps = w->kernel;
    bool takes = true;
    /* Taps side by side are one run. */
    const bool run = w->dilation == 1 && s->groups == 1;
    for (int64_t i = 0; i < slice->kernel; i++)
        for (int64_t j = 0; j < line->kernel; j++, to += taps * s->in * step) {
            const bool inside = i >= first[0] && i < last[0] && j >= first[1] && j < last[1];
            const int64_t begin = inside ? first[2] : taps, end = inside ? last[2] : taps;
            engine->put(to, zero, 0, begin * s->in, is_signed);
            if (inside) {
                const int64_t z = at[0] + i * slice->dilation, y = at[1] + j * line->dilation;
                const char *from =
                    x + (((image * slice->in + z) * line->in + y) * w->in + at[2]) * s->channels;
                if (run)
                    takes &= engine->put(to + begin * s->in * step, from + begin * s->in, 1,
                                         (end - begin) * s->in, is_signed);
                else
                    for (int64_t tap = begin; tap < end; tap++)
                        takes &= engine->put(to + tap * s->in * step,
                                             from + tap * w->dilation * s->channels, 1, s->in,
                                             is_signed);
                engine->put(to + end * s->in * step, zero, 0, (taps - end) * s->in, is_signed);
            }
        }
    engine->put(to, zero, 0, lines * I8_GROUP - conv_rows(s), is_signed);
    return takes;
}

/* Puts the windows of m pixels. Returns the engine that takes them. */
static const i8_engine *i8_conv_put_rows(const i8_engine *engine, const struct i8_conv_state *state,
                                         char *to, const char *x, int64_t row, int64_t m,
                                         bool is_signed) {
    const i8_engine *first = i8_first_engine(engine);
    for (int64_t r = 0; r < m; r++)
        if (!i8_conv_put(first, &state->shape, to + r * state->a_row_bytes, x, row + r,
                         state->lines, is_signed)) {
            first = engine;
            r = -1;
        }
    return first;
}

static taper_status i8_conv_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const i8_engine *engine = call->kernel->data;
    char *const memory = scratch;
    i8_block g = {.a = memory,
                  .a_row_bytes = state->a_row_bytes,
                  .groups = state->lines,
                  .c = (int32_t *)(void *)(memory + state->c_scratch),
                  .is_signed = call->inputs[0].dtype == TAPER_INT8};
    int64_t put = -1; /* the rows and the group that are in scratch */
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t col = unit % state->col_chunks * state->col_chunk;
        const int64_t now = unit / state->col_chunks, group = now % s->groups;
        const int64_t row = now / s->groups * state->row_chunk;
        const int64_t m = i64_min(state->row_chunk, state->rows - row);
        const int64_t n = i64_min(state->col_chunk, s->out - col);
        const char *x = (const char *)call->inputs[0].data + group * s->in;
        if (put != now)
            engine = i8_conv_put_rows(call->kernel->data, state, memory, x, row, m, g.is_signed);
        put = now;
        g.b = call->inputs[1].data;
        if (s->packed) {
            const int64_t panels = i64_ceil_div(s->out, GEMM_NR);
            g.b += (group * panels + col / GEMM_NR) * i8_panel_bytes(state->lines);
        } else {
            int8_t *const packed = (int8_t *)(memory + state->b_scratch);
            i8_pack_b(packed, g.b + group * s->out + col, s->outputs, 1, conv_rows(s), n);
            g.b = packed;
        }
        i8_finish(engine, &g, &state->epilogue, call, row, m, group * s->out + col, n, s->outputs,
                  memory + state->epilogue_scratch);
    }
    return TAPER_OK;
}

/* ---- each channel is a group ---- */

/*
 * Two taps are multiplied at once: their bytes are widened and zipped, and vi_madd_16 adds the
 * products of each channel. A block of channels has two vectors of sums, in the order of the zips.
 */
enum { I8_TAP_COLS = 2 * V_LEN /* channels of a block */ };

static int64_t i8_tap_pairs(const conv_shape *s) { return (conv_taps(s) + 1) / 2; }

/* Returns the first channel of a block: the last one overlaps the one before it. */
V_INLINE int64_t i8_tap_col(int64_t block, int64_t n) {
    return i64_min(block * I8_TAP_COLS, n - I8_TAP_COLS);
}

/* Writes the weight [taps][n] as pairs, [blocks][pairs][2] vectors; a tap beyond the last is 0. */
static void i8_zip_taps(int32_t *to, const int8_t *weight, int64_t taps, int64_t n) {
    static const int8_t zeros[I8_TAP_COLS];
    for (int64_t block = 0; block < i64_ceil_div(n, I8_TAP_COLS); block++) {
        const int8_t *const w = weight + i8_tap_col(block, n);
        for (int64_t tap = 0; tap < taps; tap += 2, to += 2 * V_LEN) {
            const vi a = vi_widen_i8(w + tap * n);
            const vi b = vi_widen_i8(tap + 1 < taps ? w + (tap + 1) * n : zeros);
            vi_store(to, vi_zip_low_16(a, b));
            vi_store(to + V_LEN, vi_zip_high_16(a, b));
        }
    }
}

/* Loads a block's bytes of a tap as 16 bits. */
V_INLINE vi i8_widen_tap(const char *p, const bool is_signed) {
    const vi wide = vi_widen_i8((const int8_t *)p);
    return is_signed ? wide : vi_and(wide, vi_set1(0x00ff00ff));
}

/* Computes one pixel of n >= I8_TAP_COLS channels from the rows that its taps read. */
V_INLINE void i8_conv_taps(int32_t *sums, const char *const *taps, const int32_t *weight,
                           int64_t pairs, int64_t n, const bool is_signed) {
    for (int64_t block = 0; block < i64_ceil_div(n, I8_TAP_COLS); block++) {
        const int64_t col = i8_tap_col(block, n);
        vi low = vi_set1(0), high = low;
        for (int64_t pair = 0; pair < pairs; pair++, weight += 2 * V_LEN) {
            const vi a = i8_widen_tap(taps[2 * pair] + col, is_signed);
            const vi b = i8_widen_tap(taps[2 * pair + 1] + col, is_signed);
            low = vi_add(low, vi_madd_16(vi_zip_low_16(a, b), vi_load(weight)));
            high = vi_add(high, vi_madd_16(vi_zip_high_16(a, b), vi_load(weight + V_LEN)));
        }
        int32_t parts[2][V_LEN]; /* a zip takes 4 channels of each 16 bytes */
        vi_store(parts[0], low);
        vi_store(parts[1], high);
        _Pragma("GCC unroll 16") for (int p = 0; p < 2 * V_LEN / 4; p++)
            memcpy(sums + col + 4 * p, parts[p % 2] + p / 2 * 4, 4 * sizeof *sums);
    }
}

static taper_status i8_conv_depthwise_prepare(const taper_call *call, taper_work *work) {
    struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const taper_status status = i8_conv_begin(call, work);
    if (status != TAPER_OK)
        return status;
    if (s->packed || s->in != 1 || s->out != 1)
        return TAPER_UNSUPPORTED;
    if (tensor_numel(call->output) == 0)
        return TAPER_OK;
    /* In multiply-adds of which as many fit the time as in float32. */
    const int64_t cost = i64_times(s->outputs, conv_taps(s) + GEMM_EPILOGUE_COST);
    state->row_chunk = i64_min(state->rows, i64_max(1, CONV_UNIT_COST / 4 / cost));
    state->row_chunk = i64_min(state->row_chunk, i64_max(1, I8_C_ITEMS / i64_max(1, s->outputs)));
    work->tasks = state->row_chunks = i64_ceil_div(state->rows, state->row_chunk);
    const int64_t blocks = i64_ceil_div(s->outputs, I8_TAP_COLS), pairs = i8_tap_pairs(s);
    state->tap_scratch = conv_aligned(blocks * pairs * 2 * (int64_t)sizeof(vi));
    state->zero_scratch = state->tap_scratch + conv_aligned(2 * pairs * (int64_t)sizeof(char *));
    state->c_scratch = state->zero_scratch + conv_aligned(s->outputs);
    state->epilogue_scratch =
        state->c_scratch + conv_aligned(state->row_chunk * s->outputs * (int64_t)sizeof(int32_t));
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* sums[c] += x[c] * weight[c]. A product of bytes fits 16 bits. */
static void i8_conv_tap(int32_t *restrict sums, const void *x, const int8_t *restrict weight,
                        int64_t n, bool is_signed) {
    const int8_t *restrict s = x;
    const uint8_t *restrict u = x;
    if (is_signed)
        for (int64_t c = 0; c < n; c++)
            sums[c] += (int16_t)(s[c] * weight[c]);
    else
        for (int64_t c = 0; c < n; c++)
            sums[c] += (int16_t)(u[c] * weight[c]);
}

/* Computes one pixel of few channels. taps: as of i8_conv_taps. */
static void i8_conv_few_channels(int32_t *sums, const char *const *rows, const int8_t *weight,
                                 int64_t taps, int64_t n, bool is_signed) {
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t tap = 0; tap < taps; tap++)
        i8_conv_tap(sums, rows[tap], weight + tap * n, n, is_signed);
}

/* Writes the row of x that each tap of a pixel reads: zeros beyond the border. */
static void i8_conv_rows_of(const conv_shape *s, const char **rows, const char *x,
                            const char *zeros, int64_t pixel) {
    const window_dim *w = s->dims;
    int64_t at[WINDOW_DIMS];
    const int64_t image = i8_conv_pixel(s, pixel, at);
    for (int64_t i = 0; i < w[0].kernel; i++)
        for (int64_t j = 0; j < w[1].kernel; j++) {
            const int64_t z = at[0] + i * w[0].dilation, y = at[1] + j * w[1].dilation;
            const bool inside = z >= 0 && z < w[0].in && y >= 0 && y < w[1].in;
            const int64_t line = ((image * w[0].in + z) * w[1].in + y) * w[2].in;
            for (int64_t l = 0; l < w[2].kernel; l++) {
                const int64_t column = at[2] + l * w[2].dilation;
                *rows++ = inside && column >= 0 && column < w[2].in
                              ? x + (line + column) * s->outputs
                              : zeros;
            }
        }
    *rows = zeros; /* the other of a pair */
}

static taper_status i8_conv_depthwise_run(const taper_call *call, int64_t begin, int64_t end,
                                          void *scratch) {
    const struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const bool is_signed = call->inputs[0].dtype == TAPER_INT8;
    const int8_t *weight = call->inputs[1].data;
    const int64_t n = s->outputs, taps = conv_taps(s), pairs = i8_tap_pairs(s);
    const int64_t size = (int64_t)taper_dtype_size(call->output->dtype);
    char *const memory = scratch;
    int32_t *const zipped = scratch;
    const char **const rows = (const char **)(void *)(memory + state->tap_scratch);
    char *const zeros = memory + state->zero_scratch;
    memset(zeros, 0, (size_t)n);
    if (n >= I8_TAP_COLS)
        i8_zip_taps(zipped, weight, taps, n);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit * state->row_chunk;
        const int64_t m = i64_min(state->row_chunk, state->rows - row);
        char *const out = (char *)call->output->data + row * n * size;
        int32_t *const block =
            state->epilogue.count ? (void *)(memory + state->c_scratch) : (void *)out;
        for (int64_t r = 0; r < m; r++) {
            i8_conv_rows_of(s, rows, call->inputs[0].data, zeros, row + r);
            if (n < I8_TAP_COLS)
                i8_conv_few_channels(block + r * n, rows, weight, taps, n, is_signed);
            else if (is_signed)
                i8_conv_taps(block + r * n, rows, zipped, pairs, n, true);
            else
                i8_conv_taps(block + r * n, rows, zipped, pairs, n, false);
        }
        if (state->epilogue.count)
            PROGRAM.run_from(&state->epilogue, call->inputs + 2, row, row + m, 0, n, block, n, out,
                             n, memory + state->epilogue_scratch);
    }
    return TAPER_OK;
}

#define i8_conv_vnni_prepare i8_conv_prepare
#define i8_conv_vnni_run i8_conv_run
