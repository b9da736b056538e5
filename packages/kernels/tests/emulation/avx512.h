/*
 * AVX-512 on CPUs with AVX2 alone, for tests: what -Dkernels:emulate=avx512 includes first in every
 * file of that level. SIMDe has most of the functions under Intel's names; they compute the halves
 * of a vector with AVX2, so that sums, products, fused ones, roundings, and min and max of NaN are
 * those of the hardware. What SIMDe 0.7 lacks, or does not do exactly, is below. The sources are
 * the pages of these instructions in Intel's manual, volume 2.
 *
 * Not covered: the AVX-512 code that a compiler makes of plain C, v_accumulate's form of FMA, and
 * floating-point exceptions.
 */
#ifndef TAPER_EMULATION_AVX512_H
#define TAPER_EMULATION_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <stdint.h>
#include <string.h>

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "the emulation computes with AVX2, FMA and F16C"
#endif
#ifdef __AVX512F__
#error "there is nothing to emulate"
#endif
#define __AVX512F__ 1 /* which selects the sources of the level */
#define TAPER_EMULATED

#define EMULATED static inline __attribute__((always_inline, unused))

typedef union emulated_vector {
    __m512 ps;
    __m512i si;
    __m256 half_ps[2];
    __m256i half_si[2];
    __m128i quarter_si[4];
    float lane[16];
} emulated_vector;

/* Conversions: AVX2's, of each half. */
EMULATED __m512 emulated_cvtepi32_ps(__m512i a) {
    emulated_vector v = {.si = a};
    for (int i = 0; i < 2; i++)
        v.half_ps[i] = _mm256_cvtepi32_ps(v.half_si[i]);
    return v.ps;
}
EMULATED __m512i emulated_cvtps_epi32(__m512 a) {
    emulated_vector v = {.ps = a};
    for (int i = 0; i < 2; i++)
        v.half_si[i] = _mm256_cvtps_epi32(v.half_ps[i]);
    return v.si;
}
EMULATED __m512i emulated_cvtepi8_epi32(__m128i a) {
    const emulated_vector v = {
        .half_si = {_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))}};
    return v.si;
}
EMULATED __m512i emulated_cvtepu16_epi32(__m256i a) {
    const emulated_vector v = {.half_si = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                                           _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))}};
    return v.si;
}
EMULATED __m512 emulated_cvtph_ps(__m256i a) {
    const emulated_vector v = {.half_ps = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                                           _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))}};
    return v.ps;
}
EMULATED __m512i emulated_srai_epi32(__m512i a, unsigned n) {
    emulated_vector v = {.si = a};
    for (int i = 0; i < 2; i++)
        v.half_si[i] = _mm256_sra_epi32(v.half_si[i], _mm_cvtsi32_si128((int)n));
    return v.si;
}

/* Dot products. They are not inlined: tiles have dozens of each. SIMDe's alias of the first has the
 * arguments of the masked one. */
#define EMULATED_CALL static __attribute__((noinline, unused))
EMULATED_CALL __m512i emulated_madd_epi16(__m512i a, __m512i b) {
    emulated_vector v = {.si = a};
    const emulated_vector by = {.si = b};
    for (int i = 0; i < 2; i++)
        v.half_si[i] = _mm256_madd_epi16(v.half_si[i], by.half_si[i]);
    return v.si;
}
EMULATED_CALL __m512i emulated_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
    emulated_vector v = {.si = sums};
    const emulated_vector x = {.si = a}, y = {.si = b};
    for (int i = 0; i < 4; i++) {
        const __m256i pairs = _mm256_madd_epi16(_mm256_cvtepu8_epi16(x.quarter_si[i]),
                                                _mm256_cvtepi8_epi16(y.quarter_si[i]));
        const __m128i dots =
            _mm_hadd_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        v.quarter_si[i] = _mm_add_epi32(v.quarter_si[i], dots);
    }
    return v.si;
}

/* Masked loads and stores: memory whose lane is off is not touched. */
EMULATED __m512 emulated_maskz_loadu_ps(__mmask16 k, const void *p) {
    emulated_vector v;
    for (int i = 0; i < 16; i++) {
        v.lane[i] = 0.0f;
        if (k >> i & 1)
            memcpy(&v.lane[i], (const char *)p + i * sizeof(float), sizeof(float));
    }
    return v.ps;
}
EMULATED void emulated_mask_storeu_ps(void *p, __mmask16 k, __m512 a) {
    const emulated_vector v = {.ps = a};
    for (int i = 0; i < 16; i++)
        if (k >> i & 1)
            memcpy((char *)p + i * sizeof(float), &v.lane[i], sizeof(float));
}

/* Over lanes, in the order of GCC's and Clang's sequences: halves, halves of them, and so on. */
#define EMULATED_REDUCE(name, of_halves, of_quarters)                                              \
    EMULATED float emulated_reduce_##name(__m512 a) {                                              \
        const emulated_vector v = {.ps = a};                                                       \
        const __m256 eight = of_halves(v.half_ps[1], v.half_ps[0]);                                \
        __m128 r = of_quarters(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));    \
        r = of_quarters(r, _mm_permute_ps(r, 0x4e));                                               \
        return _mm_cvtss_f32(of_quarters(r, _mm_permute_ps(r, 0xb1)));                             \
    }
EMULATED_REDUCE(add_ps, _mm256_add_ps, _mm_add_ps)
EMULATED_REDUCE(max_ps, _mm256_max_ps, _mm_max_ps)

/* SIMDe's leaves the sign of -0. */
EMULATED __m512 emulated_abs_ps(__m512 a) {
    emulated_vector v = {.ps = a};
    for (int i = 0; i < 2; i++)
        v.half_ps[i] = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v.half_ps[i]);
    return v.ps;
}

/* VRNDSCALEPS with no bit of the fraction kept: AVX's rounding, which is a constant. SIMDe 0.7
 * takes a sum of flags for a number of bits. */
#define EMULATED_ROUND(name, rounding)                                                             \
    EMULATED __m512 emulated_##name(__m512 a) {                                                    \
        emulated_vector v = {.ps = a};                                                             \
        for (int i = 0; i < 2; i++)                                                                \
            v.half_ps[i] = _mm256_round_ps(v.half_ps[i], (rounding) | _MM_FROUND_NO_EXC);          \
        return v.ps;                                                                               \
    }
EMULATED_ROUND(round, _MM_FROUND_TO_NEAREST_INT)
EMULATED_ROUND(floor, _MM_FROUND_TO_NEG_INF)
EMULATED_ROUND(ceil, _MM_FROUND_TO_POS_INF)
EMULATED_ROUND(trunc, _MM_FROUND_TO_ZERO)
EMULATED __m512 emulated_roundscale_ps(__m512 a, const int flags) {
    switch (flags & ~_MM_FROUND_NO_EXC) {
    case _MM_FROUND_TO_NEAREST_INT:
        return emulated_round(a);
    case _MM_FROUND_TO_NEG_INF:
        return emulated_floor(a);
    case _MM_FROUND_TO_POS_INF:
        return emulated_ceil(a);
    case _MM_FROUND_TO_ZERO:
        return emulated_trunc(a);
    default: /* the kernels use no other */
        __builtin_trap();
    }
}

/* VREDUCEPS with no bit of the fraction kept: a - round(a), and 0 for infinities. */
EMULATED __m512 emulated_reduce_ps(__m512 a, const int flags) {
    emulated_vector v = {.ps = a};
    const emulated_vector whole = {.ps = emulated_roundscale_ps(a, flags)};
    for (int i = 0; i < 2; i++) {
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v.half_ps[i]);
        const __m256 infinite = _mm256_cmp_ps(size, _mm256_set1_ps(__builtin_inff()), _CMP_EQ_OQ);
        v.half_ps[i] = _mm256_andnot_ps(infinite, _mm256_sub_ps(v.half_ps[i], whole.half_ps[i]));
    }
    return v.ps;
}

/* VSCALEFPS: a * 2^floor(b), rounded once. In float64 the product is exact: beyond 2^-300 and 2^300
 * every float32 is 0 or infinite. Where b is infinite, NaN too becomes 0 or infinite. */
EMULATED __m512 emulated_scalef_ps(__m512 a, __m512 b) {
    emulated_vector v = {.ps = a};
    const emulated_vector by = {.ps = b};
    for (int i = 0; i < 16; i++) {
        const float n = by.lane[i];
        const int64_t whole = n != n ? 0 : n > 300.0f ? 300 : n < -300.0f ? -300 : (int)n;
        const int64_t exponent = 1023 + whole - ((float)whole > n && n >= -300.0f);
        const union {
            int64_t bits;
            double value;
        } power = {exponent << 52};
        const double factor = n != n || n == __builtin_inff() ? (double)n
                              : n == -__builtin_inff()        ? 0.0
                                                              : power.value;
        const float x = v.lane[i], at_infinity = n > 0.0f ? n : 0.0f;
        v.lane[i] = x != x && n - n != 0.0f && n == n ? at_infinity : (float)(x * factor);
    }
    return v.ps;
}

#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(a) emulated_cvtps_epi32(a)
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(a) emulated_cvtepi8_epi32(a)
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(a) emulated_cvtepu16_epi32(a)
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) emulated_cvtph_ps(a)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, n) emulated_srai_epi32(a, n)
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(k, p) emulated_maskz_loadu_ps(k, p)
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(p, k, a) emulated_mask_storeu_ps(p, k, a)
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps(a) emulated_reduce_add_ps(a)
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps(a) emulated_reduce_max_ps(a)
#undef _mm512_reduce_ps
#define _mm512_reduce_ps(a, flags) emulated_reduce_ps(a, flags)
#undef _mm512_abs_ps
#define _mm512_abs_ps(a) emulated_abs_ps(a)
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, flags) emulated_roundscale_ps(a, flags)
#undef _mm512_shuffle_f32x4 /* SIMDe has it by its own name alone */
#define _mm512_shuffle_f32x4(a, b, parts) simde_mm512_shuffle_f32x4(a, b, parts)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) emulated_madd_epi16(a, b)
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sums, a, b) emulated_dpbusd_epi32(sums, a, b)
#undef _mm512_scalef_ps
#define _mm512_scalef_ps(a, b) emulated_scalef_ps(a, b)
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps(k, a, b) _mm512_maskz_mov_ps(k, emulated_scalef_ps(a, b))

/* The tiles of a thread, for simd/tiles.h. */
typedef struct emulated_tiles {
    uint8_t rows[8];
    uint16_t row_bytes[8];
    uint8_t bytes[8][16][64];
} emulated_tiles;
static __thread emulated_tiles emulated_tile __attribute__((unused));

/* Aborts where the hardware would raise an exception: the configuration is part of the code. */
static void emulated_check(int is_right) {
    if (!is_right)
        __builtin_trap();
}
EMULATED_CALL void emulated_tile_loadconfig(const void *from) {
    const uint8_t *config = (const uint8_t *)from;
    memset(&emulated_tile, 0, sizeof emulated_tile);
    emulated_check(config[0] == 1 && config[1] == 0);
    for (int t = 0; t < 8; t++) {
        emulated_tile.rows[t] = config[48 + t];
        memcpy(&emulated_tile.row_bytes[t], config + 16 + 2 * t, 2);
        emulated_check(config[48 + t] <= 16 && emulated_tile.row_bytes[t] <= 64);
        emulated_check((config[48 + t] == 0) == (emulated_tile.row_bytes[t] == 0));
    }
}
EMULATED_CALL void emulated_tiles_release(void) { memset(&emulated_tile, 0, sizeof emulated_tile); }
EMULATED_CALL void emulated_tile_loadd(int t, const void *from, size_t stride) {
    emulated_check(emulated_tile.rows[t] > 0);
    memset(emulated_tile.bytes[t], 0, sizeof emulated_tile.bytes[t]);
    for (int r = 0; r < emulated_tile.rows[t]; r++)
        memcpy(emulated_tile.bytes[t][r], (const char *)from + (size_t)r * stride,
               emulated_tile.row_bytes[t]);
}
EMULATED_CALL void emulated_tile_stored(int t, void *to, size_t stride) {
    emulated_check(emulated_tile.rows[t] > 0);
    for (int r = 0; r < emulated_tile.rows[t]; r++)
        memcpy((char *)to + (size_t)r * stride, emulated_tile.bytes[t][r],
               emulated_tile.row_bytes[t]);
}
EMULATED_CALL void emulated_tile_dpbusd(int t, int a, int b) {
    emulated_tiles *const e = &emulated_tile;
    emulated_check(e->rows[t] > 0 && e->rows[a] == e->rows[t] &&
                   e->row_bytes[b] == e->row_bytes[t] && e->row_bytes[a] == 4 * e->rows[b]);
    for (int r = 0; r < e->rows[t]; r++)
        for (int n = 0; n < e->row_bytes[t] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, e->bytes[t][r] + 4 * n, 4);
            for (int k = 0; k < e->row_bytes[a]; k++)
                sum +=
                    (uint32_t)((int)e->bytes[a][r][k] * (int8_t)e->bytes[b][k / 4][4 * n + k % 4]);
            memcpy(e->bytes[t][r] + 4 * n, &sum, 4);
        }
}
#endif /* TAPER_EMULATION_AVX512_H */
