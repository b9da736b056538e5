/* Packs weights of products as kernels read them. */
#ifndef TAPER_PACKED_H
#define TAPER_PACKED_H

#include "check.h"

/* from: float32, K rows of N columns at these strides. to: [ceil(N/16)][K][16], zero beyond N. */
void pack_panels(float *to, const float *from, int64_t k, int64_t n, int64_t k_stride,
                 int64_t n_stride);

/* from: [K][groups][N]. Returns [groups][ceil(N/16)][1 + ceil(K/4)][64], for dot products of bytes:
 * the sums of the columns, then four k of each column side by side. check_free its data. */
taper_tensor pack_dots(const int8_t *from, int64_t k, int64_t groups, int64_t n);

#endif /* TAPER_PACKED_H */
