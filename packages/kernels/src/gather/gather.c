/*
 * Ops that read x at positions from an index tensor: EMBEDDING and INDEX_SELECT copy whole rows,
 * GATHER copies single elements, EMBEDDING_BAG combines rows. All but EMBEDDING_BAG copy elements
 * as bytes, so they take any dtype of 1, 2, 4 or 8 bytes. A task checks each index before it reads
 * x there; an index outside of the dim ends the task with TAPER_BAD_INDEX.
 */
#include <math.h>
#include <string.h>

#include "common/bytes.h"
#include "common/overflow.h"
#include "common/position.h"
#include "common/tensor.h"
#include "gather/kernels.inc"
#include "isa/isa.h"
#include "simd/simd.h"
#include "taper/machine.h"

TAPER_DEFINE_ATTRS(gather)
TAPER_DEFINE_ATTRS(bag)

enum { EMBEDDING_PANEL = 16 }; /* rows in a panel of a packed table, which a product may share */

/* ---- EMBEDDING, INDEX_SELECT ---- */

/* x is [outer][size][row], index is [count], output is [outer][count][row]. */
struct select_state {
    struct positions positions;
    int64_t outer, count;
    int64_t row_bytes;
    int64_t rows_per_task;
};

static taper_status select_prepare(const taper_call *call, int64_t axis, bool wrap,
                                   taper_work *work) {
    if (call->n_inputs != 2)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1];
    const int64_t size = (int64_t)taper_dtype_size(x->dtype);
    struct select_state *s = call->state;
    if (size == 0 || axis < 0 || axis >= x->rank || !tensor_is_contiguous(x) ||
        !tensor_is_contiguous(index) ||
        !positions_prepare(&s->positions, index, x->shape[axis], wrap))
        return TAPER_UNSUPPORTED;
    const int64_t row = tensor_count(x, axis + 1, x->rank);
    s->outer = tensor_count(x, 0, axis);
    s->count = tensor_numel(index);
    s->row_bytes = row * size;
    s->rows_per_task = i64_max(1, TASK_BYTES / i64_max(1, s->row_bytes));
    if (!tensor_is(call->output, (taper_dtype)x->dtype, s->outer * s->count * row))
        return TAPER_UNSUPPORTED;
    if (s->outer == 0 || row == 0) { /* nothing to copy, but indices are still checked, once */
        s->outer = 1;
        s->row_bytes = 0;
    }
    work->tasks = i64_ceil_div(s->outer * s->count, s->rows_per_task);
    work->scratch_bytes = 0;
    return TAPER_OK;
}

/* Copies n elements; returns false, and copies none, if an index is outside. One loop
 * checks all indices by vectors, then a loop without branches copies. size, is_int32 and most steps
 * are constants where this is inlined. */
V_INLINE bool gather_row(const struct positions *p, uint8_t *y, const uint8_t *x, const void *index,
                         int64_t n, const int64_t size, const int64_t axis_step, const int64_t step,
                         const bool is_int32) {
    const int64_t high = p->size, low = p->wrap ? -high : 0;
    const int32_t *narrow = index;
    const int64_t *wide = index;
    uint64_t outside = 0; /* its sign bit is set if an index is below low or above high - 1 */
    for (int64_t i = 0; i < n; i++) {
        const uint64_t at = (uint64_t)(is_int32 ? narrow[i] : wide[i]);
        outside |= (at - (uint64_t)low) | ((uint64_t)high - 1 - at);
    }
    if ((int64_t)outside < 0)
        return false;
    if (low < 0)
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = is_int32 ? narrow[i] : wide[i], back = at < 0 ? high : 0;
            memcpy(y + i * size, x + (at + back) * axis_step + i * step, (size_t)size);
        }
    else
#pragma GCC unroll 4
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = is_int32 ? narrow[i] : wide[i];
            memcpy(y + i * size, x + at * axis_step + i * step, (size_t)size);
        }
    return true;
}

/* Copies output rows i to i + n - 1 of one outer index; returns false if an index is outside. Rows
 * of one element are those of gather_row, whose size is constant where this is inlined. */
V_INLINE bool select_elements(const struct select_state *s, uint8_t *y, const uint8_t *x,
                              const void *index, int64_t i, int64_t n, const int64_t size) {
    const struct positions *p = &s->positions;
    return p->is_int32 ? gather_row(p, y, x, (const int32_t *)index + i, n, size, size, 0, true)
                       : gather_row(p, y, x, (const int64_t *)index + i, n, size, size, 0, false);
}

static bool select_any(const struct select_state *s, uint8_t *y, const uint8_t *x,
                       const void *index, int64_t i, int64_t n) {
    switch (s->row_bytes) {
    case 1:
        return select_elements(s, y, x, index, i, n, 1);
    case 2:
        return select_elements(s, y, x, index, i, n, 2);
    case 4:
        return select_elements(s, y, x, index, i, n, 4);
    case 8:
        return select_elements(s, y, x, index, i, n, 8);
    default:
        break;
    }
    for (int64_t r = 0; r < n; r++) {
        const int64_t at = position_at(&s->positions, index, i + r);
        if (at < 0)
            return false;
        bytes_copy(y + r * s->row_bytes, x + at * s->row_bytes, s->row_bytes);
    }
    return true;
}

static taper_status select_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct select_state *s = call->state;
    const uint8_t *x = call->inputs[0].data;
    const void *index = call->inputs[1].data;
    const int64_t first = begin * s->rows_per_task;
    const int64_t last = i64_min(end * s->rows_per_task, s->outer * s->count);
    uint8_t *y = (uint8_t *)call->output->data + first * s->row_bytes;
    int64_t i = first % s->count;
    (void)scratch;
    x += first / s->count * s->positions.size * s->row_bytes;
    for (int64_t r = first, n; r < last; r += n, i = 0) {
        n = i64_min(last - r, s->count - i);
        if (!select_any(s, y, x, index, i, n))
            return TAPER_BAD_INDEX;
        y += n * s->row_bytes;
        x += s->positions.size * s->row_bytes;
    }
    return TAPER_OK;
}

/* The table is plain, [rows][k], or packed in panels of 16 rows, [ceil(rows / 16)][k][16]. */
struct embedding_state {
    struct select_state rows;
    int64_t size; /* an element's bytes */
    int64_t k;    /* elements per row */
    bool packed;
};

static taper_status any_embedding_prepare(const taper_call *call, taper_work *work) {
    struct embedding_state *s = call->state;
    if (call->n_inputs != 2)
        return TAPER_UNSUPPORTED;
    const taper_tensor *weight = &call->inputs[0], *index = &call->inputs[1];
    s->packed = weight->format == TAPER_PANELS_0;
    if (weight->format == TAPER_PLAIN)
        return select_prepare(call, 0, false, work);
    s->size = (int64_t)taper_dtype_size(weight->dtype);
    if (!s->packed || s->size == 0 || weight->rank != 3 || !tensor_is_contiguous(weight) ||
        weight->shape[2] != EMBEDDING_PANEL ||
        weight->shape[0] != i64_ceil_div(weight->logical[0], EMBEDDING_PANEL) ||
        !tensor_is_contiguous(index) ||
        !positions_prepare(&s->rows.positions, index, weight->logical[0], false))
        return TAPER_UNSUPPORTED;
    s->k = weight->shape[1];
    s->rows.count = tensor_numel(index);
    s->rows.rows_per_task = i64_max(1, TASK_BYTES / i64_max(1, s->k * s->size));
    if (!tensor_is(call->output, (taper_dtype)weight->dtype, s->rows.count * s->k))
        return TAPER_UNSUPPORTED;
    work->tasks = i64_ceil_div(s->rows.count, s->rows.rows_per_task);
    work->scratch_bytes = 0;
    return TAPER_OK;
}

/* Copies one row out of a panel, where its k elements lie a panel's width apart. size is constant
 * where this is inlined. */
V_INLINE void embedding_copy(uint8_t *y, const uint8_t *x, int64_t k, const int64_t size) {
    for (int64_t i = 0; i < k; i++)
        memcpy(y + i * size, x + i * EMBEDDING_PANEL * size, (size_t)size);
}

static taper_status any_embedding_run(const taper_call *call, int64_t begin, int64_t end,
                                      void *scratch) {
    const struct embedding_state *s = call->state;
    if (!s->packed)
        return select_run(call, begin, end, scratch);
    const uint8_t *weight = call->inputs[0].data;
    const int64_t last = i64_min(end * s->rows.rows_per_task, s->rows.count);
    for (int64_t r = begin * s->rows.rows_per_task; r < last; r++) {
        const int64_t at = position_at(&s->rows.positions, call->inputs[1].data, r);
        if (at < 0)
            return TAPER_BAD_INDEX;
        const int64_t panel = at / EMBEDDING_PANEL, lane = at % EMBEDDING_PANEL;
        const uint8_t *x = weight + (panel * s->k * EMBEDDING_PANEL + lane) * s->size;
        uint8_t *y = (uint8_t *)call->output->data + r * s->k * s->size;
        if (s->size == 4)
            embedding_copy(y, x, s->k, 4);
        else
            embedding_copy(y, x, s->k, s->size);
    }
    return TAPER_OK;
}

static taper_status any_index_select_prepare(const taper_call *call, taper_work *work) {
    const struct gather_attrs *attrs = call->attrs;
    return select_prepare(call, attrs->axis, attrs->wrap, work);
}

/* ---- GATHER ---- */

/* Output and index have the same shape. Their last dim is a loop over columns; the other dims are
 * loops over rows: sizes[d] iterations, each of which moves x by steps[d] bytes. Along the axis
 * that step is 0, because the index gives the position there. */
struct gather_state {
    struct positions positions;
    int64_t size;      /* an element's bytes */
    int64_t axis_step; /* bytes of x from a position along the axis to the next */
    int64_t elements, elements_per_task;
    int64_t cols, col_step;
    int32_t rank; /* number of loops over rows */
    int64_t sizes[TAPER_MAX_RANK], steps[TAPER_MAX_RANK];
};

static taper_status any_gather_prepare(const taper_call *call, taper_work *work) {
    const struct gather_attrs *attrs = call->attrs;
    struct gather_state *s = call->state;
    if (call->n_inputs != 2)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0], *index = &call->inputs[1];
    const int64_t axis = attrs->axis;
    s->size = (int64_t)taper_dtype_size(x->dtype);
    /* As in torch, a scalar counts as a tensor of one dimension and one element. */
    if (s->size == 0 || index->rank != x->rank || axis < 0 || axis >= i64_max(1, x->rank) ||
        !tensor_is_contiguous(index) ||
        !positions_prepare(&s->positions, index, x->rank ? x->shape[axis] : 1, attrs->wrap) ||
        !tensor_is(call->output, (taper_dtype)x->dtype, tensor_numel(index)))
        return TAPER_UNSUPPORTED;
    s->axis_step = x->rank ? x->strides[axis] * s->size : 0;
    s->elements = tensor_numel(index);
    s->elements_per_task = TASK_BYTES / s->size;
    s->cols = 1;
    s->col_step = 0;
    s->rank = 0;
    for (int32_t d = 0; d < x->rank; d++) {
        const int64_t step = d == axis ? 0 : x->strides[d] * s->size;
        if (d != axis && index->shape[d] > x->shape[d])
            return TAPER_UNSUPPORTED;
        if (d == x->rank - 1) {
            s->cols = index->shape[d];
            s->col_step = step;
        } else {
            s->sizes[s->rank] = index->shape[d];
            s->steps[s->rank++] = step;
        }
    }
    work->tasks = i64_ceil_div(s->elements, s->elements_per_task);
    work->scratch_bytes = 0;
    return TAPER_OK;
}

/* Calls gather_row with constants for the most common steps. */
V_INLINE bool gather_any_row(const struct gather_state *s, uint8_t *y, const uint8_t *x,
                             const void *index, int64_t n, const int64_t size) {
    const bool along = s->col_step == 0 && s->axis_step == size;
    const int64_t axis_step = s->axis_step, step = s->col_step;
    if (s->positions.is_int32)
        return gather_row(&s->positions, y, x, index, n, size, axis_step, step, true);
    return along ? gather_row(&s->positions, y, x, index, n, size, size, 0, false)
                 : gather_row(&s->positions, y, x, index, n, size, axis_step, step, false);
}

/* Computes output elements begin to end - 1. size is constant where this is inlined. */
V_INLINE taper_status gather_elements(const struct gather_state *s, uint8_t *y, const uint8_t *x,
                                      const uint8_t *index, int64_t begin, int64_t end,
                                      const int64_t size) {
    const int64_t index_size = s->positions.is_int32 ? 4 : 8;
    int64_t at_dim[TAPER_MAX_RANK];
    int64_t row = begin / s->cols, col = begin % s->cols;
    for (int32_t d = s->rank - 1; d >= 0; d--) {
        at_dim[d] = row % s->sizes[d];
        row /= s->sizes[d];
        x += at_dim[d] * s->steps[d];
    }
    for (int64_t i = begin; i < end; col = 0) {
        const int64_t n = i64_min(s->cols - col, end - i);
        if (!gather_any_row(s, y + i * size, x + col * s->col_step, index + i * index_size, n,
                            size))
            return TAPER_BAD_INDEX;
        i += n;
        for (int32_t d = s->rank - 1; d >= 0; d--) {
            x += s->steps[d];
            if (++at_dim[d] < s->sizes[d])
                break;
            x -= at_dim[d] * s->steps[d];
            at_dim[d] = 0;
        }
    }
    return TAPER_OK;
}

static taper_status any_gather_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const struct gather_state *s = call->state;
    const uint8_t *x = call->inputs[0].data;
    const uint8_t *index = call->inputs[1].data;
    uint8_t *y = call->output->data;
    const int64_t first = begin * s->elements_per_task;
    const int64_t last = i64_min(end * s->elements_per_task, s->elements);
    (void)scratch;
    switch (s->size) {
    case 1:
        return gather_elements(s, y, x, index, first, last, 1);
    case 2:
        return gather_elements(s, y, x, index, first, last, 2);
    case 4:
        return gather_elements(s, y, x, index, first, last, 4);
    default:
        return gather_elements(s, y, x, index, first, last, 8);
    }
}

/* ---- EMBEDDING_BAG ---- */

#include "gather/bag.inl"

/* ---- table ---- */

#define any_index_select_run select_run

static const taper_kernel gather_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "gather/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_gather);
const taper_family TAPER_ISA_SYM(taper_gather) = {TAPER_ROWS(gather_kernels)};
