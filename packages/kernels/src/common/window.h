/* Windows that slide over the spatial dims of a channels-last tensor [N, *spatial, C]. */
#ifndef TAPER_WINDOW_H
#define TAPER_WINDOW_H

#include "common/tensor.h"

enum { WINDOW_DIMS = 3 };

/* One spatial dim. Window o covers the positions o * stride - low + t * dilation, t < kernel. */
typedef struct window_dim {
    int64_t in, out, kernel, stride, dilation, low;
} window_dim;

/* Returns false unless there are count values, each in [low, 2^31): positions then fit in 64 bits.
 */
TENSOR_NOINLINE bool window_ints(const taper_ints *ints, int64_t count, int64_t low) {
    if (ints->count != count)
        return false;
    for (int64_t i = 0; i < count; i++)
        if (ints->data[i] < low || ints->data[i] > INT32_MAX)
            return false;
    return true;
}

/*
 * Writes the spatial dims of x. A node may have fewer than three; the dims that it lacks come
 * first, with one element. Returns false unless each attr has one value in range per spatial dim,
 * and x and output are contiguous tensors of the dtype (TAPER_ABSENT: of any), of that rank and of
 * equal batch. dilation NULL: 1 throughout. padding may be as low as least_padding.
 */
TENSOR_NOINLINE bool window_dims(window_dim dims[WINDOW_DIMS], const taper_tensor *x,
                                 const taper_tensor *output, taper_dtype dtype,
                                 const taper_ints *kernel, const taper_ints *stride,
                                 const taper_ints *padding, int64_t least_padding,
                                 const taper_ints *dilation) {
    const int64_t n = kernel->count;
    if (n < 1 || n > WINDOW_DIMS || x->rank != n + 2 || output->rank != n + 2 ||
        !window_ints(kernel, n, 1) || !window_ints(stride, n, 1) ||
        !window_ints(padding, 2 * n, least_padding) || (dilation && !window_ints(dilation, n, 1)) ||
        !tensor_is_contiguous(x) || !tensor_is_contiguous(output) ||
        x->shape[0] != output->shape[0])
        return false;
    if (dtype != TAPER_ABSENT && (x->dtype != (int32_t)dtype || output->dtype != (int32_t)dtype))
        return false;
    for (int64_t d = 0; d < WINDOW_DIMS; d++) {
        const int64_t i = d - (WINDOW_DIMS - n);
        if (i >= 0 && (x->shape[1 + i] > INT32_MAX || output->shape[1 + i] > INT32_MAX))
            return false;
        dims[d] = i < 0 ? (window_dim){1, 1, 1, 1, 1, 0}
                        : (window_dim){x->shape[1 + i],
                                       output->shape[1 + i],
                                       kernel->data[i],
                                       stride->data[i],
                                       dilation ? dilation->data[i] : 1,
                                       padding->data[2 * i]};
    }
    return true;
}

/* Returns whether the output has as many windows as fit. padding: as in window_dims. */
TENSOR_NOINLINE bool windows_fit(const window_dim dims[WINDOW_DIMS], const taper_ints *padding) {
    const int64_t missing = WINDOW_DIMS - padding->count / 2;
    for (int64_t d = 0; d < WINDOW_DIMS; d++) {
        const window_dim *w = &dims[d];
        const int64_t high = d < missing ? 0 : padding->data[2 * (d - missing) + 1];
        const int64_t room = w->in + w->low + high - w->dilation * (w->kernel - 1) - 1;
        if (room < 0 || room / w->stride + 1 != w->out)
            return false;
    }
    return true;
}

/* Finds the taps [*first, result) that are inside of [0, in), for the window whose first position
 * is `at`. */
TENSOR_INLINE int64_t window_taps(const window_dim *w, int64_t at, int64_t *first) {
    *first = at >= 0 ? 0 : i64_min(w->kernel, i64_ceil_div(-at, w->dilation));
    const int64_t last = at >= w->in ? 0 : i64_min(w->kernel, (w->in - 1 - at) / w->dilation + 1);
    return i64_max(*first, last);
}

#endif /* TAPER_WINDOW_H */
