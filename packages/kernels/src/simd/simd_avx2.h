/* AVX2 + FMA: 8 lanes, masks as vectors of all-ones or all-zeros. */
#include <immintrin.h>

#define V_LEN 8
#define V_REGISTERS 16
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

V_INLINE __m256i v_first_n(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

V_INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
V_INLINE vf v_zero(void) { return _mm256_setzero_ps(); }
V_INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
V_INLINE void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
V_INLINE vf v_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, v_first_n(n)); }
V_INLINE void v_store_n(float *p, vf a, int64_t n) { _mm256_maskstore_ps(p, v_first_n(n), a); }

V_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
/* The same, in the register of sum: compilers also use the other forms of FMA, and then need a
 * move. */
V_INLINE vf v_accumulate(vf a, vf b, vf sum) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
#define V_ACCUMULATE
V_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
V_INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
V_INLINE vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
V_INLINE vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
V_INLINE vf v_xor_sign(vf a, vf sign) {
    return _mm256_xor_ps(a, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
V_INLINE vf v_copysign(vf a, vf sign) {
    return _mm256_or_ps(v_abs(a), _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
V_INLINE vf v_round(vf a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE vf v_floor(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
V_INLINE vf v_ceil(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
V_INLINE vf v_trunc(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }

V_INLINE vm v_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
V_INLINE vm v_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
V_INLINE vm v_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
V_INLINE vm v_unord(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
V_INLINE vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
V_INLINE vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
V_INLINE vm vm_not(vm a) { return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1))); }
V_INLINE bool vm_any(vm a) { return _mm256_movemask_ps(a) != 0; }
V_INLINE vf v_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }

V_INLINE vi v_as_int(vf a) { return _mm256_castps_si256(a); }
V_INLINE vf v_as_float(vi a) { return _mm256_castsi256_ps(a); }
V_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
V_INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
V_INLINE void vi_store(int32_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
V_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
V_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
V_INLINE vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); } /* the low 32 bits */
V_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
V_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
#define vi_sar(a, n) _mm256_srai_epi32(a, n)
V_INLINE vi v_to_int(vf a) { return _mm256_cvtps_epi32(a); }
V_INLINE vf v_from_int(vi a) { return _mm256_cvtepi32_ps(a); }

V_INLINE vi vi_widen_i8(const int8_t *p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}
V_INLINE vi vi_spread_64(int64_t x) { return _mm256_set1_epi64x(x); }
V_INLINE vi vi_madd_16(vi a, vi b) { return _mm256_madd_epi16(a, b); }
V_INLINE vi vi_add_16(vi a, vi b) { return _mm256_add_epi16(a, b); }
V_INLINE vi vi_pairs_u7(vi a, vi b) { return _mm256_maddubs_epi16(a, b); }
V_INLINE vi vi_pairs_i8(vi a, vi b) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
}
#define VI_DOT_U7(sums, a, b)                                                                      \
    vi_add(sums, vi_madd_16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))

V_INLINE vi vi_load_parts(const void *p, int64_t step) {
    const __m128i *a = p, *b = (const void *)((const char *)p + step);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b),
                                   1);
}
V_INLINE vi vi_load_parts_at(const void *p, const int32_t *at) {
    const char *const bytes = p;
    const __m128i *a = (const void *)(bytes + at[0]), *b = (const void *)(bytes + at[1]);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b),
                                   1);
}
V_INLINE vi vi_shuffle_8(vi a, vi index) { return _mm256_shuffle_epi8(a, index); }
V_INLINE vi vi_pack_bytes(vi a, vi b, vi c, vi d) {
    return _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
}
V_INLINE vi vi_max_u8(vi a, vi b) { return _mm256_max_epu8(a, b); }
V_INLINE vi vi_zip_low_8(vi a, vi b) { return _mm256_unpacklo_epi8(a, b); }
V_INLINE vi vi_zip_low_16(vi a, vi b) { return _mm256_unpacklo_epi16(a, b); }
V_INLINE vi vi_zip_low_32(vi a, vi b) { return _mm256_unpacklo_epi32(a, b); }
V_INLINE vi vi_zip_low_64(vi a, vi b) { return _mm256_unpacklo_epi64(a, b); }
V_INLINE vi vi_zip_high_8(vi a, vi b) { return _mm256_unpackhi_epi8(a, b); }
V_INLINE vi vi_zip_high_16(vi a, vi b) { return _mm256_unpackhi_epi16(a, b); }
V_INLINE vi vi_zip_high_32(vi a, vi b) { return _mm256_unpackhi_epi32(a, b); }
V_INLINE vi vi_zip_high_64(vi a, vi b) { return _mm256_unpackhi_epi64(a, b); }

V_INLINE vf v_permute(vf a, vi index) { return _mm256_permutevar8x32_ps(a, index); }

V_INLINE void v_transpose(vf r[V_LEN]) {
    vf t[V_LEN];
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 4) { /* 4x4 blocks, one in each 128-bit lane */
        const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1]));
        const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
        const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3]));
        const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
        t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        t[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        t[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        t[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

V_INLINE float v_sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#define V_SUM_4
V_INLINE void v_sum_4(const vf *x, float *to) { /* adds halves, then quarters, as v_sum does */
    const vf ab = _mm256_add_ps(_mm256_permute2f128_ps(x[0], x[1], 0x20),
                                _mm256_permute2f128_ps(x[0], x[1], 0x31));
    const vf cd = _mm256_add_ps(_mm256_permute2f128_ps(x[2], x[3], 0x20),
                                _mm256_permute2f128_ps(x[2], x[3], 0x31));
    const vf two = _mm256_add_ps(_mm256_unpacklo_ps(ab, cd), _mm256_unpackhi_ps(ab, cd));
    const vf one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xee)); /* a c - - b d - - */
    _mm_storeu_ps(to, _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1)));
}
V_INLINE float v_hmax(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
