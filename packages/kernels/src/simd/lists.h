/* Loads floats, or runs of some, from places that lie in memory; picks elements of 16 bits. */
#ifndef TAPER_SIMD_LISTS_H
#define TAPER_SIMD_LISTS_H

#include "simd/simd.h"

/* Reads a place by itself: compilers would load several as a vector and take it apart again. */
V_INLINE int64_t v_place(const int32_t *at) { return *(const volatile int32_t *)at; }

/*
 * v_at returns a vector whose lane i is p[at[i]]: loads of single floats, which take less time than
 * a gather where the places lie in memory. v_pairs_at and v_quads_at list the 2 or 4 floats from
 * p[at[i]] on: lane i of to[k] is p[at[i] + k].
 */
#if !defined(TAPER_SCALAR) && defined(__SSE4_1__) && !defined(TAPER_EMULATED)
#if V_LEN == 16
#define V_PER_PART(name, ...) _mm512_##name(__VA_ARGS__)
#elif V_LEN == 8
#define V_PER_PART(name, ...) _mm256_##name(__VA_ARGS__)
#else
#define V_PER_PART(name, ...) _mm_##name(__VA_ARGS__)
#endif

V_INLINE vf v_join_parts(const __m128 *part) {
#if V_LEN == 16
    const vf low =
        _mm512_castps256_ps512(_mm256_insertf128_ps(_mm256_castps128_ps256(part[0]), part[1], 1));
    const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(part[2]), part[3], 1);
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(low), _mm256_castps_pd(high), 1));
#elif V_LEN == 8
    return _mm256_insertf128_ps(_mm256_castps128_ps256(part[0]), part[1], 1);
#else
    return part[0];
#endif
}

V_INLINE vf v_at(const float *p, const int32_t *at) {
    __m128 part[V_LEN / 4];
#pragma GCC unroll 4
    for (int k = 0; k < V_LEN / 4; k++, at += 4) {
        part[k] = _mm_load_ss(p + v_place(at));
        part[k] = _mm_insert_ps(part[k], _mm_load_ss(p + v_place(at + 1)), 0x10);
        part[k] = _mm_insert_ps(part[k], _mm_load_ss(p + v_place(at + 2)), 0x20);
        part[k] = _mm_insert_ps(part[k], _mm_load_ss(p + v_place(at + 3)), 0x30);
    }
    return v_join_parts(part);
}

V_INLINE __m128 v_two_pairs(const float *p, const int32_t *at) {
    const float *const first = p + v_place(at), *const second = p + v_place(at + 1);
    const __m128i low = _mm_loadl_epi64((const void *)first);
    return _mm_loadh_pi(_mm_castsi128_ps(low), (const void *)second);
}

V_INLINE void v_pairs_at(vf to[2], const float *p, const int32_t *at) {
    __m128 part[2][V_LEN / 4];
#pragma GCC unroll 4
    for (int k = 0; k < V_LEN / 4; k++, at += 4) {
        part[0][k] = v_two_pairs(p, at);
        part[1][k] = v_two_pairs(p, at + 2);
    }
    const vf a = v_join_parts(part[0]), b = v_join_parts(part[1]);
    to[0] = V_PER_PART(shuffle_ps, a, b, 0x88);
    to[1] = V_PER_PART(shuffle_ps, a, b, 0xdd);
}

V_INLINE void v_quads_at(vf to[4], const float *p, const int32_t *at) {
    vf point[4]; /* one of each part's four */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m128 part[V_LEN / 4];
#pragma GCC unroll 4
        for (int k = 0; k < V_LEN / 4; k++)
            part[k] = _mm_loadu_ps(p + v_place(at + 4 * k + i));
        point[i] = v_join_parts(part);
    }
    const vf a = V_PER_PART(unpacklo_ps, point[0], point[1]);
    const vf b = V_PER_PART(unpacklo_ps, point[2], point[3]);
    const vf c = V_PER_PART(unpackhi_ps, point[0], point[1]);
    const vf d = V_PER_PART(unpackhi_ps, point[2], point[3]);
    to[0] = V_PER_PART(shuffle_ps, a, b, 0x44);
    to[1] = V_PER_PART(shuffle_ps, a, b, 0xee);
    to[2] = V_PER_PART(shuffle_ps, c, d, 0x44);
    to[3] = V_PER_PART(shuffle_ps, c, d, 0xee);
}
#else
V_INLINE void v_list_at(vf *to, const float *p, const int32_t *at, int count) {
    float lanes[V_LEN];
    for (int k = 0; k < count; k++) {
        for (int i = 0; i < V_LEN; i++)
            lanes[i] = p[at[i] + k];
        to[k] = v_load(lanes);
    }
}
V_INLINE vf v_at(const float *p, const int32_t *at) {
    vf to;
    v_list_at(&to, p, at, 1);
    return to;
}
V_INLINE void v_pairs_at(vf to[2], const float *p, const int32_t *at) { v_list_at(to, p, at, 2); }
V_INLINE void v_quads_at(vf to[4], const float *p, const int32_t *at) { v_list_at(to, p, at, 4); }
#endif

#if V_LEN == 16
/* Element i of 16 bits is element index[i] of a and b, which have 64 together. */
#define VI_PICK_16(a, b, index) _mm512_permutex2var_epi16(a, index, b)
#endif

#endif /* TAPER_SIMD_LISTS_H */
