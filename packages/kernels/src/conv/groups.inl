/*
 * Convolution in groups of 2, 4 or 8 channels, with as many input as output channels. Vectors run
 * over the channels of the output, and hold several groups or a part of one. One permutation
 * spreads input channel c of every group over the group's lanes; the sums of neighbouring pixels
 * share it. A tile is some pixels of an output row. The products of an element are added in the
 * order of the rows of taps, then of c, then of the taps of a row, whatever the tile. Taps outside
 * of x are skipped.
 */

enum {
    GROUPS_WIDTH = 8, /* the most channels in a group */
    GROUPS_PIXELS = V_REGISTERS == 32 ? 14 : 7,
    GROUPS_UNIT = 16 << 10, /* floats of the output that wait for the epilogue, in L1 */
};

struct groups_state {
    taper_program epilogue;
    conv_shape shape;
    /* Units of work, numbered [image][slice][row block]. */
    int64_t rows, row_blocks;
    int32_t kind;                        /* index in groups_tiles */
    int32_t spread[GROUPS_WIDTH][V_LEN]; /* [channel of a group]: the permutations */
    /* In scratch, after sums that may not lie in the output before the epilogue. */
    size_t epilogue_scratch;
};

typedef struct groups_tile {
    const float *x;      /* of the lanes' first group: pixel 0 of the row that the first row of taps
                            reads */
    const float *weight; /* of the first row's first tap, the first lane */
    float *y;            /* the first pixel */
    int64_t slices, rows; /* taps inside of x */
    int64_t x_slice, x_row, weight_slice, weight_row;
    int64_t taps, stride, dilation; /* along a row */
    int64_t at;                     /* position in its row that the first pixel's first tap reads */
    int64_t size;                   /* of a row */
    int64_t channels;               /* from pixel to pixel */
    int64_t width;                  /* of a group */
    int64_t pixels;                 /* of the tile's that exist */
    int64_t lanes;                  /* those that exist */
    const int32_t (*spread)[V_LEN];
} groups_tile;

/* Constants wherever a tile is inlined. */
typedef struct groups_kind {
    int taps, stride; /* 0: any, of any dilation; else dilation is 1 */
    bool whole;       /* every position lies in x, every pixel exists */
    bool lanes;       /* not all lanes exist */
} groups_kind;

V_INLINE vf groups_load(const groups_kind k, const groups_tile *t, const float *p) {
    return k.lanes ? v_load_n(p, t->lanes) : v_load(p);
}

/* Adds the products of channel c of the groups with `taps` taps, the first of which reads position
 * `at` for pixel 0. x: of position 0; weight: of the first tap. */
V_INLINE void groups_taps(const groups_kind k, const groups_tile *t, const float *x,
                          const float *weight, int64_t c, int64_t at, const int taps,
                          const int64_t stride, vf sum[GROUPS_PIXELS]) {
    enum { MOST = 3 };
    const vi spread = vi_load(t->spread[c]);
    x += c / V_LEN * V_LEN;
    weight += c * t->channels;
    vf w[MOST];
#pragma GCC unroll 4
    for (int l = 0; l < taps; l++)
        w[l] = groups_load(k, t, weight + l * t->width * t->channels);
    if (taps == 1) {
#pragma GCC unroll 16
        for (int p = 0; p < GROUPS_PIXELS; p++) {
            const int64_t i = at + p * stride;
            if (k.whole || (uint64_t)i < (uint64_t)t->size)
                sum[p] =
                    v_fma(v_permute(groups_load(k, t, x + i * t->channels), spread), w[0], sum[p]);
        }
        return;
    }
    x += at * t->channels;
#pragma GCC unroll 32
    for (int i = 0; i < (GROUPS_PIXELS - 1) * k.stride + taps; i++, x += t->channels) {
        if (!k.whole && (uint64_t)(at + i) >= (uint64_t)t->size)
            continue;
        const vf xi = v_permute(groups_load(k, t, x), spread);
#pragma GCC unroll 16
        for (int p = 0; p < GROUPS_PIXELS; p++) {
            const int l = i - p * k.stride;
            if (l >= 0 && l < taps)
                sum[p] = v_fma(xi, w[l], sum[p]);
        }
    }
}

V_INLINE void groups_run_tile(const groups_kind k, const groups_tile *t) {
    vf sum[GROUPS_PIXELS];
#pragma GCC unroll 16
    for (int p = 0; p < GROUPS_PIXELS; p++)
        sum[p] = v_zero();
    for (int64_t i = 0; i < t->slices; i++)
        for (int64_t j = 0; j < t->rows; j++) {
            const float *x = t->x + i * t->x_slice + j * t->x_row;
            const float *weight = t->weight + i * t->weight_slice + j * t->weight_row;
            for (int64_t c = 0; c < t->width; c++)
                if (k.taps > 0)
                    groups_taps(k, t, x, weight, c, t->at, k.taps, k.stride, sum);
                else
                    for (int64_t l = 0; l < t->taps; l++)
                        groups_taps(k, t, x, weight + l * t->width * t->channels, c,
                                    t->at + l * t->dilation, 1, t->stride, sum);
        }
    float *y = t->y;
#pragma GCC unroll 16
    for (int p = 0; p < GROUPS_PIXELS; p++, y += t->channels)
        if (!k.whole && p >= t->pixels)
            break;
        else if (k.lanes)
            v_store_n(y, sum[p], t->lanes);
        else
            v_store(y, sum[p]);
}

typedef void (*groups_fn)(const groups_tile *t);

#define GROUPS_KINDS(X) X(3, 1) X(3, 2) X(0, 0)
#define GROUPS_DEFINE(name, taps, stride, whole, lanes)                                            \
    static void groups_##name##_##taps##x##stride(const groups_tile *t) {                          \
        groups_run_tile((groups_kind){taps, stride, whole, lanes}, t);                             \
    }
#define GROUPS_DEFINE_TILES(taps, stride)                                                          \
    GROUPS_DEFINE(whole, taps, stride, true, false)                                                \
    GROUPS_DEFINE(edge, taps, stride, false, false)                                                \
    GROUPS_DEFINE(lanes, taps, stride, false, true)
GROUPS_KINDS(GROUPS_DEFINE_TILES)

#define GROUPS_ROW(taps, stride)                                                                   \
    {taps, stride, groups_whole_##taps##x##stride, groups_edge_##taps##x##stride,                  \
     groups_lanes_##taps##x##stride},
static const struct {
    int taps, stride;
    groups_fn whole, edge, lanes;
} groups_tiles[] = {GROUPS_KINDS(GROUPS_ROW)};

/* ---- prepare ---- */

static taper_status f32_conv_groups_prepare(const taper_call *call, taper_work *work) {
    const struct conv_attrs *attrs = call->attrs;
    struct groups_state *state = call->state;
    const conv_shape *s = &state->shape;
    if (!conv_shape_of(&state->shape, call, attrs, false, false) || s->packed || s->groups == 1 ||
        s->in != s->out || (s->in != 2 && s->in != 4 && s->in != GROUPS_WIDTH))
        return TAPER_UNSUPPORTED;
    const taper_status status =
        PROGRAM.prepare(&state->epilogue, &attrs->code, &attrs->args, &attrs->scalars,
                        call->inputs + 2, call->n_inputs - 2, call->output, TAPER_FLOAT32);
    if (status != TAPER_OK)
        return status;
    if (tensor_numel(call->output) == 0) {
        *work = (taper_work){0};
        return TAPER_OK;
    }
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    state->rows = conv_part(h->out, GROUPS_UNIT / s->channels / w->out);
    state->row_blocks = i64_ceil_div(h->out, state->rows);
    const int32_t kinds = sizeof groups_tiles / sizeof groups_tiles[0];
    for (state->kind = 0; state->kind < kinds - 1; state->kind++)
        if (groups_tiles[state->kind].taps == w->kernel &&
            groups_tiles[state->kind].stride == w->stride && w->dilation == 1)
            break;
    for (int64_t c = 0; c < s->in; c++)
        for (int64_t l = 0; l < V_LEN; l++)
            state->spread[c][l] = (int32_t)(s->in < V_LEN ? l / s->in * s->in + c : c % V_LEN);
    work->tasks = s->batch * s->dims[0].out * state->row_blocks;
    const int64_t sums = state->epilogue.over ? state->rows * w->out * s->channels : 0;
    state->epilogue_scratch = conv_aligned(sums * (int64_t)sizeof(float));
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

/* ---- run ---- */

/* Computes one output row. row: the tile at its pixel 0 and channel 0; the fields that depend on
 * pixel and channel are set here. */
static void groups_pixels(const struct groups_state *state, const groups_tile *row) {
    const window_dim *w = &state->shape.dims[2];
    for (int64_t o = 0; o < w->out; o += GROUPS_PIXELS) {
        groups_tile t = *row;
        t.at = o * w->stride - w->low;
        t.pixels = w->out - o;
        t.y += o * t.channels;
        const int64_t reach = (GROUPS_PIXELS - 1) * w->stride + (w->kernel - 1) * w->dilation;
        const bool whole = t.pixels >= GROUPS_PIXELS && t.at >= 0 && t.at + reach < w->in;
        const groups_fn full =
            whole ? groups_tiles[state->kind].whole : groups_tiles[state->kind].edge;
        for (int64_t c = 0; c < t.channels; c += V_LEN) {
            t.lanes = i64_min(V_LEN, t.channels - c);
            t.x = row->x + (t.width < V_LEN ? c : c / t.width * t.width);
            (t.lanes < V_LEN ? groups_tiles[state->kind].lanes : full)(&t);
            t.weight += V_LEN;
            t.y += V_LEN;
        }
    }
}

static void groups_unit(const taper_call *call, int64_t unit, char *scratch) {
    const struct groups_state *state = call->state;
    const conv_shape *s = &state->shape;
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    const int64_t first = unit % state->row_blocks * state->rows;
    const int64_t last = i64_min(first + state->rows, h->out);
    unit /= state->row_blocks;
    const int64_t slice = unit % d->out, image = unit / d->out;

    int64_t z_tap, y_tap;
    const int64_t z = slice * d->stride - d->low, z_end = window_taps(d, z, &z_tap);
    const int64_t x_row = w->in * s->channels, x_slice = h->in * x_row;
    const int64_t weight_row = w->kernel * s->in * s->channels;
    const int64_t weight_slice = h->kernel * weight_row;
    const float *x = call->inputs[0].data, *weight = call->inputs[1].data;
    const taper_program *p = &state->epilogue;
    const int64_t r0 = conv_pixel(s, image, slice, first, 0), r1 = r0 + (last - first) * w->out;
    float *const output = (float *)call->output->data + r0 * s->channels;
    float *const sums = p->over ? (float *)scratch : output;
    for (int64_t o = first; o < last; o++) {
        const int64_t y = o * h->stride - h->low, y_end = window_taps(h, y, &y_tap);
        const groups_tile row = {
            .x = x + (image * d->in + z + z_tap * d->dilation) * x_slice +
                 (y + y_tap * h->dilation) * x_row,
            .weight = weight + z_tap * weight_slice + y_tap * weight_row,
            .y = sums + (o - first) * w->out * s->channels,
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
            .width = s->in,
            .spread = state->spread,
        };
        groups_pixels(state, &row);
    }

    if (p->count > 0)
        PROGRAM.run(p, call->inputs + 2, r0, r1, 0, s->channels, sums, s->channels, output,
                    s->channels, scratch + state->epilogue_scratch);
}

static taper_status f32_conv_groups_run(const taper_call *call, int64_t begin, int64_t end,
                                        void *scratch) {
    for (int64_t unit = begin; unit < end; unit++)
        groups_unit(call, unit, scratch);
    return TAPER_OK;
}
