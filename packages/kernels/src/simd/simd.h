/*
 * The vector layer: one float vector type `vf` of V_LEN lanes, its int32 twin `vi` and a lane mask
 * `vm`, with the same functions on every level. One header per level implements it:
 *
 *   simd_avx512.h 16 lanes, simd_avx2.h 8, simd_sse4.h 4, simd_neon.h 4, simd_scalar.h 4
 *
 * Rules: v_fma is one rounding on AVX2, AVX-512 and NEON and two on SSE4 and scalar; nothing else
 * contracts (-ffp-contract=off). v_max and v_min return the second operand when either is NaN.
 * Loads and stores need no alignment. *_n variants touch only the first n lanes, 0 <= n <= V_LEN,
 * and fill the rest with zero. Reductions over lanes have one fixed order per level. v_transpose
 * swaps r[i] lane j with r[j] lane i; lane i of v_permute is lane index[i], in [0, V_LEN), of a.
 * V_REGISTERS is how many vector registers the level has. *_low variants are for the lower half of
 * the lanes: they touch no other memory, and the other lanes of what they return are not specified.
 *
 * A vector's 16-byte parts: vi_load_parts takes part i from p + i * step (bytes), vi_load_parts_at
 * from p + at[i]; vi_zip_low_<bits> interleaves the elements of the lower 8 bytes of each part of a
 * and b, vi_zip_high_<bits> those of the upper 8. vi_shuffle_8 takes byte index[i] of a's part for
 * byte i of a part, and 0 where index[i] is VI_NO_BYTE. Each part of vi_pack_bytes has the lanes of
 * that part of a, then of b, c and d, each clamped to 0 to 255. vi_max_u8 compares unsigned bytes.
 *
 * Elements of 16 bits: vi_widen_i8 loads 2 * V_LEN int8 as int16; vi_spread_64 repeats 8 bytes in
 * all of the vector; lane i of vi_madd_16 is the sum of the products of elements 2i and 2i + 1 of a
 * and b, which is exact unless all four are -2^15. VI_DOT_U7, where a level has it, adds to each
 * lane of the sums the 4 products of bytes of that lane: unsigned ones of a, up to 127, and int8 of
 * b. vi_pairs_u7 has the sums of two neighbouring such products, as 16 bits each; vi_pairs_i8 those
 * of int8 of a and b, of which b is from -127 on. vi_add_16 adds elements of 16 bits.
 */
#ifndef TAPER_SIMD_H
#define TAPER_SIMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define V_INLINE static inline __attribute__((always_inline, unused))

enum { VI_NO_BYTE = 0x80 };

#if defined(TAPER_SCALAR)
#include "simd/simd_scalar.h"
#elif defined(__AVX512F__)
#include "simd/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd/simd_avx2.h"
#elif defined(__SSE4_1__)
#include "simd/simd_sse4.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include "simd/simd_neon.h"
#else
#include "simd/simd_scalar.h"
#endif

/* The functions below are the same on every level. */

/* a * b + c with the product's sign flipped: c - a * b. */
V_INLINE vf v_neg(vf a) { return v_xor_sign(a, v_set1(-0.0f)); }
V_INLINE vf v_fnma(vf a, vf b, vf c) { return v_fma(v_neg(a), b, c); }
V_INLINE vm v_isnan(vf a) { return v_unord(a, a); }

/* max and min as in torch: NaN if either operand is NaN, and a where the two are equal. */
V_INLINE vf v_max_nan(vf a, vf b) { return v_select(v_isnan(b), b, v_max(b, a)); }
V_INLINE vf v_min_nan(vf a, vf b) { return v_select(v_isnan(b), b, v_min(b, a)); }

/* The first n lanes, 0 <= n <= V_LEN; and a load of them with the rest taken from fill. */
V_INLINE vm vm_first(int64_t n) {
    static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return v_lt(v_load(lane), v_set1((float)n));
}
V_INLINE vf v_load_fill(const float *p, int64_t n, vf fill) {
    return v_select(vm_first(n), v_load_n(p, n), fill);
}

/* vi_sar by a count that need not be constant. */
V_INLINE vi vi_sar_by(vi a, int n) {
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(TAPER_SCALAR)
    return vshlq_s32(a, vdupq_n_s32(-n));
#else
    return vi_sar(a, n);
#endif
}

#ifndef V_ACCUMULATE
V_INLINE vf v_accumulate(vf a, vf b, vf sum) { return v_fma(a, b, sum); }
#endif
#ifndef V_ACCUMULATE_SPREAD
V_INLINE vf v_accumulate_spread(const float *a, vf b, vf sum) {
    return v_accumulate(v_set1(*a), b, sum);
}
#endif

#ifndef V_LOW
V_INLINE vf v_load_low(const float *p) { return v_load_n(p, V_LEN / 2); }
V_INLINE void v_store_low(float *p, vf a) { v_store_n(p, a, V_LEN / 2); }
V_INLINE vf v_accumulate_low(vf a, vf b, vf sum) { return v_accumulate(a, b, sum); }
V_INLINE vf v_accumulate_spread_low(const float *a, vf b, vf sum) {
    return v_accumulate_spread(a, b, sum);
}
#endif

/* Writes the sums of four vectors; each has the bits of v_sum. */
#ifndef V_SUM_4
V_INLINE void v_sum_4(const vf *x, float *to) {
    for (int i = 0; i < 4; i++)
        to[i] = v_sum(x[i]);
}
#endif

/* Returns a vector whose lane i is p[index[i]]. */
V_INLINE vf v_gather(const float *p, vi index) {
#if V_LEN == 8 && !defined(TAPER_EMULATED)
    return _mm256_i32gather_ps(p, index, sizeof *p);
#elif V_LEN == 16 && !defined(TAPER_EMULATED)
    return _mm512_i32gather_ps(index, p, sizeof *p);
#else
    int32_t at[V_LEN];
    float lanes[V_LEN];
    vi_store(at, index);
    for (int i = 0; i < V_LEN; i++)
        lanes[i] = p[at[i]];
    return v_load(lanes);
#endif
}

/* Keeps x in a register: compilers would load it again at each of its few uses. */
V_INLINE vf v_in_register(vf x) {
#if !defined(TAPER_SCALAR) && defined(__SSE4_1__) && !defined(TAPER_EMULATED)
    __asm__("" : "+v"(x));
#elif !defined(TAPER_SCALAR) && defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

#if V_LEN < 16
/* Returns a * 2^n for integral n in [-250, 250], rounded once unless a * 2^(n / 2) is a denormal.
 * AVX-512 has an instruction for it; the other levels use two factors, because 2^n may be out of
 * range. */
V_INLINE vf v_ldexp(vf a, vf n) {
    const vi whole = v_to_int(n), half = vi_sar(whole, 1), bias = vi_set1(127);
    const vf low = v_as_float(vi_shl(vi_add(half, bias), 23));
    const vf high = v_as_float(vi_shl(vi_add(vi_sub(whole, half), bias), 23));
    return v_mul(v_mul(a, low), high);
}

/* Returns a - v_round(a); the result for infinities is not specified. */
V_INLINE vf v_fraction(vf a) { return v_sub(a, v_round(a)); }

/* Returns a * 2^n for integral n where a and the result are normal; NaN for NaN. Elsewhere the
 * result is not specified. */
V_INLINE vf v_ldexp_normal(vf a, vf n) {
    return v_as_float(vi_add(v_as_int(a), vi_shl(v_to_int(n), 23)));
}

/* Returns a * 2^n for a in [0.5, 2) and a normal result, and 0 in lanes where `zero` is set. There
 * are no denormals on the way, each of which would cost a hundred cycles. */
V_INLINE vf v_ldexp_unless(vm zero, vf a, vf n) {
    return v_select(zero, v_zero(), v_ldexp_normal(a, n));
}
#endif

#endif /* TAPER_SIMD_H */
