/*
 * Depthwise convolution: a channel of its own for each output. Vectors run over channels; a tile is
 * some pixels of an output row, whose sums stay in registers while the taps go by. Tiles read x
 * from a zero-padded copy of a few channels of the rows that a window spans, in L1: each row is
 * copied once, over the one that is needed no more. The products of an element are added in order
 * of the taps, whatever the tile; rows of taps outside of x are left out.
 */

enum {
    DW_VECTORS = V_REGISTERS == 32 ? 2 : 1, /* of channels in a tile */
    DW_LINE = 16,                           /* floats of a cache line */
    DW_BLOCK = V_LEN == 16 ? 32 : DW_LINE,  /* channels that are copied at a time */
    DW_PIXELS = 7,
    DW_FEW_PIXELS = 4,
    DW_MAX_TAPS = 7,        /* whose weights stay in registers */
    DW_COPY = 7 << 10,      /* floats of x that are copied at a time, if a tile can do with them */
    DW_MAX_COPY = 16 << 20, /* and what they may not exceed */
    DW_UNIT = 48 << 10,     /* floats of the output in a unit, that L2 holds with what it reads */
    DW_WAITING_UNIT = 16 << 10, /* the same where it waits for the rest of the epilogue */
    DW_LEAST_UNIT = 8 << 10,
    DW_UNITS = 8, /* of an image, for threads to share */
    DW_ROWS = 8,  /* of a unit before its channels are divided, for rows of x are read by two */
    DW_COLS = 128 /* channels of a unit at least, for the epilogue, which has a cost per pixel */
};

struct depthwise_state {
    taper_program epilogue; /* but for its head */
    program_head head;
    conv_shape shape;
    /* Units of work, numbered [image][slice][row block][width block][chunk of channels]. */
    int64_t rows, row_blocks;
    int64_t width, width_blocks; /* less than a row only where rows is 1 */
    int64_t cols, chunks;
    int64_t strip;      /* pixels of a row between two copies */
    int64_t row_floats; /* of the copy */
    int32_t kind;       /* index in depthwise_tiles */
    /* Scratch, in bytes from its start: rows of taps, the weights, the copy, the epilogue's. */
    size_t weight_scratch, copy_scratch, epilogue_scratch;
};

/* A row of taps: what its first tap reads in the copy, and its weights. */
typedef struct depthwise_row {
    const float *x, *weight;
} depthwise_row;

typedef struct depthwise_tile {
    depthwise_row *rows; /* those that lie in x */
    int64_t count;
    int64_t taps, stride, dilation; /* along a row */
    float *y;                       /* the first pixel */
    int64_t channels;               /* from pixel to pixel of the output */
    int64_t pixels, lanes;          /* of the tile's that exist */
    tile_head head;                 /* of y */
} depthwise_tile;

/* What is constant wherever a tile is inlined. */
typedef struct depthwise_kind {
    int pixels, vectors;
    int channels;     /* from pixel to pixel of the copy, and from tap to tap of the weights */
    int taps, stride; /* 0: any, of any dilation; else dilation is 1 */
} depthwise_kind;

/* One row of taps, weights in registers: each element of x is loaded once. */
V_INLINE void depthwise_few_taps(const depthwise_kind k, const float *x, const float *weight,
                                 vf sum[DW_PIXELS][DW_VECTORS]) {
    vf w[DW_MAX_TAPS][DW_VECTORS];
#pragma GCC unroll 8
    for (int l = 0; l < k.taps; l++)
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            w[l][v] = v_load(weight + l * k.channels + v * V_LEN);
#pragma GCC unroll 32
    for (int i = 0; i < (k.pixels - 1) * k.stride + k.taps; i++) {
        vf xi[DW_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            xi[v] = v_in_register(v_load(x + i * k.channels + v * V_LEN));
#pragma GCC unroll 8
        for (int p = 0; p < k.pixels; p++) {
            const int l = i - p * k.stride;
#pragma GCC unroll 2
            for (int v = 0; v < k.vectors; v++)
                if (l >= 0 && l < k.taps)
                    sum[p][v] = v_accumulate(xi[v], w[l][v], sum[p][v]);
        }
    }
}

V_INLINE void depthwise_any_taps(const depthwise_kind k, const depthwise_tile *t, const float *x,
                                 const float *weight, vf sum[DW_PIXELS][DW_VECTORS]) {
    for (int64_t l = 0; l < t->taps; l++, weight += k.channels, x += t->dilation * k.channels) {
        vf w[DW_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            w[v] = v_load(weight + v * V_LEN);
#pragma GCC unroll 8
        for (int p = 0; p < k.pixels; p++)
#pragma GCC unroll 2
            for (int v = 0; v < k.vectors; v++)
                sum[p][v] =
                    v_fma(v_load(x + p * t->stride * k.channels + v * V_LEN), w[v], sum[p][v]);
    }
}

/* Every sum of a tile, anew. */
#define depthwise_each(expr)                                                                       \
    do {                                                                                           \
        _Pragma("GCC unroll 8") for (int p = 0; p < k.pixels; p++)                                 \
            _Pragma("GCC unroll 2") for (int v = 0; v < k.vectors; v++) sum[p][v] = (expr);        \
    } while (0)

V_INLINE void depthwise_put(const depthwise_kind k, float *y, int64_t stride,
                            vf sum[DW_PIXELS][DW_VECTORS]) {
#pragma GCC unroll 8
    for (int p = 0; p < k.pixels; p++, y += stride)
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            v_store(y + v * V_LEN, sum[p][v]);
}

V_INLINE void depthwise_store(const depthwise_kind k, const depthwise_tile *t,
                              vf sum[DW_PIXELS][DW_VECTORS]) {
    const tile_head *head = &t->head;
    const int64_t width = k.vectors * V_LEN;
    const bool whole = t->pixels == k.pixels && t->lanes == width;
    if (whole && head->bias) {
        vf bias[DW_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            bias[v] = v_load(head->bias + v * V_LEN);
        depthwise_each(v_add(sum[p][v], bias[v]));
    }
    if (whole && head->residual)
        depthwise_each(v_add(sum[p][v], v_load(head->residual + p * head->stride + v * V_LEN)));
    if (whole && head->bounded)
        depthwise_each(head_clamp(head, sum[p][v]));
    if (whole && !head->then) {
        depthwise_put(k, t->y, t->channels, sum);
        return;
    }
    float beside[DW_PIXELS * DW_VECTORS * V_LEN];
    depthwise_put(k, beside, width, sum);
    head_store(head, whole, beside, width, t->pixels, t->lanes, t->y, t->channels);
}

V_INLINE void depthwise_run_tile(const depthwise_kind k, const depthwise_tile *t) {
    vf sum[DW_PIXELS][DW_VECTORS];
#pragma GCC unroll 8
    for (int p = 0; p < k.pixels; p++)
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            sum[p][v] = v_zero();
    for (int64_t i = 0; i < t->count; i++)
        if (k.taps > 0)
            depthwise_few_taps(k, t->rows[i].x, t->rows[i].weight, sum);
        else
            depthwise_any_taps(k, t, t->rows[i].x, t->rows[i].weight, sum);
    depthwise_store(k, t, sum);
}

typedef void (*depthwise_fn)(const depthwise_tile *t);

#define DW_KINDS(X) X(3, 1) X(3, 2) X(5, 1) X(5, 2) X(7, 1) X(0, 0)
#define DW_DEFINE(name, taps, stride, pixels, vectors, channels)                                   \
    static void depthwise_##name##_##taps##x##stride(const depthwise_tile *t) {                    \
        depthwise_run_tile((depthwise_kind){pixels, vectors, channels, taps, stride}, t);          \
    }
#define DW_DEFINE_TILES(taps, stride)                                                              \
    DW_DEFINE(main, taps, stride, DW_PIXELS, DW_VECTORS, DW_BLOCK)                                 \
    DW_DEFINE(few, taps, stride, DW_FEW_PIXELS, DW_VECTORS, DW_BLOCK)
#define DW_TILES(taps, stride) {depthwise_main_##taps##x##stride, depthwise_few_##taps##x##stride}
DW_KINDS(DW_DEFINE_TILES)
#if V_LEN == 16 /* where no more than a line of channels is left */
#define DW_DEFINE_THIN_TILES(taps, stride)                                                         \
    DW_DEFINE(thin, taps, stride, DW_PIXELS, 1, DW_LINE)                                           \
    DW_DEFINE(few_thin, taps, stride, DW_FEW_PIXELS, 1, DW_LINE)
#define DW_THIN_TILES(taps, stride)                                                                \
    {depthwise_thin_##taps##x##stride, depthwise_few_thin_##taps##x##stride}
DW_KINDS(DW_DEFINE_THIN_TILES)
#else
#define DW_THIN_TILES DW_TILES
#endif

#define DW_ROW(taps, stride) {taps, stride, DW_TILES(taps, stride), DW_THIN_TILES(taps, stride)},
static const struct {
    int taps, stride;
    depthwise_fn main[2], thin[2]; /* of DW_PIXELS, of DW_FEW_PIXELS */
} depthwise_tiles[] = {DW_KINDS(DW_ROW)};

/* ---- prepare ---- */

/* Positions of x that tiles read for `pixels` of the output. */
static int64_t depthwise_positions(const conv_shape *s, int64_t pixels) {
    const window_dim *w = &s->dims[2];
    return (pixels + DW_PIXELS - 2) * w->stride + (w->kernel - 1) * w->dilation + 1;
}

static int64_t depthwise_row_floats(const conv_shape *s, int64_t pixels) {
    return depthwise_positions(s, pixels) * DW_BLOCK;
}

/* false if the copy would be too large. */
static bool depthwise_copy_sizes(struct depthwise_state *state) {
    const conv_shape *s = &state->shape;
    const window_dim *w = &s->dims[2];
    int64_t rows;
    if (__builtin_mul_overflow(s->dims[0].kernel, s->dims[1].kernel, &rows) || rows > DW_MAX_COPY)
        return false;
    /* Not so short that most of what it reads is read by its neighbours too. */
    const int64_t least = i64_max(DW_PIXELS, (w->kernel - 1) * w->dilation / w->stride);
    state->strip = state->width;
    while (state->strip > least && depthwise_row_floats(s, state->strip) > DW_COPY / rows)
        state->strip = i64_ceil_div(i64_ceil_div(state->strip, DW_PIXELS), 2) * DW_PIXELS;
    state->row_floats = depthwise_row_floats(s, state->strip);
    return state->row_floats <= DW_MAX_COPY / rows;
}

static void depthwise_split(struct depthwise_state *state) {
    const conv_shape *s = &state->shape;
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const int64_t step = DW_BLOCK, least = i64_min(s->channels, DW_COLS);
    const int64_t most = state->epilogue.count > 0 ? DW_WAITING_UNIT : DW_UNIT;
    const int64_t unit =
        i64_min(most, i64_max(DW_LEAST_UNIT, h->out * w->out * s->channels / DW_UNITS));
    state->width = conv_part(w->out, i64_max(8 * DW_PIXELS, unit / least));
    const int64_t rows = state->width == w->out ? i64_min(DW_ROWS, h->out) : 1;
    const int64_t cols = i64_max(least, unit / (state->width * rows));
    state->cols = conv_part(i64_ceil_div(s->channels, step), cols / step) * step;
    state->cols = i64_min(state->cols, s->channels);
    state->rows = state->width == w->out ? conv_part(h->out, unit / (w->out * state->cols)) : 1;
    state->row_blocks = i64_ceil_div(h->out, state->rows);
    state->width_blocks = i64_ceil_div(w->out, state->width);
    state->chunks = i64_ceil_div(s->channels, state->cols);

    const int32_t kinds = sizeof depthwise_tiles / sizeof depthwise_tiles[0];
    for (state->kind = 0; state->kind < kinds - 1; state->kind++)
        if (depthwise_tiles[state->kind].taps == w->kernel &&
            depthwise_tiles[state->kind].stride == w->stride && w->dilation == 1)
            break;
}

static taper_status f32_conv_depthwise_prepare(const taper_call *call, taper_work *work) {
    const struct conv_attrs *attrs = call->attrs;
    struct depthwise_state *state = call->state;
    const conv_shape *s = &state->shape;
    if (!conv_shape_of(&state->shape, call, attrs, false) || s->packed || s->in != 1 ||
        s->out != 1 || s->groups == 1)
        return TAPER_UNSUPPORTED;
    const taper_status status =
        PROGRAM.prepare(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                        call->inputs + 2, call->n_inputs - 2, call->output, true, &state->head);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){0, 0};
        return TAPER_OK;
    }
    depthwise_split(state);
    if (!depthwise_copy_sizes(state))
        return TAPER_UNSUPPORTED;
    const int64_t row_taps = s->dims[0].kernel * s->dims[1].kernel, floats = sizeof(float);
    state->weight_scratch = conv_aligned(row_taps * (int64_t)sizeof(depthwise_row));
    state->copy_scratch = state->weight_scratch + conv_aligned(conv_taps(s) * DW_BLOCK * floats);
    state->epilogue_scratch =
        state->copy_scratch + conv_aligned(row_taps * state->row_floats * floats);
    work->tasks =
        s->batch * s->dims[0].out * state->row_blocks * state->width_blocks * state->chunks;
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* ---- run ---- */

/* Part of a unit: some pixels of its rows, and as many channels as are copied at a time. */
typedef struct depthwise_strip {
    int64_t image, slice;
    int64_t first_row, last_row, begin, end; /* of the output */
    int64_t channel, lanes, pixel; /* channels: the first, how many exist, how many are copied */
} depthwise_strip;

/* The channels of n pixels, zeros beyond the last. */
V_INLINE void depthwise_copy_pixels(float *to, const float *from, int64_t stride, int64_t n,
                                    int64_t lanes, const int pixel) {
    for (int64_t i = 0; i < n; i++, to += pixel, from += stride)
#pragma GCC unroll 4
        for (int v = 0; v < pixel; v += V_LEN)
            if (lanes == pixel)
                v_store(to + v, v_load(from + v));
            else
                v_store(to + v, v_load_n(from + v, i64_min(V_LEN, i64_max(0, lanes - v))));
}

static void depthwise_copy(const depthwise_strip *strip, float *to, const float *from,
                           int64_t stride, int64_t n) {
    if (strip->pixel == DW_LINE)
        depthwise_copy_pixels(to, from, stride, n, strip->lanes, DW_LINE);
    else
        depthwise_copy_pixels(to, from, stride, n, strip->lanes, DW_BLOCK);
}

/* Positions [first, first + count) of a row, some of which lie in x: [from, to). */
typedef struct depthwise_span {
    int64_t first, count, from, to;
} depthwise_span;

static depthwise_span depthwise_span_of(const conv_shape *s, int64_t begin, int64_t end) {
    const window_dim *w = &s->dims[2];
    depthwise_span span = {.first = begin * w->stride - w->low,
                           .count = depthwise_positions(s, end - begin)};
    span.from = i64_min(span.count, i64_max(0, -span.first));
    span.to = i64_max(span.from, i64_min(span.count, w->in - span.first));
    return span;
}

/* Zeros to what no row of x fills. */
static void depthwise_clear(const struct depthwise_state *state, const depthwise_span *span,
                            int64_t pixel, float *copy) {
    for (int64_t i = 0; i < state->shape.dims[0].kernel * state->shape.dims[1].kernel; i++) {
        memset(copy, 0, (size_t)(span->from * pixel) * sizeof *copy);
        memset(copy + span->to * pixel, 0,
               (size_t)((span->count - span->to) * pixel) * sizeof *copy);
        copy += state->row_floats;
    }
}

/* The pixels of one output row, the channels of one tile. t: the tile of the first pixel. */
static void depthwise_pixels(const struct depthwise_state *state, const depthwise_strip *strip,
                             depthwise_tile *t) {
    const depthwise_fn *run = strip->pixel < DW_BLOCK ? depthwise_tiles[state->kind].thin
                                                      : depthwise_tiles[state->kind].main;
    for (int64_t o = strip->begin, step; o < strip->end; o += step) {
        const int64_t left = strip->end - o;
        const bool few = left <= DW_FEW_PIXELS || left == 2 * DW_FEW_PIXELS;
        step = few ? DW_FEW_PIXELS : DW_PIXELS;
        t->pixels = i64_min(left, step);
        run[few](t);
        for (int64_t i = 0; i < t->count; i++)
            t->rows[i].x += step * t->stride * strip->pixel;
        t->y += step * t->channels;
        t->head = head_at(t->head, 0, step * t->channels);
    }
}

/* One output row. t: its first tile. */
static void depthwise_row_run(const struct depthwise_state *state, const depthwise_strip *strip,
                              depthwise_tile *t) {
    const int64_t lanes = i64_min(strip->pixel, DW_VECTORS * V_LEN);
    for (int64_t c = 0;;) {
        t->lanes = i64_min(lanes, strip->lanes - c);
        const float *const x = t->count > 0 ? t->rows[0].x : NULL, *const y = t->y;
        depthwise_pixels(state, strip, t);
        c += lanes;
        if (c >= strip->lanes)
            return;
        /* Back to the first pixel, on to the next channels. */
        const int64_t pixels = t->count > 0 ? t->rows[0].x - x : 0, elements = t->y - y;
        for (int64_t i = 0; i < t->count; i++) {
            t->rows[i].x += lanes - pixels;
            t->rows[i].weight += lanes;
        }
        t->y += lanes - elements;
        t->head = head_at(t->head, lanes, lanes - elements);
    }
}

static void depthwise_strip_run(const taper_call *call, const depthwise_strip *strip,
                                char *scratch) {
    const struct depthwise_state *state = call->state;
    const conv_shape *s = &state->shape;
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    depthwise_row *rows = (depthwise_row *)scratch;
    float *weight = (float *)(scratch + state->weight_scratch);
    float *copy = (float *)(scratch + state->copy_scratch);
    const int64_t pixel = strip->pixel, weight_row = w->kernel * pixel;
    depthwise_copy(strip, weight, (const float *)call->inputs[1].data + strip->channel, s->channels,
                   conv_taps(s));
    const depthwise_span span = depthwise_span_of(s, strip->begin, strip->end);
    depthwise_clear(state, &span, pixel, copy);

    const tile_head head = program_head_at(&state->head, call->inputs + 2, s->channels, 0, 0);
    int64_t z_tap, y_tap;
    const int64_t z = strip->slice * d->stride - d->low, z_end = window_taps(d, z, &z_tap);
    const int64_t x_row = w->in * s->channels, x_slice = h->in * x_row;
    const float *x = (const float *)call->inputs[0].data + strip->channel +
                     (strip->image * d->in + z) * x_slice + (span.first + span.from) * s->channels;
    const bool reused = h->dilation == 1; /* rows of the copy, by the next row of the output */
    int64_t copied = INT64_MIN; /* rows of x before this one are in the copy, or needed no more */
    for (int64_t o = strip->first_row; o < strip->last_row; o++) {
        const int64_t y = o * h->stride - h->low, y_end = window_taps(h, y, &y_tap);
        const int64_t slot = reused ? floor_mod(y, h->kernel) : 0;
        int64_t count = 0;
        for (int64_t i = z_tap; i < z_end; i++)
            for (int64_t j = y_tap; j < y_end; j++) {
                const int64_t at = y + j * h->dilation, to = slot + j;
                float *row = copy + state->row_floats *
                                        (i * h->kernel + to - (to < h->kernel ? 0 : h->kernel));
                if (at >= copied || !reused)
                    depthwise_copy(strip, row + span.from * pixel,
                                   x + i * d->dilation * x_slice + at * x_row, s->channels,
                                   span.to - span.from);
                rows[count++] = (depthwise_row){row, weight + (i * h->kernel + j) * weight_row};
            }
        copied = y + h->kernel;
        const int64_t to =
            conv_pixel(s, strip->image, strip->slice, o, strip->begin) * s->channels +
            strip->channel;
        depthwise_tile t = {.rows = rows,
                            .count = count,
                            .taps = w->kernel,
                            .stride = w->stride,
                            .dilation = w->dilation,
                            .y = (float *)call->output->data + to,
                            .channels = s->channels,
                            .head = head_at(head, strip->channel, to)};
        depthwise_row_run(state, strip, &t);
    }
}

static void depthwise_unit(const taper_call *call, int64_t unit, char *scratch) {
    const struct depthwise_state *state = call->state;
    const conv_shape *s = &state->shape;
    const int64_t c0 = unit % state->chunks * state->cols;
    const int64_t c1 = i64_min(c0 + state->cols, s->channels);
    unit /= state->chunks;
    const int64_t begin = unit % state->width_blocks * state->width;
    const int64_t end = i64_min(begin + state->width, s->dims[2].out);
    unit /= state->width_blocks;
    const int64_t first = unit % state->row_blocks * state->rows;
    const int64_t last = i64_min(first + state->rows, s->dims[1].out);
    unit /= state->row_blocks;
    depthwise_strip strip = {.image = unit / s->dims[0].out,
                             .slice = unit % s->dims[0].out,
                             .first_row = first,
                             .last_row = last};
    for (strip.channel = c0; strip.channel < c1; strip.channel += strip.lanes) {
        strip.lanes = i64_min(DW_BLOCK, c1 - strip.channel);
        strip.pixel = strip.lanes <= DW_LINE ? DW_LINE : DW_BLOCK;
        for (strip.begin = begin; strip.begin < end; strip.begin += state->strip) {
            strip.end = i64_min(strip.begin + state->strip, end);
            depthwise_strip_run(call, &strip, scratch);
        }
    }

    const taper_program *p = &state->epilogue;
    const int64_t r0 = conv_pixel(s, strip.image, strip.slice, first, begin);
    const int64_t r1 = r0 + (last - first) * (end - begin);
    if (p->count > 0)
        PROGRAM.run(p, call->inputs + 2, r0, r1, c0, c1,
                    (float *)call->output->data + r0 * s->channels + c0, s->channels,
                    scratch + state->epilogue_scratch);
}

static taper_status f32_conv_depthwise_run(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    for (int64_t unit = begin; unit < end; unit++)
        depthwise_unit(call, unit, scratch);
    return TAPER_OK;
}
