/*
 * Products of sizes of different tensors, or of sizes and attrs, which may overflow. Products of
 * one tensor's dims fit: taper_kernel_takes checks that.
 */
#ifndef TAPER_OVERFLOW_H
#define TAPER_OVERFLOW_H

#include "common/tensor.h"

/* Returns a * b, but at most INT64_MAX / 2: more work than that would not end either. a, b >= 0. */
TENSOR_INLINE int64_t i64_times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX / 2 : i64_min(product, INT64_MAX / 2);
}

/* Returns a + b, but at most INT64_MAX. a, b >= 0. */
TENSOR_INLINE int64_t i64_plus(int64_t a, int64_t b) {
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

#endif /* TAPER_OVERFLOW_H */
