/*
 * PAD: borders of x's own elements. The output is written row by row, where a row is the last
 * padded dimension with everything behind it: its low border, a row of x, its high border.
 */

/* A dimension of the output. Position p of the low border is element before + p * step of x, and
 * position p of the high one after + p * step. */
struct pad_dim {
    int64_t in, low, out; /* sizes: of x, of the low border, of the output */
    int64_t before, after, step;
    int64_t stride; /* of x, in bytes */
};

struct pad_state {
    copy_block *block; /* where an item of a row is an element */
    int64_t item;      /* bytes behind the row's dimension */
    int64_t rows, rows_per_task;
    int32_t rank; /* dims before the row's; those not padded are merged */
    struct pad_dim dims[TAPER_MAX_RANK + 1]; /* the last is the row's */
};

/* Sets the borders of a dimension; false if x cannot fill them. */
static bool pad_dim_of(struct pad_dim *dim, int64_t low, int64_t high, const char *mode) {
    const int64_t n = dim->in;
    bool fits = n > 0;
    if (low < 0 || high < 0)
        return false;
    dim->low = low;
    if (strcmp(mode, "reflect") == 0) {
        dim->before = low;
        dim->after = n - 2;
        dim->step = -1;
        fits = low < n && high < n;
    } else if (strcmp(mode, "circular") == 0) {
        dim->before = n - low;
        dim->after = 0;
        dim->step = 1;
        fits = low <= n && high <= n;
    } else if (strcmp(mode, "replicate") == 0) {
        dim->before = 0;
        dim->after = n - 1;
        dim->step = 0;
    } else {
        return false;
    }
    return fits && (uint64_t)dim->out == (uint64_t)low + (uint64_t)n + (uint64_t)high;
}

static taper_status any_pad_prepare(const taper_call *call, taper_work *work) {
    const struct pad_attrs *attrs = call->attrs;
    struct pad_state *s = call->state;
    if (call->n_inputs != 1 || attrs->low.count != attrs->axes.count ||
        attrs->high.count != attrs->axes.count)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *y = call->output;
    const int64_t size = (int64_t)taper_dtype_size(x->dtype);
    if (size == 0 || y->rank != x->rank || !tensor_is_contiguous(x) ||
        !tensor_is(y, (taper_dtype)x->dtype, tensor_numel(y)))
        return TAPER_UNSUPPORTED;
    *s = (struct pad_state){.item = size, .rows = 1};
    *work = (taper_work){0};
    int64_t i = 0; /* of the axes */
    int32_t n = 0;
    bool merges = false; /* the dim before is not padded */
    for (int32_t d = 0; d < x->rank; d++) {
        struct pad_dim dim = {.in = x->shape[d],
                              .out = y->shape[d],
                              .stride = tensor_count(x, d + 1, x->rank) * size};
        const bool padded = i < attrs->axes.count && attrs->axes.data[i] == d;
        if (padded ? !pad_dim_of(&dim, attrs->low.data[i], attrs->high.data[i], attrs->mode)
                   : dim.in != dim.out)
            return TAPER_UNSUPPORTED;
        if (!padded && i == attrs->axes.count && i > 0) { /* behind the last padded one */
            s->item *= dim.in;
        } else if (!padded && merges) {
            struct pad_dim *before = &s->dims[n - 1];
            before->in = before->out = before->in * dim.in;
            before->stride = dim.stride;
        } else {
            s->dims[n++] = dim;
        }
        merges = !padded;
        i += padded;
    }
    if (i != attrs->axes.count)
        return TAPER_UNSUPPORTED;
    if (n == 0)
        s->dims[n++] = (struct pad_dim){.in = 1, .out = 1};
    s->rank = n - 1;
    for (int32_t d = 0; d < s->rank; d++)
        s->rows *= s->dims[d].out;
    if (s->item <= 8 && (s->item & (s->item - 1)) == 0)
        s->block = strided_blocks[log2_of(s->item)];
    s->rows_per_task = i64_max(1, TASK_BYTES / i64_max(1, s->dims[s->rank].out * s->item));
    work->tasks = tensor_numel(y) ? i64_ceil_div(s->rows, s->rows_per_task) : 0;
    return TAPER_OK;
}

/* Returns the element of x at a position of the output. */
static int64_t pad_from(const struct pad_dim *dim, int64_t p) {
    if (p < dim->low)
        return dim->before + p * dim->step;
    p -= dim->low;
    return p < dim->in ? p : dim->after + (p - dim->in) * dim->step;
}

/* Copies n items of x, the first at src and each `step` items after the one before. */
static void pad_items(copy_block *block, int64_t item, uint8_t *dst, const uint8_t *src, int64_t n,
                      int64_t step) {
    if (step == 1) {
        memcpy(dst, src, (size_t)(n * item));
    } else if (block) {
        const struct copy_steps steps = {item, 0, step * item, 0, item};
        block(dst, src, &steps, 1, n);
    } else {
        for (int64_t i = 0; i < n; i++)
            bytes_copy(dst + i * item, src + i * step * item, item);
    }
}

/* The same; a few elements of constant size need no call. */
V_INLINE void pad_border(copy_block *block, const int64_t item, uint8_t *dst, const uint8_t *src,
                         int64_t n, int64_t step, const bool is_element) {
    if (!is_element || n > 4)
        pad_items(block, item, dst, src, n, step);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + i * item, src + i * step * item, (size_t)item);
}

/* Rows of the output that differ along one dimension alone, from position p of it on. */
V_INLINE void pad_rows(const struct pad_state *s, uint8_t *dst, const uint8_t *x,
                       const struct pad_dim *outer, int64_t p, int64_t rows, const int64_t item,
                       const bool is_element) {
    const struct pad_dim dim = s->dims[s->rank]; /* a copy, which dst cannot overwrite */
    copy_block *const block = s->block;
    const int64_t high = dim.out - dim.low - dim.in;
    for (; rows > 0; rows--, p++, dst += dim.out * item) {
        const uint8_t *src = x + pad_from(outer, p) * outer->stride;
        pad_border(block, item, dst, src + dim.before * item, dim.low, dim.step, is_element);
        memcpy(dst + dim.low * item, src, (size_t)(dim.in * item));
        pad_border(block, item, dst + (dim.low + dim.in) * item, src + dim.after * item, high,
                   dim.step, is_element);
    }
}

static taper_status any_pad_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct pad_state *s = call->state;
    static const struct pad_dim one = {.in = 1, .out = 1};
    const struct pad_dim outer = s->rank > 0 ? s->dims[s->rank - 1] : one;
    const int64_t row_bytes = s->dims[s->rank].out * s->item;
    const int64_t last = i64_min(end * s->rows_per_task, s->rows);
    (void)scratch;
    for (int64_t row = begin * s->rows_per_task, rows; row < last; row += rows) {
        const uint8_t *x = call->inputs[0].data;
        uint8_t *dst = (uint8_t *)call->output->data + row * row_bytes;
        const int64_t p = row % outer.out;
        int64_t rest = row / outer.out;
        for (int32_t d = s->rank - 2; d >= 0; d--) {
            const struct pad_dim *dim = &s->dims[d];
            x += pad_from(dim, rest % dim->out) * dim->stride;
            rest /= dim->out;
        }
        rows = i64_min(last - row, outer.out - p);
        switch (s->item) {
        case 1:
            pad_rows(s, dst, x, &outer, p, rows, 1, true);
            break;
        case 4:
            pad_rows(s, dst, x, &outer, p, rows, 4, true);
            break;
        case 8:
            pad_rows(s, dst, x, &outer, p, rows, 8, true);
            break;
        default:
            pad_rows(s, dst, x, &outer, p, rows, s->item, false);
        }
    }
    return TAPER_OK;
}
