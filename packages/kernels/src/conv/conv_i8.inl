/*
 * Convolution of bytes with sums in int32, as products of bytes (gemm/engine_i8.h): the windows of
 * a block of pixels are put into scratch, a row for each pixel, which costs a byte's copy for as
 * many products as there are outputs. The lines of x that pixels of one row read are put first, so
 * that each byte is converted once for all windows in them, unless the engine reads x as it is.
 */

enum {
    I8_COPY_STEP = 32,  /* bytes that a copy of fewer reads and writes */
    I8_CONV_ROWS = 64,  /* of a unit, that read B once */
    I8_LEAST_UNITS = 4, /* for threads, if there are so many columns */
};

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
    /* Scratch, in bytes from its start: A, what pads, B, C, then the epilogue's scratch. */
    size_t border_scratch, b_scratch, c_scratch, epilogue_scratch;
    /* Of matrix products, behind A: lines of x as the engine reads them, and what narrows A. */
    size_t line_scratch, spare_scratch;
    int64_t line_pixels; /* in scratch, of each line */
    bool in_lines; /* A is lines of x, and behind them, at line_scratch, pointers (lines_i8.inl) */
    /* Of depthwise convolutions: what taps read. Those of kind DW_OTHER have units of row_chunk
     * pixels, the others of two rows, of `width` pixels each. */
    size_t tap_scratch;
    int32_t kind;  /* as of depthwise_kind_of */
    int32_t group; /* taps that are multiplied at once, 2 or 4 */
    int64_t width, widths;
    int64_t part; /* pixels whose sums the epilogue takes at once */
};

/* Returns the position of a pixel's first tap along each dim, and its image. */
static int64_t i8_conv_pixel(const conv_shape *s, int64_t row, int64_t at[WINDOW_DIMS]) {
    for (int d = WINDOW_DIMS - 1; d >= 0; d--) {
        const window_dim *w = &s->dims[d];
        at[d] = row % w->out * w->stride - w->low;
        row /= w->out;
    }
    return row;
}

#include "conv/lines_i8.inl"

/* The part of prepare that both kernels share. */
static taper_status i8_conv_begin(const taper_call *call, taper_work *work) {
    const struct conv_attrs *attrs = call->attrs;
    struct i8_conv_state *state = call->state;
    conv_shape *s = &state->shape;
    if (!i8_accumulates(attrs->accumulate) || !conv_shape_of(s, call, attrs, false, true))
        return TAPER_UNSUPPORTED;
    const taper_status status =
        PROGRAM.prepare(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                        call->inputs + 2, call->n_inputs - 2, call->output, TAPER_INT32);
    *work = (taper_work){.tasks = 0};
    state->rows = s->batch * s->dims[0].out * s->dims[1].out * s->dims[2].out;
    return status;
}

/* Returns the bytes of the lines in scratch; INT64_MAX if there are too many. */
static int64_t i8_conv_line_bytes(const struct i8_conv_state *state, const i8_engine *engine) {
    const conv_shape *s = &state->shape;
    const window_dim *d = s->dims, *w = &s->dims[2];
    const int64_t span = i64_plus(i64_times(state->line_pixels - 1, w->stride),
                                  i64_plus(i64_times(w->kernel - 1, w->dilation), 1));
    const int64_t lines = i64_times(i64_min(d[0].kernel, d[0].in), i64_min(d[1].kernel, d[1].in));
    const int64_t bytes = i64_times(i64_min(span, w->in), s->in * engine->a_bytes);
    return i64_plus(i64_times(lines, bytes), I8_COPY_STEP);
}

/* Chooses for how many pixels lines are put at once, where L2 holds them. */
static void i8_conv_lines(struct i8_conv_state *state, const i8_engine *engine) {
    state->line_scratch = conv_aligned(state->row_chunk * state->a_row_bytes);
    state->line_pixels = i64_min(state->row_chunk, state->shape.dims[2].out);
    while (state->line_pixels > 1 && i8_conv_line_bytes(state, engine) > I8_A_BYTES)
        state->line_pixels = i64_ceil_div(state->line_pixels, 2);
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
    const int64_t most = i64_max(1, I8_A_BYTES / state->a_row_bytes / engine->rows) * engine->rows;
    const int64_t cost =
        k + I8_SUM_COST +
        I8_EPILOGUE_COST * state->epilogue.cost / (GEMM_EPILOGUE_COST * MICROOP_ADDITION);
    const int64_t columns = i64_min(s->out, I8_MAX_COLS);
    int64_t rows = i64_ceil_div(I8_TASK_COST, i64_times(i64_times(columns, s->groups), cost));
    rows = i64_ceil_div(i64_max(rows, I8_CONV_ROWS), engine->rows) * engine->rows;
    rows = i64_min(rows, i64_max(1, I8_C_ITEMS / columns / engine->rows) * engine->rows);
    rows = i64_min(i64_min(rows, most), state->rows);
    state->row_chunks = i64_ceil_div(state->rows, rows);
    state->row_chunk = i64_ceil_div(state->rows, state->row_chunks);
    const int64_t in_lines = i64_min(i8_lines_pixels(s, rows), state->rows);
    state->in_lines =
        i8_lines_serve(s, engine) && i8_lines_bytes(s, in_lines) < in_lines * state->a_row_bytes;
    if (state->in_lines) {
        state->row_chunk = in_lines;
        state->row_chunks = i64_ceil_div(state->rows, in_lines);
    }
    const int64_t parts = i64_ceil_div(I8_LEAST_UNITS, state->row_chunks * s->groups);
    state->col_chunks =
        i64_max(i64_ceil_div(s->out, I8_MAX_COLS), i64_min(parts, s->out / I8_MIN_COLS));
    state->col_chunk = i64_ceil_div(i64_ceil_div(s->out, state->col_chunks), GEMM_NR) * GEMM_NR;
    state->col_chunks = i64_ceil_div(s->out, state->col_chunk);
    state->units = state->row_chunks * s->groups * state->col_chunks;
    work->tasks = state->units;

    if (state->in_lines) {
        state->line_scratch = conv_aligned(i8_lines_bytes(s, state->row_chunk));
        state->border_scratch =
            state->line_scratch + conv_aligned(state->row_chunk * (int64_t)sizeof(char *));
    } else {
        i8_conv_lines(state, engine);
        state->border_scratch =
            state->line_scratch + conv_aligned(i8_conv_line_bytes(state, engine));
    }
    state->spare_scratch = state->border_scratch +
                           conv_aligned(s->dims[2].kernel * s->in * engine->a_bytes + I8_COPY_STEP);
    state->b_scratch = state->spare_scratch +
                       (size_t)i8_spare_bytes(engine, state->row_chunk, s->out, state->lines);
    state->c_scratch = state->b_scratch;
    if (!s->packed)
        state->c_scratch += (size_t)(state->col_chunk / GEMM_NR * i8_panel_bytes(state->lines));
    state->epilogue_scratch = state->c_scratch + conv_aligned(state->row_chunk * state->col_chunk *
                                                              (int64_t)sizeof(int32_t));
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* Copies bytes: I8_COPY_STEP if there are fewer, which is for scratch alone. */
V_INLINE void i8_conv_copy(char *to, const char *from, int64_t bytes) {
    const int64_t last = i64_max(0, bytes - I8_COPY_STEP);
    for (int64_t i = 0; i < last; i += I8_COPY_STEP)
        memcpy(to + i, from + i, I8_COPY_STEP);
    memcpy(to + last, from + last, I8_COPY_STEP);
}

/* Puts the windows of m pixels of one row of the output, [taps][channels of a group] and zeros up
 * to a whole line each; false if the engine takes no such activations: then these are put only if
 * they may be narrowed. border: scratch for a row of taps outside of x, which are `value`. */
static bool i8_conv_put(const i8_engine *engine, const struct i8_conv_state *state, char *to,
                        char *lines, char *border, char value, const char *x, const char *x_end,
                        int64_t row, int64_t m, bool is_signed, bool narrows) {
    const conv_shape *s = &state->shape;
    const window_dim *slice = &s->dims[0], *line = &s->dims[1], *w = &s->dims[2];
    const int64_t step = engine->a_bytes, taps = w->kernel, tap_bytes = s->in * step;
    int64_t at[WINDOW_DIMS], first[2], last[2];
    const int64_t image = i8_conv_pixel(s, row, at);
    for (int d = 0; d < 2; d++)
        last[d] = window_taps(&s->dims[d], at[d], &first[d]);
    const int64_t begin = i64_min(i64_max(0, at[2]), w->in);
    const int64_t end = i64_min(w->in, at[2] + (m - 1) * w->stride + (taps - 1) * w->dilation + 1);
    const int64_t pixels = i64_max(0, end - begin), line_bytes = pixels * tap_bytes;
    const bool is_inside = last[0] - first[0] == slice->kernel &&
                           last[1] - first[1] == line->kernel &&
                           pixels == (m - 1) * w->stride + (taps - 1) * w->dilation + 1;
    bool takes = is_inside || engine->put(border, &value, 0, taps * s->in, is_signed);
    /* The lines that windows are copied from: of x itself, or in scratch. */
    int64_t step_bytes = line->dilation * w->in * s->channels;
    const int64_t y = at[1] + first[1] * line->dilation;
    const char *from_lines =
        x + (((image * slice->in + at[0]) * line->in + y) * w->in + begin) * s->channels;
    const bool are_read =
        !narrows && s->groups == 1 && slice->kernel == 1 &&
        engine->reads(from_lines, step_bytes, last[1] - first[1], line_bytes, is_signed);
    const int64_t least = tap_bytes >= I8_COPY_STEP ? 0 : I8_COPY_STEP; /* that a copy reads */
    const int64_t behind = x_end - from_lines - (last[1] - first[1] - 1) * step_bytes - line_bytes;
    const bool is_direct = are_read && behind >= least;
    if (!is_direct) {
        from_lines = lines;
        step_bytes = line_bytes;
    }
    char *put = lines;
    for (int64_t i = first[0]; i < last[0] && !is_direct; i++)
        for (int64_t j = first[1]; j < last[1]; j++, put += line_bytes) {
            const int64_t z = at[0] + i * slice->dilation, now = at[1] + j * line->dilation;
            const char *from =
                x + (((image * slice->in + z) * line->in + now) * w->in + begin) * s->channels;
            if (are_read)
                memcpy(put, from, (size_t)line_bytes);
            else if (s->groups == 1)
                takes &= engine->put(put, from, 1, pixels * s->in, is_signed);
            else
                for (int64_t p = 0; p < pixels; p++)
                    takes &= engine->put(put + p * tap_bytes, from + p * s->channels, 1, s->in,
                                         is_signed);
        }
    if (!takes && !narrows)
        return false;
    char zero[sizeof(int16_t)], past[sizeof(int16_t) * I8_GROUP];
    engine->put(zero, "", 1, 1, is_signed);
    memset(past, *zero, sizeof past);
    const bool are_lines_inside =
        last[0] - first[0] == slice->kernel && last[1] - first[1] == line->kernel;
    const int64_t window_lines = slice->kernel * line->kernel, window_bytes = taps * tap_bytes;
    for (int64_t r = 0; r < m; r++, to += state->a_row_bytes) {
        const int64_t column = at[2] + r * w->stride;
        const bool whole = w->dilation == 1 && column >= 0 && column + taps <= w->in;
        const char *from = from_lines + (column - begin) * tap_bytes;
        char *t = to;
        if (whole && are_lines_inside) {
            for (int64_t l = 0; l < window_lines; l++, t += window_bytes, from += step_bytes)
                i8_conv_copy(t, from, window_bytes);
            memcpy(t, past, sizeof past); /* a row has room behind it */
            continue;
        }
        for (int64_t i = 0; i < slice->kernel; i++)
            for (int64_t j = 0; j < line->kernel; j++, t += window_bytes) {
                if (i < first[0] || i >= last[0] || j < first[1] || j >= last[1]) {
                    i8_conv_copy(t, border, window_bytes);
                    continue;
                }
                if (whole)
                    i8_conv_copy(t, from, window_bytes);
                else
                    for (int64_t l = 0; l < taps; l++) {
                        const int64_t c = column + l * w->dilation;
                        const bool is_pixel = c >= 0 && c < w->in;
                        i8_conv_copy(t + l * tap_bytes,
                                     is_pixel ? from + l * w->dilation * tap_bytes : border,
                                     tap_bytes);
                    }
                from += step_bytes;
            }
        memcpy(t, past, sizeof past);
    }
    return takes;
}

/* Puts the windows of m pixels into scratch. Returns the engine that takes them. */
static const i8_engine *i8_conv_put_rows(const i8_engine *engine, const struct i8_conv_state *state,
                                         i8_block *g, char *memory, const char *x,
                                         const char *x_end, char border, int64_t row, int64_t m) {
    const int64_t width = state->shape.dims[2].out;
    for (const i8_engine *now = i8_first_engine(engine);; now = engine) {
        const bool narrows = i8_narrows(now, m, state->shape.out, state->lines);
        bool takes = true;
        g->rests = NULL;
        for (int64_t r = 0, n; r < m && (takes || narrows); r += n) {
            n = i64_min(i64_min(m - r, width - (row + r) % width), state->line_pixels);
            takes &= i8_conv_put(now, state, memory + r * state->a_row_bytes,
                                 memory + state->line_scratch, memory + state->border_scratch,
                                 border, x, x_end, row + r, n, g->is_signed, narrows);
        }
        if (takes || (narrows && now->narrow(g, memory, m, memory + state->spare_scratch)))
            return now;
    }
}

static taper_status i8_conv_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct conv_attrs *attrs = call->attrs;
    const struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const i8_engine *engine = call->kernel->data;
    char *const memory = scratch;
    i8_block g = {.a = memory,
                  .a_row_bytes = state->a_row_bytes,
                  .groups = state->lines,
                  .c = (int32_t *)(void *)(memory + state->c_scratch),
                  .is_signed = call->inputs[0].dtype == TAPER_INT8};
    const char *const x_end = (const char *)call->inputs[0].data + tensor_numel(&call->inputs[0]);
    int64_t put = -1; /* the rows and the group that are in scratch */
    i8_begin(engine);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t col = unit % state->col_chunks * state->col_chunk;
        const int64_t now = unit / state->col_chunks, group = now % s->groups;
        const int64_t row = now / s->groups * state->row_chunk;
        const int64_t m = i64_min(state->row_chunk, state->rows - row);
        const int64_t n = i64_min(state->col_chunk, s->out - col);
        const char *x = (const char *)call->inputs[0].data + group * s->in;
        if (put != now && state->in_lines)
            i8_put_lines(engine, s, &g, memory,
                         (const char **)(void *)(memory + state->line_scratch), x,
                         (char)attrs->border, row, m);
        else if (put != now)
            engine = i8_conv_put_rows(call->kernel->data, state, &g, memory, x, x_end,
                                      (char)attrs->border, row, m);
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
    i8_end(call->kernel->data);
    return TAPER_OK;
}

#define i8_conv_amx_prepare i8_conv_prepare
#define i8_conv_amx_run i8_conv_run
#define i8_conv_vnni_prepare i8_conv_prepare
#define i8_conv_vnni_run i8_conv_run
