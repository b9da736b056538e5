/*
 * Depthwise convolution of bytes with sums in int32. Vectors run over channels. Two taps are
 * multiplied at once: their bytes are zipped and widened, and vi_madd_16 adds the two products of
 * each channel. With VNNI, four taps are, whose bytes need not be widened.
 */

/* ---- square windows, in tiles of pixels of two rows (depthwise.inl) ---- */

/*
 * Groups of taps are those of `group` rows of x, 2 or 4, from group * q on, counted from the first
 * that a tile reads. They meet a row of the output at tap rows from group * q - offset of the row
 * on. Taps outside of the weight are 0.
 */
typedef struct i8_square_tile {
    const char *const *at; /* [row of x][position]: the bytes that the tile reads there */
    const int32_t *weight; /* as of i8_zip_square */
    int32_t *sums;         /* the first pixel of the first row */
    int64_t row;           /* items of sums from one row to the next */
    int64_t rows, pixels;  /* that exist */
    int64_t n;             /* channels, V_LEN or more */
} i8_square_tile;

enum { I8_SQUARE_C = 4 << 10 /* sums that wait in L1 for the epilogue */ };

/* The groups of a weight whose first one begins `before` tap rows before it. */
#define I8_SQUARE_GROUPS(taps, before, group) (((taps) + (before) + (group) - 1) / (group))
/* The groups of a vector of channels: those of the second row are the first one's if its offset is
 * whole groups. */
#define I8_SQUARE_LISTS(taps, stride, group)                                                       \
    (I8_SQUARE_GROUPS(taps, 0, group) +                                                            \
     ((stride) % (group) ? I8_SQUARE_GROUPS(taps, (stride) % (group), group) : 0))

#ifdef HAS_I8_VNNI
/* Loads V_LEN bytes from four places: each lane has those of one index. */
V_INLINE vi i8_quad_bytes(const void *a, const void *b, const void *c, const void *d) {
    vi x = _mm512_castsi128_si512(_mm_loadu_si128(a));
    x = _mm512_inserti32x4(x, _mm_loadu_si128(b), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128(c), 2);
    x = _mm512_inserti32x4(x, _mm_loadu_si128(d), 3);
    const vi fours = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const vi order = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(fours, x), order);
}
#endif

/* Loads a group from `group` places; of pairs, widened. */
V_INLINE vi i8_group_bytes(const int group, const char *const *from, const bool is_signed) {
#ifdef HAS_I8_VNNI
    if (group == 4)
        return i8_quad_bytes(from[0], from[1], from[2], from[3]);
#endif
    (void)group;
    return vi_pair_bytes(from[0], from[1], is_signed);
}

/* sums + the products of groups. */
V_INLINE vi i8_group_dot(const int group, vi sums, vi a, vi b) {
#ifdef HAS_I8_VNNI
    if (group == 4)
        return i8_dot_u8(sums, a, b);
#endif
    (void)group;
    return i8_dot_16(sums, a, b);
}

/* Returns the vectors of the zipped weight of a vector of channels. */
V_INLINE int i8_square_vectors(const int taps, const int stride, const int group) {
    return I8_SQUARE_LISTS(taps, stride, group) * taps + (group == 4);
}

/*
 * Writes a weight as [vectors of channels][groups][columns][V_LEN]. Quads are multiplied by bytes
 * that are 128 larger if they are signed: what their sums begin with, -128 times those of the
 * weight, is behind the groups.
 */
static void i8_zip_square(int32_t *to, const int8_t *weight, int taps, int stride, int group,
                          int64_t n) {
    static const int8_t zeros[V_LEN];
    for (int64_t c = 0; c < n; c += V_LEN) {
        const int8_t *const w = weight + i64_min(c, n - V_LEN);
        vi less = vi_set1(0);
        for (int before = 0; before <= stride % group; before += i64_max(1, stride % group))
            for (int k = -before; k < taps; k += group)
                for (int l = 0; l < taps; l++, to += V_LEN) {
                    const char *from[4];
                    for (int i = 0; i < group; i++)
                        from[i] = (const char *)(k + i < 0 || k + i >= taps
                                                     ? zeros
                                                     : w + ((k + i) * taps + l) * n);
                    const vi zipped = i8_group_bytes(group, from, true);
                    vi_store(to, zipped);
#ifdef HAS_I8_VNNI
                    if (group == 4 && before == 0)
                        less = i8_dot_u8(less, vi_set1(~0x7f7f7f7f), zipped);
#endif
                }
        if (group == 4) {
            vi_store(to, vi_sub(vi_set1(0), less));
            to += V_LEN;
        }
    }
}

V_INLINE void i8_square(const int taps, const int stride, const bool is_signed, const int group,
                        const i8_square_tile *t) {
    const int positions = (DW_PIXELS - 1) * stride + taps, lines = stride + taps;
    const int step = i8_square_vectors(taps, stride, group) * V_LEN;
    const int32_t *w = t->weight;
    for (int64_t from = 0; from < t->n; from += V_LEN, w += step) {
        const int64_t c = i64_min(from, t->n - V_LEN);
        const bool is_shifted = is_signed && group == 4;
        const vi begin = is_shifted ? vi_load(w + step - V_LEN) : vi_set1(0);
        vi sum[DW_ROWS][DW_PIXELS];
#pragma GCC unroll 16
        for (int i = 0; i < DW_ROWS * DW_PIXELS; i++)
            sum[i / DW_PIXELS][i % DW_PIXELS] = begin;
#pragma GCC unroll 16
        for (int j = 0; j < positions; j++)
#pragma GCC unroll 16
            for (int q = 0; group * q < lines; q++) {
                const char *places[4];
#pragma GCC unroll 4
                for (int i = 0; i < group; i++) {
                    const int line = group * q + i < lines ? group * q + i : lines - 1;
                    places[i] = t->at[line * positions + j] + c;
                }
                vi x = i8_group_bytes(group, places, is_signed);
#ifdef HAS_I8_VNNI
                if (is_shifted)
                    x = _mm512_xor_si512(x, vi_set1(~0x7f7f7f7f));
#endif
#pragma GCC unroll 2
                for (int r = 0; r < DW_ROWS; r++) {
                    const int k = group * q - r * stride, before = r * stride % group;
                    if (k <= -group || k >= taps)
                        continue;
                    const int at =
                        (before ? I8_SQUARE_GROUPS(taps, 0, group) : 0) + (k + before) / group;
#pragma GCC unroll 8
                    for (int p = 0; p < DW_PIXELS; p++) {
                        const int l = j - p * stride;
                        if (l >= 0 && l < taps)
                            sum[r][p] = i8_group_dot(group, sum[r][p], x,
                                                     vi_load(w + (at * taps + l) * V_LEN));
                    }
                }
            }
#pragma GCC unroll 2
        for (int r = 0; r < DW_ROWS; r++)
#pragma GCC unroll 8
            for (int p = 0; p < DW_PIXELS; p++)
                if (r < t->rows && p < t->pixels)
                    vi_store(t->sums + r * t->row + p * t->n + c, sum[r][p]);
    }
}

#define I8_DEFINE_SQUARE_OF(name, taps, stride, is_signed, group)                                  \
    static void i8_##name##_##taps##x##stride(const i8_square_tile *t) {                           \
        i8_square(taps, stride, is_signed, group, t);                                              \
    }
#define I8_DEFINE_SQUARE(taps, stride)                                                             \
    I8_DEFINE_SQUARE_OF(pairs, taps, stride, false, 2)                                             \
    I8_DEFINE_SQUARE_OF(signed_pairs, taps, stride, true, 2)
DW_SQUARES(I8_DEFINE_SQUARE)
#define I8_SQUARE_ROW(taps, stride) {i8_pairs_##taps##x##stride, i8_signed_pairs_##taps##x##stride},
typedef void (*i8_square_fn)(const i8_square_tile *t);
/* By kind of depthwise_kind_of and whether bytes are signed. */
static const i8_square_fn i8_pairs[][2] = {DW_SQUARES(I8_SQUARE_ROW)};
#ifdef HAS_I8_VNNI
#define I8_DEFINE_QUADS(taps, stride)                                                              \
    I8_DEFINE_SQUARE_OF(quads, taps, stride, false, 4)                                             \
    I8_DEFINE_SQUARE_OF(signed_quads, taps, stride, true, 4)
DW_SQUARES(I8_DEFINE_QUADS)
#define I8_QUADS_ROW(taps, stride) {i8_quads_##taps##x##stride, i8_signed_quads_##taps##x##stride},
static const i8_square_fn i8_quads[][2] = {DW_SQUARES(I8_QUADS_ROW)};
#define I8_SQUARES(group) ((group) == 4 ? i8_quads : i8_pairs)
#else
#define I8_SQUARES(group) i8_pairs
#endif

/* Finds what a tile reads from pixel (y, x) of an image on. */
static void i8_square_locate(const conv_shape *s, const depthwise_kind k, const char **at,
                             const char *image, const char *border, int64_t y, int64_t x) {
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const int positions = (DW_PIXELS - 1) * k.stride + k.taps;
    const int64_t first = x * k.stride - w->low;
    const bool inside = first >= 0 && first + positions <= w->in;
    for (int i = 0; i < k.stride + k.taps; i++) {
        const int64_t line = y * k.stride - h->low + i;
        const char *from = image + (line * w->in + first) * s->outputs;
        const bool is_line = line >= 0 && line < h->in;
        if (is_line && inside) {
            for (int j = 0; j < positions; j++)
                at[j] = from + j * s->outputs;
            at += positions;
            continue;
        }
        for (int j = 0; j < positions; j++, from += s->outputs)
            *at++ = is_line && (inside || (first + j >= 0 && first + j < w->in)) ? from : border;
    }
}

/* Computes the sums of a unit: `width` pixels of one or two rows. */
static void i8_square_unit(const struct i8_conv_state *state, const char **at,
                           const int32_t *weight, const char *image, const char *border, int64_t y,
                           int64_t x, int64_t width, int32_t *sums, int64_t row, bool is_signed) {
    const conv_shape *s = &state->shape;
    const int64_t rows = i64_min(DW_ROWS, s->dims[1].out - y);
    for (int64_t p = 0; p < width; p += DW_PIXELS) {
        i8_square_locate(s, depthwise_rows[state->kind].kind, at, image, border, y, x + p);
        const i8_square_tile tile = {at,        weight, sums + p * s->outputs,
                                     row,       rows,   i64_min(DW_PIXELS, width - p),
                                     s->outputs};
        I8_SQUARES(state->group)[state->kind][is_signed](&tile);
    }
}

static void i8_square_prepare(struct i8_conv_state *state, taper_work *work) {
    const conv_shape *s = &state->shape;
    const depthwise_kind k = depthwise_rows[state->kind].kind;
    const int64_t n = s->outputs, out = s->dims[2].out;
    const int64_t most = i64_max(1, I8_C_ITEMS / (DW_ROWS * DW_PIXELS) / n) * DW_PIXELS;
    state->widths = i64_ceil_div(out, most);
    state->width = i64_ceil_div(i64_ceil_div(out, state->widths), DW_PIXELS) * DW_PIXELS;
    state->widths = i64_ceil_div(out, state->width);
    state->row_chunks = i64_ceil_div(s->dims[1].out, DW_ROWS);
    work->tasks = s->batch * s->dims[0].out * state->row_chunks * state->widths;
    const int64_t fit = I8_SQUARE_C / DW_ROWS / n, least = PROGRAM_PANEL_ROWS + DW_PIXELS;
    state->part = i64_max(fit, least) / DW_PIXELS * DW_PIXELS;
    const int64_t vectors = i64_ceil_div(n, V_LEN);
    const int64_t positions = ((DW_PIXELS - 1) * k.stride + k.taps) * (k.stride + k.taps);
    state->tap_scratch = conv_aligned(vectors * i8_square_vectors(k.taps, k.stride, state->group) *
                                      (int64_t)sizeof(vi));
    state->border_scratch = state->tap_scratch + conv_aligned(positions * (int64_t)sizeof(char *));
    state->c_scratch = state->border_scratch + conv_aligned(n);
    state->epilogue_scratch =
        state->c_scratch + conv_aligned(DW_ROWS * state->part * n * (int64_t)sizeof(int32_t));
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
}

static void i8_square_run(const taper_call *call, int64_t begin, int64_t end, char *memory) {
    const struct conv_attrs *attrs = call->attrs;
    const struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    const window_dim *d = &s->dims[0], *h = &s->dims[1], *w = &s->dims[2];
    const depthwise_kind k = depthwise_rows[state->kind].kind;
    const int64_t n = s->outputs, size = (int64_t)taper_dtype_size(call->output->dtype);
    const bool is_signed = call->inputs[0].dtype == TAPER_INT8;
    int32_t *const weight = (void *)memory, *const block = (void *)(memory + state->c_scratch);
    const char **const at = (const char **)(void *)(memory + state->tap_scratch);
    char *const border = memory + state->border_scratch;
    memset(border, (int)attrs->border, (size_t)n);
    i8_zip_square(weight, call->inputs[1].data, k.taps, k.stride, state->group, n);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t x = unit % state->widths * state->width, above = unit / state->widths;
        const int64_t y = above % state->row_chunks * DW_ROWS, slice = above / state->row_chunks;
        const int64_t from = slice / d->out * d->in + slice % d->out * d->stride;
        const int64_t width = i64_min(state->width, w->out - x);
        const char *image = (const char *)call->inputs[0].data + from * h->in * w->in * n;
        const int64_t pixel = (slice * h->out + y) * w->out + x;
        char *const out = (char *)call->output->data + pixel * n * size;
        if (state->epilogue.count == 0) {
            i8_square_unit(state, at, weight, image, border, y, x, width, (int32_t *)(void *)out,
                           w->out * n, is_signed);
            continue;
        }
        for (int64_t p = 0; p < width; p += state->part) {
            const int64_t part = i64_min(state->part, width - p);
            i8_square_unit(state, at, weight, image, border, y, x + p, part, block, part * n,
                           is_signed);
            for (int64_t r = 0; r < i64_min(DW_ROWS, h->out - y); r++) {
                const int64_t first = r * w->out + p;
                PROGRAM.run(&state->epilogue, call->inputs + 2, pixel + first, pixel + first + part,
                            0, n, block + r * part * n, n, out + first * n * size, n,
                            memory + state->epilogue_scratch);
            }
        }
    }
}

/* ---- other windows, a pixel at a time ---- */

/* A block of channels has two vectors of sums, in the order of the zips. */
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
            low = i8_dot_16(low, vi_zip_low_16(a, b), vi_load(weight));
            high = i8_dot_16(high, vi_zip_high_16(a, b), vi_load(weight + V_LEN));
        }
        int32_t parts[2][V_LEN]; /* a zip takes 4 channels of each 16 bytes */
        vi_store(parts[0], low);
        vi_store(parts[1], high);
        _Pragma("GCC unroll 16") for (int p = 0; p < 2 * V_LEN / 4; p++)
            memcpy(sums + col + 4 * p, parts[p % 2] + p / 2 * 4, 4 * sizeof *sums);
    }
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

/* Writes the row of x that each tap of a pixel reads, or the border. */
static void i8_conv_rows_of(const conv_shape *s, const char **rows, const char *x,
                            const char *border, int64_t pixel) {
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
                              : border;
            }
        }
    *rows = border; /* the other of a pair, times 0 */
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
    state->kind = s->outputs >= V_LEN && s->dims[0].low == 0 ? depthwise_kind_of(s) : DW_OTHER;
    if (state->kind != DW_OTHER) {
        state->group = call->kernel->data ? 4 : 2;
        i8_square_prepare(state, work);
        return TAPER_OK;
    }
    if (call->kernel->data)
        return TAPER_UNSUPPORTED;
    /* In multiply-adds of which as many fit the time as in float32. */
    const int64_t cost = i64_times(s->outputs, conv_taps(s) + GEMM_EPILOGUE_COST);
    state->row_chunk = i64_min(state->rows, i64_max(1, CONV_UNIT_COST / 4 / cost));
    state->row_chunk = i64_min(state->row_chunk, i64_max(1, I8_C_ITEMS / i64_max(1, s->outputs)));
    work->tasks = state->row_chunks = i64_ceil_div(state->rows, state->row_chunk);
    const int64_t blocks = i64_ceil_div(s->outputs, I8_TAP_COLS), pairs = i8_tap_pairs(s);
    state->tap_scratch = conv_aligned(blocks * pairs * 2 * (int64_t)sizeof(vi));
    /* The rows of all taps and the border behind them, which pairs with the last of an odd number.
     */
    const int64_t rows = conv_taps(s) + 1;
    state->border_scratch = state->tap_scratch + conv_aligned(rows * (int64_t)sizeof(char *));
    state->c_scratch = state->border_scratch + conv_aligned(s->outputs);
    state->epilogue_scratch =
        state->c_scratch + conv_aligned(state->row_chunk * s->outputs * (int64_t)sizeof(int32_t));
    work->scratch_bytes = state->epilogue_scratch + state->epilogue.scratch_bytes;
    return TAPER_OK;
}

static taper_status i8_conv_depthwise_run(const taper_call *call, int64_t begin, int64_t end,
                                          void *scratch) {
    const struct conv_attrs *attrs = call->attrs;
    const struct i8_conv_state *state = call->state;
    const conv_shape *s = &state->shape;
    if (state->kind != DW_OTHER) {
        i8_square_run(call, begin, end, scratch);
        return TAPER_OK;
    }
    const bool is_signed = call->inputs[0].dtype == TAPER_INT8;
    const int8_t *weight = call->inputs[1].data;
    const int64_t n = s->outputs, taps = conv_taps(s), pairs = i8_tap_pairs(s);
    const int64_t size = (int64_t)taper_dtype_size(call->output->dtype);
    char *const memory = scratch;
    int32_t *const zipped = scratch;
    const char **const rows = (const char **)(void *)(memory + state->tap_scratch);
    char *const border = memory + state->border_scratch;
    memset(border, (int)attrs->border, (size_t)n);
    if (n >= I8_TAP_COLS)
        i8_zip_taps(zipped, weight, taps, n);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit * state->row_chunk;
        const int64_t m = i64_min(state->row_chunk, state->rows - row);
        char *const out = (char *)call->output->data + row * n * size;
        int32_t *const block =
            state->epilogue.count ? (void *)(memory + state->c_scratch) : (void *)out;
        for (int64_t r = 0; r < m; r++) {
            i8_conv_rows_of(s, rows, call->inputs[0].data, border, row + r);
            if (n < I8_TAP_COLS)
                i8_conv_few_channels(block + r * n, rows, weight, taps, n, is_signed);
            else if (is_signed)
                i8_conv_taps(block + r * n, rows, zipped, pairs, n, true);
            else
                i8_conv_taps(block + r * n, rows, zipped, pairs, n, false);
        }
        if (state->epilogue.count)
            PROGRAM.run(&state->epilogue, call->inputs + 2, row, row + m, 0, n, block, n, out, n,
                        memory + state->epilogue_scratch);
    }
    return TAPER_OK;
}

#define i8_conv_depthwise_vnni_prepare i8_conv_depthwise_prepare
#define i8_conv_depthwise_vnni_run i8_conv_depthwise_run
