/* Properties of tensors that prepare() functions check, and integer arithmetic. */
#ifndef TAPER_TENSOR_H
#define TAPER_TENSOR_H

#include "taper/kernels.h"

#define TENSOR_INLINE static inline __attribute__((unused))
/* Marks functions that only prepare() calls: a call costs nothing there, and inlined copies are
 * large. */
#define TENSOR_NOINLINE static __attribute__((noinline, unused))

/* Returns the number of elements in dimensions [first, last). */
TENSOR_INLINE int64_t tensor_count(const taper_tensor *t, int64_t first, int64_t last) {
    int64_t n = 1;
    for (int64_t d = first; d < last; d++)
        n *= t->shape[d];
    return n;
}

TENSOR_INLINE int64_t tensor_numel(const taper_tensor *t) { return tensor_count(t, 0, t->rank); }

/* Returns whether a tensor is row-major without gaps. Strides of dimensions of size 1 do not
 * matter, nor does any stride of an empty tensor. */
TENSOR_NOINLINE bool tensor_is_contiguous(const taper_tensor *t) {
    int64_t expected = 1;
    for (int64_t d = t->rank - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->strides[d] != expected && tensor_numel(t) != 0)
            return false;
        expected *= t->shape[d];
    }
    return true;
}

/* Returns whether a tensor is contiguous and has this dtype and number of elements. */
TENSOR_NOINLINE bool tensor_is(const taper_tensor *t, taper_dtype dtype, int64_t numel) {
    return t->dtype == (int32_t)dtype && tensor_numel(t) == numel && tensor_is_contiguous(t);
}

/* Returns whether a call has this input: an optional one may be absent. */
TENSOR_INLINE bool call_has_input(const taper_call *call, int32_t i) {
    return i < call->n_inputs && call->inputs[i].dtype != TAPER_ABSENT;
}

TENSOR_INLINE int64_t i64_min(int64_t a, int64_t b) { return a < b ? a : b; }
TENSOR_INLINE int64_t i64_max(int64_t a, int64_t b) { return a > b ? a : b; }
TENSOR_INLINE int64_t i64_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/*
 * The smallest task: some microseconds of work, so that handing it to a thread (about a
 * microsecond, until the thread has the operands) is cheap in comparison. A kernel whose elements
 * cost more has a smallest task of its own, among its other constants.
 */
enum {
    TASK_COST = 1 << 14,  /* elements, or vectors, of which each takes a few cycles */
    TASK_BYTES = 1 << 15, /* of copies: 1 to 2 us in L3, and source and destination fit L2 */
    TASK_PARTS = 16,      /* parts of what could be one task: two for each of 8 threads */
};

/* Returns how many rows of `cost` elements or vectors each make one task. */
TENSOR_INLINE int64_t rows_per_task(int64_t cost) {
    return i64_max(1, TASK_COST / i64_max(1, cost));
}

#endif /* TAPER_TENSOR_H */
