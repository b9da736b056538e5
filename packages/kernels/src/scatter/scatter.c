/*
 * SCATTER: a copy of x with elements of src written, or combined with what is there, where an index
 * tensor says. WRITE: the same of whole slices along the axis, with one index for each.
 *
 * A line is all places along the axis for one set of positions in the other dims, but for the
 * innermost of those after the axis: a line is cols columns wide. What goes to one place is
 * combined in the order of src along the axis. Where there are few lines, each is cut into parts,
 * ranges of places: every part reads the whole index and writes to its own range, so that no split
 * changes a bit. An index outside ends a task with TAPER_BAD_INDEX before anything is written
 * through it. Where the output is x itself nothing is copied: what is not written stays.
 */
#include <string.h>

#include "common/bytes.h"
#include "common/position.h"
#include "common/tensor.h"
#include "isa/isa.h"
#include "simd/extremes.h"
#include "scatter/kernels.inc"

TAPER_DEFINE_ATTRS(scatter)
TAPER_DEFINE_ATTRS(write)

/* In elements. */
struct scatter_steps {
    int64_t axis, col;
    int64_t loop[TAPER_MAX_RANK];
};

struct scatter_state;
struct scatter_line;

struct scatter_state {
    struct positions positions;
    taper_status (*combine)(const struct scatter_state *, const struct scatter_line *);
    int64_t size;             /* of an element, in bytes */
    int64_t count;            /* of the index along the axis */
    int64_t cols, index_cols; /* of x and of the index, which may be narrower */
    bool one_index;           /* for all columns */
    struct scatter_steps x_steps, index_steps, src_steps;
    int64_t y_step; /* along the axis */
    /* The loops over lines. */
    int64_t n_loops, sizes[TAPER_MAX_RANK], index_sizes[TAPER_MAX_RANK], y_steps[TAPER_MAX_RANK];
    int64_t lines, lines_per_task, parts;
};

#include "scatter/combine.inl"

/* ---- prepare ---- */

struct scatter_dim {
    int64_t size, index_size, x, index, src, y; /* sizes, steps */
};

/* Appends dims [first, last), those that lie as one merged. */
static int64_t scatter_dims(struct scatter_dim *dims, int64_t n, const taper_call *call,
                            int64_t first, int64_t last) {
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1], *src = &call->inputs[2];
    const int64_t begin = n;
    for (int64_t d = first; d < last; d++) {
        if (x->shape[d] == 1)
            continue;
        struct scatter_dim *outer = n > begin ? &dims[n - 1] : NULL;
        const struct scatter_dim inner = {x->shape[d],     index->shape[d],
                                          x->strides[d],   index->strides[d],
                                          src->strides[d], tensor_count(x, d + 1, x->rank)};
        if (outer && inner.size == inner.index_size && outer->x == inner.x * inner.size &&
            outer->index == inner.index * inner.size && outer->src == inner.src * inner.size) {
            *outer = (struct scatter_dim){outer->size * inner.size,
                                          outer->index_size * inner.size,
                                          inner.x,
                                          inner.index,
                                          inner.src,
                                          inner.y};
            continue;
        }
        dims[n++] = inner;
    }
    return n;
}

static bool scatter_shapes_fit(const taper_call *call, int64_t axis) {
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1], *src = &call->inputs[2];
    if (axis < 0 || axis >= x->rank || index->rank != x->rank || src->rank != x->rank ||
        src->dtype != x->dtype || call->output->rank != x->rank)
        return false;
    for (int32_t d = 0; d < x->rank; d++)
        if (src->shape[d] != index->shape[d] || call->output->shape[d] != x->shape[d] ||
            (d != axis && index->shape[d] > x->shape[d]))
            return false;
    return tensor_is(call->output, (taper_dtype)x->dtype, tensor_numel(x));
}

static taper_status any_scatter_prepare(const taper_call *call, taper_work *work) {
    const struct scatter_attrs *attrs = call->attrs;
    struct scatter_state *s = call->state;
    const int64_t axis = attrs->axis;
    if (call->n_inputs != 3 || !scatter_shapes_fit(call, axis))
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1], *src = &call->inputs[2];
    if (!positions_prepare(&s->positions, index, x->shape[axis], true))
        return TAPER_UNSUPPORTED;
    s->size = (int64_t)taper_dtype_size(x->dtype);
    s->combine = scatter_find(x->dtype, attrs->reduce);
    if (!s->combine)
        return TAPER_UNSUPPORTED;
    s->count = tensor_numel(index) ? index->shape[axis] : 0;
    s->x_steps.axis = x->strides[axis];
    s->index_steps.axis = index->strides[axis];
    s->src_steps.axis = src->strides[axis];
    s->y_step = tensor_count(x, axis + 1, x->rank);

    struct scatter_dim dims[TAPER_MAX_RANK];
    const int64_t outer = scatter_dims(dims, 0, call, 0, axis);
    int64_t n = scatter_dims(dims, outer, call, axis + 1, x->rank);
    struct scatter_dim cols = {1, 1, 1, 0, 1, 1};
    if (n > outer)
        cols = dims[--n];
    s->cols = cols.size;
    s->index_cols = cols.index_size;
    s->x_steps.col = cols.x;
    s->index_steps.col = cols.index;
    s->src_steps.col = cols.src;
    s->one_index = cols.index == 0 || cols.index_size == 1;
    s->n_loops = n;
    s->lines = 1;
    for (int64_t d = 0; d < n; d++) {
        s->sizes[d] = dims[d].size;
        s->index_sizes[d] = dims[d].index_size;
        s->x_steps.loop[d] = dims[d].x;
        s->index_steps.loop[d] = dims[d].index;
        s->src_steps.loop[d] = dims[d].src;
        s->y_steps[d] = dims[d].y;
        s->lines *= dims[d].size;
    }
    const int64_t places = s->positions.size;
    const int64_t elements = places * s->cols + s->count * s->index_cols;
    s->lines_per_task = i64_max(1, TASK_COST / i64_max(1, elements));
    s->parts = s->lines >= TASK_PARTS ? 1 : i64_ceil_div(elements, TASK_COST);
    s->parts = i64_max(1, i64_min(i64_min(s->parts, TASK_PARTS), places));
    work->tasks = s->cols == 0   ? 0
                  : s->parts > 1 ? s->lines * s->parts
                                 : i64_ceil_div(s->lines, s->lines_per_task);
    work->scratch_bytes = 0;
    return TAPER_OK;
}

/* A SCATTER whose index is the same in all dims but the axis. */
static taper_status any_write_prepare(const taper_call *call, taper_work *work) {
    const struct write_attrs *attrs = call->attrs;
    if (call->n_inputs != 3)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *places = &call->inputs[1], *src = &call->inputs[2];
    if (places->rank != 1 || src->rank != x->rank || attrs->axis < 0 || attrs->axis >= x->rank)
        return TAPER_UNSUPPORTED;
    taper_tensor inputs[] = {*x, *places, *src}, *index = &inputs[1];
    index->rank = x->rank;
    for (int32_t d = 0; d < x->rank; d++) {
        const bool along = d == attrs->axis;
        if (src->shape[d] != (along ? places : x)->shape[along ? 0 : d])
            return TAPER_UNSUPPORTED;
        index->shape[d] = src->shape[d];
        index->strides[d] = along ? places->strides[0] : 0;
    }
    const struct scatter_attrs scatter = {attrs->axis, "none"};
    taper_call wide = *call;
    wide.inputs = inputs;
    wide.attrs = &scatter;
    const taper_status status = any_scatter_prepare(&wide, work);
    if (status == TAPER_OK &&
        tensor_numel(call->output) == 0) { /* places are checked all the same */
        struct scatter_state *s = call->state;
        s->count = places->shape[0];
        s->cols = s->index_cols = s->n_loops = 0;
        s->one_index = true;
        s->lines = s->lines_per_task = s->parts = 1;
        work->tasks = s->count > 0;
    }
    return status;
}

/* ---- run ---- */

/* rows x cols elements; size is constant where this is inlined. */
TENSOR_INLINE void scatter_copy(uint8_t *y, int64_t y_row, const uint8_t *x, int64_t x_row,
                                int64_t x_col, int64_t rows, int64_t cols, const int64_t size) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy(y + (r * y_row + c) * size, x + (r * x_row + c * x_col) * size, (size_t)size);
}

/* Places [first, last) of a line of x to the output. */
static void scatter_begin(const struct scatter_state *s, uint8_t *y, const uint8_t *x,
                          int64_t first, int64_t last) {
    const struct scatter_steps *steps = &s->x_steps;
    const int64_t rows = last - first;
    y += first * s->y_step * s->size;
    x += first * steps->axis * s->size;
    if ((steps->col == 1 || s->cols == 1) && steps->axis == s->cols && s->y_step == s->cols)
        memcpy(y, x, (size_t)(rows * s->cols * s->size));
    else if (steps->col == 1 && s->cols > 1)
        for (int64_t r = 0; r < rows; r++)
            bytes_copy(y + r * s->y_step * s->size, x + r * steps->axis * s->size,
                       s->cols * s->size);
    else if (s->size == 1)
        scatter_copy(y, s->y_step, x, steps->axis, steps->col, rows, s->cols, 1);
    else if (s->size == 2)
        scatter_copy(y, s->y_step, x, steps->axis, steps->col, rows, s->cols, 2);
    else if (s->size == 4)
        scatter_copy(y, s->y_step, x, steps->axis, steps->col, rows, s->cols, 4);
    else
        scatter_copy(y, s->y_step, x, steps->axis, steps->col, rows, s->cols, 8);
}

/* Places [first, last) of a line. */
static taper_status scatter_places(const taper_call *call, int64_t line, int64_t first,
                                   int64_t last) {
    const struct scatter_state *s = call->state;
    int64_t x = 0, index = 0, src = 0, y = 0;
    bool covered = s->count > 0;
    for (int64_t d = s->n_loops - 1; d >= 0; d--) {
        const int64_t i = line % s->sizes[d];
        line /= s->sizes[d];
        x += i * s->x_steps.loop[d];
        index += i * s->index_steps.loop[d];
        src += i * s->src_steps.loop[d];
        y += i * s->y_steps[d];
        covered = covered && i < s->index_sizes[d];
    }
    uint8_t *out = (uint8_t *)call->output->data + y * s->size;
    if (s->cols > 0 && call->output->data != call->inputs[0].data)
        scatter_begin(s, out, (const uint8_t *)call->inputs[0].data + x * s->size, first, last);
    if (!covered)
        return TAPER_OK;
    const int64_t index_size = s->positions.is_int32 ? sizeof(int32_t) : sizeof(int64_t);
    const struct scatter_line l = {.y = out,
                                   .index =
                                       (const uint8_t *)call->inputs[1].data + index * index_size,
                                   .src = (const uint8_t *)call->inputs[2].data + src * s->size,
                                   .first = first,
                                   .last = last};
    return s->combine(s, &l);
}

static taper_status any_scatter_run(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    const struct scatter_state *s = call->state;
    const int64_t places = s->positions.size;
    taper_status status = TAPER_OK;
    (void)scratch;
    if (s->parts == 1) {
        const int64_t last = i64_min(end * s->lines_per_task, s->lines);
        for (int64_t i = begin * s->lines_per_task; i < last && status == TAPER_OK; i++)
            status = scatter_places(call, i, 0, places);
        return status;
    }
    while (begin < end && status == TAPER_OK) { /* the parts of one line at once */
        const int64_t line = begin / s->parts, part = begin % s->parts;
        const int64_t next = i64_min(s->parts, part + end - begin);
        status = scatter_places(call, line, places * part / s->parts, places * next / s->parts);
        begin += next - part;
    }
    return status;
}

/* ---- table ---- */

#define any_write_run any_scatter_run

static const taper_kernel scatter_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "scatter/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_scatter);
const taper_family TAPER_ISA_SYM(taper_scatter) = {scatter_kernels, sizeof scatter_kernels /
                                                                        sizeof scatter_kernels[0]};
