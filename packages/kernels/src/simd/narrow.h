/*
 * Loads that widen V_LEN narrow numbers: v_load_f16, v_load_bf16 and v_load_i8 to floats, which is
 * exact, and vi_load_u16, vi_load_i8 and vi_load_u8 to integers. v_store_f16 and v_store_bf16 round
 * to them, the first where the level has an instruction for it. v_load_u4 takes vector v of the 16
 * numbers of 4 bits in two words: number i is at bit i / 2 * 4 of word i % 2. v_load_u2 takes
 * vector v of the 16 numbers of 2 bits in a word. v_load_e4m3 and v_load_e8m0 widen floats of 8
 * bits: a sign, 4 bits of exponent and 3 of mantissa, which is not NaN; and 8 bits of exponent,
 * which are not 0.
 *
 * v_pick_* take one number of each word of V_LEN words: byte k, or what is at bits B * (k / 4) of
 * byte k % 4, for numbers of B bits. k is a constant wherever they are inlined. v_pick_i8 gives
 * 2^24 times the number, v_pick_e2m1 the number / V_UNIT_E2M1.
 */
#ifndef TAPER_SIMD_NARROW_H
#define TAPER_SIMD_NARROW_H

#include <math.h>
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
#if !defined(TAPER_EMULATED)
#define V_STORE_F16(p, x) _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(x, 0))
#endif
/* A permutation uses only 4 bits of an index, so it masks and widens at once. */
V_INLINE vf v_load_u4(const void *p, const int v) {
    int64_t words;
    memcpy(&words, p, sizeof words);
    const vi places = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    const vf values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    (void)v;
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(words), places), values);
}
V_INLINE vi vi_load_u2(const void *p, const int v) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    const vi places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    (void)v;
    return _mm512_srlv_epi32(vi_set1(word), places);
}
#elif defined(__AVX2__) && defined(__FMA__) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
V_INLINE vi vi_load_i8(const int8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
#define V_LOAD_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define V_STORE_F16(p, x) _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(x, 0))
V_INLINE vf v_load_u4(const void *p, const int v) {
    int64_t words;
    memcpy(&words, p, sizeof words);
    const vi first = _mm256_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12);
    const vi places = v == 0 ? first : _mm256_add_epi32(first, vi_set1(16));
    return v_from_int(vi_and(_mm256_srlv_epi32(_mm256_set1_epi64x(words), places), vi_set1(15)));
}
V_INLINE vi vi_load_u2(const void *p, const int v) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    const vi places = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    return _mm256_srlv_epi32(vi_set1((int32_t)(word >> 16 * v)), places);
}
#elif defined(__SSE4_1__) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) {
    return _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
}
V_INLINE vi vi_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm_cvtepi8_epi32(_mm_cvtsi32_si128(four));
}
V_INLINE vf v_load_u4(const void *p, const int v) {
    const vi words = _mm_loadl_epi64((const __m128i *)p), twice = _mm_unpacklo_epi64(words, words);
    const vi low = _mm_srli_epi32(twice, 8 * v), high = _mm_srli_epi32(twice, 8 * v + 4);
    return v_from_int(vi_and(_mm_blend_epi16(low, high, 0xf0), vi_set1(15)));
}
V_INLINE vi vi_load_u2(const void *p, const int v) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    const vi factors = _mm_setr_epi32(64, 16, 4, 1); /* shift to the left by 6, 4, 2, 0 */
    return _mm_srli_epi32(_mm_mullo_epi32(vi_set1((int32_t)(word >> 8 * v)), factors), 6);
}
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(TAPER_SCALAR)
V_INLINE vi vi_load_u16(const uint16_t *p) { return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))); }
V_INLINE vi vi_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
}
V_INLINE vf v_load_u4(const void *p, const int v) {
    uint64_t words;
    memcpy(&words, p, sizeof words);
    const int32_t places[] = {-8 * v, -8 * v, -8 * v - 4, -8 * v - 4};
    const uint32x4_t shifted =
        vshlq_u32(vreinterpretq_u32_u64(vdupq_n_u64(words)), vld1q_s32(places));
    return v_from_int(vi_and(vreinterpretq_s32_u32(shifted), vi_set1(15)));
}
V_INLINE vi vi_load_u2(const void *p, const int v) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    static const int32_t places[] = {0, -2, -4, -6};
    const uint32x4_t words = vdupq_n_u32(word >> 8 * v);
    return vreinterpretq_s32_u32(vshlq_u32(words, vld1q_s32(places)));
}
#define V_LOAD_F16(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define V_STORE_F16(p, x) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)))
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
V_INLINE vf v_load_u4(const void *p, const int v) {
    uint32_t words[2];
    memcpy(words, p, sizeof words);
    vf r;
    for (int i = 0; i < V_LEN; i++)
        r.lane[i] = (float)(words[i % 2] >> (v * V_LEN + i) / 2 * 4 & 15);
    return r;
}
V_INLINE vi vi_load_u2(const void *p, const int v) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    vi r;
    for (int i = 0; i < V_LEN; i++)
        r.lane[i] = (int32_t)(word >> 2 * (v * V_LEN + i));
    return r;
}
#endif

V_INLINE vi vi_load_words(const void *p) { return vi_load((const int32_t *)p); }

/* clang-format off */
#define V_EACH_SHIFT(X) \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
/* clang-format on */
#define V_SHIFT_BY(n)                                                                              \
    case n:                                                                                        \
        return vi_shr(w, n);

/* The count of a shift is part of the instruction. */
V_INLINE vi vi_shr_by(vi w, const int count) {
    switch (count) {
        V_EACH_SHIFT(V_SHIFT_BY)
    default:
        return w;
    }
}

/* Moves byte k of each word to its highest bits; the others are 0. */
V_INLINE vi vi_pick_top(vi w, const int k) {
    return k == 3 ? vi_and(w, vi_set1(-0x1000000)) : vi_shl(vi_shr_by(w, 8 * k), 24);
}

/* Moves number k of `bits` bits to the lowest bits of its word. */
V_INLINE vi vi_pick(const void *words, const int k, const int bits) {
    return vi_shr_by(vi_load_words(words), k % 4 * 8 + k / 4 * bits);
}

V_INLINE vf v_pick_i8(const void *words, const int k) {
    return v_from_int(vi_pick_top(vi_load_words(words), k));
}

V_INLINE vf v_pick_u2(const void *words, const int k) {
    return v_from_int(vi_and(vi_pick(words, k, 2), vi_set1(3)));
}

/* A permutation uses only 4 bits of an index, so it masks and widens at once. */
V_INLINE vf v_pick_u4(const void *words, const int k) {
#if defined(__AVX512F__) && !defined(TAPER_SCALAR)
    const vf values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(vi_pick(words, k, 4), values);
#else
    return v_from_int(vi_and(vi_pick(words, k, 4), vi_set1(15)));
#endif
}

/* A number with its lowest 4 bits in lines of u4, and `more` bits in a line behind them. */
V_INLINE vf v_pick_u4_and(const void *low, const void *high, const int k, const int more) {
    const vi above = vi_and(vi_pick(high, k, more), vi_set1((1 << more) - 1));
    return v_from_int(vi_or(vi_and(vi_pick(low, k % 8, 4), vi_set1(15)), vi_shl(above, 4)));
}

/* Codes of a sign, 2 bits of exponent and 1 of mantissa. */
V_INLINE vf v_pick_e2m1(const void *words, const int k) {
#if defined(__AVX512F__) && !defined(TAPER_SCALAR)
#define V_UNIT_E2M1 1
    const vf values =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(vi_pick(words, k, 4), values);
#else
#define V_UNIT_E2M1 0x1p-25f
    static const int8_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const vi codes = vi_shr_by(vi_load_words(words), k / 4 * 4);
    const vi found = vi_shuffle_8(vi_load_parts(twice, 0), vi_and(codes, vi_set1(0x0f0f0f0f)));
    return v_from_int(vi_pick_top(found, k % 4));
#endif
}

/* A finite float of 8 bits in the highest bits of a word. A number whose exponent is 0 is a
 * multiple of its least step: adding the first other number would round nothing. */
V_INLINE vf v_small_float(vi top, const int mantissa, const int bias) {
    const vi magnitude = vi_shr_by(vi_and(top, vi_set1(0x7f000000)), mantissa == 3 ? 4 : 3);
    const vf normal = v_as_float(vi_add(magnitude, vi_set1((127 - bias) << 23)));
    const vf least = v_as_float(vi_set1((128 - bias) << 23));
    const vf other = v_sub(v_as_float(vi_add(magnitude, vi_set1((128 - bias) << 23))), least);
    const vi value = v_as_int(v_select(v_lt(normal, least), other, normal));
    return v_as_float(vi_or(value, vi_and(top, vi_set1(INT32_MIN))));
}

V_INLINE vf v_pick_e4m3(const void *words, const int k) {
    return v_small_float(vi_pick_top(vi_load_words(words), k), 3, 7);
}

V_INLINE vf v_pick_e5m2(const void *words, const int k) {
    return v_small_float(vi_pick_top(vi_load_words(words), k), 2, 15);
}

V_INLINE vf v_load_e4m3(const int8_t *p) { return v_small_float(vi_shl(vi_load_i8(p), 24), 3, 7); }

V_INLINE vf v_load_e8m0(const int8_t *p) {
    return v_as_float(vi_and(vi_shl(vi_load_i8(p), 23), vi_set1(INT32_MAX)));
}

V_INLINE vf v_load_u2(const void *p, const int v) {
    return v_from_int(vi_and(vi_load_u2(p, v), vi_set1(3)));
}

V_INLINE vi vi_load_u8(const uint8_t *p) {
    return vi_and(vi_load_i8((const int8_t *)p), vi_set1(255));
}

V_INLINE vf v_load_i8(const int8_t *p) { return v_from_int(vi_load_i8(p)); }

V_INLINE vf v_load_bf16(const uint16_t *p) { return v_as_float(vi_shl(vi_load_u16(p), 16)); }

V_INLINE vf v_load_f16(const uint16_t *p) {
#if defined(V_LOAD_F16)
    return V_LOAD_F16(p);
#else
    /* Exponent and mantissa move to their places in a float32. A product corrects the exponent's
     * bias, and also makes a denormal normal. Infinities and NaN get the largest exponent. */
    const vi half = vi_load_u16(p), sign = vi_shl(vi_and(half, vi_set1(0x8000)), 16);
    const vi bits = vi_shl(vi_and(half, vi_set1(0x7fff)), 13);
    const vf scaled = v_mul(v_as_float(bits), v_set1(0x1p112f));
    const vf special = v_as_float(vi_or(bits, vi_set1(0x7f800000)));
    const vm finite = v_lt(v_as_float(bits), v_set1(0x1p-96f));
    return v_as_float(vi_or(sign, v_as_int(v_select(finite, scaled, special))));
#endif
}

/* Stores the lower 16 bits of each lane, of which the upper ones are 0. */
V_INLINE void vi_store_u16(uint16_t *p, vi x) {
#if V_LEN == 16 && !defined(TAPER_EMULATED)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(x));
#elif V_LEN == 8
    const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(pairs));
#else
    int32_t lanes[V_LEN];
    vi_store(lanes, x);
    for (int i = 0; i < V_LEN; i++)
        p[i] = (uint16_t)lanes[i];
#endif
}

/* Stores the lowest 8 bits of each lane. */
V_INLINE void vi_store_bytes(uint8_t *p, vi x) {
#if V_LEN == 16 && !defined(TAPER_EMULATED)
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(x));
#elif V_LEN == 8
    const __m256i first =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i parts = _mm256_shuffle_epi8(x, first);
    const __m128i low = _mm256_castsi256_si128(parts), high = _mm256_extracti128_si256(parts, 1);
    _mm_storel_epi64((__m128i *)(void *)p, _mm_unpacklo_epi32(low, high));
#elif defined(__SSE4_1__) && V_LEN == 4 && !defined(TAPER_SCALAR)
    const int32_t four = _mm_cvtsi128_si32(_mm_shuffle_epi8(
        x, _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
    memcpy(p, &four, sizeof four);
#else
    int32_t lanes[V_LEN];
    vi_store(lanes, x);
    for (int i = 0; i < V_LEN; i++)
        p[i] = (uint8_t)lanes[i];
#endif
}

/* Loads V_LEN bytes from two places, those of one beside those of the other, as 16 bits each. */
V_INLINE vi vi_pair_bytes(const void *a, const void *b, const bool is_signed) {
#if V_LEN == 16 && !defined(TAPER_EMULATED)
    const __m128i x = _mm_loadu_si128(a), y = _mm_loadu_si128(b);
    const __m256i zipped = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(x, y)),
                                                   _mm_unpackhi_epi8(x, y), 1);
    return is_signed ? _mm512_cvtepi8_epi16(zipped) : _mm512_cvtepu8_epi16(zipped);
#elif V_LEN == 8
    const __m128i zipped = _mm_unpacklo_epi8(_mm_loadl_epi64(a), _mm_loadl_epi64(b));
    return is_signed ? _mm256_cvtepi8_epi16(zipped) : _mm256_cvtepu8_epi16(zipped);
#elif defined(__SSE4_1__) && V_LEN == 4 && !defined(TAPER_SCALAR)
    int32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    const __m128i zipped = _mm_unpacklo_epi8(_mm_cvtsi32_si128(x), _mm_cvtsi32_si128(y));
    return is_signed ? _mm_cvtepi8_epi16(zipped) : _mm_cvtepu8_epi16(zipped);
#else
    int16_t pairs[2 * V_LEN];
    vi result;
    for (int i = 0; i < 2 * V_LEN; i++) {
        const uint8_t byte = ((const uint8_t *)(i % 2 ? b : a))[i / 2];
        pairs[i] = is_signed ? (int8_t)byte : byte;
    }
    memcpy(&result, pairs, sizeof result);
    return result;
#endif
}

/* Stores the lowest 8 bits of each lane of some vectors of some rows. row: from row to row. */
V_INLINE void vi_store_bytes_of(uint8_t *p, int64_t row, const vi *x, const int rows,
                                const int vectors) {
#if V_LEN == 8
    if (rows * vectors % 4 == 0 && (vectors == 2 || vectors == 4)) { /* packs join halves */
        const vi byte = vi_set1(255), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 16
        for (int v = 0; v < rows * vectors; v += 4) {
            const vi first = _mm256_packus_epi32(vi_and(x[v], byte), vi_and(x[v + 1], byte));
            const vi second = _mm256_packus_epi32(vi_and(x[v + 2], byte), vi_and(x[v + 3], byte));
            const vi packed = _mm256_packus_epi16(first, second);
            const vi bytes = _mm256_permutevar8x32_epi32(packed, order);
            uint8_t *const to = p + v / vectors * row;
            _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(bytes));
            _mm_storeu_si128((__m128i *)(void *)(vectors == 2 ? to + row : to + 16),
                             _mm256_extracti128_si256(bytes, 1));
        }
        return;
    }
#endif
#pragma GCC unroll 16
    for (int v = 0; v < rows * vectors; v++)
        vi_store_bytes(p + v / vectors * row + v % vectors * V_LEN, x[v]);
}

/* Rounds to the nearest bfloat16, to even ones where two are as near: adds half of the last place
 * kept, less one unit where that place is even. Every NaN has one result. */
V_INLINE vf v_round_bf16(vf x) {
    const vi bits = v_as_int(x), odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    const vi rounded = vi_add(bits, vi_add(odd, vi_set1(0x7fff)));
    const vf nan = v_as_float(vi_set1(0x7fc00000));
    return v_select(v_isnan(x), nan, v_as_float(vi_and(rounded, vi_set1(-0x10000))));
}
V_INLINE void v_store_bf16(uint16_t *p, vf x) {
    vi_store_u16(p, vi_shr(v_as_int(v_round_bf16(x)), 16));
}

/* Rounds to the nearest float16, to even ones where two are as near; every NaN has one result but
 * for its sign. */
#if defined(V_STORE_F16)
V_INLINE void v_store_f16(uint16_t *p, vf x) {
    V_STORE_F16(p, v_select(v_isnan(x), v_copysign(v_set1(NAN), x), x));
}
#endif

#endif /* TAPER_SIMD_NARROW_H */
