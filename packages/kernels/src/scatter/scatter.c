/*
 * SCATTER copies x, then writes elements of src into the copy, or combines them with it, at
 * positions from an index tensor. WRITE does the same for whole slices along the axis, with one
 * index for each slice; its indices may have several dims, of which those that lie evenly are one,
 * and others are loops. If the output is x itself, nothing is copied.
 *
 * The work is split into lines. A line is [places along the axis][cols]; the columns are the
 * innermost dim after the axis, and the remaining dims are loops over lines. Elements for the same
 * place are combined in the order of src along the axis. If there are few lines, each is split into
 * parts. A part is a range of columns; if columns are few, or share one index, it is a range of
 * places, and every part reads the whole index but writes to its own range. So no split changes a
 * bit of the result. A task checks each index before it writes there; an index outside of the axis
 * ends the task with TAPER_BAD_INDEX.
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

/* Elements of a tensor from one position to the next: along the axis, the columns, each loop. */
struct scatter_steps {
    int64_t axis, col;
    int64_t loop[TAPER_MAX_RANK];
};

enum {
    TILE = 512,        /* places that are computed at a time, so that they stay in L1 */
    PART_COLUMNS = 32, /* fewest columns per part: runs that a CPU prefetches */
    FEW_COLUMNS = 32,  /* of a row that is short for a run of its own */
    PLACE_PARTS = 2,   /* most parts of a line with an index for each element: every part reads all
                          indices, which takes most of the time */
};

struct scatter_tile {
    int64_t places[TILE]; /* elements of the output, counted from y */
    int64_t slots[TILE];  /* where scatter_keep writes each element of src in values */
    int64_t values[TILE]; /* the elements of src that are kept */
};

#include "scatter/combine.inl"

struct scatter_state {
    struct positions positions;
    const struct scatter_combiner *combiner;
    int64_t size;             /* an element's bytes */
    int64_t count;            /* size of the index along the axis */
    int64_t cols, index_cols; /* columns of x and of the index, which may have fewer */
    bool one_index;           /* all columns share one index */
    bool by_columns;          /* parts are ranges of columns, not of places */
    struct scatter_steps x_steps, index_steps, src_steps;
    int64_t y_step; /* elements of the output from a place along the axis to the next */
    /* The loops over lines: their sizes in x and in the index, and their steps in the output. */
    int64_t n_loops, sizes[TAPER_MAX_RANK], index_sizes[TAPER_MAX_RANK], y_steps[TAPER_MAX_RANK];
    int64_t lines, lines_per_task, parts;
    /* The loops over dims of WRITE's index before its last one: sizes, steps in index and src. */
    int64_t n_groups, groups, group_sizes[TAPER_MAX_RANK];
    int64_t index_groups[TAPER_MAX_RANK], src_groups[TAPER_MAX_RANK];
};

/* ---- prepare ---- */

struct scatter_dim {
    int64_t size, index_size; /* sizes in x and in the index */
    int64_t x, index, src, y; /* elements from one position to the next */
};

/* Appends dims first to last - 1 to the n in `dims` and merges neighbours that one loop can cover;
 * returns the new number of dims. For an empty output they are the dims of the index, whose values
 * are still checked. */
static int64_t scatter_dims(struct scatter_dim *dims, int64_t n, const taper_call *call,
                            int64_t first, int64_t last) {
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1], *src = &call->inputs[2];
    const taper_tensor *whole = tensor_numel(call->output) ? x : index;
    const int64_t begin = n;
    for (int64_t d = first; d < last; d++) {
        if (whole->shape[d] == 1)
            continue;
        struct scatter_dim *outer = n > begin ? &dims[n - 1] : NULL;
        const struct scatter_dim inner = {whole->shape[d], index->shape[d],
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

/* Prepares all but the groups. */
static taper_status scatter_prepare(const taper_call *call, taper_work *work) {
    const struct scatter_attrs *attrs = call->attrs;
    struct scatter_state *s = call->state;
    const int64_t axis = attrs->axis;
    if (call->n_inputs != 3 || !scatter_shapes_fit(call, axis))
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1], *src = &call->inputs[2];
    if (!positions_prepare(&s->positions, index, x->shape[axis], attrs->wrap))
        return TAPER_UNSUPPORTED;
    s->size = (int64_t)taper_dtype_size(x->dtype);
    s->combiner = scatter_find(x->dtype, attrs->reduce);
    if (!s->combiner)
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
    s->by_columns = !s->one_index && s->cols >= 2 * PART_COLUMNS;
    const int64_t most = s->by_columns                 ? s->cols / PART_COLUMNS
                         : s->one_index && s->cols > 1 ? places
                                                       : i64_min(places, PLACE_PARTS);
    s->parts = i64_max(1, i64_min(i64_min(s->parts, TASK_PARTS), most));
    const bool is_nothing = s->count == 0 && tensor_numel(call->output) == 0;
    work->tasks = is_nothing || s->cols == 0 ? 0
                  : s->parts > 1             ? s->lines * s->parts
                                             : i64_ceil_div(s->lines, s->lines_per_task);
    work->scratch_bytes = sizeof(struct scatter_tile);
    return TAPER_OK;
}

static taper_status any_scatter_prepare(const taper_call *call, taper_work *work) {
    struct scatter_state *s = call->state;
    s->n_groups = 0;
    s->groups = 1;
    return scatter_prepare(call, work);
}

/* Merges the dims of WRITE's places, which src has at the axis, to one; those that do not lie
 * evenly become groups. Returns whether src has these dims. */
static bool write_places(struct scatter_state *s, const taper_tensor *places,
                         const taper_tensor *src, int64_t axis, taper_tensor *one,
                         int64_t *src_step) {
    const bool is_empty = tensor_numel(places) == 0;
    int64_t size = is_empty ? 0 : 1, index = 0, from = 0;
    s->n_groups = 0;
    s->groups = 1;
    for (int64_t d = places->rank - 1; d >= 0; d--) {
        const int64_t more = places->shape[d], i = places->strides[d];
        const int64_t f = src->strides[axis + d];
        if (src->shape[axis + d] != more)
            return false;
        if (more == 1 || is_empty)
            continue;
        if (size == 1) {
            size = more, index = i, from = f;
        } else if (s->n_groups == 0 && i == index * size && f == from * size) {
            size *= more;
        } else {
            const int64_t n = s->n_groups++;
            s->group_sizes[n] = more;
            s->index_groups[n] = i;
            s->src_groups[n] = f;
            s->groups *= more;
        }
    }
    *one = *places;
    one->rank = 1;
    one->shape[0] = size;
    one->strides[0] = index;
    *src_step = from;
    return true;
}

/* Prepares WRITE as a SCATTER whose index has stride 0 in all dims but the axis. */
static taper_status any_write_prepare(const taper_call *call, taper_work *work) {
    const struct write_attrs *attrs = call->attrs;
    if (call->n_inputs != 3)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *places = &call->inputs[1], *src = &call->inputs[2];
    const int64_t axis = attrs->axis, more = places->rank - 1;
    if (src->rank != x->rank + more || axis < 0 || axis >= x->rank)
        return TAPER_UNSUPPORTED;
    struct scatter_state *s = call->state;
    taper_tensor inputs[] = {*x, *places, *src}, *index = &inputs[1], *from = &inputs[2];
    taper_tensor one;
    if (!write_places(s, places, src, axis, &one, &from->strides[axis]))
        return TAPER_UNSUPPORTED;
    index->rank = from->rank = x->rank;
    for (int32_t d = 0; d < x->rank; d++) {
        const bool along = d == axis;
        const int64_t own = d < axis ? d : d + more;
        if (!along && src->shape[own] != x->shape[d])
            return TAPER_UNSUPPORTED;
        index->shape[d] = from->shape[d] = along ? one.shape[0] : x->shape[d];
        index->strides[d] = along ? one.strides[0] : 0;
        if (!along)
            from->strides[d] = src->strides[own];
    }
    const struct scatter_attrs scatter = {axis, attrs->wrap, "none"};
    taper_call wide = *call;
    wide.inputs = inputs;
    wide.attrs = &scatter;
    const taper_status status = scatter_prepare(&wide, work);
    if (status == TAPER_OK && tensor_numel(call->output) == 0) { /* indices are still checked */
        s->count = one.shape[0];
        s->cols = s->index_cols = s->n_loops = 0;
        s->one_index = true;
        s->lines = s->lines_per_task = s->parts = 1;
        work->tasks = s->count > 0;
    }
    return status;
}

/* ---- run ---- */

/* Copies rows x cols elements; size is constant where this is inlined. */
TENSOR_INLINE void scatter_copy(uint8_t *restrict y, int64_t y_row, const uint8_t *restrict x,
                                int64_t x_row, int64_t x_col, int64_t rows, int64_t cols,
                                const int64_t size) {
    for (int64_t r = 0; r < rows; r++, y += y_row * size, x += x_row * size)
        if (x_col == 0) /* one element: vectors store it */
            for (int64_t c = 0; c < cols; c++)
                memcpy(y + c * size, x, (size_t)size);
        else
            for (int64_t c = 0; c < cols; c++)
                memcpy(y + c * size, x + c * x_col * size, (size_t)size);
}

/* A part of a line: places first to last - 1 of columns col to col_last - 1. */
struct scatter_part {
    int64_t first, last, col, col_last;
};

/* Copies a part of a line of x to the output. */
static void scatter_begin(const struct scatter_state *s, uint8_t *y, const uint8_t *x,
                          const struct scatter_part *p) {
    const struct scatter_steps *steps = &s->x_steps;
    const int64_t places = p->last - p->first, columns = p->col_last - p->col;
    const bool run = columns == 1 && s->y_step == 1; /* the places are one row */
    const int64_t rows = run ? 1 : places, cols = run ? places : columns;
    const int64_t col = run ? steps->axis : steps->col;
    y += (p->first * s->y_step + p->col) * s->size;
    x += (p->first * steps->axis + p->col * steps->col) * s->size;
    if (col == 1 && steps->axis == cols && s->y_step == cols)
        memcpy(y, x, (size_t)(rows * cols * s->size));
    else if (col == 1)
        for (int64_t r = 0; r < rows; r++)
            bytes_copy(y + r * s->y_step * s->size, x + r * steps->axis * s->size, cols * s->size);
    else if (s->size == 1)
        scatter_copy(y, s->y_step, x, steps->axis, col, rows, cols, 1);
    else if (s->size == 2)
        scatter_copy(y, s->y_step, x, steps->axis, col, rows, cols, 2);
    else if (s->size == 4)
        scatter_copy(y, s->y_step, x, steps->axis, col, rows, cols, 4);
    else
        scatter_copy(y, s->y_step, x, steps->axis, col, rows, cols, 8);
}

/* Computes the places in the output of n elements, whose indices lie `step` apart; element j is in
 * column j * y_col of the line. Returns false if an index is outside. */
TENSOR_INLINE bool scatter_locate_as(const struct scatter_state *s, int64_t *restrict places,
                                     const void *restrict data, int64_t n, int64_t step,
                                     const uint64_t y_step, int64_t y_col, const bool is_int32) {
    const uint64_t size = (uint64_t)s->positions.size;
    const uint64_t wrap = s->positions.wrap ? size : 0;
    uint64_t outside = 0; /* its upper bit is set if an index is outside */
    for (int64_t j = 0; j < n; j++) {
        const int64_t given =
            is_int32 ? ((const int32_t *)data)[j * step] : ((const int64_t *)data)[j * step];
        const uint64_t at = (uint64_t)given + (given < 0 ? wrap : 0);
        outside |= at | (size - 1 - at);
        places[j] = (int64_t)(at * y_step + (uint64_t)(j * y_col));
    }
    return outside >> 63 == 0;
}

static bool scatter_locate(const struct scatter_state *s, int64_t *places, const void *index,
                           int64_t n, int64_t step, int64_t y_col) {
    const uint64_t y_step = (uint64_t)s->y_step;
    if (s->positions.is_int32)
        return scatter_locate_as(s, places, index, n, step, y_step, y_col, true);
    if (step != 1)
        return scatter_locate_as(s, places, index, n, step, y_step, y_col, false);
    return y_step == 1 ? scatter_locate_as(s, places, index, n, 1, 1, y_col, false)
                       : scatter_locate_as(s, places, index, n, 1, y_step, y_col, false);
}

/* One line: pointers to its first elements, and the part of it to compute. */
struct scatter_line {
    uint8_t *y;
    const uint8_t *index, *src;
    struct scatter_part part;
};

/* Moves the places that are at least low and less than high to the front of tile->places, in order,
 * and copies their elements of src to tile->values; returns their number. Places come in no order,
 * so a branch would be mispredicted: instead, the next place overwrites one that is not kept. */
static int64_t scatter_keep(const struct scatter_state *s, struct scatter_tile *tile,
                            const uint8_t *src, int64_t step, int64_t n, int64_t low,
                            int64_t high) {
    int64_t kept = 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t place = tile->places[j];
        tile->places[kept] = place;
        tile->slots[j] = kept;
        kept += place >= low && place < high;
    }
    scatter_write(s->size)->places(tile->values, tile->slots, src, step, n);
    return kept;
}

/* Combines n elements that each have their own index: a run along the axis if there is one column,
 * else a run along the columns; some whole rows of `cols` columns, one after the other, if cols is
 * not 0. */
static taper_status scatter_run(const struct scatter_state *s, const struct scatter_line *l,
                                const uint8_t *index, const uint8_t *src, int64_t n, int64_t cols,
                                struct scatter_tile *tile) {
    const bool column = s->index_cols == 1, whole = column || cols;
    const int64_t index_size = s->positions.is_int32 ? sizeof(int32_t) : sizeof(int64_t);
    const int64_t index_step = column ? s->index_steps.axis : s->index_steps.col;
    const int64_t src_step = column ? s->src_steps.axis : s->src_steps.col;
    const int64_t low = l->part.first * s->y_step, high = l->part.last * s->y_step;
    const bool all = l->part.first == 0 && l->part.last == s->positions.size;
    uint8_t *y = l->y + l->part.col * s->size;
    for (int64_t length; n > 0; n -= length) {
        length = i64_min(n, cols ? TILE / cols * cols : TILE);
        if (!scatter_locate(s, tile->places, index, length, index_step, !whole))
            return TAPER_BAD_INDEX;
        for (int64_t row = 0; cols && row < length; row += cols)
            for (int64_t c = 1; c < cols; c++)
                tile->places[row + c] += c;
        if (all) {
            s->combiner->places(y, tile->places, src, src_step, length);
        } else {
            const int64_t kept = scatter_keep(s, tile, src, src_step, length, low, high);
            s->combiner->places(y, tile->places, tile->values, 1, kept);
        }
        index += length * index_step * index_size;
        src += length * src_step * s->size;
        y += whole ? 0 : length * s->size;
    }
    return TAPER_OK;
}

/* Combines whole rows: all columns of a row share one index. */
static taper_status scatter_rows(const struct scatter_state *s, const struct scatter_line *l,
                                 struct scatter_tile *tile) {
    const int64_t step = s->src_steps.col;
    for (int64_t j = 0; step != 1 && j < i64_min(TILE, s->index_cols); j++)
        tile->places[j] = j;
    for (int64_t k = 0; k < s->count; k++) {
        const int64_t at = position_at(&s->positions, l->index, k * s->index_steps.axis);
        if (at < 0)
            return TAPER_BAD_INDEX;
        if (at < l->part.first || at >= l->part.last)
            continue;
        uint8_t *y = l->y + at * s->y_step * s->size;
        const uint8_t *src = l->src + k * s->src_steps.axis * s->size;
        if (step == 1) {
            s->combiner->row(y, src, s->index_cols);
            continue;
        }
        for (int64_t j = 0, n; j < s->index_cols; j += n) {
            n = i64_min(s->index_cols - j, TILE);
            s->combiner->places(y + j * s->size, tile->places, src + j * step * s->size, step, n);
        }
    }
    return TAPER_OK;
}

/* Combines one line. A single column is one run along the axis. Several columns are a row for each
 * position of src along the axis if they share an index, else a run for each, or for several if
 * their rows are short and lie one after the other. */
static taper_status scatter_line(const struct scatter_state *s, const struct scatter_line *l,
                                 struct scatter_tile *tile) {
    if (s->index_cols == 1)
        return scatter_run(s, l, l->index, l->src, s->count, 0, tile);
    if (s->one_index)
        return scatter_rows(s, l, tile);
    const int64_t index_size = s->positions.is_int32 ? sizeof(int32_t) : sizeof(int64_t);
    const int64_t col = l->part.col, n = i64_min(l->part.col_last, s->index_cols) - col;
    if (n == s->index_cols && n <= FEW_COLUMNS && s->index_steps.axis == n * s->index_steps.col &&
        s->src_steps.axis == n * s->src_steps.col)
        return scatter_run(s, l, l->index, l->src, s->count * n, n, tile);
    taper_status status = TAPER_OK;
    for (int64_t k = 0; k < s->count && n > 0 && status == TAPER_OK; k++) {
        const int64_t index = k * s->index_steps.axis + col * s->index_steps.col;
        const int64_t src = k * s->src_steps.axis + col * s->src_steps.col;
        status =
            scatter_run(s, l, l->index + index * index_size, l->src + src * s->size, n, 0, tile);
    }
    return status;
}

/* Computes one part of line number `line`. */
static taper_status scatter_places(const taper_call *call, int64_t line,
                                   const struct scatter_part *part, struct scatter_tile *tile) {
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
        scatter_begin(s, out, (const uint8_t *)call->inputs[0].data + x * s->size, part);
    if (!covered)
        return TAPER_OK;
    const int64_t index_size = s->positions.is_int32 ? sizeof(int32_t) : sizeof(int64_t);
    const uint8_t *first = (const uint8_t *)call->inputs[1].data + index * index_size;
    const uint8_t *values = (const uint8_t *)call->inputs[2].data + src * s->size;
    taper_status status = TAPER_OK;
    for (int64_t g = 0; g < s->groups && status == TAPER_OK; g++) {
        int64_t rest = g;
        index = src = 0;
        for (int64_t d = 0; d < s->n_groups; d++) { /* the innermost one first */
            index += rest % s->group_sizes[d] * s->index_groups[d];
            src += rest % s->group_sizes[d] * s->src_groups[d];
            rest /= s->group_sizes[d];
        }
        const struct scatter_line l = {out, first + index * index_size, values + src * s->size,
                                       *part};
        status = scatter_line(s, &l, tile);
    }
    return status;
}

static taper_status any_scatter_run(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    const struct scatter_state *s = call->state;
    const int64_t all = s->by_columns ? s->cols : s->positions.size;
    struct scatter_part part = {0, s->positions.size, 0, s->cols};
    struct scatter_tile *tile = scratch;
    taper_status status = TAPER_OK;
    if (s->parts == 1) {
        const int64_t last = i64_min(end * s->lines_per_task, s->lines);
        for (int64_t i = begin * s->lines_per_task; i < last && status == TAPER_OK; i++)
            status = scatter_places(call, i, &part, tile);
        return status;
    }
    while (begin < end && status == TAPER_OK) { /* computes the parts of one line together */
        const int64_t line = begin / s->parts, from = begin % s->parts;
        const int64_t to = i64_min(s->parts, from + end - begin);
        *(s->by_columns ? &part.col : &part.first) = all * from / s->parts;
        *(s->by_columns ? &part.col_last : &part.last) = all * to / s->parts;
        status = scatter_places(call, line, &part, tile);
        begin += to - from;
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
const taper_family TAPER_ISA_SYM(taper_scatter) = {TAPER_ROWS(scatter_kernels)};
