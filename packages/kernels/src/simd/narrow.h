/*
 * Loads that widen V_LEN narrow numbers: v_load_f16, v_load_bf16 and v_load_i8 to floats, which is
 * exact, and vi_load_u16 and vi_load_i8 to integers.
 */
#ifndef TAPER_SIMD_NARROW_H
#define TAPER_SIMD_NARROW_H

#include <string.h>

#include "simd/simd.h"

#if defined(__AVX512F__) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
V_INLINE vi vi_load_i8(const int8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
#define V_LOAD_F16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#elif defined(__AVX2__) && defined(__FMA__) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
V_INLINE vi vi_load_i8(const int8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
#define V_LOAD_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#elif defined(__SSE4_1__) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) {
    return _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
}
V_INLINE vi vi_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm_cvtepi8_epi32(_mm_cvtsi32_si128(four));
}
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) { return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))); }
V_INLINE vi vi_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
}
#define V_LOAD_F16(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#else
V_INLINE vi vi_load_u16(const uint16_t *p) {
    vi r;
    for (int i = 0; i < V_LEN; i++)
        r.lane[i] = p[i];
    return r;
}
V_INLINE vi vi_load_i8(const int8_t *p) {
    vi r;
    for (int i = 0; i < V_LEN; i++)
        r.lane[i] = p[i];
    return r;
}
#endif

V_INLINE vf v_load_i8(const int8_t *p) { return v_from_int(vi_load_i8(p)); }

V_INLINE vf v_load_bf16(const uint16_t *p) { return v_as_float(vi_shl(vi_load_u16(p), 16)); }

V_INLINE vf v_load_f16(const uint16_t *p) {
#if defined(V_LOAD_F16)
    return V_LOAD_F16(p);
#else
    /* Exponent and mantissa where a float32 has them, the exponent's bias put right by a product,
     * which also makes a denormal normal. Infinities and NaN get the largest exponent. */
    const vi half = vi_load_u16(p), sign = vi_shl(vi_and(half, vi_set1(0x8000)), 16);
    const vi bits = vi_shl(vi_and(half, vi_set1(0x7fff)), 13);
    const vf scaled = v_mul(v_as_float(bits), v_set1(0x1p112f));
    const vf special = v_as_float(vi_or(bits, vi_set1(0x7f800000)));
    const vm finite = v_lt(v_as_float(bits), v_set1(0x1p-96f));
    return v_as_float(vi_or(sign, v_as_int(v_select(finite, scaled, special))));
#endif
}

#endif /* TAPER_SIMD_NARROW_H */
