/*
 * Elements that the panels of B may hold: one row for each kind except float32.
 *
 * X(name, dtypes, format, floats, lines, unit, middle, load): the dtypes and the format of the
 * stored tensor (PANELS_1 stands for both panels), how many floats have the size of a line of 16
 * elements, and the expression that widens vector v of a line to floats. Loads, tiles and the
 * tensors that MATMUL takes follow from these rows.
 *
 * Elements in a format of blocks are levels. Each block of some lines begins with its head: for
 * each column a scale, and perhaps a zero point or an offset. B holds (level - zero) * scale, or
 * (level - middle) * scale + offset; without either the zero point is `middle`. Some lines lie in
 * each other, so that one word has `lines` levels of a column, and `load` takes number k of them,
 * which it gives in units of 1 / `unit`. A value is computed as
 *
 *     fma(level, scale, shift), with shift = -zero * scale or fma(-middle, scale, offset),
 *
 * rounded once unless the product -zero * scale has more than 24 bits. For the other kinds widening
 * is exact.
 */
#ifndef TAPER_GEMM_ELEMENT_H
#define TAPER_GEMM_ELEMENT_H

#include "gemm/engine.h"
#include "simd/narrow.h"

#define GEMM_SCALES (D_F32 | D_F16 | D_BF16)
#define GEMM_WORDS(line, v) ((line) + (v) * V_LEN)
#define GEMM_NARROW(X)                                                                             \
    X(F16, D_F16, PANELS_1, 8, 1, 1, 0, v_load_f16((const uint16_t *)line + v * V_LEN))            \
    X(BF16, D_BF16, PANELS_1, 8, 1, 1, 0, v_load_bf16((const uint16_t *)line + v * V_LEN))         \
    X(I8, D_I8, PANELS_1, 4, 1, 1, 0, v_load_i8((const int8_t *)line + v * V_LEN))                 \
    X(LEVEL_I8, GEMM_SCALES, BLOCKS_8, 4, 4, 0x1p-24f, 0, v_pick_i8(GEMM_WORDS(line, v), k))       \
    X(LEVEL_U4, GEMM_SCALES, BLOCKS_4, 2, 8, 1, 8, v_pick_u4(GEMM_WORDS(line, v), k))

#define GEMM_NAME(of, ...) GEMM_##of,
typedef enum gemm_element { GEMM_F32, GEMM_NARROW(GEMM_NAME) GEMM_ELEMENTS } gemm_element;

/* Returns the floats in a line of a panel of such elements; strides are in these. */
V_INLINE int gemm_line(const gemm_element of) {
#define GEMM_FLOATS(name, dtypes, format, floats, ...) [GEMM_##name] = (floats),
    static const int lines[] = {[GEMM_F32] = GEMM_NR, GEMM_NARROW(GEMM_FLOATS)};
    return lines[of];
}

/* Returns how many lines lie in each other; 1 unless elements are levels. */
V_INLINE int gemm_lines(const gemm_element of) {
#define GEMM_LINES(name, dtypes, format, floats, lines, ...) [GEMM_##name] = (lines),
    static const int together[] = {[GEMM_F32] = 1, GEMM_NARROW(GEMM_LINES)};
    return together[of];
}

V_INLINE bool gemm_has_levels(const gemm_element of) { return gemm_lines(of) > 1; }

V_INLINE float gemm_unit(const gemm_element of) {
#define GEMM_UNIT(name, dtypes, format, floats, lines, unit, ...) [GEMM_##name] = (unit),
    static const float units[] = {[GEMM_F32] = 1, GEMM_NARROW(GEMM_UNIT)};
    return units[of];
}

V_INLINE float gemm_middle(const gemm_element of) {
#define GEMM_MIDDLE(name, dtypes, format, floats, lines, unit, middle, ...)                        \
    [GEMM_##name] = (middle),
    static const float middles[] = {[GEMM_F32] = 0, GEMM_NARROW(GEMM_MIDDLE)};
    return middles[of];
}

/* Returns the floats from the start of a panel to its line k; blocks have `block` lines, the first
 * of which is line 0, and heads of `head` floats. */
V_INLINE int64_t gemm_line_offset(int64_t k, int64_t k_stride, int64_t block, int64_t head) {
    return k * k_stride + (block ? k / block * head : 0);
}

/* Loads vector v of a line; of lines that lie in each other, of line k. */
V_INLINE vf gemm_load(const float *line, const int v, const int k, const gemm_element of) {
#define GEMM_LOAD(name, dtypes, format, floats, lines, unit, middle, load)                         \
    case GEMM_##name:                                                                              \
        return load;
    (void)k;
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
#define GEMM_IS(name, dtypes, format_, ...)                                                        \
    if (((dtypes) >> b->dtype & 1) != 0 && format == TAPER_##format_)                              \
        return GEMM_##name;
    GEMM_NARROW(GEMM_IS)
    return GEMM_ELEMENTS;
}

/* Fills the head of a block of `words` words of the scales' dtype, with `block` lines; false if no
 * head has what the lines leave. */
static bool gemm_find_head(gemm_head *head, const taper_tensor *b, gemm_element of, int64_t block,
                           int64_t words) {
    const int64_t size = (int64_t)taper_dtype_size(b->dtype);
    const int64_t bytes = words * size - block * gemm_line(of) * (int64_t)sizeof(float);
    const int64_t levels = gemm_line(of) * (int64_t)sizeof(float), scales = GEMM_NR * size;
    head->scales = b->dtype;
    head->floats = bytes / (int64_t)sizeof(float);
    head->shift = bytes == scales            ? GEMM_SYMMETRIC
                  : bytes == scales + levels ? GEMM_ZEROS
                                             : GEMM_OFFSETS;
    return head->shift != GEMM_OFFSETS || bytes == 2 * scales;
}

/* The types of B in a row of the kernel table. */
#define GEMM_DTYPE(name, dtypes, ...) | (dtypes)
#define GEMM_FORMAT(name, dtypes, format, ...) | S_##format
#define GEMM_B                                                                                     \
    STORED(D_F32 GEMM_NARROW(GEMM_DTYPE),                                                          \
           S_PLAIN | S_PANELS_0 | S_PANELS_1 GEMM_NARROW(GEMM_FORMAT))

#endif /* TAPER_GEMM_ELEMENT_H */
