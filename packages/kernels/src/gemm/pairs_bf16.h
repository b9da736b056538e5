/*
 * Products of bfloat16 by the dot instruction of AVX512_BF16: A is rounded to bfloat16.
 *
 * To each sum, vdpbf16ps adds the product of the upper halves of two words, then that of the lower
 * halves, each by an FMA. A product of two bfloat16 has 16 bits and is exact in float32. So with
 * the even k in the upper half and the odd one in the lower half, a sum has the bits of the FMAs of
 * float32 tiles in the order of k, and of multiplications and additions as well: the same on every
 * level. Only numbers below 2^-126, which the instruction takes for zero, can differ.
 *
 * A word of such a pair has the size of a float, and a line of B in panels, two k of 16 bfloat16,
 * that of 16 floats. So the tiles of gemm_f32.inl compute these blocks (gemm_block.pairs), with
 * half as many k.
 */
#ifndef TAPER_PAIRS_BF16_H
#define TAPER_PAIRS_BF16_H

#include <string.h>

#include "simd/narrow.h"

#if V_LEN == 16
#define HAS_PAIRS

/* Returns the pairs of 16 columns: of two lines of B, one behind the other. */
V_INLINE vf pairs_of_lines(const float *lines) {
    static const uint16_t order[32] = {16, 0,  17, 1,  18, 2,  19, 3,  20, 4,  21,
                                       5,  22, 6,  23, 7,  24, 8,  25, 9,  26, 10,
                                       27, 11, 28, 12, 29, 13, 30, 14, 31, 15};
    return v_as_float(_mm512_permutexvar_epi16(vi_load((const int32_t *)(const void *)order),
                                               v_as_int(v_load(lines))));
}

V_INLINE vf pairs_accumulate(vf a, vf b, vf sum) {
#ifdef TAPER_EMULATED
    const vi upper = vi_set1(-0x10000);
    sum =
        v_fma(v_as_float(vi_and(v_as_int(a), upper)), v_as_float(vi_and(v_as_int(b), upper)), sum);
    return v_fma(v_as_float(vi_shl(v_as_int(a), 16)), v_as_float(vi_shl(v_as_int(b), 16)), sum);
#else
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#endif
}
#else
#define pairs_accumulate v_accumulate
#endif

/* Rounds a row of k numbers, `stride` apart, to bfloat16: into floats, or into pairs, of which a
 * vector makes half of one. */
V_INLINE void pairs_put(float *to, const float *from, int64_t stride, int64_t k, bool pairs) {
    for (int64_t i = 0; i < k; i += V_LEN, from += V_LEN * stride) {
        const int64_t count = k - i < V_LEN ? k - i : V_LEN;
        float x[V_LEN] = {0};
        for (int64_t j = 0; stride != 1 && j < count; j++)
            x[j] = from[j * stride];
        const vf rounded = v_round_bf16(stride != 1      ? v_load(x)
                                        : count == V_LEN ? v_load(from)
                                                         : v_load_n(from, count));
#ifdef HAS_PAIRS
        if (pairs) {
            const __m512i two = v_as_int(rounded), upper = _mm512_set1_epi64(0xffff0000);
            const __m512i words =
                _mm512_or_si512(_mm512_srli_epi64(two, 48), _mm512_and_si512(two, upper));
            const __m256i packed = _mm512_cvtepi64_epi32(words);
            memcpy(to + i / 2, &packed, (size_t)count / 2 * sizeof *to);
            continue;
        }
#endif
        (void)pairs;
        v_store_n(to + i, rounded, count);
    }
}

#endif /* TAPER_PAIRS_BF16_H */
