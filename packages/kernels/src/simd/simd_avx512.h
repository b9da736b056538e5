/* AVX-512 F+BW+DQ+VL: 16 lanes, masks in mask registers. */
#include <immintrin.h>

#define V_LEN 16
#define V_REGISTERS 32
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

V_INLINE vm v_first_n(int64_t n) { return (vm)((1u << n) - 1u); }

V_INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
V_INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
V_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
V_INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
V_INLINE vf v_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(v_first_n(n), p); }
V_INLINE void v_store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, v_first_n(n), a); }

V_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
#ifndef TAPER_EMULATED
/* The same, in the register of sum: compilers also use the other forms of FMA, and then need a
 * move. */
V_INLINE vf v_accumulate(vf a, vf b, vf sum) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
/* The FMA itself loads *a and broadcasts it: one instruction where the value has one use. */
#define V_ACCUMULATE_SPREAD
V_INLINE vf v_accumulate_spread(const float *a, vf b, vf sum) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
}
/* Of 256 bits: CPUs that compute the halves of a vector one after the other take half the time. */
#define V_LOW
V_INLINE vf v_load_low(const float *p) { return _mm512_castps256_ps512(_mm256_loadu_ps(p)); }
V_INLINE void v_store_low(float *p, vf a) { _mm256_storeu_ps(p, _mm512_castps512_ps256(a)); }
/* Operands are vectors of 256 bits: clang's %t names no register from zmm16 on. */
V_INLINE vf v_accumulate_low(vf a, vf b, vf sum) {
    __m256 low = _mm512_castps512_ps256(sum);
    __asm__("vfmadd231ps %2, %1, %0"
            : "+v"(low)
            : "v"(_mm512_castps512_ps256(a)), "v"(_mm512_castps512_ps256(b)));
    return _mm512_castps256_ps512(low);
}
V_INLINE vf v_accumulate_spread_low(const float *a, vf b, vf sum) {
    __m256 low = _mm512_castps512_ps256(sum);
    __asm__("vfmadd231ps %2%{1to8%}, %1, %0" : "+v"(low) : "v"(_mm512_castps512_ps256(b)), "m"(*a));
    return _mm512_castps256_ps512(low);
}
#define V_ACCUMULATE
#endif
V_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
V_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
V_INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
V_INLINE vf v_abs(vf a) { return _mm512_abs_ps(a); }
/* a with its sign flipped where sign has its sign bit set. */
V_INLINE vf v_xor_sign(vf a, vf sign) {
    return _mm512_xor_ps(a, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
/* magnitude of a, sign of sign. */
V_INLINE vf v_copysign(vf a, vf sign) {
    return _mm512_or_ps(_mm512_abs_ps(a), _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
V_INLINE vf v_round(vf a) { /* to nearest, ties to even */
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE vf v_floor(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
V_INLINE vf v_ceil(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
V_INLINE vf v_trunc(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

V_INLINE vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
V_INLINE vm v_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
V_INLINE vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
V_INLINE vm v_unord(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
V_INLINE vm vm_and(vm a, vm b) { return a & b; }
V_INLINE vm vm_or(vm a, vm b) { return a | b; }
V_INLINE vm vm_not(vm a) { return (vm)~a; }
V_INLINE bool vm_any(vm a) { return a != 0; }
V_INLINE vf v_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); } /* m ? a : b */

V_INLINE vi v_as_int(vf a) { return _mm512_castps_si512(a); }
V_INLINE vf v_as_float(vi a) { return _mm512_castsi512_ps(a); }
V_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
V_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
V_INLINE void vi_store(int32_t *p, vi a) { _mm512_storeu_si512(p, a); }
V_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
V_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
V_INLINE vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); } /* the low 32 bits */
V_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
V_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)                 /* logical */
#define vi_sar(a, n) _mm512_srai_epi32(a, n)                 /* arithmetic */
V_INLINE vi v_to_int(vf a) { return _mm512_cvtps_epi32(a); } /* to nearest even */
V_INLINE vf v_from_int(vi a) { return _mm512_cvtepi32_ps(a); }

V_INLINE vf v_fraction(vf a) { return _mm512_reduce_ps(a, _MM_FROUND_TO_NEAREST_INT); }
V_INLINE vf v_ldexp(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a * 2^floor(n) */
V_INLINE vf v_ldexp_normal(vf a, vf n) { return v_ldexp(a, n); }
V_INLINE vf v_ldexp_unless(vm zero, vf a, vf n) { return _mm512_maskz_scalef_ps((vm)~zero, a, n); }

V_INLINE vi vi_widen_i8(const int8_t *p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
V_INLINE vi vi_spread_64(int64_t x) { return _mm512_set1_epi64(x); }
V_INLINE vi vi_madd_16(vi a, vi b) { return _mm512_madd_epi16(a, b); }
V_INLINE vi vi_add_16(vi a, vi b) { return _mm512_add_epi16(a, b); }
V_INLINE vi vi_pairs_u7(vi a, vi b) { return _mm512_maddubs_epi16(a, b); }
V_INLINE vi vi_pairs_i8(vi a, vi b) {
    const vi zero = _mm512_setzero_si512();
    return _mm512_maddubs_epi16(_mm512_abs_epi8(a),
                                _mm512_mask_sub_epi8(b, _mm512_movepi8_mask(a), zero, b));
}
#define VI_DOT_U7(sums, a, b)                                                                      \
    vi_add(sums, vi_madd_16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)))

V_INLINE vi vi_load_parts(const void *p, int64_t step) {
    const __m128i *a = p, *b = (const void *)((const char *)p + step);
    const __m128i *c = (const void *)((const char *)p + 2 * step);
    const __m128i *d = (const void *)((const char *)p + 3 * step);
    vi r = _mm512_castsi128_si512(_mm_loadu_si128(a));
    r = _mm512_inserti64x2(r, _mm_loadu_si128(b), 1);
    r = _mm512_inserti64x2(r, _mm_loadu_si128(c), 2);
    return _mm512_inserti64x2(r, _mm_loadu_si128(d), 3);
}
V_INLINE vi vi_load_parts_at(const void *p, const int32_t *at) {
    const char *const bytes = p;
    const __m128i *a = (const void *)(bytes + at[0]), *b = (const void *)(bytes + at[1]);
    const __m128i *c = (const void *)(bytes + at[2]), *d = (const void *)(bytes + at[3]);
    vi r = _mm512_castsi128_si512(_mm_loadu_si128(a));
    r = _mm512_inserti64x2(r, _mm_loadu_si128(b), 1);
    r = _mm512_inserti64x2(r, _mm_loadu_si128(c), 2);
    return _mm512_inserti64x2(r, _mm_loadu_si128(d), 3);
}
V_INLINE vi vi_shuffle_8(vi a, vi index) { return _mm512_shuffle_epi8(a, index); }
V_INLINE vi vi_pack_bytes(vi a, vi b, vi c, vi d) {
    return _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
}
V_INLINE vi vi_max_u8(vi a, vi b) { return _mm512_max_epu8(a, b); }
V_INLINE vi vi_zip_low_8(vi a, vi b) { return _mm512_unpacklo_epi8(a, b); }
V_INLINE vi vi_zip_low_16(vi a, vi b) { return _mm512_unpacklo_epi16(a, b); }
V_INLINE vi vi_zip_low_32(vi a, vi b) { return _mm512_unpacklo_epi32(a, b); }
V_INLINE vi vi_zip_low_64(vi a, vi b) { return _mm512_unpacklo_epi64(a, b); }
V_INLINE vi vi_zip_high_8(vi a, vi b) { return _mm512_unpackhi_epi8(a, b); }
V_INLINE vi vi_zip_high_16(vi a, vi b) { return _mm512_unpackhi_epi16(a, b); }
V_INLINE vi vi_zip_high_32(vi a, vi b) { return _mm512_unpackhi_epi32(a, b); }
V_INLINE vi vi_zip_high_64(vi a, vi b) { return _mm512_unpackhi_epi64(a, b); }

V_INLINE vf v_permute(vf a, vi index) { return _mm512_permutexvar_ps(index, a); }

V_INLINE void v_transpose(vf r[V_LEN]) {
    vf t[V_LEN];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) { /* pairs of rows: 2x2 blocks */
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) { /* 4x4 blocks, one in each 128-bit lane */
        const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) { /* then the 4x4 blocks among themselves */
        const vf a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        const vf b = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        const vf c = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        const vf d = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
}

V_INLINE float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
#define V_SUM_4
V_INLINE void v_sum_4(const vf *x, float *to) { /* adds halves, then quarters, as v_sum does */
    const vf ab = _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44),
                                _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    const vf cd = _mm512_add_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44),
                                _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    const vf four =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const vf two = _mm512_add_ps(four, _mm512_shuffle_ps(four, four, 0x4e));
    const vf one = _mm512_add_ps(two, _mm512_shuffle_ps(two, two, 0xb1)); /* a - - - b - - - ... */
    _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
}
V_INLINE float v_hmax(vf a) { return _mm512_reduce_max_ps(a); }
