/* Sizes of a CONV or CONV_TRANSPOSE node. */

typedef struct conv_shape {
    int64_t batch, channels, outputs; /* of x and of the output */
    int64_t groups, in, out;          /* channels of a group */
    window_dim dims[WINDOW_DIMS];     /* in a transposed convolution, low is how much is cut off */
    bool transposed;
    bool packed;  /* the weight is [groups][ceil(out/16)][taps * in][16] */
    bool padded;  /* some position lies outside of x */
    bool clipped; /* such taps are skipped, so that no position is outside */
} conv_shape;

static int64_t conv_taps(const conv_shape *s) {
    return s->dims[0].kernel * s->dims[1].kernel * s->dims[2].kernel;
}

/* Returns the rows of a group's weight matrix. */
static int64_t conv_rows(const conv_shape *s) { return conv_taps(s) * s->in; }

/* Returns a / b rounded down, for b > 0. */
static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

/* Returns whether the output of a transposed convolution is the full output with parts cut off. */
static bool conv_transposed_fits(const conv_shape *s, const taper_ints *padding) {
    const int64_t missing = WINDOW_DIMS - padding->count / 2;
    for (int64_t d = missing; d < WINDOW_DIMS; d++) {
        const window_dim *w = &s->dims[d];
        const int64_t full = (w->in - 1) * w->stride + w->dilation * (w->kernel - 1) + 1;
        const int64_t cut = w->low + padding->data[2 * (d - missing) + 1];
        if (w->in < 1 || full - cut != w->out)
            return false;
    }
    return true;
}

/* Returns whether the dim is trivial: one position, one tap, one output. */
static bool conv_idle(const window_dim *w) {
    return w->in == 1 && w->out == 1 && w->kernel == 1 && w->low == 0;
}

/*
 * Moves the dims that are not trivial to the end, in order. Where there is only one row, the images
 * of a batch become the rows. Tiles are pixels of a row: thus a tall image of one column becomes
 * one row, and short rows of several images share a block's weight.
 */
static void conv_squeeze(conv_shape *s) {
    static const window_dim idle = {1, 1, 1, 1, 1, 0};
    int32_t to = WINDOW_DIMS;
    for (int32_t d = WINDOW_DIMS - 1; d >= 0; d--)
        if (!conv_idle(&s->dims[d]))
            s->dims[--to] = s->dims[d];
    while (to > 0)
        s->dims[--to] = idle;
    if (conv_idle(&s->dims[0]) && conv_idle(&s->dims[1]) && s->batch <= INT32_MAX) {
        s->dims[1].in = s->dims[1].out = s->batch;
        s->batch = 1;
    }
}

/* Returns false if the tensors are not those of a node of this dtype. TAPER_INT8: of bytes with
 * sums in int32, whose dtypes the kernel's row says. */
static bool conv_shape_in(conv_shape *s, const taper_call *call, const struct conv_attrs *attrs,
                          bool transposed, taper_dtype dtype) {
    const bool bytes = dtype == TAPER_INT8;
    if (call->n_inputs < 2)
        return false;
    const taper_tensor *x = &call->inputs[0], *weight = &call->inputs[1], *output = call->output;
    const int32_t packed = bytes ? TAPER_DOTS : TAPER_GROUPED_PANELS;
    *s = (conv_shape){.transposed = transposed, .packed = weight->format == packed};
    if (weight->format != TAPER_PLAIN && !(s->packed && weight->shape[0] == attrs->groups))
        return false;
    if (!window_dims(s->dims, x, output, bytes ? TAPER_ABSENT : dtype, &attrs->kernel,
                     &attrs->stride, &attrs->padding, transposed ? -INT32_MAX : 0,
                     &attrs->dilation))
        return false;
    s->batch = x->shape[0];
    s->channels = x->shape[x->rank - 1];
    s->outputs = output->shape[output->rank - 1];
    s->groups = attrs->groups;
    if (s->groups < 1 || s->channels % s->groups != 0 || s->outputs % s->groups != 0)
        return false;
    s->in = s->channels / s->groups;
    s->out = s->outputs / s->groups;

    int64_t numel = s->groups;
    const int64_t columns = s->packed ? i64_ceil_div(s->out, GEMM_NR) * GEMM_NR : s->out;
    const int64_t sizes[] = {columns, s->in, s->dims[0].kernel, s->dims[1].kernel,
                             s->dims[2].kernel};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (__builtin_mul_overflow(numel, sizes[i], &numel))
            return false;
    if (s->packed && bytes)
        numel = s->groups * i64_ceil_div(s->out, GEMM_NR) *
                i8_panel_bytes(i64_ceil_div(conv_rows(s), I8_GROUP));
    if (!tensor_is(weight, dtype, numel) || !(transposed ? conv_transposed_fits(s, &attrs->padding)
                                                         : windows_fit(s->dims, &attrs->padding)))
        return false;

    conv_squeeze(s);
    for (int32_t d = 0; d < WINDOW_DIMS; d++) {
        const window_dim *w = &s->dims[d];
        const int64_t last = (w->out - 1) * w->stride - w->low + (w->kernel - 1) * w->dilation;
        s->padded = s->padded || transposed || w->low > 0 || last >= w->in;
    }
    return true;
}

/* The same of float32 or of bytes. */
static bool conv_shape_of(conv_shape *s, const taper_call *call, const struct conv_attrs *attrs,
                          bool transposed, bool bytes) {
    return conv_shape_in(s, call, attrs, transposed, bytes ? TAPER_INT8 : TAPER_FLOAT32);
}
