/*
 * Depthwise convolution: each output channel has one input channel. Vectors run over channels. A
 * tile is a few pixels of a few rows: its sums for a vector of channels stay in registers for all
 * taps, and then the next channels follow, so that x, the weight and the output are accessed in
 * memory order. Windows inside of x are read by strides, others through pointers, some of which
 * point to zeros. The products of an element are added in the order of the taps, whatever the tile.
 */

enum {
    DW_ROWS = 2,        /* rows of a tile of the kernels below: both read a tap at once */
    DW_PIXELS = 4,      /* pixels of each row: 8 sums cover the latency of an FMA */
    DW_MAX_TAPS = 7,    /* the most taps of the kernels below */
    DW_MAX_STRIDE = 2,  /* the largest stride of the kernels below */
    DW_LONG_PIXELS = 8, /* pixels of a tile with one row */
    DW_SUMS = 8,        /* sums of any tile */
    DW_WAITING = 8,     /* vectors of channels that a micro-op is applied to at a time */
    DW_MAX_POINTERS = 8
        << 20,          /* taps of a tile at most: 64 MB of pointers; no network has so many */
    DW_UNIT = 48 << 10, /* floats of the output in a unit: L2 holds them and what they need */
    DW_WAITING_UNIT = 16 << 10, /* the same if they wait for the rest of the epilogue */
    DW_LEAST_UNIT = 8 << 10,    /* the smallest unit: some microseconds */
    DW_UNITS = 8,               /* units of an image: two for each of 4 threads */
    DW_COLS = 8 *
        16,       /* channels of a unit at least, for the epilogue, which has a cost per pixel */
    DW_TILES = 8, /* tiles of a unit at least that is a part of a row */
};

struct depthwise_state {
    taper_program epilogue; /* without what is fused */
    program_fused fused;
    conv_shape shape;
    /* Units of work, numbered [image][slice][row block][width block][chunk of channels]. */
    int64_t rows, row_blocks;
    int64_t width, width_blocks; /* less than a row only where rows is 1 */
    int64_t cols, chunks;
    int32_t kind; /* index in depthwise_rows */
    /* Scratch, in bytes from its start: pointers, zeros for all channels, sums that may not lie in
     * the output before the epilogue, the epilogue. */
    size_t zeros_scratch, sums_scratch, epilogue_scratch;
};

typedef struct depthwise_tile {
    const float *x, *weight; /* of the first channel: the first tap of the first pixel */
    /* Floats to the next tap of each dim, of x and of the weight. */
    int64_t x_step[WINDOW_DIMS], weight_step[WINDOW_DIMS];
    int64_t x_pixel;           /* floats of x from one pixel of the output to the next */
    int64_t taps[WINDOW_DIMS]; /* taps inside of x */
    /* Used instead of x if some positions are outside: the first channel of each position
     * [row][column] that the tile spans, or, of kind 0, of each [tap][pixel]. */
    const float **at;
    float *y;                       /* the first pixel */
    int64_t y_row, y_pixel;         /* floats to the next */
    int64_t rows, pixels, channels; /* those of the tile that exist */
    tile_fused fused;               /* of y; no residual */
} depthwise_tile;

/* Constants wherever a tile is inlined. taps and stride are those of both dims, with dilation 1; 0
 * stands for any. */
typedef struct depthwise_kind {
    int rows, pixels, taps, stride;
} depthwise_kind;

typedef enum depthwise_reads {
    DW_BY_STRIDES,
    DW_BY_POINTERS,
    DW_OF_FEW_CHANNELS, /* less than a vector, by pointers */
    DW_READS
} depthwise_reads;

/* Each element of x is loaded once, each weight once for every row of the tile. */
V_INLINE void depthwise_square(const depthwise_kind k, const depthwise_reads reads,
                               const depthwise_tile *t, int64_t c, vf sum[DW_SUMS]) {
    const int positions = (k.pixels - 1) * k.stride + k.taps;
#pragma GCC unroll 16
    for (int i = 0; i < (k.rows - 1) * k.stride + k.taps; i++) {
        vf x[(DW_PIXELS - 1) * DW_MAX_STRIDE + DW_MAX_TAPS];
#pragma GCC unroll 16
        for (int j = 0; j < positions; j++)
            x[j] = v_load(c + (reads == DW_BY_STRIDES ? t->x + i * t->x_step[1] + j * t->x_step[2]
                                                      : t->at[i * positions + j]));
#pragma GCC unroll 2
        for (int r = 0; r < k.rows; r++) {
            const int row = i - r * k.stride;
            if (row < 0 || row >= k.taps)
                continue;
#pragma GCC unroll 8
            for (int l = 0; l < k.taps; l++) {
                const vf w = v_load(t->weight + c + (row * k.taps + l) * t->weight_step[2]);
#pragma GCC unroll 8
                for (int p = 0; p < k.pixels; p++)
                    sum[r * k.pixels + p] =
                        v_accumulate(x[p * k.stride + l], w, sum[r * k.pixels + p]);
            }
        }
    }
}

V_INLINE void depthwise_any(const depthwise_kind k, const depthwise_reads reads,
                            const depthwise_tile *t, int64_t c, vf sum[DW_SUMS]) {
    const float **at = t->at;
    for (int64_t i = 0; i < t->taps[0]; i++)
        for (int64_t j = 0; j < t->taps[1]; j++) {
            const float *x = t->x + i * t->x_step[0] + j * t->x_step[1] + c;
            const float *weight = t->weight + i * t->weight_step[0] + j * t->weight_step[1] + c;
            for (int64_t l = 0; l < t->taps[2]; l++) {
                const bool few = reads == DW_OF_FEW_CHANNELS;
                const vf w = few ? v_load_n(weight, t->channels) : v_load(weight);
#pragma GCC unroll 8
                for (int p = 0; p < k.pixels; p++) {
                    const float *xp = reads == DW_BY_STRIDES ? x + p * t->x_pixel : at[p] + c;
                    sum[p] = v_fma(few ? v_load_n(xp, t->channels) : v_load(xp), w, sum[p]);
                }
                x += t->x_step[2];
                at += k.pixels;
                weight += t->weight_step[2];
            }
        }
}

/* Repeats the statements for every sum of a tile; r, p: its row and pixel. */
#define depthwise_each(expr)                                                                       \
    do {                                                                                           \
        _Pragma("GCC unroll 2") for (int r = 0; r < k.rows; r++)                                   \
            _Pragma("GCC unroll 8") for (int p = 0; p < k.pixels; p++) {                           \
            vf *const s = &sum[r * k.pixels + p];                                                  \
            expr;                                                                                  \
        }                                                                                          \
    } while (0)

/* Stores the channels from c on. */
V_INLINE void depthwise_store(const depthwise_kind k, const depthwise_tile *t, int64_t c,
                              vf sum[DW_SUMS]) {
    const tile_fused fused = fused_at(t->fused, c, 0);
    float *const y = t->y + c;
    const int64_t lanes = i64_min(V_LEN, t->channels), row = k.pixels * V_LEN;
    const bool whole = t->rows == k.rows && t->pixels == k.pixels && lanes == V_LEN;
    float beside[DW_SUMS * V_LEN]; /* [row][pixel][lane] */
    if (!whole) {
        depthwise_each(v_store(beside + r * row + p * V_LEN, *s));
        for (int64_t r = 0; r < t->rows; r++) {
            fused_store(&fused, false, beside + r * row, V_LEN, t->pixels, lanes, y + r * t->y_row,
                        t->y_pixel);
        }
        return;
    }
    if (fused.bias) {
        const vf bias = v_load(fused.bias);
        depthwise_each(*s = v_add(*s, bias));
    }
    if (fused.bounded)
        depthwise_each(*s = fused_clamp(&fused, *s));
    if (fused.then) {
        depthwise_each(v_store(beside + r * row + p * V_LEN, *s));
        fused.then(beside, &(program_operand){beside, 1}, DW_SUMS * V_LEN);
        depthwise_each(*s = v_load(beside + r * row + p * V_LEN));
    }
    depthwise_each(v_store(y + r * t->y_row + p * t->y_pixel, *s));
}

V_INLINE void depthwise_run_tile(const depthwise_kind k, const depthwise_reads reads,
                                 const depthwise_tile *t) {
    for (int64_t c = 0; c < t->channels; c += V_LEN) {
        /* The last vector begins early enough to be full, so some channels are computed twice. */
        c = i64_max(0, i64_min(c, t->channels - V_LEN));
        vf sum[DW_SUMS];
        depthwise_each(*s = v_zero());
        if (k.taps > 0)
            depthwise_square(k, reads, t, c, sum);
        else
            depthwise_any(k, reads, t, c, sum);
        depthwise_store(k, t, c, sum);
    }
}

#define DW_SQUARES(X) X(3, 1) X(3, 2) X(5, 1) X(5, 2) X(7, 1)
#define DW_SQUARE(taps, stride) ((depthwise_kind){DW_ROWS, DW_PIXELS, taps, stride})
#define DW_ANY ((depthwise_kind){1, DW_LONG_PIXELS, 0, 0})
#define DW_DEFINE(name, kind, reads)                                                               \
    static void name(const depthwise_tile *t) { depthwise_run_tile(kind, reads, t); }
#define DW_DEFINE_SQUARE(taps, stride)                                                             \
    DW_DEFINE(depthwise_##taps##x##stride, DW_SQUARE(taps, stride), DW_BY_STRIDES)                 \
    DW_DEFINE(depthwise_at_##taps##x##stride, DW_SQUARE(taps, stride), DW_BY_POINTERS)
DW_SQUARES(DW_DEFINE_SQUARE)
DW_DEFINE(depthwise_long, DW_ANY, DW_BY_STRIDES)
DW_DEFINE(depthwise_at_long, DW_ANY, DW_BY_POINTERS)
DW_DEFINE(depthwise_few_channels, DW_ANY, DW_OF_FEW_CHANNELS)

typedef struct depthwise_row {
    depthwise_kind kind;
    void (*run[DW_READS])(const depthwise_tile *t);
} depthwise_row;

#define DW_SQUARE_ROW(taps, stride)                                                                \
    {{DW_ROWS, DW_PIXELS, taps, stride},                                                           \
     {depthwise_##taps##x##stride, depthwise_at_##taps##x##stride, NULL}},
static const depthwise_row depthwise_rows[] = {DW_SQUARES(DW_SQUARE_ROW){
    {1, DW_LONG_PIXELS, 0, 0}, {depthwise_long, depthwise_at_long, depthwise_few_channels}}};
enum { DW_OTHER = sizeof depthwise_rows / sizeof depthwise_rows[0] - 1 };

/* ---- prepare ---- */

static int32_t depthwise_kind_of(const conv_shape *s) {
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    if (d->kernel > 1 || d->low > 0 || (d->out - 1) * d->stride >= d->in ||
        h->kernel != w->kernel || h->stride != w->stride || h->dilation > 1 || w->dilation > 1)
        return DW_OTHER;
    int32_t i = 0;
    while (i < DW_OTHER &&
           (depthwise_rows[i].kind.taps != w->kernel || depthwise_rows[i].kind.stride != w->stride))
        i++;
    return i;
}

/* The pointers of a tile. */
static int64_t depthwise_pointers(const depthwise_kind k, const conv_shape *s) {
    return k.taps > 0 ? ((k.rows - 1) * k.stride + k.taps) * ((k.pixels - 1) * k.stride + k.taps)
                      : conv_taps(s) * k.pixels;
}

static void depthwise_split(struct depthwise_state *state) {
    const conv_shape *s = &state->shape;
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const depthwise_kind k = depthwise_rows[state->kind].kind;
    const int64_t least = i64_min(s->channels, DW_COLS);
    const int64_t most = state->epilogue.count > 0 ? DW_WAITING_UNIT : DW_UNIT;
    const int64_t unit =
        i64_min(most, i64_max(DW_LEAST_UNIT, h->out * w->out * s->channels / DW_UNITS));
    state->width = w->out;
    state->rows = conv_part(h->out, unit / (w->out * s->channels));
    state->rows = i64_min(h->out, i64_ceil_div(state->rows, k.rows) * k.rows);
    if (state->rows == 1)
        state->width = conv_part(w->out, i64_max(DW_TILES * k.pixels, unit / least));
    const int64_t cols = i64_max(least, unit / (state->width * state->rows));
    state->cols = conv_part(i64_ceil_div(s->channels, V_LEN), cols / V_LEN) * V_LEN;
    state->cols = i64_min(state->cols, s->channels);
    state->row_blocks = i64_ceil_div(h->out, state->rows);
    state->width_blocks = i64_ceil_div(w->out, state->width);
    state->chunks = i64_ceil_div(s->channels, state->cols);
}

static taper_status f32_conv_depthwise_prepare(const taper_call *call, taper_work *work) {
    const struct conv_attrs *attrs = call->attrs;
    struct depthwise_state *state = call->state;
    const conv_shape *s = &state->shape;
    if (!conv_shape_of(&state->shape, call, attrs, false, false) || s->packed || s->in != 1 ||
        s->out != 1 || s->groups == 1)
        return TAPER_UNSUPPORTED;
    /* Some elements are computed twice, so a residual is not fused: that of the output's layout. */
    const taper_status status = PROGRAM.prepare_fused(
        &state->epilogue, &attrs->code, &attrs->args, &attrs->scalars, call->inputs + 2,
        call->n_inputs - 2, call->output, &state->fused, false);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){0};
        return TAPER_OK;
    }
    state->kind = depthwise_kind_of(s);
    depthwise_split(state);
    int64_t taps = DW_LONG_PIXELS;
    for (int32_t d = 0; d < WINDOW_DIMS; d++)
        if (__builtin_mul_overflow(taps, s->dims[d].kernel, &taps) || taps > DW_MAX_POINTERS)
            return TAPER_UNSUPPORTED;
    const depthwise_kind kinds[] = {depthwise_rows[state->kind].kind,
                                    depthwise_rows[DW_OTHER].kind};
    const int64_t pointers =
        i64_max(depthwise_pointers(kinds[0], s), depthwise_pointers(kinds[1], s));
    state->zeros_scratch = conv_aligned(pointers * (int64_t)sizeof(float *));
    state->sums_scratch = state->zeros_scratch + conv_aligned(state->cols * (int64_t)sizeof(float));
    const int64_t pixels = state->epilogue.over ? state->rows * state->width : 0;
    state->epilogue_scratch =
        state->sums_scratch + conv_aligned(pixels * state->cols * (int64_t)sizeof(float));
    work->tasks =
        s->batch * s->dims[0].out * state->row_blocks * state->width_blocks * state->chunks;
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* ---- run ---- */

/* Finds what the windows of a tile read. x: the first channel of a slice, or of the first with taps
 * of another dim; first: the position of the first tap in each dim. */
static void depthwise_locate(const conv_shape *s, const depthwise_kind k, const depthwise_tile *t,
                             const float *x, const int64_t first[WINDOW_DIMS], const float *zeros) {
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    const float **at = t->at;
    const int64_t rows = k.taps > 0 ? (k.rows - 1) * k.stride + k.taps : t->taps[1];
    const int64_t columns = k.taps > 0 ? (k.pixels - 1) * k.stride + k.taps : w->kernel;
    const int64_t pixels = k.taps > 0 ? 1 : k.pixels;
    for (int64_t i = 0; i < t->taps[0]; i++)
        for (int64_t j = 0; j < rows; j++) {
            const int64_t z = first[0] + i * d->dilation, y = first[1] + j * h->dilation;
            const bool inside = y >= 0 && y < h->in;
            for (int64_t l = 0; l < columns; l++)
                for (int64_t p = 0; p < pixels; p++) {
                    const int64_t to = first[2] + l * w->dilation + p * w->stride;
                    *at++ = inside && to >= 0 && to < w->in
                                ? x + ((z * h->in + y) * w->in + to) * s->channels
                                : zeros;
                }
        }
}

static void depthwise_unit(const taper_call *call, int64_t unit, char *scratch) {
    const struct depthwise_state *state = call->state;
    const conv_shape *s = &state->shape;
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    const int64_t c0 = unit % state->chunks * state->cols;
    const int64_t c1 = i64_min(c0 + state->cols, s->channels);
    const bool few = c1 - c0 < V_LEN;
    const depthwise_row *const kernel = &depthwise_rows[few ? DW_OTHER : state->kind];
    const depthwise_kind k = kernel->kind;
    unit /= state->chunks;
    const int64_t begin = unit % state->width_blocks * state->width;
    const int64_t end = i64_min(begin + state->width, w->out);
    unit /= state->width_blocks;
    const int64_t first = unit % state->row_blocks * state->rows;
    const int64_t last = i64_min(first + state->rows, h->out);
    unit /= state->row_blocks;
    const int64_t image = unit / d->out, slice = unit % d->out;

    float *const zeros = (float *)(scratch + state->zeros_scratch);
    memset(zeros, 0, (size_t)(c1 - c0) * sizeof *zeros);
    const float *const x =
        (const float *)call->inputs[0].data + image * d->in * h->in * w->in * s->channels + c0;
    const float *const weight = (const float *)call->inputs[1].data + c0;
    const taper_program *program = &state->epilogue;
    const int64_t r0 = conv_pixel(s, image, slice, first, begin);
    const int64_t r1 = r0 + (last - first) * (end - begin);
    float *const output = (float *)call->output->data + r0 * s->channels + c0;
    float *const sums = program->over ? (float *)(scratch + state->sums_scratch) : output;
    const int64_t sums_pixel = program->over ? c1 - c0 : s->channels;
    depthwise_tile t = {
        .x_step = {d->dilation * h->in * w->in * s->channels, h->dilation * w->in * s->channels,
                   w->dilation * s->channels},
        .weight_step = {h->kernel * w->kernel * s->channels, w->kernel * s->channels, s->channels},
        .x_pixel = w->stride * s->channels,
        .taps = {1, h->kernel, w->kernel},
        .at = (const float **)scratch,
        .y_row = (program->over ? end - begin : w->out) * sums_pixel,
        .y_pixel = sums_pixel,
        .rows = i64_min(k.rows, last - first),
        .pixels = i64_min(k.pixels, end - begin),
        .channels = c1 - c0,
        .fused = program_fused_at(&state->fused, call->inputs + 2, s->channels, 0, c0)};
    int64_t at[WINDOW_DIMS], tap[WINDOW_DIMS] = {0};
    at[0] = slice * d->stride - d->low;
    t.taps[0] = window_taps(d, at[0], &tap[0]) - tap[0];
    at[0] += tap[0] * d->dilation;
    for (int64_t o = first; o < last; o += k.rows) {
        /* The last tiles begin early enough to be full, so some pixels are computed twice. */
        const int64_t row = i64_max(first, i64_min(o, last - k.rows));
        at[1] = row * h->stride - h->low;
        if (k.taps == 0) { /* rows of taps outside of x are skipped */
            t.taps[1] = window_taps(h, at[1], &tap[1]) - tap[1];
            at[1] += tap[1] * h->dilation;
        }
        const int64_t low = at[1] + (k.rows - 1) * h->stride + (t.taps[1] - 1) * h->dilation;
        const bool inside = !few && t.pixels == k.pixels && at[1] >= 0 && low < h->in;
        t.weight = weight + tap[0] * t.weight_step[0] + tap[1] * t.weight_step[1];
        for (int64_t p = begin; p < end; p += k.pixels) {
            const int64_t pixel = i64_max(begin, i64_min(p, end - k.pixels));
            at[2] = pixel * w->stride - w->low;
            const int64_t right =
                at[2] + (k.pixels - 1) * w->stride + (w->kernel - 1) * w->dilation;
            t.y = sums + (row - first) * t.y_row + (pixel - begin) * t.y_pixel;
            depthwise_reads reads = few ? DW_OF_FEW_CHANNELS : DW_BY_POINTERS;
            if (inside && at[2] >= 0 && right < w->in) {
                reads = DW_BY_STRIDES;
                t.x = x + ((at[0] * h->in + at[1]) * w->in + at[2]) * s->channels;
            } else {
                t.x = x;
                depthwise_locate(s, k, &t, x, at, zeros);
            }
            kernel->run[reads](&t);
        }
    }

    if (program->count > 0)
        PROGRAM.run(program, call->inputs + 2, r0, r1, c0, c1, sums, sums_pixel, output,
                    s->channels, scratch + state->epilogue_scratch);
}

static taper_status f32_conv_depthwise_run(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    for (int64_t unit = begin; unit < end; unit++)
        depthwise_unit(call, unit, scratch);
    return TAPER_OK;
}
