/*
 * Depthwise convolution: a channel of its own for each output. Vectors run over channels; a tile is
 * some pixels of an output row, whose sums stay in registers while the taps go by. The products of
 * an element are added in order of the taps, whatever the tile: those of taps outside of x are left
 * out.
 */

enum {
    DW_VECTORS = V_REGISTERS == 32 ? 2 : 1, /* of channels in a tile */
    DW_PIXELS = 7,
    DW_FEW_PIXELS = 4,
    DW_MAX_TAPS = 7,    /* whose weights stay in registers */
    DW_UNIT = 16 << 10, /* floats of the output that wait for the epilogue, in L1 */
};

struct depthwise_state {
    taper_program epilogue;
    conv_shape shape;
    /* Units of work, numbered [image][slice][row block][width block]. */
    int64_t rows, row_blocks;
    int64_t width, width_blocks; /* less than a row only where rows is 1 */
    int32_t kind;                /* index in depthwise_tiles */
};

typedef struct depthwise_tile {
    const float *x;       /* pixel 0 of the row that the first row of taps reads */
    const float *weight;  /* of the first row's first tap */
    float *y;             /* the first pixel */
    int64_t slices, rows; /* of taps, those that lie in x */
    int64_t x_slice, x_row, weight_slice, weight_row;
    int64_t taps, stride, dilation; /* along a row */
    int64_t at;                     /* position in its row that the first pixel's first tap reads */
    int64_t size;                   /* of a row */
    int64_t channels;               /* from pixel to pixel */
    int64_t pixels;                 /* of the tile's that exist */
    int64_t lanes;                  /* likewise */
} depthwise_tile;

/* What is constant wherever a tile is inlined. */
typedef struct depthwise_kind {
    int pixels, vectors;
    int taps, stride; /* 0: any, of any dilation; else dilation is 1 */
    bool whole;       /* every position lies in x, every pixel exists */
    bool lanes;       /* not all lanes exist; one vector */
} depthwise_kind;

V_INLINE vf depthwise_load(const depthwise_kind k, const float *p, int64_t lanes) {
    return k.lanes ? v_load_n(p, lanes) : v_load(p);
}

/* One row of taps, weights in registers: each element of x is loaded once. */
V_INLINE void depthwise_few_taps(const depthwise_kind k, const depthwise_tile *t, const float *x,
                                 const float *weight, vf sum[DW_PIXELS][DW_VECTORS]) {
    vf w[DW_MAX_TAPS][DW_VECTORS];
#pragma GCC unroll 8
    for (int l = 0; l < k.taps; l++)
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            w[l][v] = depthwise_load(k, weight + l * t->channels + v * V_LEN, t->lanes);
    x += t->at * t->channels;
#pragma GCC unroll 32
    for (int i = 0; i < (k.pixels - 1) * k.stride + k.taps; i++, x += t->channels) {
        if (!k.whole && (uint64_t)(t->at + i) >= (uint64_t)t->size)
            continue;
        vf xi[DW_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            xi[v] = depthwise_load(k, x + v * V_LEN, t->lanes);
#pragma GCC unroll 8
        for (int p = 0; p < k.pixels; p++) {
            const int l = i - p * k.stride;
#pragma GCC unroll 2
            for (int v = 0; v < k.vectors; v++)
                if (l >= 0 && l < k.taps)
                    sum[p][v] = v_fma(xi[v], w[l][v], sum[p][v]);
        }
    }
}

V_INLINE void depthwise_any_taps(const depthwise_kind k, const depthwise_tile *t, const float *x,
                                 const float *weight, vf sum[DW_PIXELS][DW_VECTORS]) {
    for (int64_t l = 0; l < t->taps; l++, weight += t->channels) {
        vf w[DW_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            w[v] = depthwise_load(k, weight + v * V_LEN, t->lanes);
#pragma GCC unroll 8
        for (int p = 0; p < k.pixels; p++) {
            const int64_t at = t->at + p * t->stride + l * t->dilation;
            if (!k.whole && (uint64_t)at >= (uint64_t)t->size)
                continue;
#pragma GCC unroll 2
            for (int v = 0; v < k.vectors; v++)
                sum[p][v] = v_fma(depthwise_load(k, x + at * t->channels + v * V_LEN, t->lanes),
                                  w[v], sum[p][v]);
        }
    }
}

V_INLINE void depthwise_run_tile(const depthwise_kind k, const depthwise_tile *t) {
    vf sum[DW_PIXELS][DW_VECTORS];
#pragma GCC unroll 8
    for (int p = 0; p < k.pixels; p++)
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            sum[p][v] = v_zero();
    for (int64_t i = 0; i < t->slices; i++)
        for (int64_t j = 0; j < t->rows; j++) {
            const float *x = t->x + i * t->x_slice + j * t->x_row;
            const float *weight = t->weight + i * t->weight_slice + j * t->weight_row;
            if (k.taps > 0)
                depthwise_few_taps(k, t, x, weight, sum);
            else
                depthwise_any_taps(k, t, x, weight, sum);
        }
    float *y = t->y;
#pragma GCC unroll 8
    for (int p = 0; p < k.pixels; p++, y += t->channels) {
        if (!k.whole && p >= t->pixels)
            break;
#pragma GCC unroll 2
        for (int v = 0; v < k.vectors; v++)
            if (k.lanes)
                v_store_n(y, sum[p][v], t->lanes);
            else
                v_store(y + v * V_LEN, sum[p][v]);
    }
}

typedef void (*depthwise_fn)(const depthwise_tile *t);

#define DW_KINDS(X) X(3, 1) X(3, 2) X(5, 1) X(5, 2) X(7, 1) X(0, 0)
#define DW_DEFINE(name, taps, stride, pixels, vectors, whole, lanes)                               \
    static void depthwise_##name##_##taps##x##stride(const depthwise_tile *t) {                    \
        depthwise_run_tile((depthwise_kind){pixels, vectors, taps, stride, whole, lanes}, t);      \
    }
#define DW_DEFINE_TILES(taps, stride)                                                              \
    DW_DEFINE(whole, taps, stride, DW_PIXELS, DW_VECTORS, true, false)                             \
    DW_DEFINE(edge, taps, stride, DW_PIXELS, DW_VECTORS, false, false)                             \
    DW_DEFINE(few, taps, stride, DW_FEW_PIXELS, DW_VECTORS, false, false)                          \
    DW_DEFINE(lanes, taps, stride, DW_PIXELS, 1, false, true)                                      \
    DW_DEFINE(few_lanes, taps, stride, DW_FEW_PIXELS, 1, false, true)
DW_KINDS(DW_DEFINE_TILES)

#define DW_ROW(taps, stride)                                                                       \
    {taps,                                                                                         \
     stride,                                                                                       \
     depthwise_whole_##taps##x##stride,                                                            \
     {depthwise_edge_##taps##x##stride, depthwise_few_##taps##x##stride},                          \
     {depthwise_lanes_##taps##x##stride, depthwise_few_lanes_##taps##x##stride}},
static const struct {
    int taps, stride;
    depthwise_fn whole;
    depthwise_fn edge[2];  /* of DW_PIXELS, of DW_FEW_PIXELS */
    depthwise_fn lanes[2]; /* likewise */
} depthwise_tiles[] = {DW_KINDS(DW_ROW)};

/* ---- prepare ---- */

static void depthwise_split(struct depthwise_state *state) {
    const conv_shape *s = &state->shape;
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const int64_t pixels = i64_max(1, DW_UNIT / s->channels);
    state->width = pixels >= w->out ? w->out : conv_part(w->out, i64_max(pixels, 8 * DW_PIXELS));
    state->rows = state->width == w->out ? conv_part(h->out, pixels / w->out) : 1;
    state->row_blocks = i64_ceil_div(h->out, state->rows);
    state->width_blocks = i64_ceil_div(w->out, state->width);

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
                        call->inputs + 2, call->n_inputs - 2, call->output, true);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){0, 0};
        return TAPER_OK;
    }
    depthwise_split(state);
    work->tasks = s->batch * s->dims[0].out * state->row_blocks * state->width_blocks;
    work->scratch_bytes = state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* ---- run ---- */

/* Pixels [begin, end) of one output row. row: the tile of its pixel 0, but for what follows from
 * the pixels. */
static void depthwise_pixels(const struct depthwise_state *state, const depthwise_tile *row,
                             int64_t begin, int64_t end) {
    const window_dim *w = &state->shape.dims[2];
    for (int64_t o = begin, step; o < end; o += step) {
        const int64_t left = end - o;
        const int few = left <= DW_FEW_PIXELS || left == 2 * DW_FEW_PIXELS;
        step = few ? DW_FEW_PIXELS : DW_PIXELS;
        depthwise_tile t = *row;
        t.at = o * w->stride - w->low;
        t.pixels = i64_min(left, step);
        const bool whole =
            left >= DW_PIXELS && !few && t.at >= 0 &&
            t.at + (DW_PIXELS - 1) * w->stride + (w->kernel - 1) * w->dilation < w->in;
        const depthwise_fn full =
            whole ? depthwise_tiles[state->kind].whole : depthwise_tiles[state->kind].edge[few];
        t.y += o * t.channels;
        int64_t c = 0;
        for (const int64_t n = DW_VECTORS * V_LEN; c + n <= t.channels; c += n) {
            full(&t);
            t.x += n;
            t.weight += n;
            t.y += n;
        }
        for (; c < t.channels; c += V_LEN) {
            t.lanes = i64_min(V_LEN, t.channels - c);
            depthwise_tiles[state->kind].lanes[few](&t);
            t.x += V_LEN;
            t.weight += V_LEN;
            t.y += V_LEN;
        }
    }
}

static void depthwise_unit(const taper_call *call, int64_t unit, void *scratch) {
    const struct depthwise_state *state = call->state;
    const conv_shape *s = &state->shape;
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    const int64_t begin = unit % state->width_blocks * state->width;
    const int64_t end = i64_min(begin + state->width, w->out);
    unit /= state->width_blocks;
    const int64_t first = unit % state->row_blocks * state->rows;
    const int64_t last = i64_min(first + state->rows, h->out);
    unit /= state->row_blocks;
    const int64_t slice = unit % d->out, image = unit / d->out;

    int64_t z_tap, y_tap;
    const int64_t z = slice * d->stride - d->low, z_end = window_taps(d, z, &z_tap);
    const int64_t x_row = w->in * s->channels, x_slice = h->in * x_row;
    const int64_t weight_row = w->kernel * s->channels, weight_slice = h->kernel * weight_row;
    const float *x = call->inputs[0].data, *weight = call->inputs[1].data;
    float *output = call->output->data;
    for (int64_t o = first; o < last; o++) {
        const int64_t y = o * h->stride - h->low, y_end = window_taps(h, y, &y_tap);
        const depthwise_tile row = {
            .x = x + (image * d->in + z + z_tap * d->dilation) * x_slice +
                 (y + y_tap * h->dilation) * x_row,
            .weight = weight + z_tap * weight_slice + y_tap * weight_row,
            .y = output + conv_pixel(s, image, slice, o, 0) * s->channels,
            .slices = z_end - z_tap,
            .rows = y_end - y_tap,
            .x_slice = d->dilation * x_slice,
            .x_row = h->dilation * x_row,
            .weight_slice = weight_slice,
            .weight_row = weight_row,
            .taps = w->kernel,
            .stride = w->stride,
            .dilation = w->dilation,
            .size = w->in,
            .channels = s->channels,
        };
        depthwise_pixels(state, &row, begin, end);
    }

    const taper_program *p = &state->epilogue;
    const int64_t r0 = conv_pixel(s, image, slice, first, begin);
    const int64_t r1 = r0 + (last - first) * (end - begin);
    if (p->count > 0)
        PROGRAM.run(p, call->inputs + 2, r0, r1, 0, s->channels, output + r0 * s->channels,
                    s->channels, scratch);
}

static taper_status f32_conv_depthwise_run(const taper_call *call, int64_t begin, int64_t end,
                                           void *scratch) {
    for (int64_t unit = begin; unit < end; unit++)
        depthwise_unit(call, unit, scratch);
    return TAPER_OK;
}
