/* Loads of numbers that are stored as float32, as 16-bit floats or as int8, widened to floats. */
#ifndef TAPER_SIMD_STORED_H
#define TAPER_SIMD_STORED_H

#include "simd/narrow.h"
#include "taper/kernels.h"

/* Returns the bytes of a number; `stored`, its taper_dtype, is a constant wherever these are
 * inlined. */
V_INLINE int64_t v_stored_size(const int32_t stored) {
    return stored == TAPER_FLOAT32 ? 4 : stored == TAPER_INT8 ? 1 : 2;
}

/* Loads V_LEN numbers from number `at` on. */
V_INLINE vf v_load_stored(const int32_t stored, const void *data, int64_t at) {
    switch (stored) {
    case TAPER_FLOAT16:
        return v_load_f16((const uint16_t *)data + at);
    case TAPER_BFLOAT16:
        return v_load_bf16((const uint16_t *)data + at);
    case TAPER_INT8:
        return v_load_i8((const int8_t *)data + at);
    default:
        return v_load((const float *)data + at);
    }
}

/* Loads n numbers from number `at` on, and zeros; n < V_LEN. */
V_INLINE vf v_load_stored_n(const int32_t stored, const void *data, int64_t at, int64_t n) {
    if (stored == TAPER_FLOAT32)
        return v_load_n((const float *)data + at, n);
    const int64_t size = v_stored_size(stored);
    uint16_t part[V_LEN] = {0};
    memcpy(part, (const char *)data + at * size, (size_t)(n * size));
    return v_load_stored(stored, part, 0);
}

#endif /* TAPER_SIMD_STORED_H */
