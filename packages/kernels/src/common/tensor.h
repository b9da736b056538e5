/* What prepare() asks about tensors, and integer arithmetic. */
#ifndef TAPER_TENSOR_H
#define TAPER_TENSOR_H

#include "taper/kernels.h"

#define TENSOR_INLINE static inline __attribute__((unused))

/* Elements in dimensions [first, last). */
TENSOR_INLINE int64_t tensor_count(const taper_tensor *t, int64_t first, int64_t last) {
    int64_t n = 1;
    for (int64_t d = first; d < last; d++)
        n *= t->shape[d];
    return n;
}

TENSOR_INLINE int64_t tensor_numel(const taper_tensor *t) { return tensor_count(t, 0, t->rank); }

/* Row-major without gaps; the strides of dimensions of size 1 are free, and all are when empty. */
TENSOR_INLINE bool tensor_is_contiguous(const taper_tensor *t) {
    int64_t expected = 1;
    for (int64_t d = t->rank - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->strides[d] != expected && tensor_numel(t) != 0)
            return false;
        expected *= t->shape[d];
    }
    return true;
}

/* A contiguous tensor of this dtype and number of elements. */
TENSOR_INLINE bool tensor_is(const taper_tensor *t, taper_dtype dtype, int64_t numel) {
    return t->dtype == (int32_t)dtype && tensor_numel(t) == numel && tensor_is_contiguous(t);
}

TENSOR_INLINE int64_t i64_min(int64_t a, int64_t b) { return a < b ? a : b; }
TENSOR_INLINE int64_t i64_max(int64_t a, int64_t b) { return a > b ? a : b; }
TENSOR_INLINE int64_t i64_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* How many rows of `cost` units of work make a task: enough that handing a task to a thread (about
 * a microsecond) is cheap beside computing it, when a unit is a few cycles for 16 bytes or more. */
TENSOR_INLINE int64_t rows_per_task(int64_t cost) { return i64_max(1, 16384 / i64_max(1, cost)); }

#endif /* TAPER_TENSOR_H */
