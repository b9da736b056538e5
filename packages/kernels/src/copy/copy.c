/*
 * Data movement. Every op here copies a strided view of its input to a contiguous output; CAT
 * copies one view per input to a slice of the output. prepare() finds the views, copy_plan.inl
 * makes a loop of each, copy_block.inl has the inner loops. pad.inl is PAD. Elements are copied as
 * bytes: any dtype of size 1, 2, 4 or 8 works.
 */
#include <assert.h>
#include <string.h>

#include "common/bytes.h"
#include "common/tensor.h"
#include "copy/kernels.inc"
#include "isa/isa.h"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(transpose)
TAPER_DEFINE_ATTRS(axes)
TAPER_DEFINE_ATTRS(shape)
TAPER_DEFINE_ATTRS(slice)
TAPER_DEFINE_ATTRS(cat)
TAPER_DEFINE_ATTRS(pad)

#include "copy/copy_block.inl"
#include "copy/copy_plan.inl"

static bool valid_axis(int64_t axis, int32_t rank) { return axis >= 0 && axis < rank; }

/* Makes the view of all of x; the destination's strides are set later. */
static taper_status view_of(struct copy_view *v, const taper_call *call) {
    if (call->n_inputs < 1)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0];
    v->size = (int64_t)taper_dtype_size(x->dtype);
    v->rank = x->rank;
    v->src_offset = v->dst_offset = 0;
    for (int32_t d = 0; d < x->rank; d++) {
        v->sizes[d] = x->shape[d];
        v->src[d] = x->strides[d] * v->size;
    }
    return v->size ? TAPER_OK : TAPER_UNSUPPORTED;
}

/* The view, row-major, fills the output. */
static taper_status view_prepare(struct copy_view *v, const taper_call *call, taper_work *work) {
    int64_t numel = 1;
    for (int32_t d = v->rank - 1; d >= 0; d--) {
        v->dst[d] = numel * v->size;
        numel *= v->sizes[d];
    }
    if (!tensor_is(call->output, (taper_dtype)call->inputs[0].dtype, numel))
        return TAPER_UNSUPPORTED;
    struct copy_part *part = call->state;
    *work = (taper_work){0};
    if (numel > 0) {
        part_plan(part, v);
        part->first_byte = 0;
        work->tasks = i64_ceil_div(part_end(part), TASK_BYTES);
    }
    return TAPER_OK;
}

static taper_status view_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    part_run(call->state, call->output->data, call->inputs[0].data, begin, end);
    return TAPER_OK;
}

static taper_status any_transpose_prepare(const taper_call *call, taper_work *work) {
    const struct transpose_attrs *attrs = call->attrs;
    struct copy_view v;
    if (view_of(&v, call) != TAPER_OK || !valid_axis(attrs->axis0, v.rank) ||
        !valid_axis(attrs->axis1, v.rank))
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0];
    v.sizes[attrs->axis0] = x->shape[attrs->axis1];
    v.sizes[attrs->axis1] = x->shape[attrs->axis0];
    v.src[attrs->axis0] = x->strides[attrs->axis1] * v.size;
    v.src[attrs->axis1] = x->strides[attrs->axis0] * v.size;
    return view_prepare(&v, call, work);
}

static taper_status any_permute_prepare(const taper_call *call, taper_work *work) {
    const struct axes_attrs *attrs = call->attrs;
    struct copy_view v;
    uint32_t seen = 0; /* one bit per axis: a repeated axis would read beyond the input */
    if (view_of(&v, call) != TAPER_OK || attrs->axes.count != v.rank)
        return TAPER_UNSUPPORTED;
    for (int32_t d = 0; d < v.rank; d++) {
        const int64_t axis = attrs->axes.data[d];
        if (!valid_axis(axis, v.rank) || seen >> axis & 1)
            return TAPER_UNSUPPORTED;
        seen |= 1u << axis;
        v.sizes[d] = call->inputs[0].shape[axis];
        v.src[d] = call->inputs[0].strides[axis] * v.size;
    }
    return view_prepare(&v, call, work);
}

static taper_status any_slice_prepare(const taper_call *call, taper_work *work) {
    const struct slice_attrs *attrs = call->attrs;
    struct copy_view v;
    if (view_of(&v, call) != TAPER_OK || !valid_axis(attrs->axis, v.rank))
        return TAPER_UNSUPPORTED;
    int64_t *size = &v.sizes[attrs->axis], *stride = &v.src[attrs->axis];
    if (attrs->start < 0 || attrs->stop < attrs->start || attrs->stop > *size || attrs->step < 1)
        return TAPER_UNSUPPORTED;
    /* The quotient is not rounded up through a sum, which would overflow with a huge step. */
    *size = attrs->stop > attrs->start ? (attrs->stop - attrs->start - 1) / attrs->step + 1 : 0;
    v.src_offset = attrs->start * *stride;
    *stride *= *size > 1 ? attrs->step : 1;
    return view_prepare(&v, call, work);
}

/* x is aligned with the end of the target shape. */
static taper_status any_expand_prepare(const taper_call *call, taper_work *work) {
    const struct shape_attrs *attrs = call->attrs;
    struct copy_view v;
    const int64_t added = attrs->shape.count - call->inputs[0].rank;
    if (view_of(&v, call) != TAPER_OK || added < 0 || attrs->shape.count > TAPER_MAX_RANK)
        return TAPER_UNSUPPORTED;
    const taper_tensor *x = &call->inputs[0];
    v.rank = (int32_t)attrs->shape.count;
    for (int32_t d = 0; d < v.rank; d++) {
        const int64_t from = d - added, size = attrs->shape.data[d];
        const bool kept = from >= 0 && x->shape[from] == size;
        if (size < 0 || (from >= 0 && !kept && x->shape[from] != 1))
            return TAPER_UNSUPPORTED;
        v.sizes[d] = size;
        v.src[d] = kept ? x->strides[from] * v.size : 0;
    }
    return view_prepare(&v, call, work);
}

static taper_status any_flip_prepare(const taper_call *call, taper_work *work) {
    const struct axes_attrs *attrs = call->attrs;
    struct copy_view v;
    if (view_of(&v, call) != TAPER_OK)
        return TAPER_UNSUPPORTED;
    for (int64_t i = 0; i < attrs->axes.count; i++) {
        const int64_t d = attrs->axes.data[i];
        if (!valid_axis(d, v.rank))
            return TAPER_UNSUPPORTED;
        v.src_offset += (v.sizes[d] - 1) * v.src[d];
        v.src[d] = -v.src[d];
    }
    return view_prepare(&v, call, work);
}

static taper_status any_copy_prepare(const taper_call *call, taper_work *work) {
    struct copy_view v;
    return view_of(&v, call) == TAPER_OK ? view_prepare(&v, call, work) : TAPER_UNSUPPORTED;
}

/* RESHAPE keeps row-major order, so the target shape does not matter. */
static taper_status any_reshape_prepare(const taper_call *call, taper_work *work) {
    return any_copy_prepare(call, work);
}

/* ---- CAT ---- */

enum { CAT_PLANNED = 64 }; /* inputs whose loops prepare() keeps; each task plans others anew */

struct cat_state {
    int32_t n_parts; /* inputs with elements */
    int32_t input[CAT_PLANNED];
    struct copy_part parts[CAT_PLANNED];
};

/* Where an input goes: its place along the axis, and its first byte among all inputs. */
struct cat_place {
    int64_t at, byte;
};

/* Plans the copy of an input to a place, and moves the place behind it; returns false if there is
 * nothing to copy. */
static bool cat_plan(const taper_call *call, int32_t input, struct cat_place *place,
                     struct copy_part *part) {
    const struct cat_attrs *attrs = call->attrs;
    const taper_tensor *x = &call->inputs[input], *output = call->output;
    const int64_t size = (int64_t)taper_dtype_size(output->dtype);
    struct copy_view v = {.size = size, .rank = x->rank};
    for (int32_t d = 0; d < x->rank; d++) {
        v.sizes[d] = x->shape[d];
        v.src[d] = x->strides[d] * size;
        v.dst[d] = output->strides[d] * size;
    }
    v.dst_offset = place->at * output->strides[attrs->axis] * size;
    place->at += x->shape[attrs->axis];
    if (tensor_numel(x) == 0)
        return false;
    part_plan(part, &v);
    part->first_byte = place->byte;
    place->byte = part_end(part);
    return true;
}

static taper_status any_cat_prepare(const taper_call *call, taper_work *work) {
    const struct cat_attrs *attrs = call->attrs;
    const taper_tensor *output = call->output;
    struct cat_state *s = call->state;
    const int64_t axis = attrs->axis;
    if (call->n_inputs < 1 || taper_dtype_size(output->dtype) == 0 ||
        !valid_axis(axis, output->rank) || !tensor_is_contiguous(output))
        return TAPER_UNSUPPORTED;
    struct cat_place place = {0};
    struct copy_part unkept;
    s->n_parts = 0;
    for (int32_t i = 0; i < call->n_inputs; i++) {
        const taper_tensor *x = &call->inputs[i];
        if (x->dtype != output->dtype || x->rank != output->rank)
            return TAPER_UNSUPPORTED;
        for (int32_t d = 0; d < x->rank; d++)
            if (d != axis && x->shape[d] != output->shape[d])
                return TAPER_UNSUPPORTED;
        if (x->shape[axis] > output->shape[axis] - place.at)
            return TAPER_UNSUPPORTED;
        const bool kept = s->n_parts < CAT_PLANNED;
        if (cat_plan(call, i, &place, kept ? &s->parts[s->n_parts] : &unkept) && kept)
            s->input[s->n_parts++] = i;
    }
    *work = (taper_work){.tasks = i64_ceil_div(place.byte, TASK_BYTES)};
    return place.at == output->shape[axis] ? TAPER_OK : TAPER_UNSUPPORTED;
}

static taper_status any_cat_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct cat_state *s = call->state;
    (void)scratch;
    if (call->n_inputs <= CAT_PLANNED) {
        for (int32_t i = 0; i < s->n_parts; i++)
            part_run(&s->parts[i], call->output->data, call->inputs[s->input[i]].data, begin, end);
        return TAPER_OK;
    }
    struct cat_place place = {0};
    struct copy_part part;
    for (int32_t i = 0; i < call->n_inputs; i++)
        if (cat_plan(call, i, &place, &part))
            part_run(&part, call->output->data, call->inputs[i].data, begin, end);
    return TAPER_OK;
}

#include "copy/pad.inl"

/* ---- table ---- */

#define any_transpose_run view_run
#define any_permute_run view_run
#define any_slice_run view_run
#define any_expand_run view_run
#define any_flip_run view_run
#define any_copy_run view_run
#define any_reshape_run view_run

static const taper_kernel copy_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "copy/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_copy);
const taper_family TAPER_ISA_SYM(taper_copy) = {TAPER_ROWS(copy_kernels)};
