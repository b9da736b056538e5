/*
 * CONV and CONV_TRANSPOSE of float64. The outputs of a phase (conv_block.inl) are the rows of a
 * product, of which k is [taps of the phase][channels of a group]: tiles read copies of the
 * positions and of the weight, as those of MATMUL do. Where every channel is a group, taps are
 * added to pixels one by one instead.
 */
#include "gemm/f64_tile.inl"

/* Work units are numbered [image][z][phase of y][part of its lines][group][column chunk]. */
struct f64_conv_state {
    conv_shape shape;
    bool depthwise;
    int64_t phases;       /* along y */
    int64_t lines, parts; /* lines of a part; parts of a phase */
    int64_t cols, chunks; /* output channels of a chunk; chunks of a group */
    taper_program epilogue;
    /* Scratch, in bytes from its start: A and B, sums that may not lie in the output before the
     * epilogue, then the epilogue's scratch. */
    size_t sums_scratch, epilogue_scratch;
};

static taper_status f64_conv_prepare_as(const taper_call *call, taper_work *work, bool transposed) {
    const struct conv_attrs *attrs = call->attrs;
    struct f64_conv_state *state = call->state;
    conv_shape *s = &state->shape;
    if (!conv_shape_in(s, call, attrs, transposed, TAPER_FLOAT64))
        return TAPER_UNSUPPORTED;
    taper_program *p = &state->epilogue;
    const taper_status status =
        PROGRAM.prepare(p, &attrs->code, &attrs->args, &attrs->scalars, call->inputs + 2,
                        call->n_inputs - 2, call->output, TAPER_FLOAT64);
    if (status != TAPER_OK)
        return status;
    *work = (taper_work){.tasks = 0};
    if (tensor_numel(call->output) == 0)
        return TAPER_OK;
    state->depthwise = s->in == 1 && s->out == 1;
    const int64_t groups = state->depthwise ? 1 : s->groups;
    const int64_t out = state->depthwise ? s->outputs : s->out;
    state->cols = state->depthwise ? out : i64_min(TYPED_COLS, out);
    state->chunks = i64_ceil_div(out, state->cols);
    state->phases = conv_phases(s, 1, s->dims[1].out);
    const int64_t most = i64_ceil_div(s->dims[1].out, state->phases); /* lines of a phase */
    const int64_t line = i64_times(s->dims[2].out * state->cols, conv_rows(s));
    state->lines =
        i64_max(i64_ceil_div(TYPED_MIN_ROWS, s->dims[2].out), TYPED_COST / i64_max(1, line));
    state->lines = i64_min(i64_max(1, state->lines), most);
    state->parts = i64_ceil_div(most, state->lines);
    work->tasks = s->batch * s->dims[0].out * state->phases * state->parts * groups * state->chunks;
    const int64_t k = i64_min(TYPED_K, conv_rows(s));
    const int64_t cols = i64_ceil_div(state->cols, TYPED_TILE_COLS) * TYPED_TILE_COLS;
    const int64_t pixels = p->over ? state->lines * s->dims[2].out : 0;
    state->sums_scratch =
        state->depthwise ? 0 : conv_aligned((TYPED_ROWS + cols) * k * (int64_t)sizeof(double));
    state->epilogue_scratch =
        state->sums_scratch + conv_aligned(pixels * state->cols * (int64_t)sizeof(double));
    work->scratch_bytes = state->epilogue_scratch + p->scratch_bytes;
    return TAPER_OK;
}

static taper_status f64_conv_prepare(const taper_call *call, taper_work *work) {
    return f64_conv_prepare_as(call, work, false);
}

static taper_status f64_conv_transpose_prepare(const taper_call *call, taper_work *work) {
    return f64_conv_prepare_as(call, work, true);
}

/* A phase of an image: x of the group, the phase's axes, and the indices of an output in them.
 * sums: of the first line of the unit, which may be in scratch. */
typedef struct f64_phase {
    const conv_shape *s;
    const double *x;
    conv_axis axes[WINDOW_DIMS];
    int64_t z, y;
    double *sums;
    int64_t first, line,
        pixel; /* the first line; elements to the next line and pixel of the sums */
} f64_phase;

/* Elements of k from one on that belong to one tap. */
typedef struct f64_run {
    int64_t tap[WINDOW_DIMS]; /* of those of the phase */
    int64_t channel, length;
} f64_run;

static f64_run f64_run_at(const f64_phase *p, int64_t k, int64_t end) {
    const int64_t in = p->s->in, tap = k / in, w = p->axes[2].taps, h = p->axes[1].taps;
    return (f64_run){{tap / (w * h), tap / w % h, tap % w}, k % in, i64_min(in - k % in, end - k)};
}

/* The row of the weight that a run begins with. */
static int64_t f64_weight_row(const f64_phase *p, const f64_run *run) {
    int64_t at = 0;
    for (int32_t d = 0; d < WINDOW_DIMS; d++)
        at = at * p->s->dims[d].kernel + p->axes[d].tap + run->tap[d] * p->axes[d].tap_step;
    return at * p->s->in + run->channel;
}

/* Where output i of an axis reads x by a tap; -1 if that is outside. */
static int64_t f64_position(const f64_phase *p, int32_t d, int64_t i, int64_t tap) {
    const conv_axis *a = &p->axes[d];
    const int64_t at = a->at + i * a->at_step + tap * a->tap_at;
    return at < 0 || at >= p->s->dims[d].in ? -1 : at;
}

/* Where output (z, y, i) of a phase reads x by the tap of a run; NULL outside. */
static const double *f64_source(const f64_phase *p, const f64_run *run, int64_t i) {
    const conv_shape *s = p->s;
    const int64_t z = f64_position(p, 0, p->z, run->tap[0]),
                  y = f64_position(p, 1, p->y, run->tap[1]), x = f64_position(p, 2, i, run->tap[2]);
    return z < 0 || y < 0 || x < 0
               ? NULL
               : p->x + ((z * s->dims[1].in + y) * s->dims[2].in + x) * s->channels + run->channel;
}

/* [end - begin][TYPED_ROWS] of the rows of outputs i.. of a line. */
static void f64_copy_rows(double *to, const f64_phase *p, int64_t i, int64_t begin, int64_t end) {
    static const double zeros[TYPED_K];
    for (int64_t k = begin; k < end;) {
        const f64_run run = f64_run_at(p, k, end);
        const double *from[TYPED_ROWS];
        for (int64_t r = 0; r < TYPED_ROWS; r++) {
            from[r] = i + r < p->axes[2].count ? f64_source(p, &run, i + r) : NULL;
            from[r] = from[r] ? from[r] : zeros;
        }
        for (int64_t j = 0; j < run.length; j++, to += TYPED_ROWS)
            for (int64_t r = 0; r < TYPED_ROWS; r++)
                to[r] = from[r][j];
        k += run.length;
    }
}

/* The weight's rows begin to end - 1 of a phase, in tiles of `cols` columns. */
static void f64_copy_weight(double *to, const f64_phase *p, const double *weight, int64_t cols,
                            int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end;) {
        const f64_run run = f64_run_at(p, k, end);
        TYPED_COPY_B(to + (k - begin) * TYPED_TILE_COLS, (end - begin) * TYPED_TILE_COLS,
                     weight + f64_weight_row(p, &run) * p->s->outputs, p->s->outputs, 1, cols,
                     run.length);
        k += run.length;
    }
}

/* The sums of (z, y, i) of a phase. */
static double *f64_sums(const f64_phase *p, int64_t i) {
    const conv_axis *w = &p->axes[2];
    return p->sums + (p->y - p->first) * p->line + (w->first + i * w->step) * p->pixel;
}

/* Lines up to last - 1 of a phase, by tiles; weight: from the first column on. */
static void f64_conv_tiles(f64_phase *p, const double *weight, int64_t last, int64_t cols,
                           double *scratch) {
    const conv_shape *s = p->s;
    const conv_axis *w = &p->axes[2];
    const int64_t all = p->axes[0].taps * p->axes[1].taps * w->taps * s->in;
    int64_t begin = 0;
    do { /* once where no tap reaches: zeros */
        const int64_t end = i64_min(begin + TYPED_K, all), k = end - begin;
        double *const lines = scratch + TYPED_ROWS * k;
        f64_copy_weight(lines, p, weight, cols, begin, end);
        for (p->y = p->first; p->y < last; p->y++)
            for (int64_t i = 0; i < w->count; i += TYPED_ROWS) {
                f64_copy_rows(scratch, p, i, begin, end);
                for (int64_t col = 0; col < cols; col += TYPED_TILE_COLS) {
                    double sums[TYPED_ROWS * TYPED_TILE_COLS];
                    TYPED_TILE(sums, scratch, lines + col * k, k, true);
                    f64_put(f64_sums(p, i) + col, w->step * p->pixel, sums,
                            i64_min(TYPED_ROWS, w->count - i), i64_min(TYPED_TILE_COLS, cols - col),
                            begin == 0);
                }
            }
        begin = end;
    } while (begin < all);
}

/* The same where every channel is a group. */
static void f64_conv_depthwise(f64_phase *p, const double *weight, int64_t last) {
    const int64_t channels = p->s->channels;
    const int64_t all = p->axes[0].taps * p->axes[1].taps * p->axes[2].taps;
    for (p->y = p->first; p->y < last; p->y++)
        for (int64_t i = 0; i < p->axes[2].count; i++) {
            double *restrict y = f64_sums(p, i);
            memset(y, 0, (size_t)channels * sizeof *y);
            for (int64_t tap = 0; tap < all; tap++) {
                const f64_run run = f64_run_at(p, tap, all);
                const double *restrict x = f64_source(p, &run, i);
                const double *restrict b = weight + f64_weight_row(p, &run) * channels;
                for (int64_t c = 0; x && c < channels; c++)
                    y[c] = d_fma(x[c], b[c], y[c]);
            }
        }
}

static void f64_conv_unit(const taper_call *call, int64_t unit, char *scratch) {
    const struct f64_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const int64_t groups = state->depthwise ? 1 : s->groups;
    const int64_t chunk = unit % state->chunks, group = unit / state->chunks % groups;
    const int64_t line = unit / state->chunks / groups, part = line % state->parts;
    const int64_t phase = line / state->parts % state->phases;
    const int64_t slice = line / state->parts / state->phases, image = slice / s->dims[0].out;
    const int64_t z = slice % s->dims[0].out, c0 = group * s->out + chunk * state->cols;
    const int64_t cols =
        i64_min(state->cols, (state->depthwise ? s->outputs : s->out) - chunk * state->cols);
    conv_span all[WINDOW_DIMS];
    for (int32_t d = 0; d < WINDOW_DIMS; d++)
        all[d] = (conv_span){0, s->dims[d].in, 1};
    f64_phase p = {.s = s, .x = call->inputs[0].data};
    p.x += image * s->dims[0].in * s->dims[1].in * s->dims[2].in * s->channels + group * s->in;
    p.z = s->transposed ? z / s->dims[0].stride : z;
    p.axes[0] =
        conv_axis_of(s, 0, &all[0], 0, s->dims[0].out, s->transposed ? z % s->dims[0].stride : 0);
    p.axes[1] = conv_axis_of(s, 1, &all[1], 0, s->dims[1].out, phase);
    const int64_t first = part * state->lines;
    const int64_t last = i64_min(first + state->lines, p.axes[1].count);
    if (first >= last)
        return;
    const taper_program *program = &state->epilogue;
    /* Lines of a phase are a step apart in the output. */
    const int64_t step = p.axes[1].step * s->dims[2].out; /* in pixels */
    const int64_t row = conv_pixel(s, image, z, p.axes[1].first, 0) + first * step;
    double *const output = (double *)call->output->data + row * s->outputs + c0;
    p.first = first;
    p.sums = program->over ? (double *)(void *)(scratch + state->sums_scratch) : output;
    p.pixel = program->over ? cols : s->outputs;
    p.line = program->over ? s->dims[2].out * cols : step * s->outputs;
    const double *weight = call->inputs[1].data;
    for (int64_t x = 0; x < conv_phases(s, 2, s->dims[2].out); x++) {
        p.axes[2] = conv_axis_of(s, 2, &all[2], 0, s->dims[2].out, x);
        if (state->depthwise)
            f64_conv_depthwise(&p, weight, last);
        else
            f64_conv_tiles(&p, weight + c0, last, cols, (double *)(void *)scratch);
    }
    for (int64_t y = 0; y < last - first && program->count; y++) {
        const int64_t r0 = row + y * step;
        PROGRAM.run(program, call->inputs + 2, r0, r0 + s->dims[2].out, c0, c0 + cols,
                    p.sums + y * p.line, p.pixel, output + y * step * s->outputs, s->outputs,
                    scratch + state->epilogue_scratch);
    }
}

static taper_status f64_conv_run(const taper_call *call, int64_t begin, int64_t end,
                                 void *scratch) {
    for (int64_t unit = begin; unit < end; unit++)
        f64_conv_unit(call, unit, scratch);
    return TAPER_OK;
}

static taper_status f64_conv_transpose_run(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    return f64_conv_run(call, begin, end, scratch);
}

#include "gemm/typed_end.inl"
