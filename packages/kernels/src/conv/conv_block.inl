/*
 * Operands of a block of output pixels: the positions of x that it needs, a zero-padded copy of
 * them where some are outside of x, and the runs of k that its taps make.
 *
 * Along one dim, the outputs o of a convolution read o * stride - low + t * dilation for each tap
 * t. In a transposed convolution, output o uses tap t only where o + low - t * dilation is a
 * multiple of stride, and reads x at the quotient. Outputs that are a stride apart use the same
 * taps: they form a plain convolution, one of `stride` phases.
 *
 * Taps that are outside of x for all outputs of a block are skipped. A dilated convolution is
 * clipped, because most of its taps may be outside: its outputs are split into ranges for which the
 * same taps are inside.
 */

/* Positions of x along a dim: first + i * step, i < count. */
typedef struct conv_span {
    int64_t first, count, step;
} conv_span;

/* The positions that the outputs [begin, end) read. */
static conv_span conv_span_of(const conv_shape *s, int32_t d, int64_t begin, int64_t end) {
    const window_dim *w = &s->dims[d];
    const int64_t reach = (w->kernel - 1) * w->dilation;
    if (s->transposed) {
        const int64_t first = floor_div(begin + w->low - reach, w->stride);
        return (conv_span){first, floor_div(end - 1 + w->low, w->stride) - first + 1, 1};
    }
    const int64_t first = begin * w->stride - w->low;
    if (end - begin == 1) /* nothing reads the positions between the taps */
        return (conv_span){first, w->kernel, w->dilation};
    return (conv_span){first, (end - 1 - begin) * w->stride + reach + 1, 1};
}

/* Returns the most positions that any n outputs read. */
static int64_t conv_span_count(const conv_shape *s, int32_t d, int64_t n) {
    const window_dim *w = &s->dims[d];
    const int64_t count = conv_span_of(s, d, 0, n).count;
    if (s->transposed)
        return ((n - 1) + (w->kernel - 1) * w->dilation) / w->stride + 2;
    return s->clipped ? i64_min(count, w->in) : count;
}

/* Taps [first, end) along a dim. */
typedef struct conv_inside {
    int64_t first, end;
} conv_inside;

/* Returns the taps that are inside of x for output o of a convolution. */
static conv_inside conv_inside_of(const conv_shape *s, int32_t d, int64_t o) {
    const window_dim *w = &s->dims[d];
    const int64_t at = o * w->stride - w->low, left = w->in - 1 - at;
    const int64_t first = at < 0 ? i64_min(i64_ceil_div(-at, w->dilation), w->kernel) : 0;
    const int64_t end = left < 0 ? 0 : i64_min(left / w->dilation + 1, w->kernel);
    return (conv_inside){first, i64_max(first, end)};
}

/* Returns the end of the range of outputs, from `begin` on, for which the same taps are inside. */
static int64_t conv_same_taps(const conv_shape *s, int32_t d, int64_t begin, int64_t end) {
    if (!s->clipped)
        return end;
    const conv_inside taps = conv_inside_of(s, d, begin);
    int64_t o = begin + 1;
    for (; o < end; o++) {
        const conv_inside other = conv_inside_of(s, d, o);
        if (other.first != taps.first || other.end != taps.end)
            break;
    }
    return o;
}

/* The outputs of one phase along a dim, and where they and their taps are in a span. */
typedef struct conv_axis {
    int64_t first, count, step;  /* outputs: first + i * step */
    int64_t at, at_step;         /* of tap 0 of the first output in the span; to the next output */
    int64_t tap, taps, tap_step; /* taps: tap + i * tap_step */
    int64_t tap_at;              /* from one tap to the next in the span */
} conv_axis;

static int64_t conv_gcd(int64_t a, int64_t b) { return b == 0 ? a : conv_gcd(b, a % b); }

/* Returns how many phases have outputs among n. */
static int64_t conv_phases(const conv_shape *s, int32_t d, int64_t n) {
    return s->transposed ? i64_min(n, s->dims[d].stride) : 1;
}

/* The phase of output begin + phase, among the outputs [begin, end). */
static conv_axis conv_axis_of(const conv_shape *s, int32_t d, const conv_span *span, int64_t begin,
                              int64_t end, int64_t phase) {
    const window_dim *w = &s->dims[d];
    conv_axis a = {.first = begin + phase, .count = end - begin, .step = 1, .tap_step = 1};
    if (!s->transposed) {
        a.at = (begin * w->stride - w->low - span->first) / span->step;
        a.at_step = w->stride; /* not used where step is not 1: there is one output */
        a.tap_at = w->dilation / span->step;
        /* The taps that are inside for at least one output; the last output has the first of them.
         */
        a.tap = conv_inside_of(s, d, end - 1).first;
        a.taps = i64_max(0, conv_inside_of(s, d, begin).end - a.tap);
        a.at += a.tap * a.tap_at;
        return a;
    }
    const int64_t q = a.first + w->low, common = conv_gcd(w->stride, w->dilation);
    a.step = w->stride;
    a.count = i64_ceil_div(end - a.first, w->stride);
    a.at_step = 1;
    a.tap_step = w->stride / common;
    a.tap_at = -(w->dilation / common);
    while (a.tap < w->kernel && floor_mod(q - a.tap * w->dilation, w->stride) != 0)
        a.tap = a.tap < a.tap_step ? a.tap + 1 : w->kernel;
    a.taps = a.tap < w->kernel ? (w->kernel - 1 - a.tap) / a.tap_step + 1 : 0;
    a.at = floor_div(q - a.tap * w->dilation, w->stride) - span->first;
    return a;
}

/* x, or the copy of a part of it; strides in elements. */
typedef struct conv_source {
    const float *data;
    int64_t slice, row, pixel;
} conv_source;

/* Copies one row of x, from the span's positions; `in` of each pixel's channels. */
static void conv_copy_row(const conv_shape *s, float *to, const float *row, const conv_span *span) {
    const int64_t in = s->in, size = s->dims[2].in;
    int64_t i = 0;
    if (span->step == 1) {
        const int64_t left = i64_min(span->count, i64_max(0, -span->first));
        const int64_t right = i64_max(left, i64_min(span->count, size - span->first));
        memset(to, 0, (size_t)(left * in) * sizeof *to);
        if (s->groups == 1)
            memcpy(to + left * in, row + (span->first + left) * in,
                   (size_t)((right - left) * in) * sizeof *to);
        else
            GEMM.copy(to + left * in, in, row + (span->first + left) * s->channels, s->channels, 1,
                      right - left, in);
        memset(to + right * in, 0, (size_t)((span->count - right) * in) * sizeof *to);
        return;
    }
    for (; i < span->count; i++, to += in) {
        const int64_t at = span->first + i * span->step;
        if (at >= 0 && at < size)
            memcpy(to, row + at * s->channels, (size_t)in * sizeof *to);
        else
            memset(to, 0, (size_t)in * sizeof *to);
    }
}

/* x: the image's and group's first element. */
static conv_source conv_copy(const conv_shape *s, float *to, const float *x,
                             const conv_span spans[WINDOW_DIMS]) {
    const conv_span *d = &spans[0], *h = &spans[1], *w = &spans[2];
    const conv_source copy = {to, h->count * w->count * s->in, w->count * s->in, s->in};
    for (int64_t i = 0; i < d->count; i++)
        for (int64_t j = 0; j < h->count; j++, to += copy.row) {
            const int64_t z = d->first + i * d->step, y = h->first + j * h->step;
            if (z >= 0 && z < s->dims[0].in && y >= 0 && y < s->dims[1].in)
                conv_copy_row(s, to, x + (z * s->dims[1].in + y) * s->dims[2].in * s->channels, w);
            else
                memset(to, 0, (size_t)copy.row * sizeof *to);
        }
    return copy;
}

/* The runs of k of a block: each `k` long, contiguous in the source and in the weight. */
typedef struct conv_runs {
    int64_t k, count;
    int64_t a, b; /* start of the first, in elements and in lines of k */
} conv_runs;

/* Fills jump[count - 1]. */
static conv_runs conv_runs_of(const conv_shape *s, const conv_axis axes[WINDOW_DIMS],
                              const conv_source *from, gemm_jump *jump) {
    const conv_axis *d = &axes[0], *h = &axes[1], *w = &axes[2];
    /* The taps of a row are one run where they are neighbours in memory. */
    const bool joined = w->tap_step == 1 && w->tap_at * from->pixel == s->in;
    const int64_t taps = joined ? i64_min(w->taps, 1) : w->taps;
    conv_runs runs = {.k = joined ? w->taps * s->in : s->in};
    int64_t a_end = 0, b_end = 0;
    for (int64_t i = 0; i < d->taps; i++)
        for (int64_t j = 0; j < h->taps; j++)
            for (int64_t l = 0; l < taps; l++) {
                const int64_t a = (d->at + i * d->tap_at) * from->slice +
                                  (h->at + j * h->tap_at) * from->row +
                                  (w->at + l * w->tap_at) * from->pixel;
                const int64_t tap =
                    ((d->tap + i * d->tap_step) * s->dims[1].kernel + h->tap + j * h->tap_step) *
                        s->dims[2].kernel +
                    w->tap + l * w->tap_step;
                if (runs.count++ == 0) {
                    runs.a = a;
                    runs.b = tap * s->in;
                } else {
                    jump[runs.count - 2] = (gemm_jump){a - a_end, tap * s->in - b_end};
                }
                a_end = a + runs.k;
                b_end = tap * s->in + runs.k;
            }
    if (runs.count == 0) /* no tap reaches this phase: zeros */
        runs = (conv_runs){.count = 1};
    return runs;
}
