/*
 * Elements that the panels of B may hold: one row for each kind except float32.
 *
 * X(name, dtypes, floats, lines, unit, rows, load): the dtypes of plain panels of the elements, and
 * D_NONE for levels in blocks; how many floats have the size of `lines` lines of 16 elements; and
 * the expression that widens vector v of a line to floats. Tiles of as many rows as `rows` says
 * widen such elements in registers. Loads, tiles and the tensors that MATMUL takes follow from
 * these rows.
 *
 * Levels lie in blocks, which begin with their heads: for each column a scale, and perhaps a zero
 * point or an offset. B holds (level - zero) * scale, or (level - middle) * scale + offset; without
 * either the zero point is `middle`. `lines` lines lie in each other, and `load` takes number k of
 * each column, which it gives in units of 1 / `unit`. A value is computed as
 *
 *     fma(level, scale, shift), with shift = -zero * scale or fma(-middle, scale, offset),
 *
 * rounded once unless the product -zero * scale has more than 24 bits. For the other kinds widening
 * is exact.
 */
#ifndef TAPER_GEMM_ELEMENT_H
#define TAPER_GEMM_ELEMENT_H

#include "gemm/engine.h"
#include "gemm/pairs_bf16.h"
#include "simd/narrow.h"

#define GEMM_SCALES (D_F32 | D_F16 | D_BF16 | D_U8)
#define GEMM_WORDS(line, v) ((line) + (v) * V_LEN)
#define GEMM_NARROW(X)                                                                             \
    X(F16, D_F16, 8, 1, 1, FEW, v_load_f16((const uint16_t *)line + v * V_LEN))                    \
    X(BF16, D_BF16, 8, 1, 1, FEW, v_load_bf16((const uint16_t *)line + v * V_LEN))                 \
    X(I8, D_I8, 4, 1, 1, FEW, v_load_i8((const int8_t *)line + v * V_LEN))                         \
    X(LEVEL_I8, D_NONE, 16, 4, 0x1p-24f, FEW, v_pick_i8(GEMM_WORDS(line, v), k))                   \
    X(LEVEL_U4, D_NONE, 16, 8, 1, FEW, v_pick_u4(GEMM_WORDS(line, v), k))                          \
    X(LEVEL_U2, D_NONE, 16, 16, 1, ONE, v_pick_u2(GEMM_WORDS(line, v), k))                         \
    X(LEVEL_U5, D_NONE, 80, 32, 1, ONE,                                                            \
      v_pick_u4_and(GEMM_WORDS(line + k / 8 * 16, v), GEMM_WORDS(line + 64, v), k, 1))             \
    X(LEVEL_U6, D_NONE, 48, 16, 1, ONE,                                                            \
      v_pick_u4_and(GEMM_WORDS(line + k / 8 * 16, v), GEMM_WORDS(line + 32, v), k, 2))             \
    X(LEVEL_E2M1, D_NONE, 16, 8, V_UNIT_E2M1, ONE, v_pick_e2m1(GEMM_WORDS(line, v), k))            \
    X(LEVEL_E4M3, D_NONE, 16, 4, 1, ONE, v_pick_e4m3(GEMM_WORDS(line, v), k))                      \
    X(LEVEL_E5M2, D_NONE, 16, 4, 1, ONE, v_pick_e5m2(GEMM_WORDS(line, v), k))

/* Formats of blocks: X(format, element, middle, inner), with what multiplies the scales of some
 * blocks in each of them (engine.h). */
#define GEMM_BLOCKS(X)                                                                             \
    X(BLOCKS_2, LEVEL_U2, 2, NONE)                                                                 \
    X(BLOCKS_4, LEVEL_U4, 8, NONE)                                                                 \
    X(BLOCKS_U4, LEVEL_U4, 0, NONE)                                                                \
    X(BLOCKS_Q4K, LEVEL_U4, 0, U6)                                                                 \
    X(BLOCKS_5, LEVEL_U5, 16, NONE)                                                                \
    X(BLOCKS_U5, LEVEL_U5, 0, NONE)                                                                \
    X(BLOCKS_Q5K, LEVEL_U5, 0, U6)                                                                 \
    X(BLOCKS_Q6K, LEVEL_U6, 32, I8)                                                                \
    X(BLOCKS_8, LEVEL_I8, 0, NONE)                                                                 \
    X(BLOCKS_E2M1, LEVEL_E2M1, 0, NONE)                                                            \
    X(BLOCKS_NVFP4, LEVEL_E2M1, 0, E4M3)                                                           \
    X(BLOCKS_E4M3, LEVEL_E4M3, 0, NONE)                                                            \
    X(BLOCKS_E5M2, LEVEL_E5M2, 0, NONE)

#define GEMM_NAME(of, ...) GEMM_##of,
/* GEMM_PAIRS: lines of two k of bfloat16, for dot instructions (pairs_bf16.inl). */
typedef enum gemm_element {
    GEMM_F32,
    GEMM_NARROW(GEMM_NAME) GEMM_PAIRS,
    GEMM_ELEMENTS
} gemm_element;

/* Returns how many lines lie in each other; 1 unless elements are levels. */
V_INLINE int gemm_lines(const gemm_element of) {
#define GEMM_LINES(name, dtypes, floats, lines, ...) [GEMM_##name] = (lines),
    static const int together[] = {[GEMM_F32] = 1, [GEMM_PAIRS] = 1, GEMM_NARROW(GEMM_LINES)};
    return together[of];
}

/* Returns the floats in so many lines of a panel; strides are in floats. */
V_INLINE int64_t gemm_floats(const gemm_element of, int64_t lines) {
#define GEMM_FLOATS(name, dtypes, floats, ...) [GEMM_##name] = (floats),
    static const int together[] = {
        [GEMM_F32] = GEMM_NR, [GEMM_PAIRS] = GEMM_NR, GEMM_NARROW(GEMM_FLOATS)};
    return lines / gemm_lines(of) * together[of];
}

V_INLINE bool gemm_has_levels(const gemm_element of) { return gemm_lines(of) > 1; }

V_INLINE float gemm_unit(const gemm_element of) {
#define GEMM_UNIT(name, dtypes, floats, lines, unit, ...) [GEMM_##name] = (unit),
    static const float units[] = {[GEMM_F32] = 1, GEMM_NARROW(GEMM_UNIT)};
    return units[of];
}

/* Returns the floats from the start of a panel to its line k, which begins a block. */
V_INLINE int64_t gemm_line_offset(int64_t k, int64_t k_stride, const gemm_head *head) {
    return head->rows ? k / head->rows * head->stride : k * k_stride;
}

/* Loads vector v of a line; of lines that lie in each other, of line k. */
V_INLINE vf gemm_load(const float *line, const int v, const int k, const gemm_element of) {
#define GEMM_LOAD(name, dtypes, floats, lines, unit, rows, load)                                   \
    case GEMM_##name:                                                                              \
        return load;
    (void)k;
    switch (of) {
        GEMM_NARROW(GEMM_LOAD)
#ifdef HAS_PAIRS
    case GEMM_PAIRS:
        return pairs_of_lines(line);
#endif
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
#define GEMM_IS(name, dtypes, ...)                                                                 \
    if (((dtypes) >> b->dtype & 1) != 0 && format == TAPER_PANELS_1)                               \
        return GEMM_##name;
    GEMM_NARROW(GEMM_IS)
#define GEMM_IS_BLOCKS(format_, element, ...)                                                      \
    if ((GEMM_SCALES >> b->dtype & 1) != 0 && format == TAPER_##format_)                           \
        return GEMM_##element;
    GEMM_BLOCKS(GEMM_IS_BLOCKS)
    return GEMM_ELEMENTS;
}

/* Fills what the heads of a stored tensor have, for its [k, n]; false if nothing has this size. */
static bool gemm_find_head(gemm_head *head, const taper_tensor *b, gemm_element of, int64_t k) {
    static const struct {
        float middle;
        gemm_inner inner;
    } formats[] = {
#define GEMM_BLOCKS_ARE(format, element, middle, inner)                                            \
    [TAPER_##format] = {middle, GEMM_INNER_##inner},
        GEMM_BLOCKS(GEMM_BLOCKS_ARE)};
    static const int inner_bytes[] = {
        [GEMM_INNER_NONE] = 0, [GEMM_INNER_U6] = 12, [GEMM_INNER_I8] = 16, [GEMM_INNER_E4M3] = 16};
    const int64_t parts = b->shape[1], lines = gemm_lines(of);
    if (parts < 1 || k < 1 || k % parts != 0 || k / parts % lines != 0)
        return false;
    const int64_t size = (int64_t)taper_dtype_size(b->dtype), scales = GEMM_NR * size;
    const int64_t rows = k / parts, unit = (int64_t)sizeof(float);
    const int64_t bytes = b->shape[2] * size - gemm_floats(of, rows) * unit;
    *head = (gemm_head){.scales = b->dtype,
                        .middle = formats[b->format].middle,
                        .inner = formats[b->format].inner,
                        .blocks = 1,
                        .rows = rows,
                        .stride = b->shape[2] * size / unit};
    if (head->inner == GEMM_INNER_NONE) {
        const int64_t zeros = of == GEMM_LEVEL_I8   ? GEMM_NR
                              : of == GEMM_LEVEL_U4 ? GEMM_NR / 2
                              : of == GEMM_LEVEL_U2 ? GEMM_NR / 4
                                                    : -1;
        head->floats = bytes / unit;
        head->shift = bytes == scales           ? GEMM_SYMMETRIC
                      : bytes == scales + zeros ? GEMM_ZEROS
                                                : GEMM_OFFSETS;
        return b->dtype == TAPER_UINT8 ? head->shift == GEMM_SYMMETRIC
                                       : head->shift != GEMM_OFFSETS || bytes == 2 * scales;
    }
    const int64_t twice = head->inner == GEMM_INNER_U6 ? 2 : 1;
    const int64_t inner = twice * inner_bytes[head->inner], left = bytes - twice * scales;
    if (left < inner || left % inner != 0 || rows % (left / inner * lines) != 0)
        return false;
    head->shift = twice == 2 ? GEMM_OFFSETS : GEMM_SYMMETRIC;
    head->blocks = left / inner;
    head->floats = twice * scales / unit;
    head->inner_floats = inner / unit;
    return true;
}

/* The types of B in a row of the kernel table. */
#define GEMM_DTYPE(name, dtypes, ...) | (dtypes)
#define GEMM_FORMAT(format, ...) | S_##format
#define GEMM_B                                                                                     \
    STORED(D_F32 GEMM_NARROW(GEMM_DTYPE) | GEMM_SCALES,                                            \
           S_PLAIN | S_PANELS_0 | S_PANELS_1 GEMM_BLOCKS(GEMM_FORMAT))
#define GEMM_BLOCKS_B STORED(GEMM_SCALES, 0 GEMM_BLOCKS(GEMM_FORMAT))

#endif /* TAPER_GEMM_ELEMENT_H */
