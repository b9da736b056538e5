/*
 * Elements that the panels of B may hold: one row for each kind except float32.
 *
 * X(name, dtype, format, floats, load): the dtype and the format of the stored tensor (PANELS_1
 * stands for both panels), how many floats have the size of a line of 16 elements, and the
 * expression that widens vector v of a line to floats. Loads, tiles and the tensors that MATMUL
 * takes follow from these rows.
 *
 * Elements in a format of blocks are levels: each block of some lines begins with a factor and an
 * offset for each column, and B holds level * factor + offset. For the other kinds widening is
 * exact.
 */
#ifndef TAPER_GEMM_ELEMENT_H
#define TAPER_GEMM_ELEMENT_H

#include "gemm/engine.h"
#include "simd/narrow.h"

#define GEMM_NARROW(X)                                                                             \
    X(F16, FLOAT16, PANELS_1, 8, v_load_f16((const uint16_t *)line + v * V_LEN))                   \
    X(BF16, BFLOAT16, PANELS_1, 8, v_load_bf16((const uint16_t *)line + v * V_LEN))                \
    X(I8, INT8, PANELS_1, 4, v_load_i8((const int8_t *)line + v * V_LEN))                          \
    X(LEVEL_I8, INT32, BLOCKS_8, 4, v_load_i8((const int8_t *)line + v * V_LEN))                   \
    X(LEVEL_U4, INT32, BLOCKS_4, 2, v_load_u4(line, v))

#define GEMM_NAME(of, ...) GEMM_##of,
typedef enum gemm_element { GEMM_F32, GEMM_NARROW(GEMM_NAME) GEMM_ELEMENTS } gemm_element;

/* Returns the floats in a line of a panel of such elements; strides are in these. */
V_INLINE int gemm_line(const gemm_element of) {
#define GEMM_FLOATS(name, dtype, format, floats, load) [GEMM_##name] = (floats),
    static const int lines[] = {[GEMM_F32] = GEMM_NR, GEMM_NARROW(GEMM_FLOATS)};
    return lines[of];
}

/* Returns whether such elements are levels, and how many floats the factors and offsets of a block
 * have. */
V_INLINE bool gemm_has_levels(const gemm_element of) {
#define GEMM_LEVELS(name, dtype, format, floats, load)                                             \
    [GEMM_##name] = TAPER_##format != TAPER_PANELS_1,
    static const bool levels[] = {[GEMM_F32] = false, GEMM_NARROW(GEMM_LEVELS)};
    return levels[of];
}
enum { GEMM_HEAD = 2 * GEMM_NR };

/* Returns the floats from the start of a panel to its line k; blocks have `block` lines, the first
 * of which is line 0. */
V_INLINE int64_t gemm_line_offset(int64_t k, int64_t k_stride, int64_t block) {
    return k * k_stride + (block ? k / block * GEMM_HEAD : 0);
}

/* Loads vector v of a line. */
V_INLINE vf gemm_load(const float *line, const int v, const gemm_element of) {
#define GEMM_LOAD(name, dtype, format, floats, load)                                               \
    case GEMM_##name:                                                                              \
        return load;
    switch (of) {
        GEMM_NARROW(GEMM_LOAD)
    default:
        return v_load(line + v * V_LEN);
    }
}

/* Returns the kind of a stored tensor's elements; GEMM_ELEMENTS where it is none of these. */
static gemm_element gemm_element_of(const taper_tensor *b) {
    const bool plain = b->format == TAPER_PLAIN;
    const int32_t format = b->format == TAPER_PANELS_0 ? TAPER_PANELS_1 : b->format;
    if (b->dtype == TAPER_FLOAT32 && (plain || format == TAPER_PANELS_1))
        return GEMM_F32;
#define GEMM_IS(name, dtype_, format_, floats, load)                                               \
    if (b->dtype == TAPER_##dtype_ && format == TAPER_##format_)                                   \
        return GEMM_##name;
    GEMM_NARROW(GEMM_IS)
    return GEMM_ELEMENTS;
}

/* The types of B in a row of the kernel table. */
#define GEMM_DTYPE(name, dtype, format, floats, load) | (1u << TAPER_##dtype)
#define GEMM_FORMAT(name, dtype, format, floats, load) | S_##format
#define GEMM_B                                                                                     \
    STORED(D_F32 GEMM_NARROW(GEMM_DTYPE),                                                          \
           S_PLAIN | S_PANELS_0 | S_PANELS_1 GEMM_NARROW(GEMM_FORMAT))

#endif /* TAPER_GEMM_ELEMENT_H */
